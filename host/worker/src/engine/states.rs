//! Assigns states of an opaque model to sequences. Such a state cannot be truncated or shared, but it can be continued:
//! when a sequence ends, its state is parked, and a sequence whose prompt starts with everything the state has seen
//! takes it over. So the next turn of a conversation computes only what is new, on any model, without the model's help.
//! If the model can copy states, the sequence gets a copy while there is room, so that the same turn can be requested
//! again and several sequences can continue one text.
//!
//! A model has room for a limited number of states. Running sequences come first; of the parked states, those that were
//! copied are dropped first, then the one parked longest. Pure, like the block table: the engine asks what to do, and
//! does it.

use std::collections::{HashMap, VecDeque};

use super::blocks::{ItemSpan, SequenceText};

#[derive(Debug)]
pub struct StateTable {
    states_max: usize,
    /// State of each running sequence. A state's id is that of its first sequence.
    live: HashMap<u64, u64>,
    /// Coldest first.
    parked: VecDeque<Parked>,
    copies: bool,
    changes: Vec<Change>,
}

/// A change that the model must make before it computes anything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Drop(u64),
    Copy {
        from: u64,
        /// The copy, named by the sequence that it is for.
        to: u64,
    },
}

#[derive(Debug)]
struct Parked {
    state: u64,
    salt: Vec<u8>,
    text: Vec<u32>,
    items: Vec<ItemSpan>,
}

impl StateTable {
    /// An empty table for a model with room for `states_max` states.
    pub fn new(states_max: usize) -> Self {
        let (states_max, changes) = (states_max.max(1), Vec::new());
        Self { states_max, live: HashMap::new(), parked: VecDeque::new(), copies: false, changes }
    }

    pub fn allow_copies(&mut self) {
        self.copies = true;
    }

    /// Assigns a state to a sequence; returns how many tokens of its prompt the state has already seen. The last token
    /// is never among them, as its logits are needed.
    pub fn open<'a>(&mut self, sequence: u64, salt: &[u8], prompt: impl Into<SequenceText<'a>>) -> usize {
        let SequenceText { tokens: prompt, items, .. } = prompt.into();
        let fits = |parked: &&Parked| {
            let seen = parked.text.len();
            let items = &items[..items.partition_point(|item| item.tokens.start < seen)];
            parked.salt == salt && seen < prompt.len() && prompt.starts_with(&parked.text) && parked.items == items
        };
        let longest = self.parked.iter().filter(fits).map(|parked| parked.text.len()).max();
        let index =
            longest.and_then(|len| self.parked.iter().position(|parked| parked.text.len() == len && fits(&parked)));
        let found = index.and_then(|index| self.parked.remove(index));
        let (state, known) = found.as_ref().map_or((sequence, 0), |parked| (parked.state, parked.text.len()));
        let room = self.live.len() + self.parked.len() + 2 <= self.states_max;
        match found.filter(|_| self.copies && room) {
            Some(parked) => {
                self.changes.push(Change::Copy { from: state, to: sequence });
                self.parked.push_front(parked);
                self.live.insert(sequence, sequence);
            }
            None => drop(self.live.insert(sequence, state)),
        }
        while self.live.len() + self.parked.len() > self.states_max
            && let Some(coldest) = self.parked.pop_front()
        {
            self.changes.push(Change::Drop(coldest.state));
        }
        known
    }

    /// Closes a sequence whose state has seen this text and the items that begin in it; `None` if the state must not be
    /// reused.
    pub fn close(&mut self, sequence: u64, salt: Vec<u8>, seen: Option<(Vec<u32>, Vec<ItemSpan>)>) {
        let Some(state) = self.live.remove(&sequence) else { return };
        match seen.filter(|(text, _)| !text.is_empty()) {
            Some((text, mut items)) => {
                items.retain(|item| item.tokens.start < text.len());
                self.parked.push_back(Parked { state, salt, text, items });
            }
            None => self.changes.push(Change::Drop(state)),
        }
    }

    /// Returns the model's id for a sequence's state.
    pub fn state_of(&self, sequence: u64) -> u64 {
        self.live.get(&sequence).copied().unwrap_or(sequence)
    }

    /// Returns the pending changes for the model, in order.
    pub fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// Number of states kept for sequences that may continue their text.
    pub fn parked(&self) -> usize {
        self.parked.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SALT: &[u8] = b"salt";

    fn ended(table: &mut StateTable, sequence: u64, text: &[u32]) {
        table.open(sequence, SALT, text);
        table.close(sequence, SALT.to_vec(), Some((text.to_vec(), Vec::new())));
    }

    #[test]
    fn a_longer_prompt_takes_the_longest_state_over() {
        let mut table = StateTable::new(4);
        ended(&mut table, 1, &[1, 2]);
        ended(&mut table, 2, &[7, 8, 9]);
        table.open(3, SALT, &vec![1, 2, 3]);
        assert_eq!(table.state_of(3), 1);
        table.close(3, SALT.to_vec(), Some((vec![1, 2, 3, 4], Vec::new())));
        assert_eq!(table.open(4, SALT, &vec![1, 2, 3, 4, 5]), 4);
        assert_eq!(table.state_of(4), 1, "a state keeps its name through all its sequences");
        assert_eq!(table.open(5, SALT, &vec![1, 2, 3, 4, 5]), 0, "a state is continued once");
        assert!(table.take_changes().is_empty());
    }

    #[test]
    fn neither_the_same_prompt_nor_another_salt_takes_a_state_over() {
        let mut table = StateTable::new(4);
        ended(&mut table, 1, &[1, 2]);
        assert_eq!(table.open(2, SALT, &vec![1, 2]), 0);
        assert_eq!(table.open(3, SALT, &vec![1, 3, 2]), 0);
        assert_eq!(table.open(4, b"other", &vec![1, 2, 3]), 0);
    }

    #[test]
    fn the_coldest_state_makes_room_and_running_ones_never_do() {
        let mut table = StateTable::new(2);
        ended(&mut table, 1, &[1]);
        ended(&mut table, 2, &[2]);
        table.open(3, SALT, &vec![3]);
        assert_eq!(table.take_changes(), [Change::Drop(1)]);
        table.open(4, SALT, &vec![4]);
        assert_eq!((table.take_changes(), table.parked()), (vec![Change::Drop(2)], 0));
    }

    #[test]
    fn where_states_are_copied_several_sequences_go_on_from_one() {
        let mut table = StateTable::new(3);
        table.allow_copies();
        ended(&mut table, 1, &[1, 2]);
        assert_eq!((table.open(2, SALT, &vec![1, 2, 3]), table.state_of(2)), (2, 2));
        assert_eq!((table.open(3, SALT, &vec![1, 2, 4]), table.state_of(3)), (2, 3));
        assert_eq!(table.take_changes(), [Change::Copy { from: 1, to: 2 }, Change::Copy { from: 1, to: 3 }]);
        table.close(2, SALT.to_vec(), Some((vec![1, 2, 3], Vec::new())));
        assert_eq!(
            (table.open(4, SALT, &vec![1, 2, 3, 4]), table.state_of(4)),
            (3, 2),
            "without room the state goes on"
        );
        assert_eq!(table.take_changes(), []);
        table.open(5, SALT, &vec![9]);
        assert_eq!(table.take_changes(), [Change::Drop(1)], "what was copied makes room first");
    }

    #[test]
    fn a_state_that_failed_is_dropped() {
        let mut table = StateTable::new(2);
        table.open(1, SALT, &vec![1]);
        table.close(1, SALT.to_vec(), None);
        assert_eq!((table.take_changes(), table.parked()), (vec![Change::Drop(1)], 0));
    }
}
