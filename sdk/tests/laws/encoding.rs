//! An encoder of one layer that reads a text in both directions, on plain numbers, and the faults that it can be given.

use pensieve_sdk::{
    Batch, Cache, Error, Model, Output, Outputs, Resident, Result, Span, Want,
    testing::{Options, Reference, Report, conformance_with},
};

use crate::{WIDTH, dot, embed};

const VOCABULARY: usize = 31;
const CONTEXT: usize = 256;

/// The model's planted fault; the test's table describes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    ReadsAllTexts,
    Padded,
    PositionsFromBatch,
    PositionsIgnored,
    TextsReversed,
    LastIsFirst,
    UnwantedGiven,
    IdIsIndex,
    GivesLogits,
    TakesTheRest,
    Random,
    Nan,
    Causal,
    PositionsFromTwo,
    EpsilonTimes100,
    NotNormalized,
}

type Vector = [f32; WIDTH];

pub(crate) struct Encoding {
    fault: Fault,
    calls: u32,
    seen: Vec<bool>,
}

pub(crate) fn check(fault: Fault, compared: bool) -> Report {
    let references = if compared { vec![reference()] } else { Vec::new() };
    conformance_with(Box::new(Encoding::new(fault)), &Options { references, ..Options::default() })
}

fn reference() -> Reference {
    let tokens: Vec<u32> = (0..VOCABULARY as u32).chain([5, 3, 9]).collect();
    let text: Vec<(u32, usize)> = tokens.iter().copied().zip(0..).collect();
    let encoder = Encoding::new(Fault::None);
    let hidden = (0..text.len()).flat_map(|index| encoder.row(&text, index)).collect();
    Reference { tokens, hidden, tolerance: 1e-4, ..Reference::default() }
}

impl Encoding {
    fn new(fault: Fault) -> Self {
        Self { fault, calls: 0, seen: vec![false; 1 << 12] }
    }

    /// The tokens that a span's rows are computed from, with their positions.
    fn text(&self, batch: &Batch<'_>, span: &Span<'_>) -> Vec<(u32, usize)> {
        let of = |span: &Span<'_>| span.start..span.start + span.len;
        let mut tokens = batch.tokens[of(span)].to_vec();
        if self.fault == Fault::Padded {
            let longest = batch.spans.iter().map(|span| span.len).max().unwrap_or(0);
            tokens.resize(longest, 0);
        }
        let first = match self.fault {
            Fault::PositionsFromBatch => span.start,
            Fault::PositionsFromTwo => 2,
            _ => 0,
        };
        let mut text: Vec<(u32, usize)> = tokens.into_iter().zip(first..).collect();
        if self.fault == Fault::ReadsAllTexts {
            let others = batch.spans.iter().filter(|other| other.sequence != span.sequence);
            text.extend(others.flat_map(|other| batch.tokens[of(other)].iter().copied().zip(0..)));
        }
        if self.fault == Fault::PositionsIgnored {
            text.iter_mut().for_each(|(_, position)| *position = 0);
        }
        text
    }

    fn row(&self, text: &[(u32, usize)], index: usize) -> Vector {
        let (token, position) = text[index];
        let (query, place) = (embed(token, 41), embed(position as u32, 44));
        let read = if self.fault == Fault::Causal { &text[..=index] } else { text };
        let (mut sum, mut total) = ([0.0; WIDTH], 0.0);
        for &(token, other) in read {
            let far = position.abs_diff(other) as f32 / 4.0;
            let weight = (dot(&query, &embed(token, 42)) - far).exp();
            let value = embed(token, 43);
            sum.iter_mut().zip(value).for_each(|(sum, value)| *sum += weight * value);
            total += weight;
        }
        let total = if self.fault == Fault::NotNormalized { 1.0 } else { total };
        let row: Vector = std::array::from_fn(|at| embed(token, 40)[at] + 0.3 * place[at] + 2.0 * sum[at] / total);
        let epsilon = if self.fault == Fault::EpsilonTimes100 { 0.1 } else { 0.001 };
        let mean = dot(&row, &row) / WIDTH as f32 + epsilon;
        row.map(|value| value / mean.sqrt())
    }

    /// The wanted rows of all spans.
    fn rows(&mut self, batch: &Batch<'_>) -> Vec<Vector> {
        let mut spans: Vec<&Span<'_>> = batch.spans.iter().collect();
        if self.fault == Fault::TextsReversed {
            spans.reverse();
        }
        let mut rows = Vec::new();
        for span in spans {
            let text = self.text(batch, span);
            let own = (0..span.len).map(|index| self.row(&text, index));
            match span.want {
                Want::None if self.fault == Fault::UnwantedGiven => rows.extend(own.take(1)),
                Want::Last if self.fault == Fault::LastIsFirst => rows.extend(own.take(1)),
                _ => rows.extend(own.skip(span.len - span.rows())),
            }
            if self.fault == Fault::IdIsIndex {
                self.seen[span.sequence as usize] = true;
            }
        }
        rows
    }
}

impl Model for Encoding {
    fn resident(&self) -> Resident {
        Resident {
            device: "cpu".into(),
            note: String::new(),
            weight_bytes: 0,
            state_bytes: 0,
            vocabulary: VOCABULARY as u32,
            context: CONTEXT as u32,
            hidden: WIDTH as u32,
            block_tokens: 16,
            caches: vec![(Cache::Opaque { bytes: 0 }, 64)],
        }
    }

    fn forward(&mut self, _: &Batch<'_>, logits: &mut [f32]) -> Result<()> {
        if self.fault == Fault::GivesLogits {
            logits.fill(0.5);
            return Ok(());
        }
        Err(Error::invalid("an encoder has no logits"))
    }

    fn forward_to(&mut self, batch: &Batch<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        if batch.spans.iter().any(|span| span.output != Output::Hidden) {
            return outputs.fill_from_logits(batch, |batch, logits| self.forward(batch, logits));
        }
        if batch.spans.iter().any(|span| span.past > 0) && self.fault != Fault::TakesTheRest {
            return Err(Error::invalid("a text comes whole"));
        }
        self.calls += 1;
        let rows = self.rows(batch);
        let noise = if self.fault == Fault::Random { self.calls as f32 } else { 0.0 };
        for (place, row) in outputs.hidden.chunks_exact_mut(WIDTH).zip(rows) {
            place.copy_from_slice(&row.map(|value| value + noise));
        }
        if self.fault == Fault::Nan && batch.tokens.len() > 20 {
            outputs.hidden[0] = f32::NAN;
        }
        Ok(())
    }

    fn release(&mut self, _: u64) {}
}
