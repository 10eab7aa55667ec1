//! `draft/diagnostics/1`: what the layers' kernels do on this machine, for the host's reports.

use pensieve_plugin_api::{
    PluginError, ServicesArc,
    abi_stable::std_types::{RResult, RStr, RString, RVec},
    ext::diagnostics::Diagnostics,
};

use super::guard::guard;
use crate::{Services, nn::diagnostics};

pub(super) static TABLE: Diagnostics = Diagnostics { sections, measure };

extern "C" fn sections() -> RVec<RString> {
    guard("sections", || Ok(diagnostics::sections().map(RString::from).collect())).unwrap_or(RVec::new())
}

extern "C" fn measure(section: RStr<'_>, settings: RStr<'_>, services: ServicesArc) -> RResult<RString, PluginError> {
    guard("a measurement", || {
        let services = Services::from_host(services);
        diagnostics::measure(section.as_str(), settings.as_str(), &services).map(RString::from)
    })
}
