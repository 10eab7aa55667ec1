//! Indexes and packages from folders and URLs.

use std::{
    fs,
    io::{Read as _, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use super::{IndexSource, Read, Store};
use crate::{
    Document, Index, Locked, PackageError, PackageErrorKind, PublicKey, Release, Sha256Hex, digest,
    error::Result,
    index::{INDEX, INDEX_BYTES_MAX, INDEX_KEY, INDEX_SIGNATURE, PACKAGE_BYTES_MAX},
    installed,
    location::{is_url, join},
    signature::SIGNATURE_BYTES_MAX,
    state_file::{self, PRIVATE},
};

/// A package's file: in the cache, where the user has it, or to be removed.
pub(super) enum PackageFile {
    Kept(PathBuf),
    Temporary(tempfile::NamedTempFile),
}

impl PackageFile {
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Kept(path) => path,
            Self::Temporary(file) => file.path(),
        }
    }

    /// Whether it has this digest. The path is the user's or an index's, so it may be missing.
    pub(super) fn is(&self, sha256: &Sha256Hex) -> Result<bool> {
        let path = self.path();
        let read = digest::of_file(path).map_err(|error| PackageError::system(format!("'{}'", path.display()), &error));
        Ok(read?.0 == *sha256)
    }
}

impl Store<'_> {
    /// Reads all indexes. One that cannot be used is left out, with a word that says why; without any, that is the error.
    pub(super) fn refresh(&mut self) -> Result<Vec<Read>> {
        let mut failure = PackageError::new(PackageErrorKind::Absent, "no index is configured")
            .help("name one under [plugins] indexes in pensieve.toml, or with --index");
        let (mut indexes, mut left_out) = (Vec::new(), Vec::new());
        for source in self.settings.indexes.clone() {
            match self.refresh_one(&source) {
                Ok(index) => indexes.push(Read { location: source.location, index }),
                Err(error) => left_out.push((source.location, error)),
            }
        }
        if indexes.is_empty() && !left_out.is_empty() {
            failure = left_out.remove(0).1;
        }
        for (location, error) in left_out {
            self.environment.say(&format!("the index {location} is left out: {error}"));
        }
        if indexes.is_empty() { Err(failure) } else { Ok(indexes) }
    }

    /// Reads an index. One that cannot be reached is taken from the cache, as long as it has not expired.
    fn refresh_one(&mut self, source: &IndexSource) -> Result<Index> {
        let location = &source.location;
        let known = self.trust.indexes.get(location);
        let is_first = known.is_none() && source.key.is_none();
        let key = match source.key.as_ref().or(known.map(|known| &known.key)) {
            Some(key) => key.clone(),
            // The one that it shows at its first use.
            None => {
                PublicKey::parse(&String::from_utf8_lossy(&self.read(location, INDEX_KEY, SIGNATURE_BYTES_MAX)?))?
            }
        };
        let (bytes, is_fresh) = match self.fetch_index(location, &key) {
            Ok(bytes) => (bytes, true),
            Err(error) if error.kind == PackageErrorKind::Network => (self.cached(location, &error)?, false),
            Err(error) => return Err(error),
        };
        let index = Index::parse(&bytes)?;
        let known = self.trust.indexes.get(location).filter(|known| known.key == key);
        index.check_age(known.map_or(0, |known| known.serial), self.host.now)?;
        if is_fresh {
            self.trust.see(location, &key, &index, &bytes)?;
            self.trust.write(&self.host.home)?;
            state_file::replace(&self.cache_of(location), &bytes, PRIVATE)?;
        }
        if is_first {
            self.environment.say(&format!(
                "first use of the index {location}: its key is {key}, and it is trusted from now on (trust.json)"
            ));
        }
        Ok(index)
    }

    /// Between its two files the index may be replaced, so a pair that does not fit is read once more.
    fn fetch_index(&self, location: &str, key: &PublicKey) -> Result<Vec<u8>> {
        match self.fetch_pair(location, key) {
            Err(error) if error.kind == PackageErrorKind::Untrusted => self.fetch_pair(location, key),
            read => read,
        }
    }

    fn fetch_pair(&self, location: &str, key: &PublicKey) -> Result<Vec<u8>> {
        let bytes = self.read(location, INDEX, INDEX_BYTES_MAX)?;
        let signature = self.read(location, INDEX_SIGNATURE, SIGNATURE_BYTES_MAX)?;
        let signature = String::from_utf8_lossy(&signature);
        key.verify(Document::Index, &bytes, &signature, &format!("the index {location}"))?;
        Ok(bytes)
    }

    fn cached(&self, location: &str, error: &PackageError) -> Result<Vec<u8>> {
        let bytes = state_file::bytes(&self.cache_of(location), INDEX_BYTES_MAX as u64)?;
        let known = self.trust.indexes.get(location);
        let bytes = bytes.filter(|bytes| known.is_some_and(|known| known.sha256 == Sha256Hex::of(bytes)));
        let bytes = bytes.ok_or_else(|| error.clone())?;
        self.environment.say(&format!("{}; the index is used as it was last seen", error.message));
        Ok(bytes)
    }

    fn cache_of(&self, location: &str) -> PathBuf {
        let name = Sha256Hex::of(location.as_bytes());
        installed::indexes(&self.host.home).join(format!("{name}.json"))
    }

    /// Reads a document of an index.
    fn read(&self, location: &str, name: &str, bytes_max: usize) -> Result<Vec<u8>> {
        if !is_url(location) {
            let path = Path::new(location).join(name);
            let missing = || {
                let message = format!("'{location}' is not an index: it has no {name}");
                PackageError::new(PackageErrorKind::Absent, message)
            };
            return state_file::bytes(&path, bytes_max as u64)?.ok_or_else(missing);
        }
        let mut file = temporary(&self.host.home)?;
        self.environment.fetch(&join(location, name), bytes_max as u64, file.as_file_mut())?;
        let mut bytes = Vec::new();
        let read = file.as_file_mut().seek(SeekFrom::Start(0)).and_then(|_| file.as_file_mut().read_to_end(&mut bytes));
        read.map_err(|error| PackageError::system(name, &error))?;
        Ok(bytes)
    }

    /// Gets the package of a release, out of the cache if it is there.
    pub(super) fn package(&self, location: &str, release: &Release) -> Result<PackageFile> {
        let Release { package, sha256, bytes, .. } = release;
        let kept = PackageFile::Kept(self.kept(sha256));
        if kept.is(sha256).unwrap_or(false) {
            return Ok(kept);
        }
        let file = match (is_url(package), is_url(location)) {
            (true, _) => self.download(package, *bytes)?,
            (false, true) => self.download(&join(location, package), *bytes)?,
            (false, false) => PackageFile::Kept(Path::new(location).join(package)),
        };
        if file.is(sha256)? {
            return Ok(file);
        }
        let message = format!("'{package}' is not the file that its index lists: its digest differs");
        Err(PackageError::damaged(message).help("try again; if it stays so, tell the index's maintainer"))
    }

    /// Gets the package of a line of the lock from the URL or path that it was added from.
    pub(super) fn locked_package(&self, locked: &Locked) -> Result<PackageFile> {
        let source = &locked.source;
        let file = if is_url(source) {
            self.download(source, PACKAGE_BYTES_MAX)?
        } else {
            PackageFile::Kept(PathBuf::from(source))
        };
        if file.is(&locked.sha256)? {
            return Ok(file);
        }
        let message = format!("'{source}' is not the file that plugins.lock lists: its digest differs");
        Err(PackageError::damaged(message).help(format!("to have it nevertheless: pensieve plugins add {source}")))
    }

    pub(super) fn download(&self, url: &str, bytes_max: u64) -> Result<PackageFile> {
        let mut file = temporary(&self.host.home)?;
        self.environment.fetch(url, bytes_max, file.as_file_mut())?;
        Ok(PackageFile::Temporary(file))
    }

    /// Keeps a package that was installed, for later and for work without a network.
    pub(super) fn keep(&self, package: &Path, sha256: &Sha256Hex) {
        let kept = self.kept(sha256);
        let is_kept = kept == package || PackageFile::Kept(kept.clone()).is(sha256).unwrap_or(false);
        if !is_kept && let Err(error) = state_file::copy(package, &kept, sha256, PRIVATE) {
            self.environment.say(&format!("the package was installed, but not kept for later: {error}"));
        }
    }

    pub(super) fn kept(&self, sha256: &Sha256Hex) -> PathBuf {
        self.host.home.join("cache/packages").join(format!("{sha256}.pensieve"))
    }
}

/// A file on the disk of the data folder, so that it can be renamed into it.
pub(super) fn temporary(home: &Path) -> Result<tempfile::NamedTempFile> {
    let folder = home.join("cache");
    let made = fs::create_dir_all(&folder).and_then(|()| tempfile::NamedTempFile::new_in(&folder));
    made.map_err(|error| PackageError::system(format!("'{}'", folder.display()), &error))
}
