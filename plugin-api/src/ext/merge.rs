//! `merge/1`, of an [`crate::Architecture`]: loads a checkpoint with adapters added to its weights, so that they cost
//! nothing afterwards and cannot be removed. Weights that cannot hold the sum, such as quantized ones, are refused by
//! name. The host decides which adapters it merges and which it attaches.

use abi_stable::{
    StableAbi,
    sabi_types::RRef,
    std_types::{RResult, RSlice},
};

use crate::{AdapterData, ArchitectureBox, LoadRequest, ModelBox, PluginError, ServicesArc};

/// The extension's id.
pub const ID: &str = "merge/1";

/// An adapter to be merged.
#[repr(C)]
#[derive(StableAbi, Clone, Debug)]
pub struct Merged {
    /// Each of its pairs gives `W + strength · scale · B·A`.
    pub adapter: AdapterData,
    /// Multiplies the adapter's own scale; 1 is as trained.
    pub strength: f32,
}

/// The table. Its function is unsafe to call directly, as it trusts that `architecture` is the object that offered the
/// table; [`Merge::of`] ensures that.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct Merge {
    /// `[control thread]` As [`crate::Architecture::load`], with all pairs of all adapters added to the weights that
    /// they name, in their order. A pair that does not fit, or whose weight cannot take it, is an error that names the
    /// tensor.
    pub load: unsafe extern "C" fn(
        architecture: RRef<'_, ()>,
        request: &LoadRequest<'_>,
        services: ServicesArc,
        merged: RSlice<'_, Merged>,
    ) -> RResult<ModelBox, PluginError>,
}

/// A checked table together with the architecture that offered it.
pub struct Merging<'a> {
    table: &'static Merge,
    object: RRef<'a, ()>,
}

impl Merge {
    /// The architecture's table, if it offers one.
    pub fn of(architecture: &ArchitectureBox) -> Option<Result<Merging<'_>, PluginError>> {
        let extension = architecture.extension(ID.into()).into_option()?;
        Some(extension.table(ID).map(|table| Merging { table, object: architecture.obj.sabi_as_rref() }))
    }
}

impl Merging<'_> {
    /// Loads the checkpoint with these adapters merged into its weights.
    pub fn load(
        &self,
        request: &LoadRequest<'_>,
        services: ServicesArc,
        merged: &[Merged],
    ) -> Result<ModelBox, PluginError> {
        // SAFETY: `object` is the architecture whose extension `table` is.
        unsafe { (self.table.load)(self.object, request, services, merged.into()) }.into_result()
    }
}
