//! The check that a batch keeps the contract's rules, so that an author's code sees right ones only.
//!
//! It costs a few comparisons per token and block; what it rules out are reads and writes outside a model's memory and
//! one sequence overwriting another's tokens.

use pensieve_plugin_api as api;
use std::collections::HashSet;

use super::convert;
use crate::{Batch, Capacity, Error, Resident, Result, Span};

/// What batches are checked against. It keeps its working memory between steps.
pub(super) struct BatchCheck {
    vocabulary: u32,
    context: u32,
    capacity: Capacity,
    sequences: HashSet<u64>,
    /// The step that last wrote each block.
    written: Vec<u64>,
    step: u64,
}

impl BatchCheck {
    pub(super) fn new(resident: &Resident) -> Result<Self> {
        let blocks = match resident.capacity {
            Capacity::Blocks { tokens: 0, .. } => {
                return Err(Error::invalid("the model says its blocks hold no token"));
            }
            Capacity::Blocks { blocks, .. } => blocks as usize,
            Capacity::Sequences(_) => 0,
        };
        Ok(Self {
            vocabulary: resident.vocabulary,
            context: resident.context,
            capacity: resident.capacity,
            sequences: HashSet::new(),
            written: vec![0; blocks],
            step: 0,
        })
    }

    pub(super) fn capacity(&self) -> Capacity {
        self.capacity
    }

    pub(super) fn check<'a>(
        &mut self,
        batch: &api::Batch<'a>,
        adapters: &HashSet<u32>,
        logits: usize,
    ) -> Result<Batch<'a>> {
        let (tokens, positions) = (batch.tokens.as_slice(), batch.positions.as_slice());
        self.check_tokens(tokens, positions)?;
        self.sequences.clear();
        let mut spans = Vec::with_capacity(batch.spans.len().min(tokens.len()));
        let (mut next, mut rows) = (0, 0);
        for span in batch.spans.as_slice() {
            let span = self.check_span(span, next, tokens.len(), adapters)?;
            next = span.start + span.len;
            rows += span.want.rows(span.len);
            spans.push(span);
        }
        if next != tokens.len() || tokens.is_empty() {
            return Err(Error::invalid(format!("the spans cover {next} of {} tokens", tokens.len())));
        }
        if rows.checked_mul(self.vocabulary as usize) != Some(logits) {
            let vocabulary = self.vocabulary;
            return Err(Error::invalid(format!("{rows} rows of {vocabulary} logits do not fill {logits} places")));
        }
        if let Capacity::Blocks { tokens, .. } = self.capacity {
            self.check_writes(&spans, tokens as usize)?;
        }
        Ok(Batch { tokens, positions, spans })
    }

    fn check_tokens(&self, tokens: &[u32], positions: &[u32]) -> Result<()> {
        if positions.len() != tokens.len() {
            return Err(Error::invalid(format!("{} positions for {} tokens", positions.len(), tokens.len())));
        }
        if let Some(token) = tokens.iter().find(|&&token| token >= self.vocabulary) {
            return Err(Error::invalid(format!("token {token} is outside the vocabulary of {}", self.vocabulary)));
        }
        if let Some(position) = positions.iter().find(|&&position| position >= self.context) {
            return Err(Error::invalid(format!("position {position} is outside the context of {}", self.context)));
        }
        Ok(())
    }

    fn check_span<'a>(
        &mut self,
        span: &api::Span<'a>,
        next: usize,
        tokens: usize,
        adapters: &HashSet<u32>,
    ) -> Result<Span<'a>> {
        let name = span.sequence;
        let invalid = |what: String| Err(Error::invalid(format!("sequence {name}: {what}")));
        let (start, len, past) = (span.start as usize, span.len as usize, span.past as usize);
        if start != next || len == 0 || len > tokens - next {
            return invalid(format!("its span {start}+{len} does not follow token {next} of {tokens}"));
        }
        if !self.sequences.insert(name) {
            return invalid("it appears twice in one batch".into());
        }
        if past + len > self.context as usize {
            return invalid(format!("{past}+{len} tokens exceed the context of {}", self.context));
        }
        let Some(want) = convert::want(span.want) else {
            return invalid(format!("{} is no kind of wanted logits", span.want.0));
        };
        if span.adapter != api::NO_ADAPTER && !adapters.contains(&span.adapter) {
            return invalid(format!("no adapter {} is attached", span.adapter));
        }
        if !span.adapter_scale.is_finite() {
            return invalid("its adapter scale is not a number".into());
        }
        let blocks = span.blocks.as_slice();
        match self.capacity {
            Capacity::Blocks { blocks: count, tokens } => {
                let needed = (past + len).div_ceil(tokens as usize);
                if blocks.len() < needed {
                    return invalid(format!("{} blocks do not hold {} tokens", blocks.len(), past + len));
                }
                if let Some(block) = blocks[..needed].iter().find(|&&block| block >= count) {
                    return invalid(format!("block {block} is out of range: the model has {count}"));
                }
            }
            Capacity::Sequences(_) if !blocks.is_empty() => {
                return invalid("it has blocks, but this model keeps a state per sequence".into());
            }
            Capacity::Sequences(_) => {}
        }
        let (adapter, adapter_scale) = (span.adapter, span.adapter_scale);
        Ok(Span { sequence: name, start, len, past, want, adapter, adapter_scale, blocks })
    }

    /// A block that a span writes to belongs to it alone, and only once.
    fn check_writes(&mut self, spans: &[Span<'_>], tokens: usize) -> Result<()> {
        self.step = self.step.wrapping_add(1);
        for span in spans {
            for &block in &span.blocks[span.past / tokens..(span.past + span.len).div_ceil(tokens)] {
                if std::mem::replace(&mut self.written[block as usize], self.step) == self.step {
                    let name = span.sequence;
                    return Err(Error::invalid(format!("sequence {name}: block {block} would be written twice")));
                }
            }
        }
        for span in spans {
            let past = &span.blocks[..span.past / tokens];
            if let Some(block) = past.iter().find(|&&block| self.written[block as usize] == self.step) {
                let name = span.sequence;
                return Err(Error::invalid(format!("sequence {name}: block {block} of its past would be overwritten")));
            }
        }
        Ok(())
    }
}
