//! `draft/timeline/1`, of a [`crate::Model`]: records what each of its threads does when, for `pensieve bench --trace`.

use abi_stable::{
    StableAbi,
    sabi_types::RMut,
    std_types::{RResult, RString, RVec},
};

use super::Offered;
use crate::{ModelBox, PluginError};

/// The extension's id.
pub const ID: &str = "draft/timeline/1";

/// The table. Its functions are unsafe to call directly, as they trust that `model` is the object that offered the table;
/// [`Timeline::of`] ensures that.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct Timeline {
    /// `[engine thread, loaded]` Begins to record; what was recorded before is dropped.
    pub start: unsafe extern "C" fn(model: RMut<'_, ()>) -> RResult<(), PluginError>,
    /// `[engine thread, loaded]` Ends the recording and returns it. The host drops the last spans of a long one.
    pub finish: unsafe extern "C" fn(model: RMut<'_, ()>) -> RResult<Recording, PluginError>,
}

/// What was recorded.
#[repr(C)]
#[derive(StableAbi, Clone, Debug, Default)]
pub struct Recording {
    /// The names of the threads. The first is the one that calls the model.
    pub threads: RVec<RString>,
    /// What spans are about, such as functions.
    pub names: RVec<RString>,
    pub spans: RVec<Span>,
}

/// A stretch of time of one thread, in nanoseconds since the recording began.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct Span {
    /// Index in [`Recording::threads`].
    pub thread: u32,
    /// Index in [`Recording::names`].
    pub name: u32,
    pub start_ns: u64,
    pub end_ns: u64,
}

impl Timeline {
    /// The model's table, if it offers one.
    pub fn of(model: &mut ModelBox) -> Option<Result<Offered<'_, Self>, PluginError>> {
        let extension = model.extension(ID.into()).into_option()?;
        Some(extension.table(ID).map(|table| Offered { table, object: model.obj.sabi_as_rmut() }))
    }
}

impl Offered<'_, Timeline> {
    /// Begins to record.
    pub fn start(&mut self) -> Result<(), PluginError> {
        // SAFETY: `object` is the model whose extension `table` is.
        unsafe { (self.table.start)(self.object.reborrow()) }.into_result()
    }

    /// Ends the recording and returns it.
    pub fn finish(&mut self) -> Result<Recording, PluginError> {
        // SAFETY: as above.
        unsafe { (self.table.finish)(self.object.reborrow()) }.into_result()
    }
}
