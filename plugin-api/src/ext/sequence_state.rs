//! `sequence-state/1`, of an opaque [`crate::Model`]: copies the state of a whole sequence, so that wrapped code, too,
//! can reuse a prefix, continue from a fork and roll back drafted tokens.

use abi_stable::{
    StableAbi,
    sabi_types::RMut,
    std_types::{RResult, RSlice, RVec},
};

use super::Offered;
use crate::{ModelBox, PluginError};

/// The extension's id.
pub const ID: &str = "sequence-state/1";

/// The table. Its functions are unsafe to call directly, as they trust that `model` is the object that offered the table;
/// [`SequenceState::of`] ensures that.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct SequenceState {
    /// `[engine thread, loaded]` Makes `to`, a new sequence, equal to `from`.
    pub fork: unsafe extern "C" fn(model: RMut<'_, ()>, from: u64, to: u64) -> RResult<(), PluginError>,
    /// `[engine thread, loaded]` The state as bytes, which are opaque to the host and valid for any model with the same
    /// card fingerprint, device kind, options and context.
    pub snapshot: unsafe extern "C" fn(model: RMut<'_, ()>, sequence: u64) -> RResult<RVec<u8>, PluginError>,
    /// `[engine thread, loaded]` Makes a new sequence from a snapshot; bytes of a wrong length or form are an error.
    pub restore:
        unsafe extern "C" fn(model: RMut<'_, ()>, sequence: u64, bytes: RSlice<'_, u8>) -> RResult<(), PluginError>,
}

impl SequenceState {
    /// The model's table, if it offers one.
    pub fn of(model: &mut ModelBox) -> Option<Result<Offered<'_, Self>, PluginError>> {
        let extension = model.extension(ID.into()).into_option()?;
        Some(extension.table(ID).map(|table| Offered { table, object: model.obj.sabi_as_rmut() }))
    }
}

impl Offered<'_, SequenceState> {
    /// Makes `to`, a new sequence, equal to `from`.
    pub fn fork(&mut self, from: u64, to: u64) -> Result<(), PluginError> {
        // SAFETY: `object` is the model whose extension `table` is.
        unsafe { (self.table.fork)(self.object.reborrow(), from, to) }.into_result()
    }

    /// The state of a sequence as bytes.
    pub fn snapshot(&mut self, sequence: u64) -> Result<RVec<u8>, PluginError> {
        // SAFETY: as above.
        unsafe { (self.table.snapshot)(self.object.reborrow(), sequence) }.into_result()
    }

    /// Makes a new sequence from a snapshot.
    pub fn restore(&mut self, sequence: u64, bytes: &[u8]) -> Result<(), PluginError> {
        // SAFETY: as above.
        unsafe { (self.table.restore)(self.object.reborrow(), sequence, bytes.into()) }.into_result()
    }
}
