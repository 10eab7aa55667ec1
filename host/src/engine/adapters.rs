//! Adapters: the formats that read them, those that the model holds, and which sequence runs under which. An adapter that is
//! detached while sequences use it leaves with the last of them.

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    sync::Arc,
};

use pensieve_plugin_api::{AdapterBox, AdapterData};

use super::model::{of_plugin, text_of};
use crate::{
    job::{AdapterUse, Failure, FailureCode},
    plugin::LoadedPlugin,
};

/// All adapter formats of the plugins that this worker was given.
#[derive(Clone, Default)]
pub struct Formats {
    formats: Arc<Vec<(String, AdapterBox)>>,
}

/// The adapters that the model holds.
#[derive(Default)]
pub struct Adapters {
    attached: BTreeMap<String, Adapter>,
    users: HashMap<u64, String>,
    /// What the model is told of each sequence: the adapter's id and strength.
    pub spans: HashMap<u64, (u32, f32)>,
}

struct Adapter {
    id: u32,
    fingerprint: String,
    users: usize,
    leaving: bool,
}

impl Formats {
    /// Opens the plugins.
    pub fn open(plugins: &[PathBuf]) -> Result<Self, Failure> {
        let mut formats = Vec::new();
        for path in plugins {
            let plugin =
                LoadedPlugin::open(path).map_err(|error| Failure::new(FailureCode::Plugin, error.to_string()))?;
            for name in &plugin.manifest().adapter_formats {
                formats.push((name.clone(), plugin.adapter_format(name).map_err(of_plugin)?));
            }
        }
        Ok(Self { formats: Arc::new(formats) })
    }

    /// Reads an adapter in the first format that claims it, and answers the format's name too. May take long.
    pub fn read(&self, path: &Path) -> Result<(String, AdapterData), Failure> {
        let text = text_of(path)?;
        let Some((name, format)) = self.formats.iter().find(|(_, format)| format.claims(text.into())) else {
            let known: Vec<&str> = self.formats.iter().map(|(name, _)| name.as_str()).collect();
            let known = if known.is_empty() { "none".into() } else { known.join(", ") };
            let message = format!("no plugin knows the adapter format of '{}' (installed: {known})", path.display());
            return Err(Failure::new(FailureCode::NotFound, message).with_help("drop its plugin into plugins/"));
        };
        let data = format.open(text.into()).into_result().map_err(of_plugin)?;
        Ok((name.clone(), data))
    }
}

impl Adapters {
    /// The names of those that jobs may use.
    pub fn names(&self) -> Vec<String> {
        self.attached.iter().filter(|(_, adapter)| !adapter.leaving).map(|(name, _)| name.clone()).collect()
    }

    /// Whether there is one of that name, even if it is leaving.
    pub fn contains(&self, name: &str) -> bool {
        self.attached.contains_key(name)
    }

    /// The model has taken one in.
    pub fn insert(&mut self, name: String, id: u32, fingerprint: String) {
        self.attached.insert(name, Adapter { id, fingerprint, users: 0, leaving: false });
    }

    /// What a sequence under an adapter shares cached states by; an error if there is none of that name.
    pub fn salt(&self, wish: &AdapterUse) -> Result<String, Failure> {
        if !wish.scale.is_finite() {
            return Err(Failure::new(FailureCode::Invalid, format!("adapter '{}': its scale is no number", wish.name)));
        }
        match self.attached.get(&wish.name).filter(|adapter| !adapter.leaving) {
            Some(adapter) => Ok(format!("{}\0{:08x}", adapter.fingerprint, wish.scale.to_bits())),
            None => {
                let known = self.names().join(", ");
                let known = if known.is_empty() { "none" } else { &known };
                let message = format!("no adapter is called '{}' (attached: {known})", wish.name);
                Err(Failure::new(FailureCode::NotFound, message))
            }
        }
    }

    /// A sequence begins to use one.
    pub fn begin(&mut self, sequence: u64, wish: AdapterUse) {
        if let Some(adapter) = self.attached.get_mut(&wish.name) {
            adapter.users += 1;
            self.spans.insert(sequence, (adapter.id, wish.scale));
            self.users.insert(sequence, wish.name);
        }
    }

    /// A sequence has ended. Answers the adapter that the model may now forget.
    pub fn end(&mut self, sequence: u64) -> Option<u32> {
        self.spans.remove(&sequence);
        let name = self.users.remove(&sequence)?;
        let adapter = self.attached.get_mut(&name)?;
        adapter.users = adapter.users.saturating_sub(1);
        self.leave(&name)
    }

    /// Nobody may begin to use it any more. Answers what the model may forget at once.
    pub fn retire(&mut self, name: &str) -> Option<u32> {
        self.attached.get_mut(name)?.leaving = true;
        self.leave(name)
    }

    fn leave(&mut self, name: &str) -> Option<u32> {
        self.attached.get(name).filter(|adapter| adapter.leaving && adapter.users == 0)?;
        self.attached.remove(name).map(|adapter| adapter.id)
    }
}
