//! The layers between an image's patches and its rows in the text.

use candle_core::Tensor;

use std::ops::Range;

use super::VitBlock;
use crate::{
    Error, MediaSize, Result,
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

    /// Embeds some patches of the batch, `[patches, width]`. [`PatchBatch::pixels`] and [`PatchBatch::places`] have their pixels and
    /// places, [`PatchBatch::parts`] the grids of towers with an order of their own.
    fn embed(&self, batch: &PatchBatch, patches: Range<usize>, step: &Step<'_>) -> Result<Tensor>;

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

    /// The number of rows of patches that become rows of the text together: the side of a square of patches that are
    /// merged, or of a window of them. Grids are then tapped and projected in bands of that height, as if each were an
    /// image, so that streams go on in between. Without it a batch is projected at once.
    fn band(&self) -> Option<usize> {
        None
    }

    /// The blocks that [`Self::tap`] is called for, ascending.
    fn tapped(&self) -> Vec<usize> {
        Vec::new()
    }

    /// Values for the text's layers, computed from the hidden states after a block: a row for each slot. The decoder
    /// adds them with [`Step::add_taps`](crate::nn::Step::add_taps), in the order in which the blocks made them.
    fn tap(&self, block: usize, x: &Tensor, batch: &PatchBatch, step: &Step<'_>) -> Result<Tensor> {
        let _ = (x, batch, step);
        Err(Error::unsupported(format!("block {block} has no tap")))
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

    /// The grid of its squares of `side` by `side` patches.
    #[must_use]
    pub fn merged(self, side: usize) -> Self {
        Self { height: self.height / side, width: self.width / side }
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

    /// The grids that these patches lie in, in order.
    pub fn parts(&self, patches: &Range<usize>) -> Vec<GridPart<'_>> {
        let (mut parts, mut start) = (Vec::new(), 0);
        for item in &self.items {
            let (bytes, first) = (item.pixels.len() / item.patches().max(1), start);
            for &grid in &item.grids {
                let end = start + grid.patches();
                let within = patches.start.max(start)..patches.end.min(end);
                if !within.is_empty() {
                    let pixels = &item.pixels[(start - first) * bytes..(end - first) * bytes];
                    parts.push(GridPart { grid, patches: within.start - start..within.end - start, pixels });
                }
                start = end;
            }
        }
        parts
    }

    /// The pixels of these patches, if the tower embeds those of a grid row by row.
    pub fn pixels(&self, patches: &Range<usize>) -> Vec<u8> {
        let parts = self.parts(patches).into_iter().map(|GridPart { grid, patches, pixels }| {
            let bytes = pixels.len() / grid.patches().max(1);
            &pixels[patches.start * bytes..patches.end * bytes]
        });
        parts.collect::<Vec<_>>().concat()
    }

    /// Grid, row and column of these patches, if the tower embeds those of a grid row by row.
    pub fn places(&self, patches: &Range<usize>) -> Vec<(Grid, [usize; 2])> {
        let of = |GridPart { grid, patches, .. }: GridPart<'_>| {
            patches.map(move |patch| (grid, [patch / grid.width, patch % grid.width]))
        };
        self.parts(patches).into_iter().flat_map(of).collect()
    }

    /// The items that these patches lie in, in order, and how many of them each has.
    pub(super) fn items_of(&self, patches: &Range<usize>) -> impl Iterator<Item = (&Patches, usize)> {
        let mut start = 0;
        let of = move |item: &Patches| {
            let end = start + item.patches();
            let within = patches.start.max(start)..patches.end.min(end);
            start = end;
            within.len()
        };
        self.items.iter().zip(self.items.iter().map(of)).filter(|(_, count)| *count > 0)
    }

    /// These patches, which are whole rows of their grids, as images of their own, without pixels.
    pub(super) fn band(&self, patches: &Range<usize>) -> Self {
        let rows = self.items.iter().flat_map(|item| item.grids.iter().map(move |_| (item.rows, item.patches())));
        let mut start = 0;
        let mut items = Vec::new();
        for (grid, (rows, all)) in self.grids().zip(rows) {
            let end = start + grid.patches();
            let within = patches.start.max(start)..patches.end.min(end);
            if !within.is_empty() {
                let grid = Grid { height: within.len() / grid.width, width: grid.width };
                items.push(Patches { pixels: Vec::new(), grids: vec![grid], rows: rows * within.len() / all.max(1) });
            }
            start = end;
        }
        Self { items }
    }
}

/// A grid of a batch, and some of its patches.
#[derive(Clone, Debug)]
pub struct GridPart<'a> {
    /// The whole grid.
    pub grid: Grid,
    /// The patches that are meant, in the order in which the tower embeds them.
    pub patches: Range<usize>,
    /// The pixels of the whole grid.
    pub pixels: &'a [u8],
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two items of one and of two grids, with two bytes for each patch: its item, and its number there.
    fn batch() -> PatchBatch {
        let item = |index: u8, sides: &[[usize; 2]], rows| {
            let grids: Vec<Grid> = sides.iter().map(|&[height, width]| Grid { height, width }).collect();
            let patches: usize = grids.iter().map(|grid| grid.patches()).sum();
            Patches { pixels: (0..patches as u8).flat_map(|patch| [index, patch]).collect(), grids, rows }
        };
        PatchBatch { items: vec![item(0, &[[4, 3]], 6), item(1, &[[2, 2], [4, 1]], 4)] }
    }

    #[test]
    fn parts_have_the_pixels_of_their_grids() {
        let batch = batch();
        let of = |patches: Range<usize>| -> Vec<(usize, Range<usize>, [u8; 2])> {
            let parts = batch.parts(&patches);
            let first = |part: &GridPart<'_>| [part.pixels[0], part.pixels[1]];
            parts.iter().map(|part| (part.grid.patches(), part.patches.clone(), first(part))).collect()
        };
        assert_eq!(of(0..20), [(12, 0..12, [0, 0]), (4, 0..4, [1, 0]), (4, 0..4, [1, 4])]);
        assert_eq!(of(11..13), [(12, 11..12, [0, 0]), (4, 0..1, [1, 0])]);
        assert_eq!(of(17..20), [(4, 1..4, [1, 4])]);
        assert_eq!(of(12..12), []);
    }

    #[test]
    fn patches_have_pixels_and_places_grid_by_grid() {
        let batch = batch();
        assert_eq!(batch.pixels(&(10..14)), [0, 10, 0, 11, 1, 0, 1, 1]);
        assert!(batch.pixels(&(12..12)).is_empty());
        let [first, second, third] = [[4, 3], [2, 2], [4, 1]].map(|[height, width]| Grid { height, width });
        let places = [(first, [3, 1]), (first, [3, 2]), (second, [0, 0]), (second, [0, 1])];
        assert_eq!(batch.places(&(10..14)), places);
        assert_eq!(batch.places(&(15..18)), [(second, [1, 1]), (third, [0, 0]), (third, [1, 0])]);
    }

    #[test]
    fn patches_are_counted_by_item() {
        let batch = batch();
        let of = |patches: Range<usize>| {
            batch.items_of(&patches).map(|(item, count)| (item.rows, count)).collect::<Vec<_>>()
        };
        assert_eq!(of(0..20), [(6, 12), (4, 8)]);
        assert_eq!(of(11..17), [(6, 1), (4, 5)]);
        assert_eq!(of(13..20), [(4, 7)]);
        assert_eq!(of(12..12), []);
    }

    #[test]
    fn bands_are_images_with_their_share_of_rows() {
        let batch = batch();
        let of = |patches: Range<usize>| -> Vec<([usize; 2], usize)> {
            let band = batch.band(&patches);
            band.items.iter().map(|item| ([item.grids[0].height, item.grids[0].width], item.rows)).collect()
        };
        assert_eq!(of(0..20), [([4, 3], 6), ([2, 2], 2), ([4, 1], 2)]);
        assert_eq!(of(6..14), [([2, 3], 3), ([1, 2], 1)]);
        assert_eq!(of(18..20), [([2, 1], 1)]);
    }
}
