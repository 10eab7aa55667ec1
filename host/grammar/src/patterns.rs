//! Streaming search for many byte strings at once.
//!
//! Stop strings and grammar triggers need more than match positions: they need to know how many trailing bytes may
//! still become a match, since those must be held back. That is exactly the state of an Aho-Corasick automaton, which
//! the existing crates do not expose, hence this small one. Edges are sparse: 64 stop strings of 1 KiB make 64 Ki
//! states.

use std::collections::VecDeque;

/// A state of the automaton.
pub type StateId = u32;

/// The state before any byte, and after bytes that begin no pattern.
pub const ROOT: StateId = 0;

/// An Aho-Corasick automaton over the byte strings.
#[derive(Debug)]
pub struct Patterns {
    states: Vec<Node>,
    lengths: Vec<usize>,
}

#[derive(Debug, Default)]
struct Node {
    /// Outgoing edges by byte, ascending.
    edges: Vec<(u8, StateId)>,
    /// The state of the longest proper suffix that also begins a pattern.
    fallback: StateId,
    /// Number of trailing bytes that begin a pattern.
    depth: usize,
    /// Longest pattern that ends here.
    found: Option<usize>,
}

impl Patterns {
    /// Builds the automaton. An empty pattern never matches; of two equal patterns the first does.
    pub fn new<P: AsRef<[u8]>>(patterns: &[P]) -> Self {
        let mut automaton = Self { states: vec![Node::default()], lengths: Vec::with_capacity(patterns.len()) };
        for (index, pattern) in patterns.iter().enumerate() {
            automaton.insert(index, pattern.as_ref());
        }
        automaton.link();
        automaton
    }

    /// Returns the state after one more byte.
    pub fn step(&self, mut at: StateId, byte: u8) -> StateId {
        loop {
            let state = &self.states[at as usize];
            if let Ok(edge) = state.edges.binary_search_by_key(&byte, |(byte, _)| *byte) {
                return state.edges[edge].1;
            }
            if at == ROOT {
                return ROOT;
            }
            at = state.fallback;
        }
    }

    /// Returns the pattern that ends here; of several, the longest, which began first.
    pub fn found(&self, at: StateId) -> Option<usize> {
        self.states[at as usize].found
    }

    /// Returns how many trailing bytes may still become a pattern.
    pub fn depth(&self, at: StateId) -> usize {
        self.states[at as usize].depth
    }

    pub fn length(&self, pattern: usize) -> usize {
        self.lengths[pattern]
    }

    fn insert(&mut self, index: usize, pattern: &[u8]) {
        self.lengths.push(pattern.len());
        let mut at = ROOT;
        for byte in pattern {
            at = match self.states[at as usize].edges.binary_search_by_key(byte, |(byte, _)| *byte) {
                Ok(edge) => self.states[at as usize].edges[edge].1,
                Err(place) => {
                    let depth = self.states[at as usize].depth + 1;
                    let next = self.states.len() as StateId;
                    self.states.push(Node { depth, ..Node::default() });
                    self.states[at as usize].edges.insert(place, (*byte, next));
                    next
                }
            };
        }
        if at != ROOT {
            self.states[at as usize].found.get_or_insert(index);
        }
    }

    /// Sets the fallback links breadth-first, since each is derived from its parent's.
    fn link(&mut self) {
        let mut queue = VecDeque::from([ROOT]);
        while let Some(parent) = queue.pop_front() {
            for (byte, child) in self.states[parent as usize].edges.clone() {
                if parent != ROOT {
                    let fallback = self.step(self.states[parent as usize].fallback, byte);
                    let inherited = self.states[fallback as usize].found;
                    let state = &mut self.states[child as usize];
                    state.fallback = fallback;
                    state.found = state.found.or(inherited);
                }
                queue.push_back(child);
            }
        }
    }
}
