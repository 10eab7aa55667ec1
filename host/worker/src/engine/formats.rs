//! The formats that adapters are written in: which of them claims a path, and what it reads there.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use pensieve_plugin_api::{AdapterBox, AdapterData};

use super::failures::{of_adapter, of_plugin, text_of};
use crate::plugin::LoadedPlugin;
use pensieve_protocol::{
    job::{Failure, FailureCode},
    path_policy,
    wire::Location,
};

/// All adapter formats of the plugins that this worker was given.
#[derive(Clone, Default)]
pub struct Formats {
    formats: Arc<Vec<(String, AdapterBox)>>,
}

/// What a format has read.
pub struct ReadAdapter {
    /// The format's name.
    pub format: String,
    /// What the adapter is.
    pub data: AdapterData,
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

    /// Reads an adapter in the first format that claims it, unless it leads out of where it has to lie: what it consists of
    /// may have changed since it was last looked at. One with a file of more than `bytes_max` is not even opened. May take long.
    pub fn read(&self, location: &Location, bytes_max: u64) -> Result<ReadAdapter, Failure> {
        let path = location.path.as_path();
        if !location.folders.is_empty() {
            path_policy::check(path, &location.folders)?;
        }
        let bytes = weight_bytes(path);
        if bytes > bytes_max {
            let message =
                format!("'{}' has a file of {bytes} bytes, more than adapters of this model may have", path.display());
            return Err(Failure::new(FailureCode::Unsupported, message).with_help("raise the model's adapter_memory"));
        }
        let text = text_of(path)?;
        let Some((name, format)) = self.formats.iter().find(|(_, format)| format.claims(text.into())) else {
            let known: Vec<&str> = self.formats.iter().map(|(name, _)| name.as_str()).collect();
            let known = if known.is_empty() { "none".into() } else { known.join(", ") };
            let message = format!("no plugin knows the adapter format of '{}' (installed: {known})", path.display());
            return Err(Failure::new(FailureCode::NotFound, message).with_help("drop its plugin into plugins/"));
        };
        let data = format.open(text.into()).into_result().map_err(of_adapter)?;
        Ok(ReadAdapter { format: name.clone(), data })
    }
}

/// Bytes of the largest file with weights.
fn weight_bytes(path: &Path) -> u64 {
    let has_weights =
        |path: &Path| path.extension().is_some_and(|kind| ["safetensors", "gguf"].map(OsStr::new).contains(&kind));
    let entries = fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let files = entries.chain([path.to_path_buf()]).filter(|path| has_weights(path));
    files.filter_map(|file| file.metadata().ok()).map(|about| about.len()).max().unwrap_or(0)
}
