//! The building blocks of laws: texts, the sequences that read them, and batches that can still be changed.

use std::rc::Rc;

use pensieve_plugin_api::{CacheTable, Checkpoint, Span, VACANT, Want};

/// Texts available to all laws; [`Rig::learn`] first has the model read each of them whole.
#[derive(Clone, Copy)]
pub(crate) enum Known {
    Long,
    /// Shares its first [`Rig::fork`] tokens with `Long`, then differs.
    Twin,
    Middle,
    Short,
}

impl Known {
    pub(crate) const ALL: [Self; 4] = [Self::Long, Self::Middle, Self::Short, Self::Twin];
}

/// Tokens with their known logits; without rows if these are unknown.
#[derive(Default)]
pub(crate) struct Text {
    pub(crate) tokens: Vec<u32>,
    pub(crate) rows: Vec<f32>,
}

/// A sequence that reads a text in steps.
pub(crate) struct Sequence {
    pub(crate) id: u64,
    pub(crate) text: Rc<Text>,
    pub(crate) seen: usize,
    pub(crate) places: Places,
    /// For each group of states, the slot with the state after the tokens seen.
    pub(crate) reads: Vec<u32>,
    pub(crate) pace: Pace,
    /// Id and strength of its adapter.
    pub(crate) adapter: (u32, f32),
}

/// Ids for each group: blocks in the order of a text's tokens, or the slot of a state.
pub(crate) type Places = Vec<Vec<u32>>;

/// The positions of a sequence's tokens.
#[derive(Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) first: u32,
    pub(crate) stride: u32,
}

impl Pace {
    pub(crate) const PLAIN: Self = Self { first: 0, stride: 1 };
}

/// The next `count` tokens of a sequence.
pub(crate) struct Feed<'a> {
    pub(crate) sequence: &'a mut Sequence,
    pub(crate) count: usize,
    pub(crate) want: Want,
    /// The numbers of tokens after which to leave a copy of the state, with the slot for it in each group.
    pub(crate) copies: Vec<(u32, Vec<u32>)>,
}

/// A batch that can still be changed.
#[derive(Clone)]
pub(crate) struct Draft {
    pub(crate) tokens: Vec<u32>,
    pub(crate) positions: Vec<u32>,
    /// The spans, whose caches are in `tables`.
    pub(crate) spans: Vec<Span<'static>>,
    /// For each span, its table in each group.
    pub(crate) tables: Vec<Vec<Table>>,
    pub(crate) logits: usize,
}

/// Returns the mask for a wanted row, given its number of words and the row's index.
pub(crate) type Mask = fn(usize, usize) -> Vec<u32>;

/// Rows of candidates.
pub(crate) struct Chosen {
    pub(crate) ids: Vec<u32>,
    pub(crate) scores: Vec<f32>,
    pub(crate) totals: Vec<f32>,
}

/// A cache table that can still be changed.
#[derive(Clone)]
pub(crate) struct Table {
    pub(crate) blocks: Vec<u32>,
    pub(crate) read: u32,
    pub(crate) write: u32,
    pub(crate) checkpoints: Vec<Checkpoint>,
}

impl Table {
    pub(crate) fn cross(&self) -> CacheTable<'_> {
        CacheTable {
            blocks: self.blocks[..].into(),
            read: self.read,
            write: self.write,
            checkpoints: self.checkpoints[..].into(),
        }
    }
}

impl Feed<'_> {
    /// Leaves a copy of the state in these slots after `after` tokens of the sequence.
    pub(crate) fn copy(mut self, after: usize, slots: Vec<u32>) -> Self {
        self.copies.push((after as u32, slots));
        self
    }
}

impl Sequence {
    pub(crate) fn left(&self) -> usize {
        self.text.tokens.len() - self.seen
    }

    /// Records that the state after `seen` tokens is in the sequence's own slots.
    pub(crate) fn arrive(&mut self, seen: usize) {
        self.seen = seen;
        for (read, own) in self.reads.iter_mut().zip(&self.places) {
            *read = own.first().copied().unwrap_or(VACANT);
        }
    }

    /// Continues after `seen` tokens, from the state in these slots.
    pub(crate) fn go_on(&mut self, seen: usize, reads: &[u32]) {
        self.seen = seen;
        self.reads = reads.to_vec();
    }

    pub(crate) fn feed(&mut self, count: usize, want: Want) -> Feed<'_> {
        let count = count.min(self.left());
        Feed { sequence: self, count, want, copies: Vec::new() }
    }
}
