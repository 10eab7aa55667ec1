//! Images and sounds in a prompt, as plain data: what a checkpoint reads, and the items of a job.

use std::{collections::HashSet, fmt, ops::Deref};

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Limit on the number of items in a job.
pub const ITEMS_MAX: usize = 1024;
/// Limit on an item's layout.
pub const LAYOUT_BYTES_MAX: usize = 4 << 10;
/// Limit on the prepared bytes of a job, and on those of all jobs of a worker together; equal items count once. A hundred
/// screenshots of 2,560 by 1,440 pixels take as much.
pub const PREPARED_BYTES_MAX: usize = if cfg!(test) { 8 << 20 } else { 1 << 30 };

/// Rows that a model holds at least, however small its items are.
const ROWS_MIN: u32 = 4096;

/// The kinds of items that a checkpoint reads besides text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MediaUse {
    pub image: Option<KindUse>,
    pub audio: Option<KindUse>,
}

/// How a checkpoint reads the items of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KindUse {
    /// The text that the chat template writes for an item; never empty.
    pub placeholder: String,
    /// The text for an item where the template knows no items.
    pub text: String,
    /// The token that stands for a row.
    pub slot: u32,
    /// Consecutive slots of an item see each other, so they are computed in one step.
    pub whole: bool,
    /// The most rows of one item.
    pub rows_max: u32,
    /// Bytes that the model keeps for a row of an encoded item.
    pub row_bytes: u64,
    /// Scratch bytes while the largest item is encoded.
    pub encoder_bytes: u64,
    /// Samples per second, of audio.
    pub rate: Option<u32>,
    /// JSON of the architecture's own, handed to it with each item.
    pub processor: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ItemKind {
    #[default]
    Image,
    Audio,
}

/// Pixels, or samples and 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ItemSize {
    pub kind: ItemKind,
    pub width: u32,
    pub height: u32,
}

/// An item of a job's prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptItem {
    /// The index of its first token in the prompt.
    pub start: u32,
    /// The number of its tokens, slots and others.
    pub len: u32,
    pub size: ItemSize,
    /// As measured: what the positions of tokens depend on.
    pub layout: Vec<u8>,
    /// A hash of the decoded item and of the description that it was prepared by. Items with the same digest, size and
    /// layout are the same.
    pub digest: [u8; 32],
    /// The request field that it comes from, for errors.
    pub field: String,
    /// On the wire it precedes its job, in pieces ([`crate::wire::command_frames`]). It arrives empty if the worker has no
    /// memory left for it.
    #[serde(skip)]
    pub prepared: PreparedBytes,
}

/// An item as its architecture prepared it. Clones share the bytes, and a guard that the bytes own lives as long as the
/// last of them.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct PreparedBytes(Bytes);

/// The prepared bytes of a job's items, of equal ones once.
pub fn prepared_bytes(items: &[PromptItem]) -> usize {
    let mut known = HashSet::new();
    let new = items.iter().filter(|item| known.insert(item.digest));
    new.fold(0, |sum, item| sum.saturating_add(item.prepared.len()))
}

impl MediaUse {
    pub fn of(&self, kind: ItemKind) -> Option<&KindUse> {
        match kind {
            ItemKind::Image => self.image.as_ref(),
            ItemKind::Audio => self.audio.as_ref(),
        }
    }

    /// Memory for encoded rows: of the largest item that is computed and of another that is encoded meanwhile, or of
    /// several small ones.
    pub fn rows_bytes(&self) -> u64 {
        let of =
            |kind: &KindUse| kind.row_bytes.saturating_mul(u64::from(ROWS_MIN.max(kind.rows_max.saturating_mul(2))));
        self.kinds().map(of).max().unwrap_or(0)
    }

    /// Rows that are encoded in one batch: those of the largest item, for which the encoder has its scratch memory.
    pub fn batch_rows(&self) -> u32 {
        self.kinds().map(|kind| kind.rows_max).min().unwrap_or(0)
    }

    /// Memory for encoding and for encoded rows.
    pub fn bytes(&self) -> u64 {
        let encoder = self.kinds().map(|kind| kind.encoder_bytes).max().unwrap_or(0);
        encoder.saturating_add(self.rows_bytes())
    }

    pub fn kinds(&self) -> impl Iterator<Item = &KindUse> {
        self.image.iter().chain(&self.audio)
    }
}

impl ItemKind {
    /// The word for it in messages.
    pub fn word(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Audio => "audio",
        }
    }
}

impl PreparedBytes {
    /// Up to `bytes_max` bytes each.
    pub(crate) fn pieces(&self, bytes_max: usize) -> impl Iterator<Item = Self> + '_ {
        let starts = (0..self.len()).step_by(bytes_max.max(1));
        starts.map(move |start| Self(self.0.slice(start..self.len().min(start + bytes_max))))
    }
}

impl Deref for PreparedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl<T: Into<Bytes>> From<T> for PreparedBytes {
    fn from(bytes: T) -> Self {
        Self(bytes.into())
    }
}

impl fmt::Debug for PreparedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

impl Serialize for PreparedBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self)
    }
}

impl<'de> Deserialize<'de> for PreparedBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_byte_buf(ByteVisitor)
    }
}

struct ByteVisitor;

impl de::Visitor<'_> for ByteVisitor {
    type Value = PreparedBytes;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes")
    }

    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<PreparedBytes, E> {
        Ok(PreparedBytes(Bytes::copy_from_slice(bytes)))
    }

    fn visit_byte_buf<E>(self, bytes: Vec<u8>) -> Result<PreparedBytes, E> {
        Ok(bytes.into())
    }
}
