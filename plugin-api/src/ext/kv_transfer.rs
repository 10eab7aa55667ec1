//! `kv-transfer/1`, of a [`crate::Model`] whose caches are not opaque: copies blocks and slots out of the model's
//! memory and back, so that a host can spill cold ones to disk. A group is identified by its index in the card. The
//! bytes are opaque to the host and valid for any model with the same card fingerprint, device kind, options and
//! context.

use abi_stable::{
    StableAbi,
    sabi_types::RMut,
    std_types::{RResult, RSlice, RSliceMut},
};

use super::Offered;
use crate::{ModelBox, PluginError};

/// The extension's id.
pub const ID: &str = "kv-transfer/1";

/// The table. Its functions are unsafe to call directly, as they trust that `model` is the object that offered the table;
/// [`KvTransfer::of`] ensures that.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct KvTransfer {
    /// `[engine thread, loaded]` The length of an exported block or slot of a group; 0 for a group that does not exist.
    pub bytes: unsafe extern "C" fn(model: RMut<'_, ()>, group: u32) -> u64,
    /// `[engine thread, loaded]` Copies a block or slot out; `bytes` is of that length.
    pub export: unsafe extern "C" fn(
        model: RMut<'_, ()>,
        group: u32,
        id: u32,
        bytes: RSliceMut<'_, u8>,
    ) -> RResult<(), PluginError>,
    /// `[engine thread, loaded]` Overwrites a block or slot that no sequence uses. A wrong length is an error; the host
    /// must not pass bytes exported under another fingerprint.
    pub import: unsafe extern "C" fn(
        model: RMut<'_, ()>,
        group: u32,
        id: u32,
        bytes: RSlice<'_, u8>,
    ) -> RResult<(), PluginError>,
}

impl KvTransfer {
    /// The model's table, if it offers one.
    pub fn of(model: &mut ModelBox) -> Option<Result<Offered<'_, Self>, PluginError>> {
        let extension = model.extension(ID.into()).into_option()?;
        Some(extension.table(ID).map(|table| Offered { table, object: model.obj.sabi_as_rmut() }))
    }
}

impl Offered<'_, KvTransfer> {
    /// The length of an exported block or slot of a group.
    pub fn bytes(&mut self, group: u32) -> u64 {
        // SAFETY: `object` is the model whose extension `table` is.
        unsafe { (self.table.bytes)(self.object.reborrow(), group) }
    }

    /// Copies a block or slot out; `bytes` has its group's length.
    pub fn export(&mut self, group: u32, id: u32, bytes: &mut [u8]) -> Result<(), PluginError> {
        // SAFETY: as above.
        unsafe { (self.table.export)(self.object.reborrow(), group, id, bytes.into()) }.into_result()
    }

    /// Overwrites a block or slot that no sequence uses; `bytes` has its group's length.
    pub fn import(&mut self, group: u32, id: u32, bytes: &[u8]) -> Result<(), PluginError> {
        // SAFETY: as above.
        unsafe { (self.table.import)(self.object.reborrow(), group, id, bytes.into()) }.into_result()
    }
}
