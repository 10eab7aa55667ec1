//! The layers between an image's patches and its rows in the text.

use candle_core::Tensor;

use super::VitBlock;
use crate::{
    MediaSize, Result,
    nn::{Angles, Step},
};

/// A tower of transformer blocks over patches: what an author writes. Its step's tokens are the patches of all images of
/// a batch; layers are applied to it like those of a decoder, and rows do not depend on the batch.
pub trait Tower {
    /// The token that stands for a row in the text.
    fn slot(&self) -> u32;

    /// Reads what the processor prepared. Lengths must be checked, as the bytes may come from a damaged process.
    fn open(&self, size: MediaSize, layout: &[u8], prepared: &[u8]) -> Result<Patches>;

    /// Positions of an item's slots in time, height and width, relative to the first, for models whose positions have
    /// three dimensions. Empty if they count on like text. The layout may come from a damaged process and the item need
    /// not be open, so a layout of more than `tokens` rows is refused before anything is made of it.
    fn positions(&self, layout: &[u8], tokens: usize) -> Result<Vec<[u32; 3]>> {
        let _ = (layout, tokens);
        Ok(Vec::new())
    }

    /// Embeds the patches, `[patches, width]`.
    fn embed(&self, batch: &PatchBatch, step: &Step<'_>) -> Result<Tensor>;

    /// Angles that rotate queries and keys, if the blocks rotate them.
    fn angles(&self, batch: &PatchBatch, step: &Step<'_>) -> Result<Option<Angles>> {
        let _ = (batch, step);
        Ok(None)
    }

    /// The blocks, from the first to the last.
    fn blocks(&self) -> &[VitBlock];

    /// Lengths of the runs of patches within which the windowed blocks attend; empty if no block has windows.
    fn windows(&self, batch: &PatchBatch) -> Vec<usize> {
        let _ = batch;
        Vec::new()
    }

    /// Values for the text's layers, computed from the hidden states after a block: a row for each slot. The decoder
    /// adds them with [`Step::add_taps`](crate::nn::Step::add_taps), in the order in which the blocks made them.
    fn tap(&self, block: usize, x: &Tensor, batch: &PatchBatch, step: &Step<'_>) -> Result<Option<Tensor>> {
        let _ = (block, x, batch, step);
        Ok(None)
    }

    /// Turns the last block's output into rows of the text's width, one for each slot.
    fn project(&self, x: &Tensor, batch: &PatchBatch, step: &Step<'_>) -> Result<Tensor>;
}

/// A rectangle of patches that see each other: an image, or a tile of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grid {
    /// Rows of patches.
    pub height: usize,
    /// Patches in a row.
    pub width: usize,
}

impl Grid {
    /// The number of patches.
    pub fn patches(self) -> usize {
        self.height * self.width
    }
}

/// An opened item.
#[derive(Clone, Debug)]
pub struct Patches {
    /// Its pixels, in the order in which the tower embeds them.
    pub pixels: Vec<u8>,
    /// The image itself, or its tiles one after the other.
    pub grids: Vec<Grid>,
    /// The rows that it becomes.
    pub rows: usize,
}

impl Patches {
    /// The number of patches of all grids.
    pub fn patches(&self) -> usize {
        self.grids.iter().map(|grid| grid.patches()).sum()
    }
}

/// Items that are encoded together.
#[derive(Clone, Debug)]
pub struct PatchBatch {
    pub(super) items: Vec<Patches>,
}

impl PatchBatch {
    /// The items, one after the other.
    pub fn items(&self) -> &[Patches] {
        &self.items
    }

    /// The grids of all items.
    pub fn grids(&self) -> impl Iterator<Item = Grid> + '_ {
        self.items.iter().flat_map(|item| item.grids.iter().copied())
    }

    /// The number of patches.
    pub fn patches(&self) -> usize {
        self.items.iter().map(Patches::patches).sum()
    }
}
