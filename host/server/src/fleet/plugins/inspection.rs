//! Inspects one file: copies it, has a child open the copy, and keeps the child's report.

use std::{ffi::OsString, path::Path, sync::Arc};

use super::{
    Settings,
    catalogue::{Knowledge, Plugin},
    copy::{Cache, CopyError},
    scan::Found,
};
use crate::fleet::{
    child::{self, ChildError},
    fence,
};
use pensieve_packages::Installed;
use pensieve_protocol::{
    outside::Outside,
    questions::Checked,
    refusal::{Refusal, RefusalKind},
};

/// The result of inspecting a file.
#[derive(Debug)]
pub(super) enum Inspected {
    /// It is known now.
    Knowledge(Knowledge),
    /// It is truncated, as files are that are still being written.
    Incomplete { sha256: String, refusal: Refusal },
    /// It changed during the inspection.
    Changed,
}

/// Refuses a library that was revoked, and one that the lock of installed packages knows with another content.
fn allow_installed(settings: &Settings, path: &Path, sha256: &str) -> Result<(), Refusal> {
    let installed = Installed::read(&settings.home)
        .map_err(|error| Refusal::new(RefusalKind::NotInspected, error.message, error.help))?;
    if let Some(reason) = installed.revoked(sha256) {
        let reason = format!("{} was revoked: {}", name(path), Outside::new(reason));
        return Err(Refusal::new(RefusalKind::Revoked, reason, "update or remove it: pensieve plugins update"));
    }
    // Files of the lock are named by the data folder, and found by a folder that may be given otherwise.
    let path = path.parent().and_then(|folder| folder.canonicalize().ok()).zip(path.file_name());
    let path = path.map(|(folder, file)| folder.join(file)).unwrap_or_default();
    match installed.differs(&path, sha256) {
        None => Ok(()),
        Some(plugin) => {
            let reason = format!("{} is not the library of '{plugin}' that plugins.lock has", name(&path));
            let help =
                format!("get it back, or give up the lock's word for it: pensieve plugins add {plugin}, or remove");
            Err(Refusal::new(RefusalKind::NotLocked, reason, help))
        }
    }
}

/// Inspects a file. If its content is that of `before`, its last version, that plugin is kept.
pub(super) async fn inspect(
    settings: Arc<Settings>,
    cache: Arc<Cache>,
    found: Found,
    before: Option<Arc<Plugin>>,
) -> Inspected {
    let (target, stamp) = (found.target.clone(), found.stamp);
    let copied = tokio::task::spawn_blocking(move || cache.take(&target, stamp)).await;
    let copy = match copied {
        Ok(Ok(copy)) => copy,
        Ok(Err(CopyError::Changed)) => return Inspected::Changed,
        Ok(Err(CopyError::Refused(refusal))) => {
            return Inspected::Knowledge(Knowledge::Refused { sha256: None, refusal });
        }
        Err(error) => {
            let reason = format!("{} could not be copied: {error}", name(&found.path));
            let refusal = Refusal::new(RefusalKind::NotInspected, reason, "tell Pensieve's authors");
            return Inspected::Knowledge(Knowledge::Refused { sha256: None, refusal });
        }
    };
    if let Err(refusal) = allow_installed(&settings, &found.path, copy.sha256()) {
        let sha256 = Some(copy.sha256().to_owned());
        return Inspected::Knowledge(Knowledge::Refused { sha256, refusal });
    }
    if let Some(before) = before.filter(|before| before.copy.sha256() == copy.sha256()) {
        return Inspected::Knowledge(Knowledge::Plugin(before));
    }
    let sha256 = copy.sha256().to_owned();
    if let Some(allowed) = &settings.allow
        && !allowed.iter().any(|known| known.eq_ignore_ascii_case(&sha256))
    {
        let reason = format!("{} is not among the allowed files", name(&found.path));
        let refusal =
            Refusal::new(RefusalKind::NotAllowed, reason, format!("add \"{sha256}\" to plugins.allow to allow it"));
        return Inspected::Knowledge(Knowledge::Refused { sha256: Some(sha256), refusal });
    }
    let arguments = ["plugins", "check", "--json"].map(OsString::from);
    let arguments = arguments.into_iter().chain([copy.path().into()]).collect::<Vec<_>>();
    let policy = fence::inspection(copy.path());
    let deadline = settings.limits.inspection_of(copy.is_new());
    let refusal = match child::inspect(&settings.program, &arguments, &policy, deadline).await {
        Ok(Checked::Manifest(manifest)) => {
            copy.stay();
            let plugin = Plugin { file: found.path, manifest, copy };
            return Inspected::Knowledge(Knowledge::Plugin(Arc::new(plugin)));
        }
        Ok(Checked::Refusal(refusal)) => {
            let reason = format!("{} {}", name(&found.path), refusal.reason);
            Refusal { reason, ..refusal }.cleaned()
        }
        Err(error) => {
            let help = help(&error, &found.path);
            Refusal::new(error.kind(), format!("{} {error}", name(&found.path)), help)
        }
    };
    if refusal.kind == RefusalKind::Truncated {
        return Inspected::Incomplete { sha256, refusal };
    }
    Inspected::Knowledge(Knowledge::Refused { sha256: Some(sha256), refusal })
}

fn name(path: &Path) -> String {
    format!("plugin '{}'", Outside::path(path.file_name().unwrap_or(path.as_os_str())))
}

fn help(error: &ChildError, file: &Path) -> String {
    if let Some(help) = error.signature_help(file) {
        return help;
    }
    let help = match error {
        ChildError::Spawn(_) => "free processes or memory, then touch the file",
        ChildError::TimedOut(_) | ChildError::TooLarge(_) | ChildError::Crashed { .. } | ChildError::Ended { .. } => {
            "copy or download it again; if that does not help, tell its author"
        }
        ChildError::Garbled(_) => "tell its author that plugins must not print while they start",
    };
    help.to_owned()
}
