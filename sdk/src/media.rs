//! Images and sounds in a prompt, in plain Rust: the contract's `media/1`, which explains the way of an item.
//!
//! An architecture that reads items offers [`Prepare`](crate::Prepare), and its models [`crate::Encode`](crate::Encode). Authors of decoders implement neither:
//! `nn::Paged` makes both of a decoder's `nn::vision::Processor` and `nn::vision::Tower`.

/// A kind of item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MediaKind {
    /// A picture.
    Image,
    /// A sound with one channel.
    Audio,
}

/// The size of an item, which all of its text depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MediaSize {
    /// Image or audio.
    pub kind: MediaKind,
    /// Pixels in a row, or samples; at least 1.
    pub width: u32,
    /// Rows of pixels, at least 1; 1 for audio.
    pub height: u32,
}

impl MediaSize {
    /// The size of a picture.
    pub fn image(width: u32, height: u32) -> Self {
        Self { kind: MediaKind::Image, width, height }
    }
}

/// A decoded item.
#[derive(Clone, Copy, Debug)]
pub struct MediaItem<'a> {
    /// Its kind and size.
    pub size: MediaSize,
    /// Three bytes a pixel, the top row first, or a little-endian `f32` a sample: as many as the size says.
    pub data: &'a [u8],
}

/// An item's part of a prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// The text in place of the placeholder.
    pub text: String,
    /// The number of slots in the text.
    pub rows: u32,
    /// What the model has to know to give the tokens their positions: grids, for example.
    pub layout: Vec<u8>,
}

/// An item's tokens in a sequence.
#[derive(Clone, Copy, Debug)]
pub struct Placement<'a> {
    /// The index of its first token in the sequence.
    pub start: usize,
    /// All of its tokens. Of these, the slots take its rows in order.
    pub tokens: &'a [u32],
    /// Its kind and size.
    pub size: MediaSize,
    /// As it was measured.
    pub layout: &'a [u8],
    /// An encoded item; `None` if all of its tokens are in the sequence's caches.
    pub handle: Option<u64>,
}
