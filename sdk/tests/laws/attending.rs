//! A model of one attention layer over paged keys and values, on plain numbers, and the faults that it can be given.

use pensieve_sdk::{
    AdapterData, Batch, Cache, Error, KvTransfer, Model, Outputs, Resident, Result, Span, Table, Want,
    testing::{Options, Reference, Report, conformance_with},
};
use std::collections::HashMap;

use crate::{WIDTH, dot, embed};

pub(crate) const VOCABULARY: usize = 31;
const BLOCK: usize = 16;

/// The model's planted fault; the test's table describes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    CacheOffByOne,
    PastOneShort,
    CacheAtChunkIndex,
    PositionsFromChunk,
    PositionsIgnored,
    PositionsCounted,
    CacheAtPosition,
    RotationsTooFew,
    QueryRotatedOtherwise,
    AllRotatedOtherwise,
    TableIgnored,
    CacheById,
    WritesTooFar,
    ReadsTooFar,
    NotCausal,
    AttendsToAll,
    RowsReversed,
    LastIsFirst,
    MaskIgnored,
    WorstFirst,
    TotalOfCandidates,
    UnwantedSkipped,
    Random,
    Nan,
    Panics,
    ExportsKeysOnly,
    ImportsToBlockZero,
    TakesAnyAdapter,
    AdapterErrorNamesNothing,
}

type Entry = ([f32; WIDTH], [f32; WIDTH]);

pub(crate) struct Attending {
    fault: Fault,
    context: u32,
    /// Weight of the past relative to the token itself.
    attention: f32,
    slots: Vec<Entry>,
    by_id: HashMap<u64, Vec<Entry>>,
    calls: u32,
}

pub(crate) fn check(fault: Fault, compared: bool) -> Report {
    let references = if compared { vec![reference()] } else { Vec::new() };
    conformance_with(Box::new(Attending::new(fault, 256, 64)), &Options { references, ..Options::default() })
}

fn reference() -> Reference {
    let tokens: Vec<u32> = (0..VOCABULARY as u32).chain([5, 3, 9]).collect();
    let blocks = vec![Table::Blocks([0_u32, 1, 2][..].into())];
    let logits = crate::logits(&mut Attending::new(Fault::None, 256, 64), &tokens, blocks);
    Reference { tokens, logits, tolerance: 1e-4, ..Reference::default() }
}

impl Attending {
    pub(crate) fn new(fault: Fault, context: u32, blocks: usize) -> Self {
        let slots = vec![([0.0; WIDTH], [0.0; WIDTH]); blocks * BLOCK];
        Self { fault, context, attention: 2.0, slots, by_id: HashMap::new(), calls: 0 }
    }

    /// A model that hardly looks back, as untrained ones are.
    pub(crate) fn faint(fault: Fault) -> Self {
        Self { attention: 0.005, ..Self::new(fault, 256, 64) }
    }

    fn slot(&self, span: &Span<'_>, place: usize) -> usize {
        match self.fault {
            Fault::TableIgnored => (span.blocks(0)[0] as usize * BLOCK + place) % self.slots.len(),
            _ => span.blocks(0)[place / BLOCK] as usize * BLOCK + place % BLOCK,
        }
    }

    fn place(&self, span: &Span<'_>, index: usize, position: u32) -> usize {
        match self.fault {
            Fault::CacheAtChunkIndex => index,
            Fault::CacheOffByOne => (span.past + index + 1) % (span.blocks(0).len() * BLOCK),
            Fault::CacheAtPosition => position as usize,
            _ => span.past + index,
        }
    }

    fn position(&self, span: &Span<'_>, index: usize, given: u32) -> u32 {
        match self.fault {
            Fault::PositionsIgnored => 0,
            Fault::PositionsCounted => (span.past + index) as u32,
            Fault::PositionsFromChunk => given - span.past as u32,
            Fault::RotationsTooFew => {
                assert!(given + 1 < self.context, "index {given} is out of range");
                given
            }
            _ => given,
        }
    }

    fn write(&mut self, batch: &Batch<'_>, span: &Span<'_>) {
        for index in 0..span.len {
            let (token, given) = (batch.tokens[span.start + index], batch.positions[span.start + index]);
            let halves = self.fault != Fault::AllRotatedOtherwise && self.fault != Fault::QueryRotatedOtherwise;
            let key = rotate(embed(token, 1), self.position(span, index, given), halves);
            let entry = (key, embed(token, 2));
            if self.fault == Fault::CacheById {
                self.by_id.entry(span.sequence).or_default().push(entry);
                continue;
            }
            let slot = self.slot(span, self.place(span, index, given));
            self.slots[slot] = entry;
            if self.fault == Fault::WritesTooFar && index + 1 == span.len {
                let next = (slot + 1) % self.slots.len();
                self.slots[next] = entry;
            }
        }
    }

    fn seen(&self, batch: &Batch<'_>, span: &Span<'_>, index: usize) -> Vec<Entry> {
        let own = match self.fault {
            Fault::NotCausal => span.past + span.len,
            Fault::ReadsTooFar => (span.past + index + 1).next_multiple_of(BLOCK),
            _ => span.past + index + 1,
        };
        if self.fault == Fault::CacheById {
            return self.by_id[&span.sequence].iter().take(own).copied().collect();
        }
        let left_out = |place| self.fault == Fault::PastOneShort && index > 0 && place + 1 == span.past;
        let places = (0..own).filter(|&place| !left_out(place));
        let mut seen: Vec<Entry> = places.map(|place| self.slots[self.slot(span, place)]).collect();
        if self.fault == Fault::AttendsToAll {
            for other in batch.spans.iter().filter(|other| other.sequence != span.sequence) {
                seen.extend((0..other.len).map(|index| self.slots[self.slot(other, other.past + index)]));
            }
        }
        seen
    }

    fn row(&self, batch: &Batch<'_>, span: &Span<'_>, index: usize) -> Vec<f32> {
        let at = span.start + index;
        let query = embed(batch.tokens[at], 0);
        let query =
            rotate(query, self.position(span, index, batch.positions[at]), self.fault != Fault::AllRotatedOtherwise);
        let seen = self.seen(batch, span, index);
        let weights: Vec<f32> = seen.iter().map(|(key, _)| (dot(&query, key) * 2.0).exp()).collect();
        let total: f32 = weights.iter().sum();
        let mut hidden = embed(batch.tokens[at], 3);
        for (weight, (_, value)) in weights.iter().zip(&seen) {
            hidden.iter_mut().zip(value).for_each(|(sum, value)| *sum += self.attention * weight / total * value);
        }
        (0..VOCABULARY as u32).map(|token| dot(&hidden, &embed(token, 4))).collect()
    }

    fn rows(&self, batch: &Batch<'_>) -> Vec<Vec<f32>> {
        let mut rows = Vec::new();
        for span in &batch.spans {
            let wanted = match (span.want, self.fault) {
                (Want::None, _) => 0..0,
                (Want::Last, Fault::LastIsFirst) => 0..1,
                (Want::Last, _) => span.len - 1..span.len,
                (Want::All, _) => 0..span.len,
            };
            rows.extend(wanted.map(|index| self.row(batch, span, index)));
        }
        if self.fault == Fault::RowsReversed && batch.spans.len() > 1 {
            rows.reverse();
        }
        rows
    }
}

impl Model for Attending {
    fn resident(&self) -> Resident {
        let blocks = (self.slots.len() / BLOCK) as u32;
        Resident {
            device: "cpu".into(),
            note: String::new(),
            weight_bytes: 0,
            state_bytes: 0,
            vocabulary: VOCABULARY as u32,
            context: self.context,
            hidden: 0,
            block_tokens: BLOCK as u32,
            caches: vec![(Cache::Tokens { bytes: (BLOCK * WIDTH * 2 * 4) as u64 }, blocks)],
        }
    }

    fn forward(&mut self, batch: &Batch<'_>, logits: &mut [f32]) -> Result<()> {
        self.calls += 1;
        assert!(self.fault != Fault::Panics, "not today");
        for span in &batch.spans {
            if self.fault != Fault::UnwantedSkipped || span.want != Want::None {
                self.write(batch, span);
            }
        }
        for (place, row) in logits.chunks_exact_mut(VOCABULARY).zip(self.rows(batch)) {
            place.copy_from_slice(&row);
        }
        match self.fault {
            Fault::Random => logits.iter_mut().for_each(|logit| *logit += (self.calls % 7) as f32),
            Fault::Nan if batch.tokens.len() > 20 => logits[VOCABULARY + 3] = f32::NAN,
            _ => {}
        }
        Ok(())
    }

    fn forward_to(&mut self, batch: &Batch<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let mut seen = batch.clone();
        if self.fault == Fault::MaskIgnored {
            seen.spans.iter_mut().for_each(|span| span.mask = &[]);
        }
        outputs.fill_from_logits(&seen, |batch, logits| self.forward(batch, logits))?;
        let (top, chosen) = (batch.top.max(1), &mut outputs.candidates);
        if self.fault == Fault::WorstFirst {
            chosen.ids.chunks_exact_mut(top).for_each(<[u32]>::reverse);
            chosen.scores.chunks_exact_mut(top).for_each(<[f32]>::reverse);
        }
        if self.fault == Fault::TotalOfCandidates {
            for (scores, totals) in chosen.scores.chunks_exact(top).zip(chosen.totals.chunks_exact_mut(2)) {
                totals.fill(scores.iter().map(|score| score.exp()).sum::<f32>().ln());
            }
        }
        Ok(())
    }

    fn release(&mut self, sequence: u64) {
        self.by_id.remove(&sequence);
    }

    fn attach(&mut self, adapter: &AdapterData) -> Result<u32> {
        match self.fault {
            Fault::TakesAnyAdapter => Ok(1),
            Fault::AdapterErrorNamesNothing => Err(Error::not_found("no such tensor")),
            _ => Err(Error::not_found(format!("adapter: the model has no '{}'", adapter.pairs[0].target))),
        }
    }

    fn kv_transfer(&mut self) -> Option<&mut dyn KvTransfer> {
        Some(self)
    }
}

impl KvTransfer for Attending {
    fn bytes(&self, _group: usize) -> usize {
        BLOCK * WIDTH * 2 * 4
    }

    fn export(&self, _group: usize, block: u32, bytes: &mut [u8]) -> Result<()> {
        let slots = &self.slots[block as usize * BLOCK..][..BLOCK];
        let keys_only = self.fault == Fault::ExportsKeysOnly;
        let numbers = slots.iter().flat_map(|(key, value)| {
            let value = if keys_only { [0.0; WIDTH] } else { *value };
            key.iter().copied().chain(value)
        });
        bytes.chunks_exact_mut(4).zip(numbers).for_each(|(place, number)| place.copy_from_slice(&number.to_le_bytes()));
        Ok(())
    }

    fn import(&mut self, _group: usize, block: u32, bytes: &[u8]) -> Result<()> {
        let block = if self.fault == Fault::ImportsToBlockZero { 0 } else { block };
        let slots = &mut self.slots[block as usize * BLOCK..][..BLOCK];
        let numbers: Vec<f32> = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        for (slot, numbers) in slots.iter_mut().zip(numbers.chunks_exact(2 * WIDTH)) {
            slot.0.copy_from_slice(&numbers[..WIDTH]);
            slot.1.copy_from_slice(&numbers[WIDTH..]);
        }
        Ok(())
    }
}

/// Rotates pairs of numbers, of both halves or adjacent ones, each by a frequency of its own.
fn rotate(x: [f32; WIDTH], position: u32, halves: bool) -> [f32; WIDTH] {
    let mut turned = x;
    for pair in 0..WIDTH / 2 {
        let (a, b) = if halves { (pair, pair + WIDTH / 2) } else { (2 * pair, 2 * pair + 1) };
        let (sin, cos) = (position as f32 * 0.3_f32.powi(pair as i32)).sin_cos();
        turned[a] = x[a] * cos - x[b] * sin;
        turned[b] = x[a] * sin + x[b] * cos;
    }
    turned
}
