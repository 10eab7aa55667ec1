//! Where releases lie: a folder, or a URL with the layout of a project's releases on GitHub.

use std::{
    env,
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use crate::cli::{
    error::{CliError, Exit},
    progress::DownloadProgress,
};
use pensieve_packages::{PackageError, ReleaseArchive, of_file};
use pensieve_protocol::outside::Outside;
use pensieve_server::hub;

/// Another location than the one that the program came with; the installer reads it, too.
const VARIABLE: &str = "PENSIEVE_RELEASES";

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Location {
    /// The folder of one release.
    Folder(PathBuf),
    /// Without a slash at its end.
    Url(String),
}

impl Location {
    /// The location that is asked for, or the usual one.
    pub(super) fn choose(asked: Option<&str>, usual: &str) -> Result<Self, CliError> {
        let variable = env::var(VARIABLE).ok().filter(|value| !value.is_empty());
        let text = asked.map(str::to_owned).or(variable).unwrap_or_else(|| usual.to_owned());
        if text.is_empty() {
            let line =
                format!("this program does not say where its releases are; name a place with --from, or in {VARIABLE}");
            return Err(CliError::new(Exit::Usage, line));
        }
        Ok(Self::parse(&text))
    }

    fn parse(text: &str) -> Self {
        let text = text.strip_prefix("file://").unwrap_or(text);
        if text.contains("://") {
            return Self::Url(text.trim_end_matches('/').to_owned());
        }
        let folder = PathBuf::from(text);
        // A mirror on a disk has the layout of a URL.
        let newest = folder.join("latest/download");
        Self::Folder(if newest.is_dir() { newest } else { folder })
    }

    /// A small file of the newest release.
    pub(super) fn read(&self, name: &str, bytes_max: u64) -> Result<Vec<u8>, CliError> {
        let mut file = tempfile::tempfile().map_err(|error| CliError::system("a temporary file", &error))?;
        self.copy(name, bytes_max, &mut file)?;
        let mut bytes = Vec::new();
        let read = file.seek(SeekFrom::Start(0)).and_then(|_| file.take(bytes_max).read_to_end(&mut bytes));
        read.map_err(|error| CliError::system("a temporary file", &error))?;
        Ok(bytes)
    }

    /// Fetches an archive and compares it with the release's list.
    pub(super) fn fetch(&self, archive: &ReleaseArchive, path: &Path) -> Result<(), CliError> {
        let system = |error: io::Error| CliError::system(Outside::path(&path), &error);
        let mut file = File::create_new(path).map_err(system)?;
        self.copy(&archive.file, archive.bytes, &mut file)?;
        let (sha256, bytes) = of_file(path).map_err(system)?;
        if (&sha256, bytes) == (&archive.sha256, archive.bytes) {
            return Ok(());
        }
        let line = format!(
            "'{}' is not the file that its release lists: it has {bytes} bytes and the digest {sha256}",
            archive.file
        );
        Err(CliError::new(Exit::Damaged, line))
    }

    fn copy(&self, name: &str, bytes_max: u64, to: &mut File) -> Result<(), CliError> {
        match self {
            Self::Url(base) => {
                let url = format!("{base}/latest/download/{name}");
                hub::fetch(&url, bytes_max, to, &mut DownloadProgress::new()).map_err(CliError::from)
            }
            Self::Folder(folder) => {
                let path = folder.join(name);
                let system = |error: io::Error| CliError::system(Outside::path(&path), &error);
                let file = File::open(&path).map_err(system)?;
                let copied = io::copy(&mut file.take(bytes_max.saturating_add(1)), to).map_err(system)?;
                if copied > bytes_max {
                    let line = format!("'{}' has more than {bytes_max} bytes", Outside::path(&path));
                    return Err(CliError::from(PackageError::new(pensieve_packages::PackageErrorKind::Damaged, line)));
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_location_is_a_folder_a_file_url_or_a_url() {
        let root = tempfile::tempdir().unwrap();
        let text = root.path().to_str().unwrap();
        assert_eq!(Location::parse(text), Location::Folder(text.into()));
        assert_eq!(Location::parse(&format!("file://{text}")), Location::Folder(text.into()));
        std::fs::create_dir_all(root.path().join("latest/download")).unwrap();
        assert_eq!(Location::parse(text), Location::Folder(root.path().join("latest/download")));
        assert_eq!(Location::parse("https://example.org/r/"), Location::Url("https://example.org/r".into()));
        assert!(Location::choose(None, "").unwrap_err().lines[0].contains("--from"));
    }
}
