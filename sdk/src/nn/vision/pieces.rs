//! Cuts the work of a tower into pieces that take about the same time, short enough for streams to go on in between.

use std::ops::Range;

/// Multiplications of a piece on a processor: a hundredth of a second or two on two cores.
pub(super) const PIECE_WORK: usize = 1 << 31;
/// Multiplications of a piece on an accelerator, where many launches delay streams more than a layer of a usual image: a
/// millisecond or two on a large one. Images of many megapixels are divided there, too.
pub(super) const ACCELERATOR_WORK: usize = 1 << 36;

/// Layers as wide as a block that a projection or a tap is taken for, by patch: two layers over squares of four patches.
const PROJECTION_LAYERS: usize = 8;
/// What embedding a patch takes besides its layer, in multiplications for each value: normalizing pixels, and positions.
const EMBED_VALUES: usize = 16;

/// A piece of a tower's work. Pieces of a kind follow each other; rows and heads are consecutive and cover all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// The embeddings of some patches.
    Embed(Range<usize>),
    /// Queries, keys and values of some rows.
    Qkv(usize, Range<usize>),
    /// Attention of some groups of heads that share a key, over all rows.
    Heads(usize, Range<usize>),
    /// The rest of a block, for some rows.
    Rest(usize, Range<usize>),
    /// Values for the text's layers after a block, from some patches.
    Tap(usize, Range<usize>),
    /// Rows of the text, from some patches.
    Project(Range<usize>),
}

/// The sizes of a tower over a batch that its pieces depend on.
#[derive(Clone, Debug)]
pub(super) struct TowerWork {
    /// Values of a patch's pixels.
    pub(super) patch_values: usize,
    pub(super) blocks: Vec<BlockWork>,
    /// Blocks with taps.
    pub(super) tapped: Vec<usize>,
    /// Numbers of consecutive patches that are projected together; all of the batch.
    pub(super) bands: Vec<usize>,
}

/// The sizes of a block that its pieces depend on.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockWork {
    /// Width of a row.
    pub(super) width: usize,
    /// Groups of heads that share a key.
    pub(super) groups: usize,
    /// The sum of the squares of the lengths of its runs.
    pub(super) pairs: usize,
}

/// The pieces of a tower, of `work` multiplications each.
pub(super) fn pieces(tower: &TowerWork, work: usize) -> Vec<Piece> {
    let TowerWork { patch_values, blocks, tapped, bands } = tower;
    let patches = bands.iter().sum();
    let width = blocks.first().map_or(0, |block| block.width);
    let of_patch = width.saturating_mul(patch_values + EMBED_VALUES);
    let mut all: Vec<Piece> = parts(patches, of_patch, work).map(Piece::Embed).collect();
    let projection = PROJECTION_LAYERS.saturating_mul(width).saturating_mul(width);
    for (index, &BlockWork { width, groups, pairs }) in blocks.iter().enumerate() {
        // Three products of the block's width make queries, keys and values, and about nine follow attention.
        all.extend(parts(patches, 3 * width * width, work).map(|rows| Piece::Qkv(index, rows)));
        let of_group = 2 * pairs.saturating_mul(width) / groups.max(1);
        all.extend(parts(groups, of_group, work).map(|heads| Piece::Heads(index, heads)));
        all.extend(parts(patches, 9 * width * width, work).map(|rows| Piece::Rest(index, rows)));
        if tapped.contains(&index) {
            all.extend(whole_bands(bands, projection, work).into_iter().map(|rows| Piece::Tap(index, rows)));
        }
    }
    all.extend(whole_bands(bands, projection, work).into_iter().map(Piece::Project));
    all
}

/// Puts bands together, up to this much work of their patches.
fn whole_bands(bands: &[usize], each: usize, work: usize) -> Vec<Range<usize>> {
    let (most, mut all, mut start) = (work / each.max(1), Vec::<Range<usize>>::new(), 0);
    for band in bands {
        match all.last_mut() {
            Some(last) if last.len() + band <= most => last.end += band,
            _ => all.push(start..start + band),
        }
        start += band;
    }
    all
}

/// Divides `count` things of this work each into ranges of nearly equal length.
fn parts(count: usize, each: usize, work: usize) -> impl Iterator<Item = Range<usize>> {
    let parts = count.saturating_mul(each).div_ceil(work.max(1)).clamp(1, count.max(1));
    let len = count.div_ceil(parts).max(1);
    (0..count).step_by(len).map(move |start| start..count.min(start + len))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: BlockWork = BlockWork { width: 10, groups: 4, pairs: 36 };

    /// A tower over three bands of two patches each.
    fn tower(blocks: usize, tapped: Vec<usize>) -> TowerWork {
        TowerWork { patch_values: 24, blocks: vec![BLOCK; blocks], tapped, bands: vec![2; 3] }
    }

    #[test]
    fn pieces_cover_patches_rows_and_heads_in_order() {
        let expected = [
            Piece::Embed(0..1),
            Piece::Embed(1..2),
            Piece::Embed(2..3),
            Piece::Embed(3..4),
            Piece::Embed(4..5),
            Piece::Embed(5..6),
            Piece::Qkv(0, 0..2),
            Piece::Qkv(0, 2..4),
            Piece::Qkv(0, 4..6),
            Piece::Heads(0, 0..2),
            Piece::Heads(0, 2..4),
            Piece::Rest(0, 0..1),
            Piece::Rest(0, 1..2),
            Piece::Rest(0, 2..3),
            Piece::Rest(0, 3..4),
            Piece::Rest(0, 4..5),
            Piece::Rest(0, 5..6),
            // No less than a band.
            Piece::Tap(0, 0..2),
            Piece::Tap(0, 2..4),
            Piece::Tap(0, 4..6),
            Piece::Project(0..2),
            Piece::Project(2..4),
            Piece::Project(4..6),
        ];
        assert_eq!(pieces(&tower(1, vec![0]), 400), expected);
        let projected = pieces(&tower(1, Vec::new()), 3200);
        assert_eq!(projected[projected.len() - 2..], [Piece::Project(0..4), Piece::Project(4..6)]);
    }

    #[test]
    fn work_without_limit_has_three_pieces_for_each_block() {
        let pieces = pieces(&tower(2, vec![1]), usize::MAX);
        assert_eq!(pieces.len(), 9);
        assert_eq!(pieces[4..7], [Piece::Qkv(1, 0..6), Piece::Heads(1, 0..4), Piece::Rest(1, 0..6)]);
        assert_eq!(pieces[7..], [Piece::Tap(1, 0..6), Piece::Project(0..6)]);
    }

    #[test]
    fn a_screenshot_has_pieces_of_about_the_same_work() {
        // 1,024 by 1,024 pixels in patches of 16, in blocks of 1,024 values and 16 heads; bands of two rows of patches.
        let block = BlockWork { width: 1024, groups: 16, pairs: 4096 * 4096 };
        let tower = TowerWork { patch_values: 3 * 256, blocks: vec![block], tapped: vec![0], bands: vec![128; 32] };
        let all = pieces(&tower, PIECE_WORK);
        let count = |is: fn(&Piece) -> bool| all.iter().filter(|piece| is(piece)).count();
        assert_eq!(count(|piece| matches!(piece, Piece::Embed(..))), 2);
        assert_eq!(count(|piece| matches!(piece, Piece::Qkv(..))), 6);
        assert_eq!(count(|piece| matches!(piece, Piece::Heads(..))), 16);
        assert_eq!(count(|piece| matches!(piece, Piece::Rest(..))), 18);
        assert_eq!(count(|piece| matches!(piece, Piece::Tap(..))), 16);
        assert_eq!(count(|piece| matches!(piece, Piece::Project(..))), 16);
        for piece in &all {
            let work = match piece {
                Piece::Embed(patches) => patches.len() * 1024 * (3 * 256 + EMBED_VALUES),
                Piece::Qkv(_, rows) => rows.len() * 3 * 1024 * 1024,
                Piece::Heads(_, heads) => heads.len() * 2 * 4096 * 4096 * 64,
                Piece::Rest(_, rows) => rows.len() * 9 * 1024 * 1024,
                Piece::Tap(_, patches) | Piece::Project(patches) => patches.len() * PROJECTION_LAYERS * 1024 * 1024,
            };
            assert!((PIECE_WORK / 2..=PIECE_WORK + PIECE_WORK / 8).contains(&work), "{piece:?}: {work}");
        }
        // On an accelerator a block has one piece of each kind.
        assert_eq!(pieces(&tower, ACCELERATOR_WORK).len(), 6);
        let large = BlockWork { pairs: 65_536 * 65_536, ..block };
        let large = TowerWork { blocks: vec![large], bands: vec![512; 128], ..tower };
        let heads = pieces(&large, ACCELERATOR_WORK).iter().filter(|piece| matches!(piece, Piece::Heads(..))).count();
        assert_eq!(heads, 16, "and 16 megapixels have several");
    }
}
