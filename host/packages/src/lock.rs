//! `plugins.lock`: the packages that are installed, with the digests of their libraries for all targets, so that the
//! file can be shared by machines of several kinds.

use std::path::{Path, PathBuf};

use semver::Version;
use serde::{Deserialize, Serialize};

use crate::{Artifact, Certificate, PackageManifest, Publisher, Sha256Hex, error::Result, location, state_file};

const FILE: &str = "plugins.lock";

/// The document. A library that differs from it is not loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lock {
    #[serde(default)]
    pub plugins: Vec<Locked>,
}

/// An installed package.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Locked {
    pub name: String,
    pub version: Version,
    pub publisher: Publisher,
    /// The index that it came from, or the URL or file.
    pub source: String,
    /// True if the source is an index, which is asked for updates.
    pub is_indexed: bool,
    /// The package's digest.
    pub sha256: Sha256Hex,
    /// The variant that is installed here.
    pub variant: String,
    pub libraries: Vec<Artifact>,
    /// Statements that these were tested; a lock of an earlier version has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub certificates: Vec<Certificate>,
}

impl Lock {
    pub fn path(home: &Path) -> PathBuf {
        home.join(FILE)
    }

    pub fn read(home: &Path) -> Result<Self> {
        let mut lock: Self = state_file::read(&Self::path(home))?;
        for locked in lock.plugins.iter_mut().filter(|locked| locked.is_indexed) {
            locked.source = location::normal(&locked.source);
        }
        Ok(lock)
    }

    pub(crate) fn write(&self, home: &Path) -> Result<()> {
        state_file::write(&Self::path(home), self)
    }

    pub fn find(&self, name: &str) -> Option<&Locked> {
        self.plugins.iter().find(|locked| locked.name == name)
    }

    pub(crate) fn set(&mut self, locked: Locked) {
        self.plugins.retain(|other| other.name != locked.name);
        self.plugins.push(locked);
        self.plugins.sort_by(|one, other| one.name.cmp(&other.name));
    }
}

impl Locked {
    pub(crate) fn new(manifest: &PackageManifest, version: Version, artifact: &Artifact) -> Self {
        Self {
            name: manifest.name().to_owned(),
            version,
            publisher: manifest.publisher.clone(),
            source: String::new(),
            is_indexed: false,
            sha256: artifact.sha256.clone(),
            variant: artifact.variant.clone(),
            libraries: manifest.artifacts.clone(),
            certificates: manifest.certificates.clone(),
        }
    }

    /// Whether it came from the index at this location.
    pub(crate) fn is_of(&self, location: &str) -> bool {
        self.is_indexed && self.source == location
    }

    /// The library that is installed on a machine of this target.
    pub fn library(&self, target: &str) -> Option<&Artifact> {
        self.libraries.iter().find(|library| library.target == target && library.variant == self.variant)
    }
}
