//! The rules for libraries that a server is about to map, and hints for checkpoints that no plugin claims. Both come from
//! files in the data folder; nothing is fetched.

use std::{
    collections::{HashMap, HashSet},
    env,
    path::{Path, PathBuf},
};

use pensieve_protocol::checkpoint::CheckpointName;
use semver::Version;

use crate::{
    Index, Lock, Origin, Release, Sha256Hex, Trust, error::Result, index::INDEX_BYTES_MAX, origin::OWN_INDEX,
    state_file, trust::Provenance,
};

/// What may be in the plugin folder of `add`.
#[derive(Clone, Debug, Default)]
pub struct Installed {
    /// The digests that a file may have, by its path.
    files: HashMap<PathBuf, (String, Vec<Sha256Hex>)>,
    /// Reasons by the digests of revoked libraries.
    revoked: HashMap<String, String>,
}

/// A plugin of an index that claims a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suggestion {
    pub plugin: String,
    pub index: String,
}

impl Installed {
    pub fn read(home: &Path) -> Result<Self> {
        let mut files: HashMap<PathBuf, (String, Vec<Sha256Hex>)> = HashMap::new();
        let folder = folder(home);
        let folder = folder.canonicalize().unwrap_or(folder);
        let trust = Trust::read(home)?;
        let mut revoked = HashMap::new();
        for locked in Lock::read(home)?.plugins {
            for library in &locked.libraries {
                if let Some(reason) = trust.revocation(&library.sha256, Provenance::of(&locked)) {
                    revoked.insert(library.sha256.as_str().to_owned(), reason.to_owned());
                }
                let path = folder.join(&library.file);
                let (_, digests) = files.entry(path).or_insert_with(|| (locked.name.clone(), Vec::new()));
                digests.push(library.sha256.clone());
            }
        }
        Ok(Self { files, revoked })
    }

    /// The files whose change changes the rules.
    pub fn sources(home: &Path) -> [PathBuf; 2] {
        [Lock::path(home), Trust::path(home)]
    }

    /// The reason why a library of a package was revoked.
    pub fn revoked(&self, sha256: &str) -> Option<&str> {
        self.revoked.get(sha256).map(String::as_str)
    }

    /// The plugin that the lock has for a path, if its digest is not this one.
    pub fn differs(&self, path: &Path, sha256: &str) -> Option<&str> {
        let (name, digests) = self.files.get(path)?;
        (!digests.iter().any(|known| known.as_str() == sha256)).then_some(name)
    }
}

/// The folder that packages are installed to.
pub(crate) fn folder(home: &Path) -> PathBuf {
    home.join("plugins")
}

/// Where the newest verified copies of indexes are kept.
pub(crate) fn indexes(home: &Path) -> PathBuf {
    home.join("cache/indexes")
}

/// The plugins of the indexes, as they were last seen, that claim such a checkpoint and have a release for this machine that is
/// not revoked. If there is none, the one of the program's release, for which its index was never asked.
pub fn suggestions(home: &Path, name: &CheckpointName, origin: Option<&Origin>) -> Vec<Suggestion> {
    let entries = std::fs::read_dir(indexes(home)).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|kind| kind == "json"));
    let read = |path: PathBuf| -> Option<Index> {
        let bytes = state_file::bytes(&path, INDEX_BYTES_MAX as u64).ok().flatten()?;
        Index::parse(&bytes).ok()
    };
    let mut found = Vec::new();
    for index in paths.filter_map(read) {
        let revoked: HashSet<&Sha256Hex> = index.revoked.iter().map(|revoked| &revoked.sha256).collect();
        for plugin in index.plugins.keys() {
            let newest = index.releases(plugin).into_iter().find(|(_, release)| may_run_here(release, &revoked));
            let claims = newest.iter().flat_map(|(_, release)| &release.manifest.plugin.architectures);
            let mut names = claims.map(|claim| match name {
                CheckpointName::Gguf(name) => claim.gguf.contains(name),
                CheckpointName::Class(name) => claim.classes.contains(name),
            });
            if names.any(|claims| claims) {
                found.push(Suggestion { plugin: plugin.clone(), index: index.name.clone() });
            }
        }
    }
    found.sort_by(|one, other| one.plugin.cmp(&other.plugin));
    found.dedup();
    if found.is_empty()
        && let Some(plugin) = origin.and_then(|origin| origin.claimant(name))
    {
        found.push(Suggestion { plugin: plugin.to_owned(), index: OWN_INDEX.to_owned() });
    }
    found
}

/// Whether a release has a library for this machine. That a variant has its device here, `add` finds out.
fn may_run_here(release: &Release, revoked: &HashSet<&Sha256Hex>) -> bool {
    let manifest = &release.manifest;
    let target = format!("{}-{}", env::consts::OS, env::consts::ARCH);
    let is_new_enough = Version::parse(env!("CARGO_PKG_VERSION")).is_ok_and(|own| manifest.minimum_host <= own);
    let mut libraries = manifest.artifacts.iter().filter(|artifact| artifact.target == target);
    is_new_enough && libraries.any(|artifact| !revoked.contains(&artifact.sha256))
}
