//! The plugins that come with the program: the program's own index may have newer releases of them, which stand in for them
//! until the program itself is newer.

use std::collections::BTreeMap;

use semver::Version;

use super::{Chosen, Outdated, Read, Store, Update};
use crate::{Locked, error::Result};

/// The plugins of the program, and the index that they are updated from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bundled {
    /// The location of the index, in the form of [`IndexSource::new`](super::IndexSource::new).
    pub index: String,
    /// The variant of their libraries.
    pub variant: String,
    /// Versions by the plugins' ids.
    pub plugins: BTreeMap<String, Version>,
}

impl Store<'_> {
    pub(super) fn is_bundled(&self, name: &str) -> bool {
        self.settings.bundled.plugins.contains_key(name)
    }

    /// The plugins of the program for which no package stands in.
    fn bundled(&self) -> Vec<(String, Version)> {
        let bundled = self.settings.bundled.plugins.iter().filter(|(name, _)| self.lock.find(name).is_none());
        bundled.map(|(name, version)| (name.clone(), version.clone())).collect()
    }

    /// A release of the program's own index that is newer than the program's plugin and fits.
    fn newer<'i>(&self, indexes: &'i [Read], name: &str, version: &Version) -> Option<Chosen<'i>> {
        let own = indexes.iter().find(|read| read.location == self.settings.bundled.index)?;
        let chosen = self.choose(std::slice::from_ref(own), name, None).ok()?;
        let is_for_all = chosen.version.pre.is_empty() || !version.pre.is_empty();
        (chosen.version > *version && is_for_all).then_some(chosen)
    }

    pub(super) fn outdated_bundled(&self, indexes: &[Read]) -> Vec<Outdated> {
        let newer = self.bundled().into_iter().filter_map(|(name, installed)| {
            let chosen = self.newer(indexes, &name, &installed)?;
            let (newest, index) = (chosen.version.clone(), chosen.location.to_owned());
            Some(Outdated { name, installed, newest, index })
        });
        newer.collect()
    }

    /// Adds newer releases beside the program's plugins: of all, or of those that are named.
    pub(super) fn update_bundled(&mut self, indexes: &[Read], names: &[String]) -> Vec<Update> {
        let mut updates = Vec::new();
        for (name, version) in self.bundled() {
            if !names.is_empty() && !names.contains(&name) {
                continue;
            }
            let Some(chosen) = self.newer(indexes, &name, &version) else {
                if !names.is_empty() {
                    self.environment.say(&format!("{name} {version}, which came with the program, is the newest"));
                }
                continue;
            };
            updates.push(match self.install_listed(&chosen) {
                Ok(mut added) => {
                    added.before = added.before.or(Some(version));
                    Update::Updated(Box::new(added))
                }
                Err(error) => Update::Failed { name, error },
            });
        }
        updates
    }

    /// Removes a package that stood in for a plugin of the program, which is newer itself by now. Returns the program's version.
    pub(super) fn supersede(&mut self, locked: &Locked, newest: &Version) -> Result<Option<Version>> {
        let bundled = &self.settings.bundled;
        let own = bundled.plugins.get(&locked.name).cloned();
        let is_stand_in = locked.is_of(&bundled.index) && locked.variant == bundled.variant;
        let Some(own) = own.filter(|own| is_stand_in && *own > locked.version && own >= newest) else {
            return Ok(None);
        };
        self.remove(&locked.name)?;
        Ok(Some(own))
    }
}
