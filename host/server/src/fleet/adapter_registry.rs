//! The adapter registry: each model's adapters, both those from the configuration and those attached at run time.
//! Clients may name a registered adapter, every new worker of its model loads it, and it is lost when the server exits.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use pensieve_protocol::{
    job::{Failure, FailureCode},
    wire::{Location, MergedAdapter},
};

const NAME_LEN_MAX: usize = 128;
pub(super) const ADAPTERS_MAX: usize = 1024;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Adapter {
    pub location: Location,
    /// The source as the user wrote it.
    pub source: String,
    /// The scale at which it is merged into the model's weights; `None` if requests choose the scale.
    pub merged: Option<f32>,
}

pub(super) type AdaptersByName = BTreeMap<String, Adapter>;

/// The adapters of all models. Those of the configuration keep their order.
#[derive(Debug)]
pub(super) struct AdapterRegistry {
    models: RwLock<Vec<AdaptersByName>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterFailure {
    pub culprit: Culprit,
    pub failure: Failure,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Culprit {
    Model,
    Name,
    /// The adapter's source, or the files found there.
    Source,
    Other,
}

impl Culprit {
    pub(super) fn of(self, failure: Failure) -> AdapterFailure {
        AdapterFailure { culprit: self, failure }
    }
}

impl Adapter {
    pub fn at(path: impl Into<PathBuf>) -> Self {
        let location = Location::trusted(path);
        Self { source: location.path.display().to_string(), location, merged: None }
    }
}

/// Checks an adapter's name, which clients write after a model's id and a colon. The error is a predicate about the
/// name.
pub fn check_adapter_name(name: &str) -> Result<(), String> {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    // These would change a path that contains the name.
    let is_step = name == "." || name == "..";
    if (1..=NAME_LEN_MAX).contains(&name.len()) && name.bytes().all(legal) && !is_step {
        return Ok(());
    }
    Err(format!("cannot follow a model's id; it takes 1 to {NAME_LEN_MAX} letters, digits and -_. signs"))
}

impl AdapterRegistry {
    pub(super) fn new(models: Vec<AdaptersByName>) -> Self {
        Self { models: RwLock::new(models) }
    }

    pub(super) fn all(&self) -> RwLockReadGuard<'_, Vec<AdaptersByName>> {
        self.models.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn of(&self, model: usize) -> AdaptersByName {
        self.all().get(model).cloned().unwrap_or_default()
    }

    pub(super) fn merged(&self, model: usize) -> Vec<MergedAdapter> {
        let merged = |(name, adapter): (String, Adapter)| {
            Some(MergedAdapter { name, path: adapter.location.path, scale: adapter.merged? })
        };
        self.of(model).into_iter().filter_map(merged).collect()
    }

    /// True if the model has adapters that requests can choose.
    pub(super) fn has_some(&self, model: usize) -> bool {
        self.all().get(model).is_some_and(|names| names.values().any(|adapter| adapter.merged.is_none()))
    }

    /// Adds models after the known ones, whose adapters are given as well and stay as they are.
    pub(super) fn grow(&self, models: impl Iterator<Item = AdaptersByName>) {
        let mut known = self.write();
        let count = known.len();
        known.extend(models.skip(count));
    }

    /// Removes an adapter, even a merged one.
    pub(super) fn forget(&self, model: usize, name: &str) {
        if let Some(names) = self.write().get_mut(model) {
            names.remove(name);
        }
    }

    pub(super) fn insert(&self, model: usize, name: String, adapter: Adapter) {
        if let Some(names) = self.write().get_mut(model) {
            names.insert(name, adapter);
        }
    }

    /// Removes an adapter. Fails if none has that name, or if it is merged.
    pub(super) fn remove(&self, model: usize, id: &str, name: &str) -> Result<(), Failure> {
        let mut models = self.write();
        let Some(names) = models.get_mut(model) else { return Ok(()) };
        match names.get(name) {
            None => {
                Err(Failure { help: format!("GET /v1/models/{id}/adapters lists them"), ..unknown(id, names, name) })
            }
            Some(Adapter { merged: Some(_), .. }) => {
                let message = format!("adapter '{name}' is merged into the weights of model '{id}'");
                let help = "take it out of the configuration, and start the server again";
                Err(Failure::new(FailureCode::Unsupported, message).with_help(help))
            }
            Some(_) => {
                names.remove(name);
                Ok(())
            }
        }
    }

    fn write(&self) -> RwLockWriteGuard<'_, Vec<AdaptersByName>> {
        self.models.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Error for an unknown adapter name.
pub(super) fn unknown(id: &str, names: &AdaptersByName, name: &str) -> Failure {
    if names.get(name).is_some_and(|adapter| adapter.merged.is_some()) {
        let message = format!("adapter '{name}' is merged into model '{id}'");
        return Failure::new(FailureCode::NotFound, message).with_help(format!("ask for '{id}' itself"));
    }
    let known = names.iter().filter(|(_, adapter)| adapter.merged.is_none()).map(|(name, _)| name.as_str());
    let known: Vec<&str> = known.collect();
    let known = if known.is_empty() { "none".into() } else { known.join(", ") };
    let message = format!("model '{id}' has no adapter '{name}' (it has: {known})");
    let help = "add it to [models.adapters], or POST it to /v1/models/ID/adapters";
    Failure::new(FailureCode::NotFound, message).with_help(help)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn names_can_stand_behind_an_id() {
        for name in ["poet", "a.b-c_9", &"x".repeat(128)] {
            assert_eq!(check_adapter_name(name), Ok(()), "{name}");
        }
        for name in ["", ".", "..", "a b", "a:b", "a/b", "..\\x", "ä", "a\n", &"x".repeat(129)] {
            assert!(check_adapter_name(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn merged_ones_stay() {
        let merged = Adapter { merged: Some(1.0), ..Adapter::at("/x") };
        let adapters = [("fixed".to_owned(), merged), ("free".to_owned(), Adapter::at("/y"))].into();
        let registry = AdapterRegistry::new(vec![adapters]);
        assert!(registry.has_some(0) && !registry.has_some(1));
        assert_eq!(registry.remove(0, "m", "fixed").unwrap_err().code, FailureCode::Unsupported);
        assert_eq!(registry.remove(0, "m", "free"), Ok(()));
        let failure = registry.remove(0, "m", "free").unwrap_err();
        assert_eq!(failure.message, "model 'm' has no adapter 'free' (it has: none)");
        assert!(!registry.has_some(0));
    }
}
