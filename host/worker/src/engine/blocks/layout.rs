//! Sizes of the cache groups, whose blocks and slots all share one grid of block boundaries.

/// Sizes of the cache groups and of the disk tier.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Tokens per block; at least 1.
    pub block_tokens: usize,
    pub groups: Vec<Group>,
    /// Bytes that copies on disk may take.
    pub disk_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct Group {
    pub kind: Kind,
    /// Number of blocks or slots in memory; ids start at 0.
    pub capacity: u32,
    /// Bytes of one copy on disk.
    pub disk_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Blocks of tokens, all of which are read.
    Tokens,
    /// Blocks of tokens; a token reads this many tokens, including itself.
    Window(usize),
    /// Slots that hold the state after the whole past.
    State,
}

/// No block or slot is available without preempting a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// Counts of blocks and slots, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Used by no sequence, without indexed content.
    pub free: usize,
    /// Used by no sequence, kept as prefix cache.
    pub cached: usize,
    /// In use by sequences.
    pub active: usize,
    /// Indexed on disk.
    pub disk: usize,
}

/// Blocks of a primary group that takes no memory: more than all sequences can fill.
const PRIMARY_BLOCKS: u32 = if cfg!(test) { 1 << 11 } else { 1 << 18 };
/// Such a block's copy on disk is just its key and tokens.
const PRIMARY_DISK_BYTES: u64 = 256;

impl Layout {
    /// The layout of a model with one group that keeps all tokens.
    #[cfg(test)]
    pub fn plain(blocks: u32, block_tokens: usize, disk_blocks: u64) -> Self {
        let group = Group { kind: Kind::Tokens, capacity: blocks, disk_bytes: 1 };
        Self { block_tokens, groups: vec![group], disk_bytes: disk_blocks }
    }

    /// Adds a group that keeps all tokens, if there is none.
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

    /// Number of a sequence's leading blocks that lie behind the window for a step after `past` tokens.
    pub(super) fn behind(&self, group: usize, past: usize) -> usize {
        match self.groups[group].kind {
            Kind::Window(tokens) => (past + 1).saturating_sub(tokens) / self.block_tokens,
            Kind::Tokens | Kind::State => 0,
        }
    }
}

impl Group {
    /// Blocks or slots that a running sequence of `tokens` tokens needs.
    pub(super) fn wants(&self, tokens: usize, block_tokens: usize) -> usize {
        match self.kind {
            Kind::Tokens => tokens.div_ceil(block_tokens),
            Kind::Window(window) => tokens.div_ceil(block_tokens).min(window.div_ceil(block_tokens) + 2),
            Kind::State => 1,
        }
    }
}
