//! The glue between the SDK's plain traits and the contract: the `export!` macro and the functions that it calls.
//!
//! Every call into a plugin passes through here, which guarantees two things without the author's help: a panic becomes
//! an error with its message, and a batch that breaks the contract never reaches the author's code. Apart from
//! `Services` this is the only part of the SDK that uses abi_stable's types.

mod check;
mod convert;
#[cfg(feature = "nn")]
mod diagnostics;
pub mod extension;
mod guard;
mod model;
mod pool;
mod providers;

#[cfg(feature = "testing")]
pub(crate) use convert::{adapter_out, group};
#[cfg(feature = "bridge")]
pub(crate) use guard::{caught, discard};
pub(crate) use model::export_model;
#[cfg(all(feature = "testing", feature = "weights"))]
pub(crate) use providers::export_architecture;
#[cfg(feature = "testing")]
pub(crate) use providers::{export_format, export_sampler};

use pensieve_plugin_api::{
    self as api,
    abi_stable::{
        library::{RootModuleError, RootModuleResult},
        std_types::{RBoxError, RErr, ROk, ROption, RResult, RStr, RString},
    },
    ext::sampler_parameters::{self, SamplerParameters},
};
use std::sync::OnceLock;

use crate::Plugin;
use guard::guard;

/// Exports a [`Plugin`] from this library. Once per library; its `Cargo.toml` says `crate-type = ["cdylib"]`.
///
/// ```
/// # use pensieve_sdk::{Plugin, Result, sampler::*};
/// struct Greedy;
///
/// impl Sampler for Greedy {
///     fn name(&self) -> &'static str {
///         "always_best"
///     }
///     fn create(&self, _parameters: &str, _vocabulary: u32, _seed: u64) -> Result<Box<dyn Stage>> {
///         Ok(Box::new(Greedy))
///     }
/// }
///
/// impl Stage for Greedy {
///     fn sample(&mut self, candidates: &mut Candidates<'_>, _: History<'_>) -> Result<Option<u32>> {
///         let best = (0..candidates.len()).max_by(|&a, &b| candidates.logits()[a].total_cmp(&candidates.logits()[b]));
///         Ok(best.map(|index| candidates.ids()[index]))
///     }
/// }
///
/// pensieve_sdk::export!(Plugin::new("always-best", "picks the most likely token").sampler(Greedy));
/// ```
#[macro_export]
macro_rules! export {
    ($plugin:expr) => {
        const _: () = {
            fn plugin() -> $crate::Plugin {
                $plugin
            }

            extern "C" fn constructor() -> $crate::export::expansion::RootModuleResult {
                $crate::export::expansion::construct(plugin, env!("CARGO_PKG_VERSION"))
            }

            #[unsafe(export_name = "_1as_0lib_1header_0root_bmodule_bloader")]
            #[used]
            static HEADER: $crate::export::expansion::LibHeader = $crate::export::expansion::header(constructor);
        };
    };
}

/// Items used by the expansion of `export!`; not for authors.
#[doc(hidden)]
pub mod expansion {
    pub use super::construct;
    pub use pensieve_plugin_api::{
        abi_stable::library::{LibHeader, RootModuleResult},
        header,
    };
}

/// The exports of this library. The author's code that describes them runs only once, so that it cannot panic when a
/// host asks again.
struct Exported {
    plugin: Plugin,
    manifest: api::Manifest,
}

static EXPORTED: OnceLock<Exported> = OnceLock::new();

/// Builds the root module from the author's plugin.
pub fn construct(plugin: fn() -> Plugin, version: &'static str) -> RootModuleResult {
    let exported = guard("plugin construction", || {
        let plugin = plugin();
        let manifest = providers::manifest(&plugin, version);
        Ok(Exported { plugin, manifest })
    });
    match exported {
        ROk(exported) => {
            EXPORTED.get_or_init(|| exported);
            api::PluginModule { manifest, architecture, sampler, adapter_format, extension }.export()
        }
        RErr(error) => RErr(RootModuleError::Returned(RBoxError::new(error))),
    }
}

extern "C" fn manifest() -> api::Manifest {
    // The host gets a module only if `construct` has succeeded; otherwise the manifest is empty.
    EXPORTED.get().map_or_else(providers::nothing, |exported| exported.manifest.clone())
}

extern "C" fn architecture(index: u32) -> RResult<api::ArchitectureBox, api::PluginError> {
    providers::architecture(EXPORTED.get(), index)
}

extern "C" fn sampler(index: u32) -> RResult<api::SamplerBox, api::PluginError> {
    providers::sampler(EXPORTED.get(), index)
}

extern "C" fn describe_sampler(index: u32) -> RResult<RString, api::PluginError> {
    providers::describe_sampler(EXPORTED.get(), index)
}

extern "C" fn adapter_format(index: u32) -> RResult<api::AdapterBox, api::PluginError> {
    providers::adapter_format(EXPORTED.get(), index)
}

static SAMPLER_PARAMETERS: SamplerParameters = SamplerParameters { describe: describe_sampler };

extern "C" fn extension(id: RStr<'_>) -> ROption<api::Extension> {
    #[cfg(feature = "nn")]
    if id == api::ext::diagnostics::ID {
        return ROption::RSome(api::Extension::offer(&diagnostics::TABLE));
    }
    if id == sampler_parameters::ID {
        return ROption::RSome(api::Extension::offer(&SAMPLER_PARAMETERS));
    }
    let own =
        EXPORTED.get().and_then(|exported| exported.plugin.extensions.iter().find(|(own, _)| *own == id.as_str()));
    own.map(|(_, extension)| *extension).into()
}

#[cfg(test)]
mod tests {
    use super::{guard::guard, pool::counting};
    use pensieve_plugin_api::abi_stable::library::ROOT_MODULE_LOADER_NAME;

    #[test]
    fn what_a_host_calls_runs_within_an_autorelease_pool_that_ends_with_it_even_if_it_panics() {
        let open = guard("a call", || Ok(counting::open()));
        assert_eq!((open.into_result().unwrap(), counting::open()), (1, 0));
        let _ = guard("a call", || -> crate::Result<()> { panic!("a defect") });
        assert_eq!(counting::open(), 0);
    }

    #[test]
    fn exports_under_the_name_that_a_host_looks_for() {
        assert!(include_str!("mod.rs").contains(&format!("export_name = \"{ROOT_MODULE_LOADER_NAME}\"")));
    }
}
