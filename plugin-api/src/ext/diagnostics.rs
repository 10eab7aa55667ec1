//! `draft/diagnostics/1`, of a plugin as a whole: measures the devices, compilers and kernels that its code uses on
//! this machine, for a report to people without such a machine. Sections come and go with the kernels behind them, so
//! this stays a draft.

use abi_stable::{
    StableAbi,
    std_types::{RResult, RStr, RString, RVec},
};

use crate::{PluginError, ServicesArc};

/// The extension's id.
pub const ID: &str = "draft/diagnostics/1";

/// The table of `draft/diagnostics/1`.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct Diagnostics {
    /// `[any thread]` Returns the names of its sections, in the order of a report.
    pub sections: extern "C" fn() -> RVec<RString>,
    /// `[control thread]` Measures a section and returns a JSON object. `settings` is a JSON object with `device`, as
    /// in [`crate::LoadRequest`], and `quick`, for small sizes. [`crate::ErrorCode::UNSUPPORTED`] means that there is
    /// nothing to measure on this device.
    pub measure:
        extern "C" fn(section: RStr<'_>, settings: RStr<'_>, services: ServicesArc) -> RResult<RString, PluginError>,
}
