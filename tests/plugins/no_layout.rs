//! A plugin whose header leaves out what its types look like.

use pensieve_plugin_api::{
    PluginModule_Ref,
    abi_stable::{
        library::{CheckTypeLayout, LibHeader, RootModuleError, RootModuleResult},
        std_types::RErr,
    },
};

extern "C" fn constructor() -> RootModuleResult {
    RErr(RootModuleError::Unwound)
}

#[unsafe(export_name = "_1as_0lib_1header_0root_bmodule_bloader")]
#[used]
static HEADER: LibHeader =
    // SAFETY: the constructor never returns a module.
    unsafe { LibHeader::from_constructor::<PluginModule_Ref>(constructor, CheckTypeLayout::No) };
