//! `sequence-state/1`, of a per-sequence [`crate::Model`]: copies the state of a whole sequence, so that such models too
//! can reuse a prefix, survive preemption and spill to disk.

use abi_stable::{
    StableAbi,
    sabi_types::RMut,
    std_types::{RResult, RSlice, RVec},
};

use crate::{ModelBox, PluginError};

/// The id to ask for.
pub const ID: &str = "sequence-state/1";

/// The table.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct SequenceState {
    /// `[engine thread, loaded]` Makes `to`, a new sequence, equal to `from`.
    pub fork: extern "C" fn(model: RMut<'_, ()>, from: u64, to: u64) -> RResult<(), PluginError>,
    /// `[engine thread, loaded]` The state as bytes, which mean nothing to the host and fit any model with the same card
    /// fingerprint, device kind and options.
    pub snapshot: extern "C" fn(model: RMut<'_, ()>, sequence: u64) -> RResult<RVec<u8>, PluginError>,
    /// `[engine thread, loaded]` Makes a new sequence out of a snapshot; bytes of a wrong length or form are an error.
    pub restore: extern "C" fn(model: RMut<'_, ()>, sequence: u64, bytes: RSlice<'_, u8>) -> RResult<(), PluginError>,
}

impl SequenceState {
    /// The model's table, if it has one.
    pub fn of(model: &ModelBox) -> Option<Result<&'static Self, PluginError>> {
        model.extension(ID.into()).into_option().map(|extension| extension.table(ID))
    }
}
