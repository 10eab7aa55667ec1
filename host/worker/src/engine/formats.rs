//! Adapter formats: finds the one that claims a path, and reads the adapter with it.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use pensieve_plugin_api::{AdapterBox, AdapterData, ErrorCode};

use super::failures::{of_adapter, of_plugin, text_of};
use crate::plugin::LoadedPlugin;
use pensieve_protocol::{
    job::{Failure, FailureCode},
    outside::Outside,
    path_policy,
    wire::Location,
};

#[derive(Clone, Default)]
pub struct Formats {
    formats: Arc<Vec<(String, AdapterBox)>>,
}

/// An adapter as read by its format.
pub struct ReadAdapter {
    pub format: String,
    pub data: AdapterData,
}

impl Formats {
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

    /// Reads an adapter with the first format that claims it and does not decline it on a closer look, in the order of
    /// the plugins and their manifests. The location's folders are checked again, as the files may have changed since
    /// the last check, and an adapter with a file of more than `bytes_max` is not even opened. May take long.
    pub fn read(&self, location: &Location, bytes_max: u64) -> Result<ReadAdapter, Failure> {
        let path = location.path.as_path();
        if !location.folders.is_empty() {
            path_policy::check(path, &location.folders)?;
        }
        let bytes = weight_bytes(path);
        if bytes > bytes_max {
            let message = format!(
                "'{}' has a file of {bytes} bytes, more than adapters of this model may have",
                Outside::path(&path)
            );
            return Err(Failure::new(FailureCode::Unsupported, message).with_help("raise the model's adapter_memory"));
        }
        let text = text_of(path)?;
        let mut declined = String::new();
        for (name, format) in self.formats.iter().filter(|(_, format)| format.claims(text.into())) {
            match format.open(text.into()).into_result() {
                Ok(data) => return Ok(ReadAdapter { format: name.clone(), data }),
                Err(error) if error.code == ErrorCode::DECLINED => {
                    declined.push_str(&format!("; '{name}' declined it: {}", error.message));
                }
                Err(error) => return Err(of_adapter(error)),
            }
        }
        let known: Vec<&str> = self.formats.iter().map(|(name, _)| name.as_str()).collect();
        let known = if known.is_empty() { "none".into() } else { known.join(", ") };
        let path = Outside::path(&path);
        let message = format!("no plugin knows the adapter format of '{path}' (installed: {known}){declined}");
        Err(Failure::new(FailureCode::NotFound, message).with_help("drop its plugin into plugins/"))
    }
}

/// Size of the largest weight file.
fn weight_bytes(path: &Path) -> u64 {
    let has_weights =
        |path: &Path| path.extension().is_some_and(|kind| ["safetensors", "gguf"].map(OsStr::new).contains(&kind));
    let entries = fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let files = entries.chain([path.to_path_buf()]).filter(|path| has_weights(path));
    files.filter_map(|file| file.metadata().ok()).map(|about| about.len()).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pensieve_plugin_api::{
        AdapterFormat, AdapterFormat_TO, Extension, PluginError,
        abi_stable::{
            sabi_trait::TD_Opaque,
            std_types::{ROption, RResult, RStr, RVec},
        },
    };

    /// A format that claims everything, and fails with this code if there is one.
    struct Fake(Option<ErrorCode>);

    impl AdapterFormat for Fake {
        fn claims(&self, _: RStr<'_>) -> bool {
            true
        }

        fn open(&self, _: RStr<'_>) -> RResult<AdapterData, PluginError> {
            let read = AdapterData { base: "".into(), fingerprint: "read".into(), pairs: RVec::new() };
            self.0.map_or(RResult::ROk(read), |code| RResult::RErr(PluginError::new(code, "not one of mine")))
        }

        fn extension(&self, _: RStr<'_>) -> ROption<Extension> {
            ROption::RNone
        }
    }

    fn read(formats: &[(&str, Option<ErrorCode>)]) -> Result<ReadAdapter, Failure> {
        let boxed = |(name, code): &(&str, Option<ErrorCode>)| -> (String, AdapterBox) {
            ((*name).to_owned(), AdapterFormat_TO::from_value(Fake(*code), TD_Opaque))
        };
        let formats = Formats { formats: Arc::new(formats.iter().map(boxed).collect()) };
        formats.read(&Location::trusted("an/adapter"), u64::MAX)
    }

    #[test]
    fn a_format_that_declines_leaves_the_adapter_to_the_next_claimant() {
        let declines = ("first", Some(ErrorCode::DECLINED));
        assert_eq!(
            read(&[declines, ("second", None), ("third", None)]).map(|read| read.format).ok(),
            Some("second".into())
        );
        let failure = read(&[declines, ("second", Some(ErrorCode::DECLINED))]).err().unwrap();
        assert_eq!(failure.code, FailureCode::NotFound);
        let expected = "(installed: first, second); 'first' declined it: not one of mine; 'second' declined it";
        assert!(failure.message.contains(expected), "{failure}");
    }

    #[test]
    fn a_format_that_fails_is_believed() {
        let failure = read(&[("first", Some(ErrorCode::CORRUPT)), ("second", None)]).err().unwrap();
        assert_eq!((failure.code, failure.message.as_str()), (FailureCode::Invalid, "not one of mine"));
    }
}
