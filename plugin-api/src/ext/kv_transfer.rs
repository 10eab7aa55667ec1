//! `kv-transfer/1`, of a paged [`crate::Model`]: copies blocks out of the model's memory and back, so that a host can
//! keep cold blocks on disk. The bytes mean nothing to the host; they fit any model with the same card fingerprint,
//! device kind and options.

use abi_stable::{
    StableAbi,
    sabi_types::RMut,
    std_types::{RResult, RSlice, RSliceMut},
};

use super::Offered;
use crate::{ModelBox, PluginError};

/// The id to ask for.
pub const ID: &str = "kv-transfer/1";

/// The table. Every function is unsafe to call by itself, as it trusts that `model` is the object that offered the table;
/// [`KvTransfer::of`] makes sure of that.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct KvTransfer {
    /// `[engine thread, loaded]` The length of an exported block.
    pub block_bytes: unsafe extern "C" fn(model: RMut<'_, ()>) -> u64,
    /// `[engine thread, loaded]` Copies a block out; `bytes` is of that length.
    pub export:
        unsafe extern "C" fn(model: RMut<'_, ()>, block: u32, bytes: RSliceMut<'_, u8>) -> RResult<(), PluginError>,
    /// `[engine thread, loaded]` Overwrites a block; no sequence uses it. The host answers for bytes that a model with another
    /// fingerprint exported; a wrong length is an error.
    pub import:
        unsafe extern "C" fn(model: RMut<'_, ()>, block: u32, bytes: RSlice<'_, u8>) -> RResult<(), PluginError>,
}

impl KvTransfer {
    /// The model's ability, if it offers one.
    pub fn of(model: &mut ModelBox) -> Option<Result<Offered<'_, Self>, PluginError>> {
        let extension = model.extension(ID.into()).into_option()?;
        Some(extension.table(ID).map(|table| Offered { table, object: model.obj.sabi_as_rmut() }))
    }
}

impl Offered<'_, KvTransfer> {
    /// The length of an exported block.
    pub fn block_bytes(&mut self) -> u64 {
        // SAFETY: `object` is the model whose extension `table` is.
        unsafe { (self.table.block_bytes)(self.object.reborrow()) }
    }

    /// Copies a block out; `bytes` has the length of a block.
    pub fn export(&mut self, block: u32, bytes: &mut [u8]) -> Result<(), PluginError> {
        // SAFETY: as above.
        unsafe { (self.table.export)(self.object.reborrow(), block, bytes.into()) }.into_result()
    }

    /// Overwrites a block that no sequence uses; `bytes` has the length of a block.
    pub fn import(&mut self, block: u32, bytes: &[u8]) -> Result<(), PluginError> {
        // SAFETY: as above.
        unsafe { (self.table.import)(self.object.reborrow(), block, bytes.into()) }.into_result()
    }
}
