//! Allowed sources of adapters that are attached at run time: folders from the configuration, and the hub.
//!
//! A source comes from a client and may try to lead anywhere. Links are resolved before any comparison, and nothing is
//! opened here: workers read the resolved files, and resolve links again before they do.

use std::path::{Component, Path, PathBuf};

use crate::hub::{self, Hub, HubName};
use pensieve_protocol::{
    job::{Failure, FailureCode},
    outside::Outside,
    path_policy,
    wire::Location,
};

/// Maximum length of a source in bytes; paths on the hub and on most systems are no longer.
const SOURCE_LEN_MAX: usize = 1024;
const SHOWN_LEN_MAX: usize = 200;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sources {
    /// Folders that adapters may be in.
    pub folders: Vec<PathBuf>,
    /// Allows downloads from the hub.
    pub downloads: bool,
}

impl Default for Sources {
    fn default() -> Self {
        Self { folders: Vec::new(), downloads: true }
    }
}

impl Sources {
    /// Resolves a source to a location on this machine, downloading it if necessary. Files of more than `bytes_max`
    /// bytes are refused.
    pub(super) async fn settle(&self, source: &str, bytes_max: u64) -> Result<Location, Failure> {
        let shown = shown(source);
        if source.len() > SOURCE_LEN_MAX {
            let message = format!("'{shown}…' has {} bytes; a source has {SOURCE_LEN_MAX} at most", source.len());
            return Err(Failure::new(FailureCode::Invalid, message).with_help("name a path, or hf:OWNER/REPO"));
        }
        let (sources, source) = (self.clone(), source.to_owned());
        let settling = move || match source.starts_with("hf:") {
            true if !sources.downloads => {
                let message = format!("'{shown}' may not be downloaded");
                Err(forbidden(message, "set adapter_downloads of [server] to \"allow\""))
            }
            true => download(&source, bytes_max).map(Location::trusted),
            false => Ok(Location { path: sources.find(&source)?, folders: sources.folders }),
        };
        let settled = tokio::task::spawn_blocking(settling).await;
        settled.unwrap_or_else(|_| Err(Failure::new(FailureCode::Internal, "looking for the adapter failed")))
    }

    /// Resolves a source to a path on this machine.
    fn find(&self, source: &str) -> Result<PathBuf, Failure> {
        let shown = shown(source);
        let outside = || {
            let message = format!("'{shown}' does not lie in a folder that adapters may come from");
            forbidden(message, "put it there, or name its folder in adapter_folders of [server]")
        };
        if source.chars().any(char::is_control) {
            return Err(Failure::new(FailureCode::Invalid, format!("'{shown}' is no path")));
        }
        if self.folders.is_empty() {
            let message = format!("'{shown}' is a path, and no folder is open to adapters");
            let help = "name folders in adapter_folders of [server], or give hf:OWNER/REPO";
            return Err(forbidden(message, help));
        }
        let path = Path::new(source);
        if path.components().any(|part| part == Component::ParentDir) {
            return Err(outside());
        }
        let roots: Vec<PathBuf> = self.folders.iter().filter_map(|folder| folder.canonicalize().ok()).collect();
        // Joining an absolute path replaces the folder. A file that one folder has but may not give does not shadow the
        // same name in another folder.
        let mut refusal = None;
        for found in self.folders.iter().filter_map(|folder| folder.join(path).canonicalize().ok()) {
            let refused = match roots.iter().any(|root| found.starts_with(root)) {
                true => match path_policy::check(&found, &roots) {
                    Ok(()) => return Ok(found),
                    Err(failure) => failure,
                },
                false => outside(),
            };
            refusal.get_or_insert(refused);
        }
        // A client must not learn whether a path outside of the open folders exists.
        let could_be = path.is_relative() || self.folders.iter().any(|folder| path.starts_with(folder));
        Err(refusal.unwrap_or_else(|| match could_be {
            true => {
                let message = format!("there is nothing at '{shown}' in the folders that adapters may come from");
                Failure::new(FailureCode::NotFound, message).with_help("check the path")
            }
            false => outside(),
        }))
    }
}

fn download(source: &str, bytes_max: u64) -> Result<PathBuf, Failure> {
    let name: HubName = source.parse()?;
    let hub = Hub::from_environment()?;
    Ok(hub.pull_adapter(&name, bytes_max, &mut Log)?.path)
}

/// Formats a source for messages.
fn shown(source: &str) -> String {
    Outside::new(source).at_most(SHOWN_LEN_MAX).to_string()
}

fn forbidden(message: String, help: &str) -> Failure {
    Failure::new(FailureCode::Forbidden, message).with_help(help)
}

/// Reports downloads to the log.
struct Log;

impl hub::Progress for Log {
    fn say(&mut self, line: &str) {
        tracing::info!("{line}");
    }

    fn begin(&mut self, name: &str, done: u64, total: u64) {
        tracing::info!("downloading '{name}': {done} of {total} bytes are here");
    }

    fn reach(&mut self, _done: u64) {}

    fn end(&mut self) {}
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink};

    #[test]
    fn only_what_lies_in_the_folders_is_found() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        for folder in ["open/poet", "open/leaky", "open/linked", "also/escape", "also/leaky", "also/poet", "secret"] {
            fs::create_dir_all(at(folder)).unwrap();
        }
        fs::write(at("secret/weights"), "x").unwrap();
        fs::write(at("open/poet/weights"), "x").unwrap();
        symlink(at("secret"), at("open/escape")).unwrap();
        symlink(at("secret/weights"), at("open/leaky/weights")).unwrap();
        symlink(at("open/poet/weights"), at("open/linked/weights")).unwrap();
        let sources = Sources { folders: vec![at("open")], downloads: false };
        let check = |source: &str, expect: Result<&str, (FailureCode, &str)>| match (sources.find(source), expect) {
            (Ok(found), Ok(expect)) => assert_eq!(found, at(expect).canonicalize().unwrap(), "{source}"),
            (Err(failure), Err((code, says))) => {
                assert_eq!(failure.code, code, "{source}: {failure}");
                assert!(failure.message.contains(says), "{source}: {failure}");
            }
            (found, _) => panic!("{source}: {found:?}"),
        };
        let text = |name: &str| at(name).display().to_string();
        check("poet", Ok("open/poet"));
        check(&text("open/poet"), Ok("open/poet"));
        check("linked", Ok("open/linked"));
        let outside = "does not lie in a folder";
        check("../secret", Err((FailureCode::Forbidden, outside)));
        check("poet/../poet", Err((FailureCode::Forbidden, outside)));
        check("escape", Err((FailureCode::Forbidden, outside)));
        check("escape/weights", Err((FailureCode::Forbidden, outside)));
        check(&text("secret"), Err((FailureCode::Forbidden, outside)));
        check("/etc/passwd", Err((FailureCode::Forbidden, outside)));
        check("/no/such/place", Err((FailureCode::Forbidden, outside)));
        check("leaky", Err((FailureCode::Forbidden, "weights' is a link that leads out")));
        check("painter", Err((FailureCode::NotFound, "nothing at 'painter'")));
        check("po\0et", Err((FailureCode::Invalid, "no path")));
        let none = Sources::default().find("poet").unwrap_err();
        assert_eq!(none.code, FailureCode::Forbidden);
        assert!(none.to_string().contains("adapter_folders"), "{none}");

        // A file that one folder may not give does not shadow the one in the next folder; otherwise the first folder
        // wins.
        let sources = Sources { folders: vec![at("nothing"), at("open"), at("also")], downloads: false };
        for (source, expect) in [("poet", "open/poet"), ("escape", "also/escape"), ("leaky", "also/leaky")] {
            assert_eq!(sources.find(source).unwrap(), at(expect).canonicalize().unwrap(), "{source}");
        }
    }

    #[tokio::test]
    async fn no_source_is_longer_than_a_path_or_a_name_on_the_hub() {
        for long in [format!("hf:owner/{}", "x".repeat(2000)), "x".repeat(2000)] {
            let failure = Sources::default().settle(&long, 1).await.unwrap_err();
            assert_eq!(failure.code, FailureCode::Invalid, "{failure}");
            assert!(failure.message.contains("1024 at most") && failure.message.len() < 300, "{failure}");
        }
    }
}
