//! The state of each file in the folders, and what to do next: a state machine without input or output.
//!
//! A file goes from *settling* (it changed a moment ago) to *looked at* to *known*, and back whenever it changes. While a file
//! that was a plugin is inspected again, its old version stays in use. A plugin whose file is gone or no longer a plugin is
//! remembered as retired, as long as a worker uses it or until its file comes back.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Weak},
    time::{Duration, Instant, SystemTime},
};

use super::{
    Catalogue, Limits, Plugin, PluginState, Status,
    catalogue::{Knowledge, PluginFile},
    inspection::Inspected,
    scan::{Found, Scan},
};
use pensieve_protocol::{
    manifest::Manifest,
    refusal::{Refusal, RefusalKind},
};

/// The number of unused retired plugins that are listed.
const RETIRED_MAX: usize = 32;

pub(super) struct Files {
    limits: Limits,
    scan: Scan,
    files: HashMap<PathBuf, File>,
    retired: Vec<Retired>,
    published: Option<Arc<Catalogue>>,
}

#[derive(Clone, Debug)]
pub(super) struct Task {
    pub(super) found: Found,
    pub(super) before: Option<Arc<Plugin>>,
}

struct File {
    found: Found,
    /// Since when it has been as it is.
    quiet_since: Instant,
    state: FileState,
    /// The plugin that it was when it was last looked at.
    before: Option<Arc<Plugin>>,
}

enum FileState {
    Settling,
    Inspecting,
    /// It is truncated, and is refused for that if it does not grow within `patience`.
    Incomplete {
        sha256: String,
        refusal: Refusal,
    },
    Knowledge(Knowledge),
}

struct Retired {
    file: PathBuf,
    sha256: String,
    manifest: Manifest,
    plugin: Weak<Plugin>,
}

impl File {
    /// True for a file that was refused because its copy found no room, if there is room now.
    fn has_room_now(&self, free_bytes: Option<u64>) -> bool {
        let FileState::Knowledge(Knowledge::Refused { refusal, .. }) = &self.state else { return false };
        refusal.kind == RefusalKind::NoSpace && free_bytes.is_none_or(|free| free >= self.found.stamp.bytes())
    }
}

impl Files {
    pub(super) fn new(limits: Limits) -> Self {
        let (scan, files) = (Scan::default(), HashMap::new());
        Self { limits, scan, files, retired: Vec::new(), published: None }
    }

    /// Takes a new scan of the folders.
    pub(super) fn observe(&mut self, scan: Scan, now: Instant, clock: SystemTime) {
        let mut gone = std::mem::take(&mut self.files);
        let is_ruled_anew = scan.rules != self.scan.rules;
        for found in &scan.files {
            let file = match gone.remove(&found.path) {
                Some(known) if known.found == *found && !known.has_room_now(scan.free_bytes) && !is_ruled_anew => known,
                known => {
                    let first = known.is_none();
                    // A file that has lain there for long need not be waited for, unless it is seen to change.
                    let age = if first { found.stamp.age(clock) } else { Duration::ZERO };
                    let quiet_since = now.checked_sub(age).unwrap_or(now);
                    let before = known.and_then(|known| known.before);
                    File { found: found.clone(), quiet_since, state: FileState::Settling, before }
                }
            };
            self.files.insert(found.path.clone(), file);
        }
        for plugin in gone.into_values().filter_map(|file| file.before) {
            self.retire(&plugin);
        }
        self.scan = scan;
    }

    /// A file that has been quiet for long enough, if there is one; it counts as being looked at from now on.
    pub(super) fn next_task(&mut self, now: Instant) -> Option<Task> {
        for found in &self.scan.files {
            let file = self.files.get_mut(&found.path)?;
            match &file.state {
                FileState::Settling if file.quiet_since + self.limits.settle <= now => {
                    file.state = FileState::Inspecting;
                    return Some(Task { found: file.found.clone(), before: file.before.clone() });
                }
                FileState::Incomplete { sha256, refusal } if file.quiet_since + self.limits.patience <= now => {
                    let known = Knowledge::Refused { sha256: Some(sha256.clone()), refusal: refusal.clone() };
                    file.state = FileState::Knowledge(known);
                    if let Some(plugin) = file.before.take() {
                        self.retire(&plugin);
                        return self.next_task(now);
                    }
                }
                _ => {}
            }
        }
        None
    }

    /// When the next file will have been quiet for long enough.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let deadlines = self.files.values().filter_map(|file| match file.state {
            FileState::Settling => Some(file.quiet_since + self.limits.settle),
            FileState::Incomplete { .. } => Some(file.quiet_since + self.limits.patience),
            FileState::Inspecting | FileState::Knowledge(_) => None,
        });
        deadlines.min()
    }

    /// Takes the result of a task, unless the file has changed or gone since.
    pub(super) fn decide(&mut self, task: &Task, inspected: Inspected, now: Instant) {
        let Some(file) = self.files.get_mut(&task.found.path).filter(|file| file.found == task.found) else {
            return;
        };
        let known = match inspected {
            Inspected::Changed => {
                file.state = FileState::Settling;
                file.quiet_since = now;
                return;
            }
            Inspected::Incomplete { sha256, refusal } => {
                file.state = FileState::Incomplete { sha256, refusal };
                return;
            }
            Inspected::Knowledge(known) => known,
        };
        let before = file.before.take();
        if let Knowledge::Plugin(plugin) = &known {
            file.before = Some(plugin.clone());
        }
        let same = match (&before, &file.before) {
            (Some(before), Some(after)) => Arc::ptr_eq(before, after),
            _ => false,
        };
        file.state = FileState::Knowledge(known);
        if let Some(plugin) = before.filter(|_| !same) {
            self.retire(&plugin);
        }
    }

    /// The new catalogue, if it differs from the one that was published last.
    pub(super) fn changed_catalogue(&mut self) -> Option<Arc<Catalogue>> {
        let retired = self.retired();
        let refused = self.scan.refused.iter().map(|(file, refusal)| {
            let known = Knowledge::Refused { sha256: None, refusal: refusal.clone() };
            PluginFile { file: file.clone(), known }
        });
        let files = self.scan.files.iter().filter_map(|found| self.files.get(&found.path)).map(|file| {
            let known = match &file.state {
                FileState::Knowledge(known) => known.clone(),
                _ => Knowledge::Pending { before: file.before.clone() },
            };
            PluginFile { file: file.found.path.clone(), known }
        });
        let catalogue = Arc::new(Catalogue::build(&refused.chain(files).collect::<Vec<_>>(), retired));
        if self.published.as_ref().is_some_and(|published| published.equals(&catalogue)) {
            return None;
        }
        self.published = Some(catalogue.clone());
        Some(catalogue)
    }

    fn retire(&mut self, plugin: &Arc<Plugin>) {
        let (file, sha256) = (plugin.file.clone(), plugin.copy.sha256().to_owned());
        self.retired
            .insert(0, Retired { file, sha256, manifest: plugin.manifest.clone(), plugin: Arc::downgrade(plugin) });
    }

    fn retired(&mut self) -> Vec<PluginState> {
        // What was published last is dropped in a moment and must not count as a use.
        let own = |plugin: &Arc<Plugin>| {
            let published = self.published.iter().flat_map(|catalogue| catalogue.plugins());
            published.filter(|known| Arc::ptr_eq(known, plugin)).count()
        };
        let states = self.retired.iter().map(|retired| {
            let in_use = retired.plugin.upgrade().is_some_and(|plugin| Arc::strong_count(&plugin) > 1 + own(&plugin));
            let status = Status::Retired { plugin: retired.manifest.clone(), in_use };
            (PluginState { file: retired.file.clone(), sha256: Some(retired.sha256.clone()), status }, in_use)
        });
        let states: Vec<_> = states.collect();
        let mut idle = 0;
        let listed = |(state, in_use): &(PluginState, bool)| {
            idle += usize::from(!in_use);
            *in_use || idle <= RETIRED_MAX && !self.files.contains_key(&state.file)
        };
        let keep: Vec<bool> = states.iter().map(listed).collect();
        let mut kept = keep.iter();
        self.retired.retain(|_| kept.next().copied().unwrap_or(false));
        states.into_iter().zip(keep).filter(|(_, keep)| *keep).map(|((state, _), _)| state).collect()
    }
}
