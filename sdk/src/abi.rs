//! The ABI's types in an author's own extensions; everything else of the SDK is free of them.

pub use pensieve_plugin_api::{Extension, PluginError, abi_stable};
