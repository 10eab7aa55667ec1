//! A plugin's entry point: the one symbol that it exports.
//!
//! The version of the root module is the contract's version, so that a host can read it from the library's header
//! before it relies on any layout in it.

use abi_stable::{
    StableAbi,
    library::{CheckTypeLayout, LibHeader, RootModule, RootModuleResult},
    package_version_strings,
    prefix_type::{PrefixRefTrait, PrefixTypeTrait},
    sabi_types::VersionStrings,
    std_types::{ROption, RResult, RStr, RString, RVec},
};
use std::fmt;

use crate::{AdapterBox, ArchitectureBox, Extension, PluginError, SamplerBox};

/// A contract version; plugins and hosts of one major version are compatible.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// A plugin of another major version is not loaded.
    pub major: u32,
    /// Always 0 in contract 1: it grows by extensions.
    pub minor: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// A plugin's identity and what it provides: a host lists and routes by it without calling any provider.
#[repr(C)]
#[derive(StableAbi, Clone, Debug)]
pub struct Manifest {
    /// Short and unique among installed plugins: `llama`.
    pub id: RString,
    /// The plugin's own version: `0.3.1`.
    pub version: RString,
    /// One line for display.
    pub description: RString,
    /// The compiler that built it: `rustc 1.95.0`.
    pub toolchain: RString,
    /// The SDK it was built with: `pensieve-sdk 0.1.0`; empty for none.
    pub sdk: RString,
    /// In the order of [`PluginModule::architecture`]'s indices.
    pub architectures: RVec<Claim>,
    /// Names, in the order of [`PluginModule::sampler`]'s indices.
    pub samplers: RVec<RString>,
    /// Names, in the order of [`PluginModule::adapter_format`]'s indices.
    pub adapter_formats: RVec<RString>,
}

/// The checkpoints that an architecture claims. A host asks every claimant to describe the checkpoint until one
/// accepts.
#[repr(C)]
#[derive(StableAbi, Clone, Debug)]
pub struct Claim {
    /// The architecture's name: `llama`.
    pub architecture: RString,
    /// Values of a GGUF file's `general.architecture`.
    pub gguf: RVec<RString>,
    /// Values in the `architectures` of a `config.json`, such as `LlamaForCausalLM`.
    pub classes: RVec<RString>,
}

/// The root module. Each call makes a new provider, which belongs to the caller.
#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = PluginModule_Ref)))]
pub struct PluginModule {
    /// `[any thread]` Must be cheap, and must not touch files or devices.
    pub manifest: extern "C" fn() -> Manifest,
    /// `[any thread]` By its index in the manifest.
    pub architecture: extern "C" fn(index: u32) -> RResult<ArchitectureBox, PluginError>,
    /// `[any thread]` By its index in the manifest.
    pub sampler: extern "C" fn(index: u32) -> RResult<SamplerBox, PluginError>,
    /// `[any thread]` By its index in the manifest.
    pub adapter_format: extern "C" fn(index: u32) -> RResult<AdapterBox, PluginError>,
    /// `[any thread]` An extension of the plugin as a whole. The functions of its table take no object.
    #[sabi(last_prefix_field)]
    pub extension: extern "C" fn(id: RStr<'_>) -> ROption<Extension>,
}

impl RootModule for PluginModule_Ref {
    abi_stable::declare_root_module_statics! {PluginModule_Ref}
    const BASE_NAME: &'static str = "pensieve_plugin";
    const NAME: &'static str = "pensieve plugin";
    const VERSION_STRINGS: VersionStrings = package_version_strings!();
}

/// The header that a plugin exports under abi_stable's symbol name. The SDK's export macro writes the `static`;
/// `constructor` returns the result of [`PluginModule::export`].
pub const fn header(constructor: extern "C" fn() -> RootModuleResult) -> LibHeader {
    // SAFETY: `RootModuleResult` is only made by `PluginModule::export`, from a `PluginModule`.
    unsafe { LibHeader::from_constructor::<PluginModule_Ref>(constructor, CheckTypeLayout::Yes) }
}

impl PluginModule {
    /// The return value of [`header`]'s constructor: the module, leaked so that it lives as long as the library.
    pub fn export(self) -> RootModuleResult {
        let module = self.leak_into_prefix();
        // SAFETY: erasing the module's type is what the loading protocol asks for; `init_root_module` checks and
        // restores it.
        RResult::ROk(unsafe { module.to_prefix_ref().cast() })
    }
}
