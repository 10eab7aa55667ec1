//! `kv-transfer/1`, of a paged [`crate::Model`]: copies blocks out of the model's memory and back, so that a host can
//! keep cold blocks on disk. The bytes mean nothing to the host; they fit any model with the same card fingerprint,
//! device kind and options.

use abi_stable::{
    StableAbi,
    sabi_types::RMut,
    std_types::{RResult, RSlice, RSliceMut},
};

use crate::{ModelBox, PluginError};

/// The id to ask for.
pub const ID: &str = "kv-transfer/1";

/// The table.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct KvTransfer {
    /// `[engine thread, loaded]` The length of an exported block.
    pub block_bytes: extern "C" fn(model: RMut<'_, ()>) -> u64,
    /// `[engine thread, loaded]` Copies a block out; `bytes` is of that length.
    pub export: extern "C" fn(model: RMut<'_, ()>, block: u32, bytes: RSliceMut<'_, u8>) -> RResult<(), PluginError>,
    /// `[engine thread, loaded]` Overwrites a block; no sequence uses it. The host answers for bytes that a model with another
    /// fingerprint exported; a wrong length is an error.
    pub import: extern "C" fn(model: RMut<'_, ()>, block: u32, bytes: RSlice<'_, u8>) -> RResult<(), PluginError>,
}

impl KvTransfer {
    /// The model's table, if it has one.
    pub fn of(model: &ModelBox) -> Option<Result<&'static Self, PluginError>> {
        model.extension(ID.into()).into_option().map(|extension| extension.table(ID))
    }
}
