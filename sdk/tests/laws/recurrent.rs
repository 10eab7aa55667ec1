//! A recurrent model with a state per sequence, on plain numbers, and the faults that it can be given.

use pensieve_sdk::{
    Batch, Cache, Error, Model, Resident, Result, SequenceState, Span, Want,
    testing::{Report, conformance},
};
use std::collections::HashMap;

use crate::{WIDTH, dot, embed};

const VOCABULARY: usize = 37;

/// The model's planted fault; the test's table describes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// No fault: the model looks at the last token only.
    Bigram,
    Bag,
    StateShared,
    ChunkBeginsAnew,
    LastForgotten,
    Padded,
    UnwantedSkipped,
    IdsCut,
    ReleasesAnother,
    ReleasesNone,
    PastUnchecked,
    PastCheckedLate,
    ForkShares,
    SnapshotHalf,
    RestorePanics,
    RestoreTakesAnyLength,
    RestoreForgetsCount,
    StrangersForked,
}

#[derive(Clone, Copy)]
struct State {
    hidden: [f32; WIDTH],
    seen: usize,
}

const FRESH: State = State { hidden: [0.0; WIDTH], seen: 0 };

pub(crate) struct Recurrent {
    fault: Fault,
    sequences: u32,
    names: HashMap<u64, usize>,
    states: Vec<State>,
}

/// No fault of this model needs a reference.
pub(crate) fn check(fault: Fault, _compared: bool) -> Report {
    conformance(Box::new(Recurrent::new(fault, 8)))
}

impl Recurrent {
    pub(crate) fn new(fault: Fault, sequences: u32) -> Self {
        Self { fault, sequences, names: HashMap::new(), states: Vec::new() }
    }

    fn name(&self, sequence: u64) -> u64 {
        match self.fault {
            Fault::IdsCut => sequence & 0xffff_ffff,
            Fault::StateShared => 0,
            _ => sequence,
        }
    }

    fn add(&mut self, sequence: u64, state: State) {
        self.names.insert(self.name(sequence), self.states.len());
        self.states.push(state);
    }

    fn find(&self, sequence: u64) -> Option<usize> {
        self.names.get(&self.name(sequence)).copied()
    }

    fn check(&self, span: &Span<'_>) -> Result<()> {
        let seen = self.find(span.sequence).map_or(0, |place| self.states[place].seen);
        let unchecked =
            [Fault::PastUnchecked, Fault::StateShared, Fault::IdsCut, Fault::Padded, Fault::UnwantedSkipped];
        if seen == span.past || unchecked.contains(&self.fault) {
            return Ok(());
        }
        Err(Error::invalid(format!("sequence {} has seen {seen} tokens, not {}", span.sequence, span.past)))
    }

    fn read(&self, state: &mut State, token: u32) {
        let old = state.hidden;
        let input = embed(token, 0);
        for (place, hidden) in state.hidden.iter_mut().enumerate() {
            *hidden = match self.fault {
                Fault::Bigram => input[place],
                Fault::Bag => old[place] + input[place],
                _ => (1.5 * old[(place + 1) % WIDTH] + input[place]).tanh(),
            };
        }
        state.seen += 1;
    }

    /// Reads a span, and answers with the state after each token.
    fn advance(&mut self, batch: &Batch<'_>, span: &Span<'_>, longest: usize) -> Vec<State> {
        if self.find(span.sequence).is_none() {
            self.add(span.sequence, FRESH);
        }
        let place = self.find(span.sequence).unwrap_or_default();
        let mut state = self.states[place];
        if self.fault == Fault::ChunkBeginsAnew {
            state.hidden = FRESH.hidden;
        }
        let mut states = Vec::new();
        for &token in &batch.tokens[span.start..span.start + span.len] {
            self.read(&mut state, token);
            states.push(state);
        }
        let mut kept = state;
        if self.fault == Fault::LastForgotten && span.len > 1 {
            kept.hidden = states[span.len - 2].hidden;
        }
        if self.fault == Fault::Padded {
            (span.len..longest).for_each(|_| self.read(&mut kept, 0));
        }
        if self.fault != Fault::UnwantedSkipped || span.want != Want::None {
            self.states[place] = kept;
        }
        states
    }
}

impl Model for Recurrent {
    fn resident(&self) -> Resident {
        Resident {
            device: "cpu".into(),
            note: String::new(),
            weight_bytes: 0,
            state_bytes: 0,
            vocabulary: VOCABULARY as u32,
            context: 200,
            hidden: 0,
            block_tokens: 16,
            caches: vec![(Cache::Opaque { bytes: 0 }, self.sequences)],
        }
    }

    fn forward(&mut self, batch: &Batch<'_>, logits: &mut [f32]) -> Result<()> {
        if self.fault != Fault::PastCheckedLate {
            batch.spans.iter().try_for_each(|span| self.check(span))?;
        }
        let longest = batch.spans.iter().map(|span| span.len).max().unwrap_or(0);
        let mut rows = logits.chunks_exact_mut(VOCABULARY);
        for span in &batch.spans {
            self.check(span)?;
            let states = self.advance(batch, span, longest);
            for (state, row) in states[span.len - span.want.rows(span.len)..].iter().zip(&mut rows) {
                for (token, logit) in row.iter_mut().enumerate() {
                    *logit = dot(&state.hidden, &embed(token as u32, 1));
                }
            }
        }
        Ok(())
    }

    fn release(&mut self, sequence: u64) {
        match self.fault {
            Fault::ReleasesNone => {}
            Fault::ReleasesAnother => {
                let other = self.names.keys().copied().find(|&name| name != sequence);
                self.names.remove(&other.unwrap_or(sequence));
            }
            _ => {
                self.names.remove(&self.name(sequence));
            }
        }
    }

    fn sequence_state(&mut self) -> Option<&mut dyn SequenceState> {
        Some(self)
    }
}

impl SequenceState for Recurrent {
    fn fork(&mut self, from: u64, to: u64) -> Result<()> {
        match self.find(from) {
            Some(place) if self.fault == Fault::ForkShares => {
                self.names.insert(to, place);
            }
            Some(place) => self.add(to, self.states[place]),
            None if self.fault == Fault::StrangersForked => self.add(to, FRESH),
            None => return Err(Error::not_found(format!("there is no sequence {from}"))),
        }
        Ok(())
    }

    fn snapshot(&self, sequence: u64) -> Result<Vec<u8>> {
        let place = self.find(sequence).ok_or_else(|| Error::not_found(format!("there is no sequence {sequence}")))?;
        let mut state = self.states[place];
        if self.fault == Fault::SnapshotHalf {
            state.hidden[WIDTH / 2..].fill(0.0);
        }
        let numbers = state.hidden.iter().flat_map(|number| number.to_le_bytes());
        Ok(numbers.chain((state.seen as u32).to_le_bytes()).collect())
    }

    fn restore(&mut self, sequence: u64, bytes: &[u8]) -> Result<()> {
        let wanted = 4 * (WIDTH + 1);
        assert!(self.fault != Fault::RestorePanics || bytes.len() == wanted, "slice index out of range");
        if bytes.len() != wanted && self.fault != Fault::RestoreTakesAnyLength {
            return Err(Error::corrupt(format!("a snapshot has {wanted} bytes, not {}", bytes.len())));
        }
        let mut state = FRESH;
        let mut words = bytes.chunks_exact(4).map(|word| [word[0], word[1], word[2], word[3]]);
        state.hidden.iter_mut().zip(&mut words).for_each(|(number, word)| *number = f32::from_le_bytes(word));
        if self.fault != Fault::RestoreForgetsCount {
            state.seen = words.next().map_or(0, u32::from_le_bytes) as usize;
        }
        self.add(sequence, state);
        Ok(())
    }
}
