//! `origin.json` of an installed program: which release it is of, where its successors are looked for and whose signatures they
//! have to bear, and which families the release has.

use std::{
    env,
    path::{Path, PathBuf},
};

use pensieve_protocol::checkpoint::CheckpointName;
use semver::Version;
use serde::{Deserialize, Serialize};

use crate::{PackageError, PublicKey, error::Result, state_file};

pub const ORIGIN: &str = "origin.json";
/// Limit on the file's length.
const BYTES_MAX: u64 = 256 << 10;
/// The name of the index that has the program's own families.
pub(crate) const OWN_INDEX: &str = "pensieve";

/// Where an installed program comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    pub version: Version,
    pub target: String,
    pub kind: String,
    /// A folder or a URL, below which releases are found; may be empty.
    #[serde(default)]
    pub location: String,
    /// The key that signs releases; none for a release without a signature.
    #[serde(default)]
    pub key: Option<PublicKey>,
    /// The index with newer releases of the program's own families.
    #[serde(default)]
    pub index: Option<OwnIndex>,
    /// The plugins of the release, those too that its small archive leaves out.
    #[serde(default)]
    pub families: Vec<Family>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnIndex {
    /// A folder or a URL.
    pub location: String,
    pub key: PublicKey,
}

/// A plugin of a release.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Family {
    /// The plugin's id.
    pub plugin: String,
    pub version: Version,
    /// The library's file name.
    pub library: String,
    /// The names in GGUF files that it claims, and the classes in `config.json`.
    #[serde(default)]
    pub gguf: Vec<String>,
    #[serde(default)]
    pub classes: Vec<String>,
}

impl Origin {
    /// The origin of the program in `FOLDER/bin`, and that folder; `None` if it was not installed from a release.
    pub fn of_program(program: &Path) -> Result<Option<(Self, PathBuf)>> {
        let Some(folder) = program.parent().and_then(Path::parent) else { return Ok(None) };
        let path = folder.join(ORIGIN);
        let Some(bytes) = state_file::bytes(&path, BYTES_MAX)? else { return Ok(None) };
        let origin = serde_json::from_slice(&bytes).map_err(|error| {
            PackageError::damaged(format!("'{}' cannot be read: {error}", path.display())).help("install again")
        })?;
        Ok(Some((origin, folder.to_owned())))
    }

    /// The origin of this program, if it has one that can be read.
    pub fn of_this_program() -> Option<(Self, PathBuf)> {
        let program = env::current_exe().and_then(|program| program.canonicalize()).ok()?;
        Self::of_program(&program).ok().flatten()
    }

    /// The plugin of the release that claims such a checkpoint, if an index has it.
    pub(crate) fn claimant(&self, name: &CheckpointName) -> Option<&str> {
        self.index.as_ref()?;
        let family = self.families.iter().find(|family| match name {
            CheckpointName::Gguf(name) => family.gguf.contains(name),
            CheckpointName::Class(name) => family.classes.contains(name),
        });
        family.map(|family| family.plugin.as_str())
    }
}

impl Family {
    /// Whether its library lies in an installation.
    pub fn is_in(&self, folder: &Path) -> bool {
        let is_name = !self.library.contains('/');
        is_name && folder.join("lib/pensieve").join(&self.library).is_file()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::SecretKey;
    use serde_json::json;
    use std::fs;

    #[test]
    fn an_origin_says_which_family_claims_a_checkpoint_if_an_index_has_it() {
        let root = tempfile::tempdir().unwrap();
        let program = root.path().join("bin/pensieve");
        assert!(Origin::of_program(&program).unwrap().is_none());
        let write = |text: &str| fs::write(root.path().join(ORIGIN), text).unwrap();
        let family =
            json!({"plugin": "phi", "version": "0.1.0", "library": "libphi.so", "classes": ["PhiForCausalLM"]});
        let mut text = json!({"version": "0.1.0", "target": "linux-x86_64", "kind": "minimal", "families": [family]});
        let read = |text: &serde_json::Value| {
            write(&text.to_string());
            Origin::of_program(&program).unwrap().unwrap().0
        };
        let phi = CheckpointName::Class("PhiForCausalLM".into());
        assert_eq!(read(&text).claimant(&phi), None);
        text["index"] = json!({"location": "/srv/index", "key": SecretKey::generate().unwrap().public()});
        let origin = read(&text);
        assert_eq!(origin.claimant(&phi), Some("phi"));
        assert_eq!(origin.claimant(&CheckpointName::Gguf("phi".into())), None);
        assert!(!origin.families[0].is_in(root.path()));
        fs::create_dir_all(root.path().join("lib/pensieve")).unwrap();
        fs::write(root.path().join("lib/pensieve/libphi.so"), "").unwrap();
        assert!(origin.families[0].is_in(root.path()));
        for damaged in ["", "{", "[]", "{\"version\": 1}"] {
            write(damaged);
            assert!(Origin::of_program(&program).unwrap_err().to_string().contains("install again"), "{damaged}");
        }
    }
}
