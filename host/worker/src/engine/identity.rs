//! The identity of a model's prefix cache on disk: everything besides text that the contents of its blocks depend on.
//!
//! A block that is read in a different setting than it was written in gives wrong answers without any error, so the
//! identity consists of all fields of one struct, and a new field becomes part of it automatically. Settings that only
//! affect speed (threads, memory, limits) are left out, so that a cache survives changing them.

use std::{ffi::OsStr, fmt};

pub(super) struct Identity<'a> {
    /// Equal for equal weights and tokenizer.
    pub(super) fingerprint: &'a str,
    pub(super) architecture: &'a str,
    pub(super) plugin: &'a str,
    pub(super) version: &'a str,
    pub(super) sdk: &'a str,
    /// The library's file name. A server loads a private copy named by its SHA-256, so a plugin rebuilt under the same
    /// version has another name.
    pub(super) library: &'a OsStr,
    pub(super) device: &'a str,
    /// The requested context and the effective one: scaled rotary encodings (LongRoPE) depend on it.
    pub(super) context: [u32; 2],
    /// Settings of the architecture, such as the type of keys and values.
    pub(super) options: &'a str,
    /// Adapters merged into the weights: fingerprint, and the bits of the scale.
    pub(super) merged: Vec<(&'a str, u32)>,
}

impl fmt::Display for Identity<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Destructuring makes sure that no field is forgotten; debug output quotes strings, so none can run into the
        // next.
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
