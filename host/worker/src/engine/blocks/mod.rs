//! Which block of the model's memory holds which tokens of which sequence. Memory for keys and values is dealt out in
//! blocks of a few tokens, so that sequences grow without a reservation and equal beginnings are computed once: a block
//! that is full and computed becomes known by what it holds (`key`), whoever continues the same text shares it, and
//! when nobody does it stays cached until its room is needed (`pool`). Blocks can also be known from disk (`disk`);
//! the table says what to copy where, the engine copies.
//!
//! A sequence's table starts with shared blocks, its *chain*, followed by private ones that it fills. Only full blocks
//! join the chain and only after the step that computed them, so what is shared is never written again. The last token
//! of a text is always computed, as its logits are needed: its block is never taken over.

#[cfg(test)]
mod check;
mod disk;
mod index;
mod key;
mod pool;
#[cfg(test)]
mod tests;

pub use disk::{Import, Record, Spill};
pub use key::Key;

use std::collections::{HashMap, VecDeque};

use index::{Index, Published};
use key::{Chain, Link};
use pool::Pool;

/// How much there is to deal out.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Blocks in memory; their ids run from 0.
    pub blocks: u32,
    /// Tokens in a block, at least 1.
    pub block_tokens: usize,
    /// The most blocks to keep on disk.
    pub disk_blocks: usize,
}

/// No block can be had without taking one from a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// What the blocks are doing, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// In use by nobody, and known for nothing.
    pub free: usize,
    /// In use by nobody, kept for whoever continues their text.
    pub cached: usize,
    /// In use by sequences.
    pub active: usize,
    /// Known from disk.
    pub disk: usize,
}

/// The block table.
#[derive(Debug)]
pub struct BlockTable {
    layout: Layout,
    chain: Chain,
    pool: Pool,
    index: Index,
    holdings: HashMap<u64, Holding>,
}

/// What one sequence has.
#[derive(Debug)]
struct Holding {
    root: Key,
    /// The keys of its first blocks, which are known and may be shared.
    chain: Vec<Key>,
    /// Its table: those, then private ones.
    blocks: Vec<u32>,
    /// What the private blocks right after the chain are waiting for from disk.
    imports: VecDeque<Key>,
}

impl Holding {
    /// The block after its chain, if the text fills it.
    fn next<'a>(&self, chain: &Chain, text: &'a [u32]) -> Option<Link<'a>> {
        chain.link(self.chain.last().copied().unwrap_or(self.root), self.chain.len(), text)
    }
}

impl BlockTable {
    /// A table with nothing in use. The secret keys the hashes: whoever has the blocks on disk needs the same one
    /// again.
    pub fn new(layout: Layout, secret: &[u8; 16]) -> Self {
        let layout = Layout { block_tokens: layout.block_tokens.max(1), ..layout };
        Self {
            layout,
            chain: Chain::new(secret, layout.block_tokens),
            pool: Pool::new(layout.blocks),
            index: Index::new(layout.disk_blocks),
            holdings: HashMap::new(),
        }
    }

    /// Where the texts of a salt begin: everything besides tokens that keys and values depend on, or that must not be
    /// shared across (model fingerprint, adapter content and scale, API key).
    pub fn root(&self, salt: &[u8]) -> Key {
        self.chain.root(salt)
    }

    /// Lets a sequence in, with an empty table.
    pub fn open(&mut self, sequence: u64, root: Key) {
        self.close(sequence);
        let holding = Holding { root, chain: Vec::new(), blocks: Vec::new(), imports: VecDeque::new() };
        self.holdings.insert(sequence, holding);
    }

    /// Takes over the blocks in memory that continue the sequence's chain along `text`, the sequence's tokens. They
    /// replace private blocks in which the same was being computed. Answers how many blocks were taken over.
    pub fn share(&mut self, sequence: u64, text: &[u32]) -> usize {
        let Some(holding) = self.holdings.get_mut(&sequence) else { return 0 };
        let text = without_last(text);
        let before = holding.chain.len();
        while let Some(link) = holding.next(&self.chain, text) {
            let Some((block, used)) = self.index.find(&link).and_then(|entry| Some((entry.block?, entry.used))) else {
                break;
            };
            self.pool.hold(block, used);
            match holding.blocks.get_mut(holding.chain.len()) {
                Some(slot) => self.pool.discard(std::mem::replace(slot, block)),
                None => holding.blocks.push(block),
            }
            holding.chain.push(link.key);
        }
        for &key in holding.chain[before..].iter().rev() {
            self.index.touch(key);
        }
        holding.chain.len() - before
    }

    /// Asks for the blocks on disk that continue the chain after [`BlockTable::share`], as many as there is room for;
    /// true if the sequence now waits for [`BlockTable::import_of`].
    pub fn recall(&mut self, sequence: u64, text: &[u32]) -> bool {
        let Some(holding) = self.holdings.get_mut(&sequence) else { return false };
        if holding.imports.is_empty() {
            let text = without_last(text);
            let mut next = holding.next(&self.chain, text);
            while let Some(link) = next
                && self.index.find(&link).is_some_and(|entry| entry.on_disk)
            {
                let depth = holding.chain.len() + holding.imports.len();
                if depth == holding.blocks.len() {
                    let Some(block) = self.pool.allocate(&mut self.index) else { break };
                    holding.blocks.push(block);
                }
                holding.imports.push_back(link.key);
                next = self.chain.link(link.key, depth + 1, text);
            }
            for &key in holding.imports.iter().rev() {
                self.index.touch(key);
            }
        }
        !holding.imports.is_empty()
    }

    /// The next block to copy from disk for a sequence; none when it waits for nothing.
    pub fn import_of(&self, sequence: u64) -> Option<Import> {
        let holding = self.holdings.get(&sequence)?;
        let &key = holding.imports.front()?;
        Some(Import { sequence, key, block: *holding.blocks.get(holding.chain.len())? })
    }

    /// The import that [`BlockTable::import_of`] named was done, or failed: then the sequence computes the rest itself,
    /// and the disk is rid of the block and what hangs from it. `text` is the sequence's tokens.
    pub fn imported(&mut self, sequence: u64, text: &[u32], done: bool) {
        let Some(holding) = self.holdings.get_mut(&sequence) else { return };
        let Some(key) = holding.imports.pop_front() else { return };
        let depth = holding.chain.len();
        if done {
            let end = (depth + 1) * self.layout.block_tokens;
            self.publish(sequence, text.get(..end).unwrap_or(text));
        } else {
            self.index.lost(key);
        }
        if let Some(holding) = self.holdings.get_mut(&sequence)
            && holding.chain.len() == depth
        {
            holding.imports.clear();
        }
    }

    /// Makes room for the first `tokens` tokens of a sequence, all or nothing.
    pub fn extend(&mut self, sequence: u64, tokens: usize) -> Result<(), Full> {
        let Some(holding) = self.holdings.get_mut(&sequence) else { return Ok(()) };
        let missing = tokens.div_ceil(self.layout.block_tokens).saturating_sub(holding.blocks.len());
        if missing > self.pool.available() {
            return Err(Full);
        }
        for _ in 0..missing {
            holding.blocks.push(self.pool.allocate(&mut self.index).ok_or(Full)?);
        }
        Ok(())
    }

    /// Makes known what a sequence has computed: `text` is its tokens up to there. Where another sequence was first
    /// with the same text, its block takes the place of this one's, so that known blocks always hang from known blocks.
    pub fn publish(&mut self, sequence: u64, text: &[u32]) {
        let Some(holding) = self.holdings.get_mut(&sequence) else { return };
        while let Some(link) = holding.next(&self.chain, text) {
            let Some(slot) = holding.blocks.get_mut(holding.chain.len()) else { return };
            match self.index.publish(&link, *slot) {
                Published::New => self.pool.blocks[*slot as usize].key = Some(link.key),
                Published::Twin { block, used } => {
                    self.pool.hold(block, used);
                    self.pool.discard(std::mem::replace(slot, block));
                }
                Published::Collision => return,
            }
            holding.chain.push(link.key);
        }
    }

    /// Takes a sequence's blocks back. Those that are known stay cached.
    pub fn close(&mut self, sequence: u64) {
        let Some(holding) = self.holdings.remove(&sequence) else { return };
        for (i, &block) in holding.blocks.iter().enumerate().rev() {
            match holding.chain.get(i) {
                Some(&key) => self.pool.release(block, self.index.touch(key)),
                None => self.pool.discard(block),
            }
        }
    }

    /// A sequence's table, for the model.
    pub fn blocks(&self, sequence: u64) -> &[u32] {
        self.holdings.get(&sequence).map_or(&[], |holding| &holding.blocks)
    }

    /// How many tokens of a sequence lie in known blocks.
    pub fn known(&self, sequence: u64) -> usize {
        self.holdings.get(&sequence).map_or(0, |holding| holding.chain.len() * self.layout.block_tokens)
    }

    /// What the next block of a sequence's chain will be called; none if the text ends before.
    pub fn next_key(&self, sequence: u64, text: &[u32]) -> Option<Key> {
        self.holdings.get(&sequence)?.next(&self.chain, without_last(text)).map(|link| link.key)
    }

    /// How many blocks so many tokens take.
    pub fn blocks_for(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.layout.block_tokens)
    }

    /// How many blocks can be had without taking one from a sequence.
    pub fn available(&self) -> usize {
        self.pool.available()
    }

    /// The sizes that it was made with.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// What the blocks are doing.
    pub fn usage(&self) -> Usage {
        let (free, cached) = (self.pool.free.len(), self.pool.cached.len());
        Usage { free, cached, active: self.pool.blocks.len() - free - cached, disk: self.index.disk.len }
    }

    /// Takes in what an earlier run left on disk, coldest first, before anything is spilled. What is damaged, out of
    /// reach or too much comes back from [`BlockTable::take_dropped`].
    pub fn restore(&mut self, records: &[Record]) {
        self.index.restore(&self.chain, records, self.layout.block_tokens);
    }

    /// Up to `count` blocks worth copying to disk now, in the order in which to report them as [`BlockTable::spilled`].
    /// Only the `window` cached blocks that would be given away first are considered: a few before steps, all before an
    /// exit.
    pub fn to_spill(&self, window: usize, count: usize) -> Vec<Spill> {
        self.index.to_spill(&self.pool, window, count)
    }

    /// A block from [`BlockTable::to_spill`] was copied out of the model's memory, and its bytes can be read back from
    /// now on.
    pub fn spilled(&mut self, key: Key) {
        self.index.spilled(key);
    }

    /// A block on disk cannot be read back: it could not be written, or its file is damaged.
    pub fn lost(&mut self, key: Key) {
        self.index.lost(key);
    }

    /// The blocks that the disk need not keep any longer; to be deleted before anything else is spilled.
    pub fn take_dropped(&mut self) -> impl Iterator<Item = Key> + use<> {
        std::mem::take(&mut self.index.disk.dropped).into_iter()
    }
}

/// What of a text may be taken over: its last token's logits are needed.
fn without_last(text: &[u32]) -> &[u32] {
    &text[..text.len().saturating_sub(1)]
}
