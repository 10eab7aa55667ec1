//! Where the rows of images and sounds stand in the sequences of a step. Plain bookkeeping: which of a step's tokens takes
//! which row, which position each token has, and how far each token sees.

use candle_core::Tensor;
use std::{collections::HashMap, ops::Range};

use crate::{Batch, Error, Result};

/// The items of a model: those that are encoded, and those that sequences are placed on.
#[derive(Default)]
pub(super) struct Items {
    encoded: HashMap<u64, Encoded>,
    placed: HashMap<u64, Vec<Placed>>,
}

/// The rows of an encoded item.
#[derive(Clone, Debug)]
pub(super) struct Encoded {
    /// In place of the embeddings of slots, `[rows, width]`.
    pub(super) rows: Tensor,
    /// Added to hidden states further up, each as large as `rows`.
    pub(super) taps: Vec<Tensor>,
}

/// An item's tokens in a sequence.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Placed {
    start: usize,
    /// The position of each of its tokens: time, height and width.
    positions: Vec<[u32; 3]>,
    /// Its slots, as indices of its tokens, ascending.
    slots: Vec<usize>,
    /// Difference between position and index for the text behind it.
    offset: i64,
    handle: Option<u64>,
}

/// The tokens of a sequence that belong to an item.
pub(super) struct ItemTokens<'a> {
    pub(super) start: usize,
    pub(super) tokens: &'a [u32],
    /// Positions of the slots relative to the first one; empty if they count on like text.
    pub(super) grid: Vec<[u32; 3]>,
    pub(super) handle: Option<u64>,
}

/// The tokens of a step that take rows of one item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) handle: u64,
    /// Indices of tokens in the step.
    pub(super) tokens: Vec<u32>,
    /// The first of the item's rows.
    pub(super) row: usize,
}

impl Placed {
    /// Gives positions to the items of a sequence, which are in order and disjoint.
    pub(super) fn all(slot: u32, items: &[ItemTokens<'_>]) -> Result<Vec<Self>> {
        let mut offset = 0;
        items.iter().map(|item| Self::one(slot, item, &mut offset)).collect()
    }

    fn one(slot: u32, item: &ItemTokens<'_>, offset: &mut i64) -> Result<Self> {
        let slots: Vec<usize> = (0..item.tokens.len()).filter(|index| item.tokens[*index] == slot).collect();
        let mut next = u32::try_from(item.start as i64 + *offset).map_err(|_| Error::invalid("an item before 0"))?;
        let mut positions = Vec::with_capacity(item.tokens.len());
        if item.grid.is_empty() {
            positions.extend((next..).take(item.tokens.len()).map(|position| [position; 3]));
            return Ok(Self { start: item.start, positions, slots, offset: *offset, handle: item.handle });
        }
        let is_run = slots.last().zip(slots.first()).is_some_and(|(last, first)| last - first + 1 == slots.len());
        if !is_run || slots.len() != item.grid.len() {
            let message = format!("{} slots among {} tokens", slots.len(), item.tokens.len());
            return Err(Error::invalid(format!("{message} are no run of {} rows of an image", item.grid.len())));
        }
        let extent = item.grid.iter().flatten().max().map_or(0, |last| last + 1);
        for index in 0..item.tokens.len() {
            match index.checked_sub(slots[0]).and_then(|row| item.grid.get(row)) {
                Some(at) => positions.push(at.map(|at| next.saturating_add(at))),
                None => {
                    positions.push([next; 3]);
                    next = next.saturating_add(1);
                }
            }
            if slots.last() == Some(&index) {
                next = next.saturating_add(extent);
            }
        }
        *offset = i64::from(next) - (item.start + item.tokens.len()) as i64;
        Ok(Self { start: item.start, positions, slots, offset: *offset, handle: item.handle })
    }

    fn end(&self) -> usize {
        self.start + self.positions.len()
    }

    /// The number of its slots.
    pub(super) fn rows(&self) -> usize {
        self.slots.len()
    }

    /// The slots among the sequence's tokens `range`, as tokens of the sequence, and the first one's row.
    fn slots_in(&self, range: &Range<usize>) -> (usize, impl Iterator<Item = usize> + '_) {
        let from = self.slots.partition_point(|slot| self.start + slot < range.start);
        let to = self.slots.partition_point(|slot| self.start + slot < range.end);
        (from, self.slots[from..to].iter().map(|slot| self.start + slot))
    }
}

impl Items {
    /// Keeps the rows of an item.
    pub(super) fn keep(&mut self, handle: u64, encoded: Encoded) {
        self.encoded.insert(handle, encoded);
    }

    pub(super) fn encoded(&self, handle: u64) -> Option<&Encoded> {
        self.encoded.get(&handle)
    }

    pub(super) fn close(&mut self, handle: u64) {
        self.encoded.remove(&handle);
    }

    /// Replaces the items of a sequence.
    pub(super) fn place(&mut self, sequence: u64, placed: Vec<Placed>) {
        if placed.is_empty() {
            self.placed.remove(&sequence);
        } else {
            self.placed.insert(sequence, placed);
        }
    }

    pub(super) fn release(&mut self, sequence: u64) {
        self.placed.remove(&sequence);
    }

    /// True if a token of the step belongs to an item or stands before one, so that the step is more than a step of text.
    pub(super) fn touch(&self, batch: &Batch<'_>) -> bool {
        !self.placed.is_empty()
            && batch.spans.iter().any(|span| {
                let placed = self.placed.get(&span.sequence);
                placed.and_then(|placed| placed.last()).is_some_and(|last| span.past < last.end())
            })
    }

    /// The positions of a step that touches no items, where some differ from the host's.
    pub(super) fn shifted(&self, batch: &Batch<'_>) -> Option<Vec<u32>> {
        let offset = |sequence| Some(self.placed.get(&sequence)?.last()?.offset).filter(|offset| *offset != 0);
        if self.placed.is_empty() || batch.spans.iter().all(|span| offset(span.sequence).is_none()) {
            return None;
        }
        let mut positions = batch.positions.to_vec();
        for span in &batch.spans {
            let offset = offset(span.sequence).unwrap_or(0);
            for position in &mut positions[span.start..span.start + span.len] {
                *position = u32::try_from(i64::from(*position) + offset).unwrap_or(*position);
            }
        }
        Some(positions)
    }

    /// Time, height and width of each of the step's tokens.
    pub(super) fn positions(&self, batch: &Batch<'_>) -> Vec<[u32; 3]> {
        let mut all: Vec<[u32; 3]> = batch.positions.iter().map(|position| [*position; 3]).collect();
        for span in &batch.spans {
            let placed = self.placed.get(&span.sequence).map_or(&[][..], Vec::as_slice);
            for (index, position) in all[span.start..span.start + span.len].iter_mut().enumerate() {
                let token = span.past + index;
                let before = placed.partition_point(|item| item.start <= token);
                let Some(item) = before.checked_sub(1).map(|last| &placed[last]) else { continue };
                let behind = |position: u32| u32::try_from(i64::from(position) + item.offset).unwrap_or(position);
                *position = item.positions.get(token - item.start).copied().unwrap_or(position.map(behind));
            }
        }
        all
    }

    /// The tokens that take rows.
    pub(super) fn taken(&self, batch: &Batch<'_>) -> Result<Vec<Taken>> {
        let mut all = Vec::new();
        for span in &batch.spans {
            let range = span.past..span.past + span.len;
            for item in self.placed.get(&span.sequence).map_or(&[][..], Vec::as_slice) {
                let (row, slots) = item.slots_in(&range);
                let tokens: Vec<u32> = slots.map(|slot| (span.start + slot - span.past) as u32).collect();
                let Some(handle) = item.handle.filter(|_| !tokens.is_empty()) else {
                    if tokens.is_empty() {
                        continue;
                    }
                    let message = format!("sequence {}: token {} is a slot", span.sequence, range.start);
                    return Err(Error::invalid(format!("{message} of an item that was placed without its rows")));
                };
                all.push(Taken { handle, tokens, row });
            }
        }
        Ok(all)
    }

    /// For each token the number of tokens of its sequence that it sees if items are seen as a whole: all up to itself,
    /// and the rest of the run of slots that it stands in.
    pub(super) fn seen(&self, batch: &Batch<'_>) -> Vec<u32> {
        let mut seen: Vec<u32> = Vec::with_capacity(batch.tokens.len());
        for span in &batch.spans {
            let placed = self.placed.get(&span.sequence).map_or(&[][..], Vec::as_slice);
            seen.extend((span.past..span.past + span.len).map(|token| token as u32 + 1));
            let seen = &mut seen[span.start..];
            for item in placed {
                let (_, slots) = item.slots_in(&(span.past..span.past + span.len));
                let slots: Vec<usize> = slots.collect();
                for run in slots.chunk_by(|a, b| a + 1 == *b) {
                    let end = run.last().map_or(0, |last| last + 1);
                    run.iter().for_each(|slot| seen[slot - span.past] = end as u32);
                }
            }
        }
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Output, Span, Want};

    const SLOT: u32 = 9;

    fn grid(height: u32, width: u32) -> Vec<[u32; 3]> {
        (0..height).flat_map(|row| (0..width).map(move |column| [0, row, column])).collect()
    }

    /// Sequence 7 with images of 2 by 3 rows at 3, between two other tokens, and of 1 by 2 rows at 12.
    fn items(handles: [Option<u64>; 2]) -> Items {
        let tokens = [[1, 9, 9, 9, 9, 9, 9, 2].as_slice(), &[9, 9]];
        let [first, second] = handles;
        let items = vec![
            ItemTokens { start: 3, tokens: tokens[0], grid: grid(2, 3), handle: first },
            ItemTokens { start: 12, tokens: tokens[1], grid: grid(1, 2), handle: second },
        ];
        let mut all = Items::default();
        all.place(7, Placed::all(SLOT, &items).unwrap());
        all
    }

    /// A step of tokens of sequence 7, behind one of another sequence.
    fn step<T>(past: usize, len: usize, run: impl FnOnce(&Batch<'_>) -> T) -> T {
        let span = |sequence, start, past, len| Span {
            sequence,
            start,
            len,
            past,
            want: Want::None,
            output: Output::Logits,
            mask: &[],
            adapter: 0,
            adapter_scale: 1.0,
            caches: Vec::new(),
        };
        let positions: Vec<u32> = [50].into_iter().chain(past as u32..(past + len) as u32).collect();
        let tokens = vec![0; len + 1];
        run(&Batch {
            tokens: &tokens,
            positions: &positions,
            spans: vec![span(1, 0, 50, 1), span(7, 1, past, len)],
            top: 0,
        })
    }

    #[test]
    fn images_have_positions_in_two_dimensions_and_text_goes_on_behind_the_larger_one() {
        let items = items([Some(1), Some(2)]);
        let all = step(0, 16, |batch| items.positions(batch));
        let expected = [
            [50; 3],
            [0; 3],
            [1; 3],
            [2; 3],
            [3; 3],
            [4, 4, 4],
            [4, 4, 5],
            [4, 4, 6],
            [4, 5, 4],
            [4, 5, 5],
            [4, 5, 6],
            [7; 3],
            [8; 3],
            [9, 9, 9],
            [9, 9, 10],
            [11; 3],
            [12; 3],
        ];
        assert_eq!(all, expected);
        // The same in steps of any length, with or without rows.
        let cached = self::items([None, None]);
        for (past, len) in [(0, 1), (2, 5), (6, 8), (10, 3), (13, 3), (15, 1)] {
            let part = step(past, len, |batch| cached.positions(batch));
            assert_eq!(part[1..], expected[1 + past..1 + past + len], "{len} after {past}");
        }
    }

    #[test]
    fn text_behind_images_is_shifted() {
        let items = items([None, None]);
        assert!(step(13, 1, |batch| items.touch(batch)));
        assert!(!step(14, 2, |batch| items.touch(batch)));
        assert_eq!(step(14, 2, |batch| items.shifted(batch)), Some(vec![50, 11, 12]));
        assert_eq!(step(0, 2, |batch| Items::default().shifted(batch)), None);
    }

    #[test]
    fn a_step_takes_the_rows_of_its_slots_alone() {
        let taken = |handle, tokens: &[u32], row| Taken { handle, tokens: tokens.to_vec(), row };
        let items = items([Some(1), Some(2)]);
        let of = |past, len| step(past, len, |batch| items.taken(batch)).unwrap();
        assert_eq!(of(0, 16), [taken(1, &[5, 6, 7, 8, 9, 10], 0), taken(2, &[13, 14], 0)]);
        assert_eq!(of(6, 3), [taken(1, &[1, 2, 3], 2)]);
        assert_eq!(of(9, 4), [taken(1, &[1], 5), taken(2, &[4], 0)]);
        assert_eq!(of(10, 2), []);
        let cached = self::items([None, Some(2)]);
        assert_eq!(step(10, 6, |batch| cached.taken(batch)).unwrap(), [taken(2, &[3, 4], 0)]);
        step(9, 2, |batch| cached.taken(batch)).unwrap_err();
    }

    #[test]
    fn slots_see_to_the_end_of_their_run() {
        let items = items([Some(1), Some(2)]);
        let seen = step(2, 13, |batch| items.seen(batch));
        assert_eq!(seen, [51, 3, 4, 10, 10, 10, 10, 10, 10, 11, 12, 14, 14, 15]);
    }

    #[test]
    fn rows_of_a_grid_that_are_no_run_are_refused() {
        for tokens in [&[9, 1, 9][..], &[9], &[9, 9, 9], &[1, 1]] {
            let item = ItemTokens { start: 0, tokens, grid: grid(1, 2), handle: None };
            Placed::all(SLOT, &[item]).unwrap_err();
        }
        // Without a grid any tokens may stand between slots, and positions are those of text.
        let item = ItemTokens { start: 4, tokens: &[9, 1, 9], grid: Vec::new(), handle: None };
        let placed = Placed::all(SLOT, &[item]).unwrap();
        assert_eq!((placed[0].positions[2], placed[0].offset, placed[0].rows()), ([6; 3], 0, 2));
    }
}
