//! Adds, updates and removes packages in the program's data folder.
//!
//! Everything is checked before the plugin folder changes: signature, key, revocations, contract, host, target, digest,
//! and at last what a child process reads in the library itself.

mod bundled;
mod download;
mod install;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use pensieve_protocol::manifest::Manifest;
use semver::Version;

use crate::{
    Index, Lock, Locked, PackageError, PackageErrorKind, PackageManifest, PublicKey, Publisher, Release, Trust,
    error::Result,
    index::{PACKAGE_BYTES_MAX, no_such_plugin},
    location,
    trust::Provenance,
};

pub use bundled::Bundled;

/// The parts of the program that a store uses.
pub trait Environment {
    /// Copies what is at a URL, at most `bytes_max`, to a file.
    fn fetch(&self, url: &str, bytes_max: u64, to: &mut File) -> Result<()>;
    /// Has a child process read the manifest of a library.
    fn inspect(&self, library: &Path) -> Result<Manifest>;
    /// Tells the user something.
    fn say(&self, line: &str);
}

/// The machine and the program that plugins shall run on.
#[derive(Clone, Debug)]
pub struct Host {
    /// The program's data folder.
    pub home: PathBuf,
    /// `linux-x86_64`, for example.
    pub target: String,
    /// Variants that run here, the best first.
    pub variants: Vec<String>,
    /// The one that the user asks for, whether it is known to run here or not.
    pub variant: Option<String>,
    /// Major and minor number of the contract.
    pub contract: (u32, u32),
    pub version: Version,
    pub now: Timestamp,
}

/// The user's settings.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub indexes: Vec<IndexSource>,
    /// Keys of the only publishers that are trusted; empty to trust each at its first use.
    pub publishers: BTreeMap<String, PublicKey>,
    pub bundled: Bundled,
}

/// Where an index is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexSource {
    /// A folder or an HTTPS URL, in one spelling.
    pub location: String,
    /// Its maintainer's key; without one, that of the first use.
    pub key: Option<PublicKey>,
}

/// What to add.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    Named { name: String, version: Option<Version> },
    Url(String),
    File(PathBuf),
}

/// The result of adding a package.
#[derive(Clone, Debug)]
pub struct Added {
    pub locked: Locked,
    pub manifest: PackageManifest,
    /// The library.
    pub file: PathBuf,
    /// The version that it replaced.
    pub before: Option<Version>,
    /// False if it was there already.
    pub is_new: bool,
}

/// A plugin of an index that was searched for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The index's name.
    pub index: String,
    /// The one that would be added, or the newest one if none would.
    pub release: Release,
    /// The reason why none can be added: it is revoked, or does not run here.
    pub unfit: Option<String>,
}

/// A newer release of an installed package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outdated {
    pub name: String,
    pub installed: Version,
    pub newest: Version,
    pub index: String,
}

/// The outcome for one installed package.
#[derive(Clone, Debug)]
pub enum Update {
    Updated(Box<Added>),
    Newest(Locked),
    /// It was removed, as the program itself brings a newer version.
    Superseded {
        locked: Locked,
        by: Version,
    },
    Failed {
        name: String,
        error: PackageError,
    },
}

pub struct Store<'a> {
    host: Host,
    settings: Settings,
    environment: &'a dyn Environment,
    lock: Lock,
    trust: Trust,
    /// Held as long as the store is open, so that two programs do not change it at once.
    _exclusive: File,
}

/// An index that was read, and where it is.
struct Read {
    location: String,
    index: Index,
}

/// A release that was chosen.
struct Chosen<'i> {
    location: &'i str,
    version: Version,
    release: &'i Release,
    publishers: &'i BTreeMap<String, Vec<PublicKey>>,
}

impl<'i> Chosen<'i> {
    /// The keys of a publisher, as the index has them.
    fn keys(&self, publisher: &Publisher) -> &'i [PublicKey] {
        self.publishers.get(&publisher.name).map_or(&[], Vec::as_slice)
    }
}

impl IndexSource {
    pub fn new(location: &str, key: Option<PublicKey>) -> Self {
        Self { location: location::normal(location), key }
    }
}

impl Request {
    /// Reads NAME, NAME@VERSION, a URL or a path: one with a slash, or with the extension of packages.
    pub fn parse(text: &str) -> Result<Self> {
        if text.contains("://") {
            return Ok(Self::Url(text.to_owned()));
        }
        if text.contains('/') || text.ends_with(".pensieve") {
            return Ok(Self::File(text.into()));
        }
        let (name, version) = text.split_once('@').map_or((text, None), |(name, version)| (name, Some(version)));
        let usage =
            |why: String| PackageError::new(PackageErrorKind::Usage, format!("'{}' {why}", text.escape_debug()));
        crate::manifest::name("name", name).map_err(usage)?;
        let version = version.map(Version::parse).transpose();
        let version = version.map_err(|_| usage("has a version that is not like 1.2.3".to_owned()))?;
        Ok(Self::Named { name: name.to_owned(), version })
    }
}

impl<'a> Store<'a> {
    pub fn open(host: Host, settings: Settings, environment: &'a dyn Environment) -> Result<Self> {
        let failed = |error| PackageError::system(format!("'{}'", host.home.display()), &error);
        fs::create_dir_all(&host.home).map_err(failed)?;
        let exclusive = File::create(host.home.join(".packages.lock")).map_err(failed)?;
        if exclusive.try_lock().is_err() {
            environment.say("another 'pensieve plugins' is at work; waiting for it");
            exclusive.lock().map_err(failed)?;
        }
        let (lock, trust) = (Lock::read(&host.home)?, Trust::read(&host.home)?);
        let mut indexes: Vec<IndexSource> = Vec::new();
        for source in &settings.indexes {
            let source = IndexSource::new(&source.location, source.key.clone());
            match indexes.iter_mut().find(|other| other.location == source.location) {
                Some(other) => other.key = other.key.take().or(source.key),
                None => indexes.push(source),
            }
        }
        let bundled = Bundled { index: location::normal(&settings.bundled.index), ..settings.bundled };
        let settings = Settings { indexes, bundled, ..settings };
        Ok(Self { host, settings, environment, lock, trust, _exclusive: exclusive })
    }

    pub fn lock(&self) -> &Lock {
        &self.lock
    }

    /// Adds a package, or leaves everything as it was.
    pub fn add(&mut self, request: &Request) -> Result<Added> {
        match request {
            Request::File(path) => {
                let source = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                self.install_unlisted(path, &source.to_string_lossy())
            }
            Request::Url(url) => {
                let package = self.download(url, PACKAGE_BYTES_MAX)?;
                self.install_unlisted(package.path(), url)
            }
            Request::Named { name, version } => {
                let indexes = self.refresh()?;
                let origin = self.lock.find(name).and_then(|locked| origin(&indexes, locked));
                let chosen = self.choose(origin.unwrap_or(&indexes), name, version.as_ref())?;
                self.install_listed(&chosen)
            }
        }
    }

    /// Installs what the lock lists and this machine lacks: from the cache, or from where it came. Each has its own result.
    pub fn restore(&mut self) -> Vec<(Locked, Result<Added>)> {
        let missing: Vec<Locked> =
            self.lock.plugins.iter().filter(|locked| !self.is_installed(locked)).cloned().collect();
        missing.into_iter().map(|locked| (locked.clone(), self.reinstall(&locked))).collect()
    }

    pub fn remove(&mut self, name: &str) -> Result<Locked> {
        let Some(locked) = self.lock.find(name).cloned() else {
            let message = format!("'{}' was not added by 'pensieve plugins add'", name.escape_debug());
            let help = "'pensieve plugins list' shows where plugins lie; other files are removed by hand";
            return Err(PackageError::new(PackageErrorKind::Absent, message).help(help));
        };
        for library in locked.libraries.iter().filter(|library| library.target == self.host.target) {
            self.remove_library(&library.file, &locked)?;
        }
        self.lock.plugins.retain(|other| other.name != name);
        self.lock.write(&self.host.home)?;
        Ok(locked)
    }

    /// The installed packages of which an index has a newer release that fits.
    pub fn outdated(&mut self) -> Result<Vec<Outdated>> {
        let indexes = self.refresh()?;
        let bundled = self.outdated_bundled(&indexes);
        let newer = self.lock.plugins.iter().filter(|locked| locked.is_indexed).filter_map(|locked| {
            let chosen = self.choose(origin(&indexes, locked)?, &locked.name, None).ok()?;
            (chosen.version > locked.version).then(|| Outdated {
                name: locked.name.clone(),
                installed: locked.version.clone(),
                newest: chosen.version.clone(),
                index: chosen.location.to_owned(),
            })
        });
        Ok(newer.chain(bundled).collect())
    }

    /// Replaces packages by their newest releases that fit, and stands newer ones in for the program's own plugins; all of those
    /// that an index has if no names are given.
    pub fn update(&mut self, names: &[String]) -> Result<Vec<Update>> {
        for name in names {
            let locked = self.lock.find(name);
            if !locked.map_or_else(|| self.is_bundled(name), |locked| locked.is_indexed) {
                let message = format!("'{}' was not added from an index", name.escape_debug());
                return Err(PackageError::new(PackageErrorKind::Absent, message));
            }
        }
        let indexes = self.refresh()?;
        let asked = |locked: &&Locked| locked.is_indexed && (names.is_empty() || names.contains(&locked.name));
        let plugins: Vec<Locked> = self.lock.plugins.iter().filter(asked).cloned().collect();
        let mut updates = Vec::new();
        for locked in plugins {
            let origin = origin(&indexes, &locked).ok_or_else(|| no_such_index(&locked));
            let chosen = origin.and_then(|origin| self.choose(origin, &locked.name, None));
            let updated = chosen.and_then(|chosen| {
                if let Some(by) = self.supersede(&locked, &chosen.version)? {
                    return Ok(Update::Superseded { locked: locked.clone(), by });
                }
                if chosen.version <= locked.version {
                    return Ok(Update::Newest(locked.clone()));
                }
                Ok(Update::Updated(Box::new(self.install_listed(&chosen)?)))
            });
            updates.push(updated.unwrap_or_else(|error| Update::Failed { name: locked.name, error }));
        }
        updates.extend(self.update_bundled(&indexes, names));
        Ok(updates)
    }

    /// The plugins of all indexes that have all of these words.
    pub fn search(&mut self, words: &[String]) -> Result<Vec<Found>> {
        let indexes = self.refresh()?;
        let mut found = Vec::new();
        for read in &indexes {
            for newest in read.index.search(words) {
                let chosen = self.choose(std::slice::from_ref(read), newest.manifest.name(), None);
                let (release, unfit) = match chosen {
                    Ok(chosen) => (chosen.release, None),
                    Err(error) => (newest, Some(error.message)),
                };
                found.push(Found { index: read.index.name.clone(), release: release.clone(), unfit });
            }
        }
        Ok(found)
    }

    /// Chooses the release of this version, or the newest one that runs here and is not revoked. A pre-release has to be asked
    /// for, be the successor of one, or be all that there is.
    fn choose<'i>(&self, indexes: &'i [Read], name: &str, version: Option<&Version>) -> Result<Chosen<'i>> {
        let is_stable = |version: &Version| version.pre.is_empty();
        let installed = self.lock.find(name).map(|locked| is_stable(&locked.version));
        let rounds: &[&dyn Fn(&Version) -> bool] = match (version, installed) {
            (Some(version), _) => &[&move |found| found == version],
            (None, Some(true)) => &[&is_stable],
            (None, Some(false)) => &[&|_| true],
            (None, None) => &[&is_stable, &|found| !is_stable(found)],
        };
        let mut reason = None;
        for (takes, Read { location, index }) in
            rounds.iter().flat_map(|takes| indexes.iter().map(move |read| (takes, read)))
        {
            for (found, release) in index.releases(name).into_iter().filter(|(found, _)| takes(found)) {
                match self.fitting(&release.manifest, Provenance::Index(location)) {
                    Ok(_) => {
                        let publishers = &index.publishers;
                        return Ok(Chosen { location, version: found, release, publishers });
                    }
                    // Of the newest one.
                    Err(error) => reason = reason.or(Some(error)),
                }
            }
        }
        Err(reason.unwrap_or_else(|| no_such_plugin(name, version, indexes.len())))
    }
}

/// The index that an installed package came from, if it was asked. No other one has a say in its updates.
fn origin<'i>(indexes: &'i [Read], locked: &Locked) -> Option<&'i [Read]> {
    indexes.iter().find(|read| locked.is_of(&read.location)).map(std::slice::from_ref)
}

fn no_such_index(locked: &Locked) -> PackageError {
    let Locked { name, source, .. } = locked;
    let message = format!("'{name}' was added from the index '{source}', which was not asked");
    PackageError::new(PackageErrorKind::Absent, message)
        .help(format!("to get it from another one from now on: pensieve plugins add {name}"))
}
