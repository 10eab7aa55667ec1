//! Where adapters may come from while the server runs: folders that the configuration names, and the hub.
//!
//! A source is what a client wrote, so it may try to lead anywhere. Links are followed to their end before anything is
//! compared, of the adapter itself and of every file in it, and nothing is opened here: workers read what was found.

use std::{
    fs,
    path::{Component, Path, PathBuf},
};

use crate::{
    hub::{self, Hub, HubName, Trouble},
    job::{Failure, FailureCode},
};

const SOURCE_LEN_MAX: usize = 4096;
/// Files and folders of one adapter.
const ENTRIES_MAX: usize = 4096;

/// Where adapters may come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sources {
    /// Folders in which they may lie.
    pub folders: Vec<PathBuf>,
    /// Whether they may be downloaded.
    pub downloads: bool,
}

impl Default for Sources {
    fn default() -> Self {
        Self { folders: Vec::new(), downloads: true }
    }
}

impl Sources {
    /// The path of a source, which may be downloaded for it; files that have to hold more than `bytes_max` are not.
    pub(super) async fn settle(&self, source: &str, bytes_max: u64) -> Result<PathBuf, Failure> {
        let (sources, source) = (self.clone(), source.to_owned());
        let settling = move || match source.starts_with("hf:") {
            true if !sources.downloads => {
                let message = format!("'{source}' may not be downloaded");
                Err(forbidden(message, "set adapter_downloads of [server] to \"allow\""))
            }
            true => download(&source, bytes_max),
            false => sources.find(&source),
        };
        let settled = tokio::task::spawn_blocking(settling).await;
        settled.unwrap_or_else(|_| Err(Failure::new(FailureCode::Internal, "looking for the adapter failed")))
    }

    /// The path of a source on this machine.
    fn find(&self, source: &str) -> Result<PathBuf, Failure> {
        let shown: String = source.escape_debug().take(200).collect();
        let outside = || {
            let message = format!("'{shown}' does not lie in a folder that adapters may come from");
            forbidden(message, "put it there, or name its folder in adapter_folders of [server]")
        };
        if source.len() > SOURCE_LEN_MAX || source.chars().any(char::is_control) {
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
        // An absolute path takes the place of what it is joined to.
        let found = self.folders.iter().find_map(|folder| folder.join(path).canonicalize().ok());
        match found {
            Some(found) if roots.iter().any(|root| found.starts_with(root)) => {
                check_links(&found, &roots)?;
                Ok(found)
            }
            // Whether there is something elsewhere is nobody's business.
            None if path.is_relative() || self.folders.iter().any(|folder| path.starts_with(folder)) => {
                let message = format!("there is nothing at '{shown}' in the folders that adapters may come from");
                Err(Failure::new(FailureCode::NotFound, message).with_help("check the path"))
            }
            _ => Err(outside()),
        }
    }
}

/// Refuses an adapter with a link in it that leads out of the folders.
fn check_links(adapter: &Path, roots: &[PathBuf]) -> Result<(), Failure> {
    let mut open = vec![adapter.to_path_buf()];
    let mut seen = 0;
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            seen += 1;
            if seen > ENTRIES_MAX {
                let message = format!("'{}' holds more than {ENTRIES_MAX} files", adapter.display());
                return Err(Failure::new(FailureCode::Invalid, message).with_help("name the adapter's own folder"));
            }
            let (path, kind) = (entry.path(), entry.file_type());
            if kind.as_ref().is_ok_and(fs::FileType::is_dir) {
                open.push(path);
            } else if kind.is_ok_and(|kind| kind.is_symlink())
                && path.canonicalize().is_ok_and(|end| !roots.iter().any(|root| end.starts_with(root)))
            {
                let message = format!("'{}' is a link that leads out of the folders of adapters", path.display());
                return Err(forbidden(message, "put the file itself there"));
            }
        }
    }
    Ok(())
}

fn download(source: &str, bytes_max: u64) -> Result<PathBuf, Failure> {
    let pulled = || -> Result<PathBuf, Trouble> {
        let name: HubName = source.parse()?;
        let hub = Hub::from_environment()?;
        Ok(hub.pull_adapter(&name, bytes_max, &mut Log)?.path)
    };
    pulled().map_err(|trouble| {
        let code = match trouble.kind {
            hub::Kind::Usage => FailureCode::Invalid,
            hub::Kind::Absent => FailureCode::NotFound,
            hub::Kind::Denied => FailureCode::Forbidden,
            hub::Kind::TooLarge => FailureCode::Unsupported,
            hub::Kind::Network | hub::Kind::Space | hub::Kind::Damaged | hub::Kind::Other => FailureCode::Internal,
        };
        Failure::new(code, trouble.message).with_help(trouble.help)
    })
}

fn forbidden(message: String, help: &str) -> Failure {
    Failure::new(FailureCode::Forbidden, message).with_help(help)
}

/// Downloads are told to the log.
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
    use std::os::unix::fs::symlink;

    #[test]
    fn only_what_lies_in_the_folders_is_found() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        for folder in ["open/poet", "open/leaky", "open/linked", "secret"] {
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
    }
}
