//! `trust.json`: keys of publishers and indexes as they were first seen, the newest serial of each index, and libraries
//! that were revoked.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{Index, PackageError, PublicKey, Publisher, Revocation, Sha256Hex, error::Result, state_file};

const FILE: &str = "trust.json";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trust {
    /// Keys of publishers of packages that came without an index.
    #[serde(default)]
    pub publishers: BTreeMap<String, PublicKey>,
    /// By location.
    #[serde(default)]
    pub indexes: BTreeMap<String, KnownIndex>,
    #[serde(default)]
    pub revoked: Vec<Revocation>,
}

/// What is remembered of an index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownIndex {
    pub key: PublicKey,
    pub serial: u64,
    /// The digest of the index with this serial number.
    pub sha256: Sha256Hex,
}

impl Trust {
    pub fn path(home: &Path) -> PathBuf {
        home.join(FILE)
    }

    pub fn read(home: &Path) -> Result<Self> {
        state_file::read(&Self::path(home))
    }

    pub(crate) fn write(&self, home: &Path) -> Result<()> {
        state_file::write(&Self::path(home), self)
    }

    pub fn revocation(&self, sha256: &str) -> Option<&Revocation> {
        self.revoked.iter().find(|revoked| revoked.sha256.as_str() == sha256)
    }

    /// Remembers an index of which `bytes` were verified; a serial number stands for one content.
    pub(crate) fn see(&mut self, location: &str, key: &PublicKey, index: &Index, bytes: &[u8]) -> Result<()> {
        let sha256 = Sha256Hex::of(bytes);
        if let Some(known) = self.indexes.get(location)
            && (known.serial, &known.key) == (index.serial, key)
            && known.sha256 != sha256
        {
            let why = format!("the index '{}' has other content under the serial number {}", index.name, index.serial);
            return Err(PackageError::untrusted(why).help("ask its maintainer which one is right"));
        }
        for revoked in &index.revoked {
            if self.revocation(revoked.sha256.as_str()).is_none() {
                self.revoked.push(revoked.clone());
            }
        }
        let known = KnownIndex { key: key.clone(), serial: index.serial, sha256 };
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
