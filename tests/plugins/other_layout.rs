//! A library that says that it speaks contract 1, but whose root module is another one.

#![allow(non_camel_case_types, reason = "abi_stable wants names such as Module_Ref")]

use abi_stable::{
    StableAbi, declare_root_module_statics,
    library::{CheckTypeLayout, LibHeader, RootModule, RootModuleResult},
    prefix_type::{PrefixRefTrait, PrefixTypeTrait},
    sabi_types::VersionStrings,
    std_types::ROk,
};

/// Not the module of the contract.
#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = PluginModule_Ref)))]
pub struct PluginModule {
    /// Nothing that contract 1 knows.
    #[sabi(last_prefix_field)]
    pub greeting: extern "C" fn() -> u64,
}

impl RootModule for PluginModule_Ref {
    declare_root_module_statics! {PluginModule_Ref}
    const BASE_NAME: &'static str = "pensieve_plugin";
    const NAME: &'static str = "pensieve plugin";
    const VERSION_STRINGS: VersionStrings = VersionStrings::new("1.0.0");
}

extern "C" fn greeting() -> u64 {
    2
}

extern "C" fn constructor() -> RootModuleResult {
    let module = PluginModule { greeting }.leak_into_prefix();
    // SAFETY: the protocol asks for the module with its type erased.
    ROk(unsafe { module.to_prefix_ref().cast() })
}

#[unsafe(export_name = "_1as_0lib_1header_0root_bmodule_bloader")]
#[used]
static HEADER: LibHeader =
    // SAFETY: the constructor returns this module.
    unsafe { LibHeader::from_constructor::<PluginModule_Ref>(constructor, CheckTypeLayout::Yes) };
