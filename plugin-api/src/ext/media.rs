//! `media/1`, of an [`crate::Architecture`] and of its [`crate::Model`]s: images and sounds in a prompt. An architecture says
//! what an item becomes, and prepares it; a model encodes what was prepared into rows, which stand in place of the
//! embeddings of some tokens.
//!
//! An item of a conversation goes this way:
//!
//! 1. The chat template writes `placeholder` for it, and the host puts [`Measured::text`] there. The text holds the token
//!    `slot` once for every row. To count tokens nothing more is needed than the item's size.
//! 2. [`Prepare`] turns the decoded item into bytes of the architecture's own: resized, cut into tiles, patches in order.
//!    This runs in a process of its own, without the checkpoint.
//! 3. [`Encode::open`] takes these bytes under a handle, and [`Encode::encode`] computes its rows in pieces, so that
//!    streams go on in between.
//! 4. [`Encode::place`] says which tokens of a sequence belong to which item, and from then on the sequence is computed
//!    like any other. A model whose positions depend on the items derives them from their layouts.
//!
//! Cached states of a prefix with items are reused where the items are the same: the host compares what was decoded,
//! and the description. So items in a reused prefix are placed, too, with their layout alone.
//!
//! What an item becomes depends on nothing else: [`Prepare`]'s functions return the same for the same arguments, and the rows
//! of an item depend on its size, its layout and its prepared bytes, never on other items or on where it stands. So one that
//! follows changes nothing before it, and a host may prepare an item once for many requests.
//!
//! A host asks for kinds alone that the description has. Later versions of the contract may add kinds, and members of the
//! description; neither changes what is here.
//!
//! The description is a JSON object of at most [`DESCRIPTION_BYTES_MAX`] bytes, with the members `image` and `audio` for
//! the kinds that the checkpoint reads. Unknown members are ignored. The members of each:
//!
//! | member | value |
//! |---|---|
//! | `placeholder` | the text that the chat template writes for an item; it is not empty |
//! | `text` | the text to write for an item where the template knows no items. Default: `placeholder` |
//! | `slot` | the token that stands for a row |
//! | `whole` | the slots of a run see each other, later ones included: a run is computed in one step. Default `false` |
//! | `rows_max` | the most rows of one item |
//! | `row_bytes` | the bytes that a model keeps for a row until its item is closed |
//! | `encoder_bytes` | scratch bytes of the largest item that is encoded alone |
//! | `rate` | of `audio`: samples per second |
//! | `processor` | any value; [`Prepare`]'s functions get it back as JSON |

use abi_stable::{
    StableAbi,
    sabi_types::{RMut, RRef},
    std_types::{RResult, RSlice, RStr, RString, RVec},
};

use super::Offered;
use crate::{ArchitectureBox, ModelBox, PluginError, Source};

/// The extension's id, for both tables.
pub const ID: &str = "media/1";
/// Limit on the length of a description.
pub const DESCRIPTION_BYTES_MAX: usize = 256 << 10;
/// Limit on the length of [`Measured::layout`].
pub const LAYOUT_BYTES_MAX: usize = 4 << 10;
/// The value of [`Placement::handle`] for an item whose rows are not needed now: all of its tokens are in the sequence's
/// caches, or it is placed again before one of them is computed.
pub const NO_HANDLE: u64 = 0;

/// A kind of item. An architecture or a model answers others than it knows with [`crate::ErrorCode::UNSUPPORTED`] or
/// [`crate::ErrorCode::INVALID`].
#[repr(transparent)]
#[derive(StableAbi, Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediaKind(pub u32);

impl MediaKind {
    /// A picture.
    pub const IMAGE: Self = Self(0);
    /// A sound with one channel.
    pub const AUDIO: Self = Self(1);
}

/// The size of an item, which all of its text depends on.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediaSize {
    /// Image or audio.
    pub kind: MediaKind,
    /// Pixels in a row, or samples.
    pub width: u32,
    /// Rows of pixels; 1 for audio.
    pub height: u32,
}

/// A decoded item.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct MediaItem<'a> {
    /// Its kind and size, each side at least 1.
    pub size: MediaSize,
    /// For images three bytes a pixel, red, green and blue, upright, the top row first. For audio a little-endian `f32`
    /// a sample.
    pub data: RSlice<'a, u8>,
}

/// An item's part of a prompt.
#[repr(C)]
#[derive(StableAbi, Clone, Debug)]
pub struct Measured {
    /// The text in place of the placeholder. Special tokens in it are special.
    pub text: RString,
    /// The number of slots in the text.
    pub rows: u32,
    /// What the model has to know to give the tokens their positions, at most [`LAYOUT_BYTES_MAX`]: grids, for example.
    pub layout: RVec<u8>,
}

/// The table of an architecture. Its functions are unsafe to call directly, as they trust that `architecture` is the
/// object that offered the table; [`Prepare::of`] ensures that.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct Prepare {
    /// `[any thread]` Returns the description of a checkpoint; an empty text if it reads text alone. Reads headers and
    /// configuration files, never the weights.
    pub describe:
        unsafe extern "C" fn(architecture: RRef<'_, ()>, source: &Source<'_>) -> RResult<RString, PluginError>,
    /// `[any thread]` Returns an item's part of a prompt. `processor` is the description's. Reads no files.
    pub measure: unsafe extern "C" fn(
        architecture: RRef<'_, ()>,
        processor: RStr<'_>,
        size: MediaSize,
    ) -> RResult<Measured, PluginError>,
    /// `[any thread]` Returns what [`Encode::open`] takes, at least one byte. Reads no files.
    pub prepare: unsafe extern "C" fn(
        architecture: RRef<'_, ()>,
        processor: RStr<'_>,
        item: &MediaItem<'_>,
    ) -> RResult<RVec<u8>, PluginError>,
}

/// An item's tokens in a sequence.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct Placement<'a> {
    /// The index of its first token in the sequence.
    pub start: u32,
    /// All of its tokens. Of these, the slots take its rows in order. A step may begin between them, after a reused
    /// prefix, and has to know how many slots came before.
    pub tokens: RSlice<'a, u32>,
    /// Its kind and size.
    pub size: MediaSize,
    /// As it was measured.
    pub layout: RSlice<'a, u8>,
    /// An encoded item, or [`NO_HANDLE`].
    pub handle: u64,
}

/// The table of a model. Its functions are unsafe to call directly, as they trust that `model` is the object that
/// offered the table; [`Encode::of`] ensures that.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct Encode {
    /// `[engine thread, loaded]` Takes an item under a handle other than [`NO_HANDLE`] that is not in use. `prepared` is
    /// checked: it may come from a damaged process.
    pub open: unsafe extern "C" fn(
        model: RMut<'_, ()>,
        handle: u64,
        size: MediaSize,
        layout: RSlice<'_, u8>,
        prepared: RSlice<'_, u8>,
    ) -> RResult<(), PluginError>,
    /// `[engine thread, loaded]` Computes rows of these items, in one batch where that pays, for about this many
    /// microseconds but at least one piece, such as a layer. Returns the number of pieces left; at 0 all of them have
    /// their rows. The rows of an item do not depend on its company.
    pub encode:
        unsafe extern "C" fn(model: RMut<'_, ()>, handles: RSlice<'_, u64>, budget: u32) -> RResult<u32, PluginError>,
    /// `[engine thread, loaded]` Replaces the items of a sequence by these, in order and disjoint, until the sequence is
    /// released. Called before its first batch, and again between batches with the same items and other handles: when
    /// an item has been encoded, and with [`NO_HANDLE`] when all of its tokens have been computed. A batch that computes
    /// a placed slot without a row is [`crate::ErrorCode::INVALID`]. Outside of placements, where a model may have
    /// written one itself, `slot` is a token like any other.
    pub place: unsafe extern "C" fn(
        model: RMut<'_, ()>,
        sequence: u64,
        placements: RSlice<'_, Placement<'_>>,
    ) -> RResult<(), PluginError>,
    /// `[engine thread, loaded]` Drops an item that no sequence is placed on, in whatever state; an unknown handle is
    /// not an error.
    pub close: unsafe extern "C" fn(model: RMut<'_, ()>, handle: u64),
}

/// A checked table together with the architecture that offered it.
pub struct Preparing<'a> {
    table: &'static Prepare,
    object: RRef<'a, ()>,
}

impl Prepare {
    /// The architecture's table, if it offers one.
    pub fn of(architecture: &ArchitectureBox) -> Option<Result<Preparing<'_>, PluginError>> {
        let extension = architecture.extension(ID.into()).into_option()?;
        Some(extension.table(ID).map(|table| Preparing { table, object: architecture.obj.sabi_as_rref() }))
    }
}

impl Preparing<'_> {
    /// Returns the description of a checkpoint.
    pub fn describe(&self, source: &Source<'_>) -> Result<RString, PluginError> {
        // SAFETY: `object` is the architecture whose extension `table` is.
        unsafe { (self.table.describe)(self.object, source) }.into_result()
    }

    /// Returns an item's part of a prompt.
    pub fn measure(&self, processor: &str, size: MediaSize) -> Result<Measured, PluginError> {
        // SAFETY: as above.
        unsafe { (self.table.measure)(self.object, processor.into(), size) }.into_result()
    }

    /// Returns the bytes that a model takes.
    pub fn prepare(&self, processor: &str, item: &MediaItem<'_>) -> Result<RVec<u8>, PluginError> {
        // SAFETY: as above.
        unsafe { (self.table.prepare)(self.object, processor.into(), item) }.into_result()
    }
}

impl Encode {
    /// The model's table, if it offers one.
    pub fn of(model: &mut ModelBox) -> Option<Result<Offered<'_, Self>, PluginError>> {
        let extension = model.extension(ID.into()).into_option()?;
        Some(extension.table(ID).map(|table| Offered { table, object: model.obj.sabi_as_rmut() }))
    }
}

impl Offered<'_, Encode> {
    /// Takes an item under a handle.
    pub fn open(&mut self, handle: u64, size: MediaSize, layout: &[u8], prepared: &[u8]) -> Result<(), PluginError> {
        // SAFETY: `object` is the model whose extension `table` is.
        unsafe { (self.table.open)(self.object.reborrow(), handle, size, layout.into(), prepared.into()) }.into_result()
    }

    /// Computes rows of these items for about this many microseconds; returns the number of pieces left.
    pub fn encode(&mut self, handles: &[u64], budget: u32) -> Result<u32, PluginError> {
        // SAFETY: as above.
        unsafe { (self.table.encode)(self.object.reborrow(), handles.into(), budget) }.into_result()
    }

    /// Replaces the items of a sequence.
    pub fn place(&mut self, sequence: u64, placements: &[Placement<'_>]) -> Result<(), PluginError> {
        // SAFETY: as above.
        unsafe { (self.table.place)(self.object.reborrow(), sequence, placements.into()) }.into_result()
    }

    /// Drops an item.
    pub fn close(&mut self, handle: u64) {
        // SAFETY: as above.
        unsafe { (self.table.close)(self.object.reborrow(), handle) }
    }
}
