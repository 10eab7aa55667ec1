//! `trust.json`: keys of publishers and indexes as they were first seen, and of each index the newest serial number and the
//! libraries that it revokes.
//!
//! An index has a say on what was added from it, and on packages that came without an index if it lists their publisher's key;
//! not on another index's packages, and not on libraries that no package brought.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    mem,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{Index, Locked, PackageError, PublicKey, Publisher, Sha256Hex, error::Result, location, state_file};

const FILE: &str = "trust.json";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trust {
    /// Keys of publishers of packages that came without an index.
    #[serde(default)]
    pub publishers: BTreeMap<String, PublicKey>,
    /// By location, in the form of [`IndexSource::new`](crate::IndexSource::new).
    #[serde(default)]
    pub indexes: BTreeMap<String, KnownIndex>,
}

/// What is remembered of an index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownIndex {
    pub key: PublicKey,
    pub serial: u64,
    /// The digest of the index with this serial number.
    pub sha256: Sha256Hex,
    /// The keys of each publisher.
    #[serde(default)]
    pub publishers: BTreeMap<String, Vec<PublicKey>>,
    /// Reasons by the digests of revoked libraries.
    #[serde(default)]
    pub revoked: BTreeMap<Sha256Hex, String>,
}

/// Where a library comes from: that decides which indexes may revoke it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Provenance<'a> {
    /// The location of an index.
    Index(&'a str),
    /// A URL or a file.
    Elsewhere(&'a Publisher),
}

impl<'a> Provenance<'a> {
    pub(crate) fn of(locked: &'a Locked) -> Self {
        if locked.is_indexed { Self::Index(&locked.source) } else { Self::Elsewhere(&locked.publisher) }
    }
}

impl Trust {
    pub fn path(home: &Path) -> PathBuf {
        home.join(FILE)
    }

    pub fn read(home: &Path) -> Result<Self> {
        let mut trust: Self = state_file::read(&Self::path(home))?;
        // An earlier version kept an index once for each spelling of its location.
        for (location, known) in mem::take(&mut trust.indexes) {
            match trust.indexes.entry(location::normal(&location)) {
                Entry::Occupied(other) if other.get().serial >= known.serial => {}
                Entry::Occupied(mut other) => drop(other.insert(known)),
                Entry::Vacant(place) => drop(place.insert(known)),
            }
        }
        Ok(trust)
    }

    pub(crate) fn write(&self, home: &Path) -> Result<()> {
        state_file::write(&Self::path(home), self)
    }

    /// The reason for which a library was revoked by an index that has a say on it.
    pub(crate) fn revocation(&self, sha256: &Sha256Hex, from: Provenance<'_>) -> Option<&str> {
        let has_say = |(location, index): &(&String, &KnownIndex)| match from {
            Provenance::Index(source) => *location == source,
            Provenance::Elsewhere(Publisher { name, key }) => {
                index.publishers.get(name).is_some_and(|keys| keys.contains(key))
            }
        };
        let mut indexes = self.indexes.iter().filter(has_say);
        indexes.find_map(|(_, index)| index.revoked.get(sha256).map(String::as_str))
    }

    /// Remembers an index of which `bytes` were verified; a serial number stands for one content. Its revocations are those of
    /// the newest one, so that it can take one back.
    pub(crate) fn see(&mut self, location: &str, key: &PublicKey, index: &Index, bytes: &[u8]) -> Result<()> {
        let sha256 = Sha256Hex::of(bytes);
        if let Some(known) = self.indexes.get(location)
            && (known.serial, &known.key) == (index.serial, key)
            && known.sha256 != sha256
        {
            let why = format!("the index '{}' has other content under the serial number {}", index.name, index.serial);
            return Err(PackageError::untrusted(why).help("ask its maintainer which one is right"));
        }
        let revoked = index.revoked.iter().map(|revoked| (revoked.sha256.clone(), revoked.reason.clone()));
        let known = KnownIndex {
            key: key.clone(),
            serial: index.serial,
            sha256,
            publishers: index.publishers.clone(),
            revoked: revoked.collect(),
        };
        self.indexes.insert(location.to_owned(), known);
        Ok(())
    }

    /// Compares a publisher's key with the one that is known. Returns false if none is.
    pub(crate) fn knows(&self, publisher: &Publisher) -> Result<bool> {
        match self.publishers.get(&publisher.name) {
            None => Ok(false),
            Some(known) if *known == publisher.key => Ok(true),
            Some(known) => {
                let name = &publisher.name;
                let why = format!("the package is signed by {}, and the key of '{name}' is {known}", publisher.key);
                let help = format!("ask '{name}' whether the key was replaced; if so, remove it from trust.json");
                Err(PackageError::untrusted(why).help(help))
            }
        }
    }
}
