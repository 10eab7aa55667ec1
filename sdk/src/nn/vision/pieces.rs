//! Cuts the work of a tower into pieces that take about the same time, short enough for streams to go on in between.

use std::ops::Range;

/// Multiplications of a piece: a hundredth of a second or two on two cores.
pub(super) const PIECE_WORK: usize = 1 << 31;

/// A piece of a tower's work. Pieces of a kind follow each other; rows and heads are consecutive and cover all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// The embeddings of all patches.
    Embed,
    /// Queries, keys and values of some rows.
    Qkv(usize, Range<usize>),
    /// Attention of some groups of heads that share a key, over all rows.
    Heads(usize, Range<usize>),
    /// The rest of a block, for some rows.
    Rest(usize, Range<usize>),
    /// The rows of the text.
    Project,
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

/// The pieces of a tower over so many patches, of `work` multiplications each.
pub(super) fn pieces(patches: usize, blocks: impl Iterator<Item = BlockWork>, work: usize) -> Vec<Piece> {
    let mut all = vec![Piece::Embed];
    for (index, BlockWork { width, groups, pairs }) in blocks.enumerate() {
        // Three products of the block's width make queries, keys and values, and about nine follow attention.
        all.extend(parts(patches, 3 * width * width, work).map(|rows| Piece::Qkv(index, rows)));
        let of_group = 2 * pairs.saturating_mul(width) / groups.max(1);
        all.extend(parts(groups, of_group, work).map(|heads| Piece::Heads(index, heads)));
        all.extend(parts(patches, 9 * width * width, work).map(|rows| Piece::Rest(index, rows)));
    }
    all.push(Piece::Project);
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

    #[test]
    fn pieces_cover_rows_and_heads_in_order() {
        let pieces = pieces(6, [BLOCK].into_iter(), 400);
        let expected = [
            Piece::Embed,
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
            Piece::Project,
        ];
        assert_eq!(pieces, expected);
    }

    #[test]
    fn work_without_limit_has_three_pieces_for_each_block() {
        let pieces = pieces(6, [BLOCK, BLOCK].into_iter(), usize::MAX);
        assert_eq!(pieces.len(), 8);
        assert_eq!(pieces[4..7], [Piece::Qkv(1, 0..6), Piece::Heads(1, 0..4), Piece::Rest(1, 0..6)]);
    }

    #[test]
    fn a_screenshot_has_pieces_of_about_the_same_work() {
        // 1,024 by 1,024 pixels in patches of 16, in a block of 1,024 values and 16 heads.
        let block = BlockWork { width: 1024, groups: 16, pairs: 4096 * 4096 };
        let pieces = pieces(4096, [block].into_iter(), PIECE_WORK);
        let count = |is: fn(&Piece) -> bool| pieces.iter().filter(|piece| is(piece)).count();
        assert_eq!(count(|piece| matches!(piece, Piece::Qkv(..))), 6);
        assert_eq!(count(|piece| matches!(piece, Piece::Heads(..))), 16);
        assert_eq!(count(|piece| matches!(piece, Piece::Rest(..))), 18);
    }
}
