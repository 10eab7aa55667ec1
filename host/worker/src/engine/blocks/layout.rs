//! The sizes of the cache groups: blocks and slots of each, on the grid of block boundaries that all groups share.

/// Sizes of the cache groups and of the disk tier.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Tokens in a block, at least 1.
    pub block_tokens: usize,
    pub groups: Vec<Group>,
    /// Bytes that copies on disk may take.
    pub disk_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct Group {
    pub kind: Kind,
    /// The number of blocks or slots in memory; their ids run from 0.
    pub capacity: u32,
    /// Bytes of a copy of one of them on disk.
    pub disk_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// In blocks of tokens, all of which are read.
    Tokens,
    /// In blocks of tokens, of which a token reads this many, its own included.
    Window(usize),
    /// In slots that hold the whole past.
    State,
}

/// No block or slot can be had without taking one from a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// Counts of blocks and slots, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// In use by no sequence, and without known content.
    pub free: usize,
    /// In use by no sequence, kept as prefix cache.
    pub cached: usize,
    /// In use by sequences.
    pub active: usize,
    /// Known from disk.
    pub disk: usize,
}

/// Blocks of a primary group that takes no memory: more than any number of sequences fill.
const PRIMARY_BLOCKS: u32 = if cfg!(test) { 1 << 11 } else { 1 << 18 };
/// A copy of such a block on disk is a name and its tokens.
const PRIMARY_DISK_BYTES: u64 = 256;

impl Layout {
    /// The layout of a model with one group that keeps all tokens.
    #[cfg(test)]
    pub fn plain(blocks: u32, block_tokens: usize, disk_blocks: u64) -> Self {
        let group = Group { kind: Kind::Tokens, capacity: blocks, disk_bytes: 1 };
        Self { block_tokens, groups: vec![group], disk_bytes: disk_blocks }
    }

    /// With a group that keeps all tokens.
    pub(super) fn with_primary(mut self) -> Self {
        self.block_tokens = self.block_tokens.max(1);
        if self.groups.iter().all(|group| group.kind != Kind::Tokens) {
            self.groups.push(Group { kind: Kind::Tokens, capacity: PRIMARY_BLOCKS, disk_bytes: PRIMARY_DISK_BYTES });
        }
        self
    }

    pub(super) fn primary(&self) -> usize {
        self.groups.iter().position(|group| group.kind == Kind::Tokens).unwrap_or(0)
    }

    /// How many of a sequence's first blocks in a group are behind the window of a step after `past` tokens.
    pub(super) fn behind(&self, group: usize, past: usize) -> usize {
        match self.groups[group].kind {
            Kind::Window(tokens) => (past + 1).saturating_sub(tokens) / self.block_tokens,
            Kind::Tokens | Kind::State => 0,
        }
    }
}

impl Group {
    /// Blocks or slots that a sequence of `tokens` tokens needs while it runs.
    pub(super) fn wants(&self, tokens: usize, block_tokens: usize) -> usize {
        match self.kind {
            Kind::Tokens => tokens.div_ceil(block_tokens),
            Kind::Window(window) => tokens.div_ceil(block_tokens).min(window.div_ceil(block_tokens) + 2),
            Kind::State => 1,
        }
    }
}
