//! The name of a model's prefix cache on disk: everything that the numbers in its blocks depend on besides their text.
//!
//! A block that is read under other numbers than it was written with gives wrong answers without any error, so the name
//! is made of all fields of one struct: a field that is added is part of the name. What changes speed alone (threads,
//! memory, limits) is left out, so that a cache survives it.

use std::{ffi::OsStr, fmt};

pub(super) struct Identity<'a> {
    /// Equal for equal weights and tokenizer.
    pub(super) fingerprint: &'a str,
    pub(super) architecture: &'a str,
    pub(super) plugin: &'a str,
    pub(super) version: &'a str,
    pub(super) sdk: &'a str,
    /// The library's file name. A server loads a private copy that is named by its SHA-256, so a plugin that was rebuilt under
    /// the same version has another name.
    pub(super) library: &'a OsStr,
    pub(super) device: &'a str,
    /// The context that was asked for, and the one that was taken: scaled rotary encodings (LongRoPE) depend on it.
    pub(super) context: [u32; 2],
    /// Settings of the architecture, such as the type of keys and values.
    pub(super) options: &'a str,
    /// Adapters in the weights: fingerprint, and the bits of the strength.
    pub(super) merged: Vec<(&'a str, u32)>,
}

impl fmt::Display for Identity<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No field can be forgotten here, and as debug output quotes texts, none can run into its neighbour.
        let Self { fingerprint, architecture, plugin, version, sdk, library, device, context, options, merged } = self;
        let plugin = (architecture, plugin, version, sdk, library);
        write!(f, "{:?}", (fingerprint, plugin, device, context, options, merged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() -> Identity<'static> {
        Identity {
            fingerprint: "f",
            architecture: "a",
            plugin: "p",
            version: "1",
            sdk: "s",
            library: OsStr::new("l"),
            device: "cpu",
            context: [0, 4096],
            options: "",
            merged: vec![("x", 1)],
        }
    }

    #[test]
    fn every_setting_that_changes_numbers_changes_the_name() {
        let changes: [fn(&mut Identity<'static>); 13] = [
            |it| it.fingerprint = "g",
            |it| it.architecture = "b",
            |it| it.plugin = "q",
            |it| it.version = "2",
            |it| it.sdk = "t",
            |it| it.library = OsStr::new("m"),
            |it| it.device = "cuda:0",
            |it| it.context = [4096, 4096],
            |it| it.context = [0, 8192],
            |it| it.options = r#"{"kv":"f16"}"#,
            |it| it.merged.clear(),
            |it| it.merged = vec![("y", 1)],
            |it| it.merged = vec![("x", 2)],
        ];
        let mut names = vec![plain().to_string()];
        for change in changes {
            let mut changed = plain();
            change(&mut changed);
            names.push(changed.to_string());
        }
        let distinct: std::collections::HashSet<&String> = names.iter().collect();
        assert_eq!(distinct.len(), names.len(), "{names:#?}");
    }

    #[test]
    fn a_text_cannot_run_into_the_next_field() {
        let one = Identity { plugin: "p\", version: \"1", version: "1", ..plain() };
        let other = Identity { plugin: "p", version: "1\", version: \"1", ..plain() };
        assert_ne!(one.to_string(), other.to_string());
    }
}
