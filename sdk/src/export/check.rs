//! Checks that batches obey the contract's rules, before an author's code sees them.
//!
//! This costs a few comparisons per token, block and slot, and rules out reads and writes outside a model's memory, and
//! sequences that overwrite each other.

use pensieve_plugin_api as api;
use std::{borrow::Cow, collections::HashSet};

use super::convert;
use crate::{Batch, Cache, Error, Output, Resident, Result, Span, StateCopy, Table, VACANT};

const _: () = assert!(VACANT == api::VACANT);

/// Checks batches against a model's limits. Working memory is reused between steps.
pub(super) struct BatchCheck {
    vocabulary: usize,
    hidden: usize,
    context: u32,
    block_tokens: usize,
    groups: Vec<Group>,
    sequences: HashSet<u64>,
    step: u64,
}

struct Group {
    cache: Cache,
    count: u32,
    /// The step that last wrote each block or slot.
    written: Vec<u64>,
}

impl BatchCheck {
    pub(super) fn new(resident: &Resident) -> Result<Self> {
        let opaque = |(cache, _): &(Cache, u32)| matches!(cache, Cache::Opaque { .. });
        if resident.caches.is_empty() || (resident.caches.len() > 1 && resident.caches.iter().any(opaque)) {
            let help = "a model has one opaque group of caches, or any number of the other kinds";
            return Err(Error::invalid(format!("the model has {} groups of caches", resident.caches.len())).help(help));
        }
        if resident.block_tokens == 0 {
            return Err(Error::invalid("the model says its blocks hold no token"));
        }
        let groups = resident.caches.iter().map(|&(cache, count)| {
            let ids = if matches!(cache, Cache::Opaque { .. }) { 0 } else { count as usize };
            Group { cache, count, written: vec![0; ids] }
        });
        Ok(Self {
            vocabulary: resident.vocabulary as usize,
            hidden: resident.hidden as usize,
            context: resident.context,
            block_tokens: resident.block_tokens as usize,
            groups: groups.collect(),
            sequences: HashSet::new(),
            step: 0,
        })
    }

    pub(super) fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// Values in a hidden row.
    pub(super) fn hidden(&self) -> usize {
        self.hidden
    }

    /// Number of blocks or slots of a group; 0 for an opaque group, or if there is no such group.
    pub(super) fn places(&self, group: usize) -> u32 {
        self.groups.get(group).map_or(0, |group| group.written.len() as u32)
    }

    pub(super) fn check<'a>(
        &mut self,
        batch: &api::Batch<'a>,
        adapters: &HashSet<u32>,
        outputs: &api::Outputs<'_>,
    ) -> Result<Batch<'a>> {
        let (tokens, positions) = (batch.tokens.as_slice(), batch.positions.as_slice());
        self.check_tokens(tokens, positions)?;
        self.sequences.clear();
        let mut spans = Vec::with_capacity(batch.spans.len().min(tokens.len()));
        let mut next = 0;
        for span in batch.spans.as_slice() {
            let span = self.check_span(span, next, tokens.len(), adapters)?;
            next = span.start + span.len;
            spans.push(span);
        }
        if next != tokens.len() || tokens.is_empty() {
            return Err(Error::invalid(format!("the spans cover {next} of {} tokens", tokens.len())));
        }
        self.check_outputs(batch.top as usize, &spans, outputs)?;
        self.step = self.step.wrapping_add(1);
        for (place, group) in self.groups.iter_mut().enumerate() {
            match group.cache {
                Cache::Tokens { .. } | Cache::Window { .. } => {
                    check_blocks(group, self.step, place, &spans, self.block_tokens)?;
                }
                Cache::State { .. } => check_slots(group, self.step, place, &spans)?,
                Cache::Opaque { .. } => {}
            }
        }
        spans.iter_mut().for_each(|span| self.fill_gaps(span));
        Ok(Batch { tokens, positions, spans, top: batch.top as usize })
    }

    /// Points a table's entries before the window to a readable block.
    fn fill_gaps(&self, span: &mut Span<'_>) {
        let needed = (span.past + span.len).div_ceil(self.block_tokens);
        for (group, table) in self.groups.iter().zip(&mut span.caches) {
            if let Table::Blocks(blocks) = table
                && blocks[..group.cache.blocks_behind(span.past, self.block_tokens)].contains(&VACANT)
            {
                let own = blocks[needed - 1];
                blocks.to_mut().iter_mut().filter(|block| **block == VACANT).for_each(|block| *block = own);
            }
        }
    }

    fn check_tokens(&self, tokens: &[u32], positions: &[u32]) -> Result<()> {
        if positions.len() != tokens.len() {
            return Err(Error::invalid(format!("{} positions for {} tokens", positions.len(), tokens.len())));
        }
        if let Some(token) = tokens.iter().find(|&&token| token as usize >= self.vocabulary) {
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
        let (Some(want), Some(output)) = (convert::want(span.want), convert::output(span.output)) else {
            return invalid(format!("{} and {} are no kind of wanted rows", span.want.0, span.output.0));
        };
        let mask = span.mask.as_slice();
        let words = if output == Output::Candidates { want.rows(len) * self.vocabulary.div_ceil(32) } else { 0 };
        if !mask.is_empty() && mask.len() != words {
            return invalid(format!("its mask has {} words, not {words}", mask.len()));
        }
        if span.adapter != api::NO_ADAPTER && !adapters.contains(&span.adapter) {
            return invalid(format!("no adapter {} is attached", span.adapter));
        }
        if !span.adapter_scale.is_finite() {
            return invalid("its adapter scale is not a number".into());
        }
        if span.caches.len() != self.groups.len() {
            return invalid(format!("{} cache tables for {} groups", span.caches.len(), self.groups.len()));
        }
        let tables = self.groups.iter().zip(span.caches.as_slice()).map(|(group, table)| {
            group.check(table, past, len, self.block_tokens).map_err(|error| error.context(format!("sequence {name}")))
        });
        let caches = tables.collect::<Result<_>>()?;
        let (adapter, adapter_scale) = (span.adapter, span.adapter_scale);
        Ok(Span { sequence: name, start, len, past, want, output, mask, adapter, adapter_scale, caches })
    }

    /// Checks that the output buffers have exactly the wanted sizes.
    fn check_outputs(&self, top: usize, spans: &[Span<'_>], outputs: &api::Outputs<'_>) -> Result<()> {
        let rows = |output| spans.iter().filter(|span| span.output == output).map(Span::rows).sum::<usize>();
        let chosen = rows(Output::Candidates);
        if chosen > 0 && !(1..=self.vocabulary).contains(&top) {
            return Err(Error::invalid(format!("{top} candidates of a vocabulary of {}", self.vocabulary)));
        }
        if self.hidden == 0 && spans.iter().any(|span| span.output == Output::Hidden) {
            return Err(Error::invalid("this model gives no hidden rows"));
        }
        for (what, rows, width, have) in [
            ("logits", rows(Output::Logits), self.vocabulary, outputs.logits.len()),
            ("candidates", chosen, top, outputs.ids.len()),
            ("scores", chosen, top, outputs.scores.len()),
            ("totals", chosen, 2, outputs.totals.len()),
            ("hidden values", rows(Output::Hidden), self.hidden, outputs.hidden.len()),
        ] {
            if rows.checked_mul(width) != Some(have) {
                return Err(Error::invalid(format!("{rows} rows of {width} {what} do not fill {have} places")));
            }
        }
        Ok(())
    }
}

impl Group {
    /// Checks and converts a span's table: ids must be in range, and there must be enough of them.
    fn check<'a>(
        &self,
        table: &api::CacheTable<'a>,
        past: usize,
        len: usize,
        block_tokens: usize,
    ) -> Result<Table<'a>> {
        let (blocks, checkpoints, count) = (table.blocks.as_slice(), table.checkpoints.as_slice(), self.count);
        let slots = table.read != VACANT || table.write != VACANT || !checkpoints.is_empty();
        match self.cache {
            Cache::Tokens { .. } | Cache::Window { .. } => {
                let (needed, behind) =
                    ((past + len).div_ceil(block_tokens), self.cache.blocks_behind(past, block_tokens));
                if slots {
                    return Err(Error::invalid("it has slots in a group of blocks"));
                }
                if blocks.len() < needed {
                    return Err(Error::invalid(format!("{} blocks do not hold {} tokens", blocks.len(), past + len)));
                }
                let wrong =
                    |(place, block): &(usize, &u32)| **block >= count && (**block != VACANT || *place >= behind);
                if let Some((_, block)) = blocks[..needed].iter().enumerate().find(wrong) {
                    return Err(Error::invalid(format!("block {block} is out of range: the group has {count}")));
                }
                Ok(Table::Blocks(Cow::Borrowed(blocks)))
            }
            Cache::State { .. } => {
                if !blocks.is_empty() {
                    return Err(Error::invalid("it has blocks in a group of slots"));
                }
                if (past == 0) != (table.read == VACANT) {
                    return Err(Error::invalid(format!("slot {} to read after {past} tokens", table.read)));
                }
                let (mut ids, read) = (vec![table.write], (past > 0).then_some(table.read));
                ids.extend(read);
                let mut before = past;
                let copies: Vec<StateCopy> =
                    checkpoints.iter().map(|one| StateCopy { after: one.after as usize, slot: one.slot }).collect();
                for StateCopy { after, slot } in copies.iter().copied() {
                    if after <= before || after > past + len {
                        return Err(Error::invalid(format!("a checkpoint after {after} tokens of {past}+{len}")));
                    }
                    before = after;
                    ids.push(slot);
                }
                if let Some(slot) = ids.iter().find(|&&slot| slot >= count) {
                    return Err(Error::invalid(format!("slot {slot} is out of range: the group has {count}")));
                }
                Ok(Table::Slots { read, write: table.write, copies })
            }
            Cache::Opaque { .. } if slots || !blocks.is_empty() => {
                Err(Error::invalid("it has blocks or slots, but this model keeps sequences by itself"))
            }
            Cache::Opaque { .. } => Ok(Table::Opaque),
        }
    }

    /// Records a write in this step; returns `false` if there was one already.
    fn write(&mut self, id: u32, step: u64) -> bool {
        std::mem::replace(&mut self.written[id as usize], step) != step
    }
}

/// Checks that each block that a span writes to belongs to it alone, and occurs only once.
fn check_blocks(group: &mut Group, step: u64, place: usize, spans: &[Span<'_>], tokens: usize) -> Result<()> {
    let tables = spans.iter().filter_map(|span| match &span.caches[place] {
        Table::Blocks(blocks) => Some((span, &**blocks)),
        _ => None,
    });
    for (span, blocks) in tables.clone() {
        for &block in &blocks[span.past / tokens..(span.past + span.len).div_ceil(tokens)] {
            if !group.write(block, step) {
                let name = span.sequence;
                return Err(Error::invalid(format!("sequence {name}: block {block} would be written twice")));
            }
        }
    }
    for (span, blocks) in tables {
        let past = blocks[..span.past / tokens].iter().filter(|&&block| block != VACANT);
        if let Some(block) = past.copied().find(|&block| group.written.get(block as usize) == Some(&step)) {
            let name = span.sequence;
            return Err(Error::invalid(format!("sequence {name}: block {block} of its past would be overwritten")));
        }
    }
    Ok(())
}

/// Checks that each slot that a span writes to is written once and not read by another span.
fn check_slots(group: &mut Group, step: u64, place: usize, spans: &[Span<'_>]) -> Result<()> {
    let twice = |name: u64, slot: u32| Error::invalid(format!("sequence {name}: slot {slot} would be written twice"));
    for span in spans {
        let Table::Slots { write, copies, .. } = &span.caches[place] else { continue };
        let mut slots = std::iter::once(*write).chain(copies.iter().map(|copy| copy.slot));
        if let Some(slot) = slots.find(|&slot| !group.write(slot, step)) {
            return Err(twice(span.sequence, slot));
        }
    }
    for span in spans {
        let Table::Slots { read: Some(read), write, .. } = span.caches[place] else { continue };
        if read != write && group.written[read as usize] == step {
            let name = span.sequence;
            return Err(Error::invalid(format!("sequence {name}: slot {read}, which it reads, would be overwritten")));
        }
    }
    Ok(())
}
