//! Questions to a media process and its answers: a client's files become what a model reads. Frames and numbers are as in
//! [`crate::prompt`].
//!
//! A process serves one model and one key. The first question names the plugin; each further one carries a file.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{
    job::Failure,
    media::{ItemSize, KindUse, PreparedBytes},
    wire::FRAME_BYTES_MAX,
};

/// Limit on a file, which a question carries in one frame.
pub const FILE_BYTES_MAX: usize = FRAME_BYTES_MAX - FRAME_ROOM;
/// Limit on what is prepared of a file, which an answer carries in one frame.
pub const PREPARED_BYTES_MAX: usize = FRAME_BYTES_MAX - FRAME_ROOM;
/// Room in a frame beside a file.
const FRAME_ROOM: usize = 8 << 20;
/// Limit on the text that stands for a row, and on the text around the rows.
const ROW_TEXT_BYTES_MAX: usize = 64;
const FRAME_TEXT_BYTES_MAX: usize = 64 << 10;

/// Limit on the text of an item with this many rows.
pub fn text_bytes_max(rows: u32) -> usize {
    (rows as usize).saturating_mul(ROW_TEXT_BYTES_MAX).saturating_add(FRAME_TEXT_BYTES_MAX).min(FRAME_ROOM / 2)
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum MediaQuestion {
    /// Always the first question.
    Open(Box<Opening>),
    /// Measure a picture by its header.
    Measure(PreparedBytes),
    /// Decode and prepare a picture.
    Prepare(PreparedBytes),
}

/// A plugin, and the description that its architecture made of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opening {
    /// The plugin's library.
    pub plugin: PathBuf,
    pub architecture: String,
    pub image: KindUse,
    /// Limits of a picture, checked before it is decoded.
    pub pixels_max: u64,
    pub side_max: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MediaAnswer {
    Opened,
    Measured(MeasuredItem),
    Prepared {
        item: MeasuredItem,
        /// Of the pixels and of all that they are prepared by.
        digest: [u8; 32],
        prepared: PreparedBytes,
    },
    /// The file is no picture that can be shown to a model; a predicate, such as `is empty`.
    Unreadable(String),
    Failed(Failure),
}

/// An item's part of a prompt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasuredItem {
    pub size: ItemSize,
    /// The text in place of the placeholder; special tokens in it are special.
    pub text: String,
    /// The number of slots in the text.
    pub rows: u32,
    pub layout: Vec<u8>,
}
