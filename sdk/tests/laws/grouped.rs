//! A hybrid on plain numbers: attention over all tokens, attention over a window and a recurrent state, each in a cache group
//! of its own, then a norm, experts, and candidates; and the faults that it can be given.

use pensieve_sdk::{
    Batch, Cache, KvTransfer, Model, Output, Outputs, Resident, Result, Span, Table,
    testing::{Options, Reference, Report, conformance_with},
};
use std::collections::HashMap;

use crate::{WIDTH, dot, embed};

pub(crate) const VOCABULARY: usize = 43;
const BLOCK: usize = 8;
const BLOCKS: usize = 40;
const SLOTS: usize = 12;
const WINDOW: usize = 20;
const EXPERTS: usize = 4;
/// The groups, in the card's order.
const ALL: usize = 0;
const NEAR: usize = 1;
const STATE: usize = 2;

/// The model's planted fault; the test's table describes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    WindowOneLong,
    WindowOneShort,
    WindowIgnored,
    WindowOfTheStep,
    WindowOf48,
    GroupsSwapped,
    StateFromWriteSlot,
    StateNotBlank,
    StateBySequence,
    StateWrittenBack,
    CheckpointLate,
    CheckpointAtEnd,
    CheckpointsFirstOnly,
    CheckpointFromSpan,
    DraftsKept,
    TransfersNoStates,
    TransfersOneGroup,
    ExpertsOverflow,
    ExpertsScattered,
    FirstMaskForAll,
    OneTooMany,
    TotalsSwapped,
    HiddenAmongAll,
    HiddenOfTheFirst,
    HiddenUnwritten,
    EpsilonTimes100,
    ErfGelu,
    RouterNotRenormalized,
    ExpertsTakenForEachOther,
    ScaleMissing,
    SelfExcluded,
    StateGateFlipped,
}

type Vector = [f32; WIDTH];
/// A token's key and value.
type Entry = (Vector, Vector);

pub(crate) struct Grouped {
    fault: Fault,
    kv: [Vec<Entry>; 2],
    states: Vec<Vector>,
    by_id: HashMap<u64, Vector>,
    /// The most tokens that each sequence ever had.
    farthest: HashMap<u64, usize>,
}

pub(crate) fn check(fault: Fault, compared: bool) -> Report {
    let references = if compared { vec![reference()] } else { Vec::new() };
    conformance_with(Box::new(Grouped::new(fault)), &Options { references, ..Options::default() })
}

fn reference() -> Reference {
    let tokens: Vec<u32> = (0..60).map(|place| (place * 17 + place * place * 5) % VOCABULARY as u32).collect();
    let blocks: Vec<u32> = (0..8).collect();
    let tables = vec![
        Table::Blocks(blocks.clone().into()),
        Table::Blocks(blocks.into()),
        Table::Slots { read: None, write: 0, copies: Vec::new() },
    ];
    let logits = crate::logits(&mut Grouped::new(Fault::None), &tokens, tables);
    Reference { tokens, logits, tolerance: 1e-4, ..Reference::default() }
}

impl Grouped {
    pub(crate) fn new(fault: Fault) -> Self {
        let kv = || vec![([0.0; WIDTH], [0.0; WIDTH]); BLOCKS * BLOCK];
        let states = vec![[0.0; WIDTH]; SLOTS];
        Self { fault, kv: [kv(), kv()], states, by_id: HashMap::new(), farthest: HashMap::new() }
    }

    fn slot(&self, span: &Span<'_>, group: usize, place: usize) -> usize {
        let group = if self.fault == Fault::GroupsSwapped { ALL } else { group };
        span.blocks(group)[place / BLOCK] as usize * BLOCK + place % BLOCK
    }

    /// The first token that a token attends to.
    fn first(&self, span: &Span<'_>, group: usize, index: usize) -> usize {
        let read = span.past + index + 1;
        match (self.fault, group) {
            (Fault::WindowOf48, ALL) => read.saturating_sub(48),
            (_, ALL) | (Fault::WindowIgnored, _) => 0,
            (Fault::WindowOneLong, _) => read.saturating_sub(WINDOW + 1),
            (Fault::WindowOneShort, _) => read.saturating_sub(WINDOW - 1),
            (Fault::WindowOfTheStep, _) => (span.past + span.len).saturating_sub(WINDOW).min(read - 1),
            _ => read.saturating_sub(WINDOW),
        }
    }

    fn attend(&self, span: &Span<'_>, group: usize, index: usize, query: &Vector) -> Vector {
        let mut end = span.past + index + 1;
        if self.fault == Fault::DraftsKept {
            end = end.max(self.farthest.get(&span.sequence).copied().unwrap_or(0));
        }
        if self.fault == Fault::SelfExcluded && end > 1 {
            end -= 1;
        }
        let seen: Vec<Entry> = (self.first(span, group, index).min(end - 1)..end)
            .map(|place| self.kv[group][self.slot(span, group, place)])
            .collect();
        let scale = if self.fault == Fault::ScaleMissing { 1.0 } else { (WIDTH as f32).sqrt().recip() };
        let weights: Vec<f32> = seen.iter().map(|(key, _)| (dot(query, key) * scale).exp()).collect();
        let total: f32 = weights.iter().sum();
        let mut sum = [0.0; WIDTH];
        for (weight, (_, value)) in weights.iter().zip(&seen) {
            sum.iter_mut().zip(value).for_each(|(sum, value)| *sum += weight / total * value);
        }
        sum
    }

    fn write(&mut self, batch: &Batch<'_>, span: &Span<'_>) {
        for index in 0..span.len {
            let (token, position) = (batch.tokens[span.start + index], batch.positions[span.start + index]);
            for group in [ALL, NEAR] {
                let key = turned(embed(token, 1 + 8 * group as u32), position);
                let slot = self.slot(span, group, span.past + index);
                self.kv[group][slot] = (key, embed(token, 2 + 8 * group as u32));
            }
        }
    }

    /// The states after each of a span's tokens, and the copies that were asked for.
    fn recur(&mut self, batch: &Batch<'_>, span: &Span<'_>) -> Vec<Vector> {
        let Table::Slots { read, write, copies } = &span.caches[STATE] else { return Vec::new() };
        let (read, write) = (read.map(|slot| slot as usize), *write as usize);
        let mut state = match (self.fault, read) {
            (Fault::StateNotBlank, None) | (Fault::StateFromWriteSlot, Some(_)) => self.states[write],
            (Fault::StateBySequence, Some(_)) => self.by_id.get(&span.sequence).copied().unwrap_or_default(),
            (_, None) => [0.0; WIDTH],
            (_, Some(slot)) => self.states[slot],
        };
        let mut states = Vec::new();
        for &token in &batch.tokens[span.start..span.start + span.len] {
            let input = embed(token, 20);
            let keep = if self.fault == Fault::StateGateFlipped { 0.3 } else { 0.7 };
            state = std::array::from_fn(|place| {
                (keep * state[(place + 1) % WIDTH] + (1.0 - keep) * 2.0 * input[place]).tanh()
            });
            states.push(state);
        }
        let end = states.len() - 1;
        for (number, copy) in copies.iter().enumerate() {
            let index = match self.fault {
                Fault::CheckpointLate => copy.after - span.past,
                Fault::CheckpointAtEnd => end,
                Fault::CheckpointFromSpan => copy.after - 1,
                _ => copy.after - span.past - 1,
            };
            if number == 0 || self.fault != Fault::CheckpointsFirstOnly {
                self.states[copy.slot as usize] = states[index.min(end)];
            }
        }
        self.states[write] = state;
        self.by_id.insert(span.sequence, state);
        if let (Fault::StateWrittenBack, Some(read)) = (self.fault, read) {
            self.states[read] = state;
        }
        states
    }

    fn hidden(&self, batch: &Batch<'_>, span: &Span<'_>, index: usize, state: &Vector) -> Vector {
        let at = span.start + index;
        let (token, position) = (batch.tokens[at], batch.positions[at]);
        let query = turned(embed(token, 0), position);
        let (all, near) = (self.attend(span, ALL, index, &query), self.attend(span, NEAR, index, &query));
        let own = embed(token, 3);
        let hidden: Vector = std::array::from_fn(|place| own[place] + 2.0 * all[place] + near[place] + state[place]);
        let epsilon = if self.fault == Fault::EpsilonTimes100 { 1e-3 } else { 1e-5 };
        let mean = dot(&hidden, &hidden) / WIDTH as f32 + epsilon;
        hidden.map(|value| value / mean.sqrt())
    }

    /// The two best experts of each token, weighed by their scores.
    fn experts(&self, rows: &[Vector]) -> Vec<Vector> {
        let (mut filled, mut outputs) = ([0; EXPERTS], Vec::new());
        for hidden in rows {
            let mut scores: Vec<(usize, f32)> =
                (0..EXPERTS).map(|expert| (expert, dot(hidden, &embed(expert as u32, 30)).exp())).collect();
            scores.sort_by(|a, b| b.1.total_cmp(&a.1));
            let total: f32 = scores[..2].iter().map(|(_, score)| score).sum();
            let all: f32 = scores.iter().map(|(_, score)| score).sum();
            let total = if self.fault == Fault::RouterNotRenormalized { all } else { total };
            let mut output = *hidden;
            for &(expert, score) in &scores[..2] {
                filled[expert] += 1;
                if self.fault == Fault::ExpertsOverflow && filled[expert] > 6 {
                    continue;
                }
                let expert = if self.fault == Fault::ExpertsTakenForEachOther { expert ^ 1 } else { expert };
                for (place, value) in output.iter_mut().enumerate() {
                    let weights = embed((expert * WIDTH + place) as u32, 31);
                    *value += score / total * self.gelu(2.0 * dot(hidden, &weights));
                }
            }
            outputs.push(output);
        }
        if self.fault == Fault::ExpertsScattered && outputs.len() > 1 {
            outputs.rotate_right(1);
        }
        outputs
    }

    /// The last layer's output for each wanted token.
    fn rows(&mut self, batch: &Batch<'_>) -> Vec<Vector> {
        let mut rows = Vec::new();
        for span in &batch.spans {
            self.write(batch, span);
            let states = self.recur(batch, span);
            let unwanted = span.len - span.rows();
            let hidden = |(index, state)| self.hidden(batch, span, index, state);
            rows.extend(states.iter().enumerate().skip(unwanted).map(hidden));
            let farthest = self.farthest.entry(span.sequence).or_default();
            *farthest = (*farthest).max(span.past + span.len);
        }
        self.experts(&rows)
    }

    fn give_hidden(&mut self, batch: &Batch<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        let rows = self.rows(batch);
        let (mut logits, mut given, mut first) = (Vec::new(), 0, 0);
        for span in &batch.spans {
            let own = &rows[first..first + span.rows()];
            if span.output == Output::Hidden {
                for (index, row) in own.iter().enumerate() {
                    let place = if self.fault == Fault::HiddenAmongAll { first + index } else { given };
                    let row = if self.fault == Fault::HiddenOfTheFirst { &own[0] } else { row };
                    let is_left_out = self.fault == Fault::HiddenUnwritten && index > 3;
                    if let Some(place) = outputs.hidden.chunks_exact_mut(WIDTH).nth(place).filter(|_| !is_left_out) {
                        place.copy_from_slice(row);
                    }
                    given += 1;
                }
            } else {
                logits.extend(own.iter().flat_map(scores));
            }
            first += span.rows();
        }
        outputs.take_logits(batch, &logits)
    }

    fn gelu(&self, x: f32) -> f32 {
        let erf = |x: f32| {
            // Abramowitz and Stegun 7.1.26, good to 1.5e-7.
            let t = 1.0 / (1.0 + 0.327_591_1 * x.abs());
            let terms = [1.061_405_4, -1.453_152, 1.421_413_7, -0.284_496_74, 0.254_829_6];
            let sum = terms.iter().fold(0.0, |sum, term| (sum + term) * t);
            (1.0 - sum * (-x * x).exp()).copysign(x)
        };
        match self.fault {
            Fault::ErfGelu => 0.5 * x * (1.0 + erf(x / 2_f32.sqrt())),
            _ => 0.5 * x * (1.0 + (0.797_884_6 * (x + 0.044_715 * x * x * x)).tanh()),
        }
    }
}

impl Model for Grouped {
    fn resident(&self) -> Resident {
        let bytes = (BLOCK * WIDTH * 2 * 4) as u64;
        let caches = vec![
            (Cache::Tokens { bytes }, BLOCKS as u32),
            (Cache::Window { tokens: WINDOW as u32, bytes }, BLOCKS as u32),
            (Cache::State { bytes: 4 * WIDTH as u64 }, SLOTS as u32),
        ];
        let (device, note, vocabulary, block_tokens) = ("cpu".into(), String::new(), VOCABULARY as u32, BLOCK as u32);
        let (weight_bytes, state_bytes, context, hidden) = (0, 0, 256, WIDTH as u32);
        Resident { device, note, weight_bytes, state_bytes, vocabulary, context, hidden, block_tokens, caches }
    }

    fn forward(&mut self, batch: &Batch<'_>, logits: &mut [f32]) -> Result<()> {
        for (place, row) in logits.chunks_exact_mut(VOCABULARY).zip(self.rows(batch)) {
            place.copy_from_slice(&scores(&row));
        }
        Ok(())
    }

    fn forward_to(&mut self, batch: &Batch<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        if batch.spans.iter().any(|span| span.output == Output::Hidden) {
            return self.give_hidden(batch, outputs);
        }
        let mut seen = batch.clone();
        let words = VOCABULARY.div_ceil(32);
        let first: Vec<Vec<u32>> =
            batch.spans.iter().map(|span| span.mask.get(..words).unwrap_or_default().repeat(span.rows())).collect();
        if self.fault == Fault::FirstMaskForAll {
            seen.spans.iter_mut().zip(&first).for_each(|(span, first)| span.mask = first);
        }
        outputs.fill_from_logits(&seen, |batch, logits| self.forward(batch, logits))?;
        let chosen = &mut outputs.candidates;
        match self.fault {
            Fault::OneTooMany => {
                for (ids, scores) in
                    chosen.ids.chunks_exact_mut(batch.top.max(1)).zip(chosen.scores.chunks_exact_mut(batch.top.max(1)))
                {
                    // The last place repeats the one before.
                    if let ([.., id, last], [.., score, least]) = (ids, scores) {
                        (*last, *least) = (*id, *score);
                    }
                }
            }
            Fault::TotalsSwapped => chosen.totals.chunks_exact_mut(2).for_each(<[f32]>::reverse),
            _ => {}
        }
        Ok(())
    }

    fn release(&mut self, sequence: u64) {
        self.by_id.remove(&sequence);
        self.farthest.remove(&sequence);
    }

    fn kv_transfer(&mut self) -> Option<&mut dyn KvTransfer> {
        Some(self)
    }
}

impl KvTransfer for Grouped {
    fn bytes(&self, group: usize) -> usize {
        if group == STATE { 4 * WIDTH } else { BLOCK * WIDTH * 2 * 4 }
    }

    fn export(&self, group: usize, id: u32, bytes: &mut [u8]) -> Result<()> {
        let entries = |group: usize| {
            let entries = &self.kv[group][id as usize * BLOCK..][..BLOCK];
            entries.iter().flat_map(|(key, value)| key.iter().chain(value)).copied().collect::<Vec<f32>>()
        };
        let numbers = match (group, self.fault) {
            (STATE, Fault::TransfersNoStates) => vec![0.0; WIDTH],
            (STATE, _) => self.states[id as usize].to_vec(),
            (_, Fault::TransfersOneGroup) => entries(ALL),
            _ => entries(group),
        };
        bytes.chunks_exact_mut(4).zip(numbers).for_each(|(place, number)| place.copy_from_slice(&number.to_le_bytes()));
        Ok(())
    }

    fn import(&mut self, group: usize, id: u32, bytes: &[u8]) -> Result<()> {
        let mut numbers = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let mut fill = |vector: &mut Vector| vector.iter_mut().zip(&mut numbers).for_each(|(place, it)| *place = it);
        if group == STATE {
            fill(&mut self.states[id as usize]);
            return Ok(());
        }
        for (key, value) in &mut self.kv[group][id as usize * BLOCK..][..BLOCK] {
            fill(key);
            fill(value);
        }
        Ok(())
    }
}

fn scores(row: &Vector) -> [f32; VOCABULARY] {
    std::array::from_fn(|token| dot(row, &embed(token as u32, 4)))
}

/// Rotates pairs of both halves, each by a frequency of its own.
fn turned(x: Vector, position: u32) -> Vector {
    let mut turned = x;
    for pair in 0..WIDTH / 2 {
        let other = pair + WIDTH / 2;
        let (sin, cos) = (position as f32 * 0.3_f32.powi(pair as i32)).sin_cos();
        (turned[pair], turned[other]) = (x[pair] * cos - x[other] * sin, x[pair] * sin + x[other] * cos);
    }
    turned
}
