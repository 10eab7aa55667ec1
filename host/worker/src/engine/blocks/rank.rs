//! The eviction order: what has the lowest rank is evicted first. It is LRU, except that what is superseded goes before
//! everything that may still be continued.
//!
//! Agents send many prompts that nothing ever continues: titles, summaries of pages, the first steps of subagents, and
//! endings that the next turn writes differently. They have a beginning in common with a prompt that follows, which
//! continues it in another way. So when a text branches off from an earlier one, the earlier one's rest counts as
//! superseded, unless a sequence runs on it or a prompt has reused it before. A second session that is just beginning
//! may lose its first question that way if memory is short, but not the beginning that both have in common.
//!
//! More conversations than fit, which take turns, are the worst case of LRU: each evicts the one that is due next, and
//! all are computed again at every turn. Therefore a text that comes back after it was evicted gives way to the others
//! when it ends, so that those that still fit stay. One in eight does not, so that it takes the place of a conversation
//! that has ended.
//!
//! A bonus for blocks that were reused, as in LFU or segmented LRU, was worse than LRU alone for chats that take turns,
//! as it keeps conversations that have ended.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use super::key::Key;

/// Limit of the blocks that are remembered after their eviction.
const EVICTED_MAX: usize = 1 << 16;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    worth: Worth,
    /// Counts uses; unique.
    tick: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Worth {
    /// Left behind by a running sequence, such as blocks that have left a window.
    #[default]
    Left,
    Low,
    /// The end of a text, or before it.
    Live,
}

impl Rank {
    /// Below all live ranks and above the others.
    pub(super) const LIVE: Self = Self { worth: Worth::Live, tick: 0 };
}

/// The logical clock of the eviction order.
#[derive(Debug, Default)]
pub(super) struct Clock(u64);

impl Clock {
    /// The rank of what is used now.
    pub(super) fn live(&mut self) -> Rank {
        self.rank(Worth::Live)
    }

    /// The rank of what goes before everything live.
    pub(super) fn low(&mut self) -> Rank {
        self.rank(Worth::Low)
    }

    /// The rank of what a running sequence leaves behind now.
    pub(super) fn left(&mut self) -> Rank {
        self.rank(Worth::Left)
    }

    fn rank(&mut self, worth: Worth) -> Rank {
        self.0 += 1;
        Rank { worth, tick: self.0 }
    }
}

/// An eviction of a block from memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Eviction {
    /// The sequence that took its memory.
    pub by: u64,
    /// Time of the eviction, on the clock of the scheduler's plans.
    pub at: Duration,
}

/// Blocks that were evicted not long ago: as many as fit.
#[derive(Debug)]
pub(super) struct Evicted {
    keys: HashMap<Key, Eviction>,
    /// All keys ever added that are not older than the limit, oldest first.
    order: VecDeque<Key>,
    pub(super) limit: usize,
}

impl Evicted {
    pub(super) fn new(capacity: u32) -> Self {
        Self { keys: HashMap::new(), order: VecDeque::new(), limit: (capacity as usize).min(EVICTED_MAX) }
    }

    pub(super) fn add(&mut self, key: Key, eviction: Eviction) {
        if self.keys.insert(key, eviction).is_none() {
            self.order.push_back(key);
        }
        while self.order.len() > self.limit {
            self.order.pop_front().map(|key| self.keys.remove(&key));
        }
    }

    /// Forgets a block; true if it was known.
    pub(super) fn remove(&mut self, key: Key) -> bool {
        self.keys.remove(&key).is_some()
    }

    pub(super) fn get(&self, key: Key) -> Option<Eviction> {
        self.keys.get(&key).copied()
    }
}

/// True if this sequence gives way in case its text was evicted before.
pub(super) fn yields(sequence: u64) -> bool {
    // Consecutive ids belong to conversations that take turns, so they are scattered.
    sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61 != 0
}
