//! The catalogue of plugins and their providers: a value that never changes once it is published.
//!
//! Built out of what the folders hold, in their order of precedence: of two plugins with one id the first wins, and of two
//! providers with one name as well, so that a user's folder can override what came with the program.

use serde::Serialize;
use std::{collections::HashMap, path::PathBuf, sync::Arc};

use super::PrivateCopy;
use pensieve_protocol::{
    checkpoint::CheckpointName,
    manifest::{Claim, Manifest},
    refusal::Refusal,
};

/// A plugin that new loads may use. A worker that uses it keeps it, so that its copy stays.
#[derive(Debug)]
pub struct Plugin {
    /// The file that the user put into a folder.
    pub file: PathBuf,
    pub manifest: Manifest,
    /// The private copy, which workers map.
    pub copy: PrivateCopy,
}

/// One file of a plugin folder and what became of it, as `GET /v1/plugins` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PluginState {
    /// The file, or the folder that was refused as a whole.
    pub file: PathBuf,
    /// The SHA-256 of the content that was looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    #[serde(flatten)]
    pub status: Status,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum Status {
    /// It is being written or looked at.
    Pending,
    /// New loads use it.
    Ready { plugin: Manifest },
    /// It is valid, but a plugin of the same id comes first.
    Shadowed {
        plugin: Manifest,
        /// The file that comes first.
        by: PathBuf,
    },
    /// It is not a plugin, or not one that may be used.
    Rejected(Refusal),
    /// It was removed or replaced; streams that run on it go on.
    Retired { plugin: Manifest, in_use: bool },
}

/// A file and what is known of it: the catalogue's input.
#[derive(Clone, Debug)]
pub(super) struct PluginFile {
    pub(super) file: PathBuf,
    pub(super) known: Knowledge,
}

#[derive(Clone, Debug)]
pub(super) enum Knowledge {
    /// Not inspected yet; until then the file's old version stays in use.
    Pending {
        before: Option<Arc<Plugin>>,
    },
    Plugin(Arc<Plugin>),
    Refused {
        sha256: Option<String>,
        refusal: Refusal,
    },
}

/// A provider that wants checkpoints of some name.
#[derive(Clone, Debug)]
pub struct Claimant {
    pub plugin: Arc<Plugin>,
    /// The architecture's name in that plugin.
    pub architecture: String,
}

/// All plugins at one moment.
#[derive(Clone, Debug, Default)]
pub struct Catalogue {
    states: Vec<PluginState>,
    plugins: Vec<Arc<Plugin>>,
}

impl Catalogue {
    #[cfg(test)]
    pub(in crate::fleet) fn for_tests(plugins: Vec<Arc<Plugin>>) -> Self {
        Self { states: Vec::new(), plugins }
    }

    /// True if this very version of a plugin is still offered.
    pub(in crate::fleet) fn has(&self, plugin: &Arc<Plugin>) -> bool {
        self.plugins.iter().any(|known| Arc::ptr_eq(known, plugin))
    }

    pub(super) fn build(entries: &[PluginFile], retired: Vec<PluginState>) -> Self {
        let mut catalogue = Self::default();
        let mut first = HashMap::<String, PathBuf>::new();
        for PluginFile { file, known } in entries {
            let (plugin, pending) = match known {
                Knowledge::Refused { sha256, refusal } => {
                    let status = Status::Rejected(refusal.clone());
                    let state = PluginState { file: file.clone(), sha256: sha256.clone(), status };
                    catalogue.states.push(state);
                    continue;
                }
                Knowledge::Pending { before } => (before.as_ref(), true),
                Knowledge::Plugin(plugin) => (Some(plugin), false),
            };
            let by = plugin.and_then(|plugin| first.get(&plugin.manifest.id)).cloned();
            if let (Some(plugin), None) = (plugin, &by) {
                first.insert(plugin.manifest.id.clone(), file.clone());
                catalogue.plugins.push(plugin.clone());
            }
            let status = match (plugin, by) {
                (Some(plugin), None) if !pending => Status::Ready { plugin: plugin.manifest.clone() },
                (Some(plugin), Some(by)) if !pending => Status::Shadowed { plugin: plugin.manifest.clone(), by },
                _ => Status::Pending,
            };
            let sha256 = plugin.filter(|_| !pending).map(|plugin| plugin.copy.sha256().to_owned());
            catalogue.states.push(PluginState { file: file.clone(), sha256, status });
        }
        catalogue.states.extend(retired);
        catalogue
    }

    /// True if a reader would see no difference.
    pub(super) fn equals(&self, other: &Self) -> bool {
        let same = |(a, b): (&Arc<Plugin>, &Arc<Plugin>)| Arc::ptr_eq(a, b);
        self.states == other.states
            && self.plugins.len() == other.plugins.len()
            && self.plugins.iter().zip(&other.plugins).all(same)
    }

    /// Every file of the plugin folders and what became of it, and the plugins that were retired.
    pub fn states(&self) -> &[PluginState] {
        &self.states
    }

    /// The plugins that new loads may use, in their order of precedence.
    pub fn plugins(&self) -> &[Arc<Plugin>] {
        &self.plugins
    }

    /// The architectures that claim such a checkpoint, in the order in which they are asked: folder by folder, and in each the
    /// plugins with the fewest architectures first, so that one made for a family comes before a collection.
    pub fn claimants(&self, name: &CheckpointName) -> Vec<Claimant> {
        let wants = |claim: &Claim| match name {
            CheckpointName::Gguf(name) => claim.gguf.contains(name),
            CheckpointName::Class(name) => claim.classes.contains(name),
        };
        let mut plugins: Vec<_> = self.plugins.iter().collect();
        for folder in plugins.chunk_by_mut(|one, next| one.file.parent() == next.file.parent()) {
            folder.sort_by_key(|plugin| plugin.manifest.architectures.len());
        }
        let claims = plugins.into_iter().flat_map(|plugin| {
            let claims = plugin.manifest.architectures.iter().filter(|claim| wants(claim));
            claims
                .map(|claim| Claimant { plugin: plugin.clone(), architecture: claim.architecture.clone() })
                .collect::<Vec<_>>()
        });
        claims.collect()
    }

    /// The names of all architectures, for the message that none of them fits.
    pub fn architectures(&self) -> Vec<&str> {
        let claims = self.plugins.iter().flat_map(|plugin| &plugin.manifest.architectures);
        claims.map(|claim| claim.architecture.as_str()).collect()
    }

    pub fn samplers(&self) -> Vec<(String, Arc<Plugin>)> {
        self.providers(|manifest| &manifest.samplers)
    }

    pub fn adapter_formats(&self) -> Vec<(String, Arc<Plugin>)> {
        self.providers(|manifest| &manifest.adapter_formats)
    }

    fn providers(&self, names: impl Fn(&Manifest) -> &Vec<String>) -> Vec<(String, Arc<Plugin>)> {
        let mut providers: Vec<(String, Arc<Plugin>)> = Vec::new();
        for plugin in &self.plugins {
            for name in names(&plugin.manifest) {
                if !providers.iter().any(|(known, _)| known == name) {
                    providers.push((name.clone(), plugin.clone()));
                }
            }
        }
        providers
    }
}
