//! The scheduler for continuous batching: decides which tokens of which sequences the next step computes. Decodes come
//! first: every sequence that waits for its next token gets it in every step. The remaining time (`pace`) goes to
//! prefill: half to the oldest prompt, half to the one with the least left, so that a short question is answered while
//! a long document is read, and the document takes at most twice as long. Texts of which rows are made share what half of it
//! leaves, or all of it if nothing else is read.
//!
//! Blocks are allocated as tokens are computed. When they run out, the newest sequence is preempted: it goes back to
//! the head of the queue and is recomputed later, mostly from its own cached blocks. Sequences are served by age and
//! the oldest is never preempted, so one of them always makes progress.

mod pace;
mod plan;
#[cfg(test)]
mod tests;
mod waiting;

pub use plan::{Config, Ended, Plan, Reading, Refused, Request, Reused, Span};

use std::{collections::HashMap, ops::Range, time::Duration};

use super::{
    blocks::{BlockTable, CacheLocation, Eviction, Import, ItemSpan, Key, SequenceText},
    states::StateTable,
};
use pace::Pace;
use pensieve_protocol::share;
use plan::Prompt;
use waiting::Waiting;

#[derive(Debug)]
pub struct Scheduler {
    config: Config,
    /// `None` for an opaque model.
    blocks: Option<BlockTable>,
    /// States of an opaque model; empty for any other.
    states: StateTable,
    pace: Pace,
    sequences: HashMap<u64, Sequence>,
    /// Admitted sequences, oldest first.
    running: Vec<u64>,
    waiting: Waiting,
    admitted: u64,
    /// The number of plans so far.
    plans: u64,
    /// The next step beside streams leaves its time for prompts to something else.
    yields: bool,
}

#[derive(Debug)]
struct Sequence {
    root: Key,
    salt: Vec<u8>,
    /// Prompt and generated tokens.
    tokens: Vec<u32>,
    items: Vec<ItemSpan>,
    /// Ranges that are computed in one step each.
    runs: Vec<Range<usize>>,
    /// Tokens from here on wait for an item.
    gate: usize,
    /// Length of the prompt.
    prompt: usize,
    /// Number of computed tokens.
    computed: usize,
    /// The number of plans before it came.
    came: u64,
    /// The plan that was to compute its second token, and the time of it.
    began: Option<(u64, Duration)>,
    /// Serial number of its first admission.
    age: Option<u64>,
    /// Blocks and slots of each group that it lacked when it was last not admitted.
    lacked: Vec<usize>,
    preempted: bool,
    reading: Reading,
    row: bool,
    reused: Reused,
    deadline: Option<Duration>,
}

impl Scheduler {
    /// Returns an idle scheduler. An opaque model has no blocks.
    pub fn new(config: Config, blocks: Option<BlockTable>) -> Self {
        let chunk_min = config.chunk_min.max(1);
        let sequences_max = config.sequences_max.max(1);
        let chunk_max = config.chunk_max.max(chunk_min);
        let step_tokens_max = config.step_tokens_max.max(sequences_max + chunk_min);
        let config = Config { sequences_max, step_tokens_max, chunk_min, chunk_max, ..config };
        let (sequences, running, waiting) = (HashMap::new(), Vec::new(), Waiting::default());
        let states = StateTable::new(sequences_max);
        Self {
            pace: Pace::new(&config),
            config,
            blocks,
            states,
            sequences,
            running,
            waiting,
            admitted: 0,
            plans: 0,
            yields: false,
        }
    }

    /// Queues a sequence.
    pub fn submit(&mut self, request: Request) -> Result<(), Refused> {
        let Request { sequence, client, salt, prompt, items, mut runs, reading, row, deadline } = request;
        if prompt.is_empty() {
            return Err(Refused::Empty);
        }
        if self.sequences.contains_key(&sequence) {
            return Err(Refused::Duplicate);
        }
        // A request that can be admitted at once does not count as waiting.
        let idle = self.config.sequences_max.saturating_sub(self.running.len());
        let free = self.config.waiting_max.saturating_add(idle).saturating_sub(self.waiting.len());
        if !share::may_take(client, self.waiting.of(client), free, 1) {
            return Err(Refused::Busy { waiting: self.waiting.len() });
        }
        let mut root = Key(0);
        if let Some(blocks) = &self.blocks {
            let room = blocks.room();
            // Text that is not continued may fill the room.
            if prompt.len() > room || prompt.len() == room && reading == Reading::Shared {
                return Err(Refused::TooLong { prompt: prompt.len(), room });
            }
            root = blocks.root(&salt);
        }
        if reading == Reading::Whole {
            runs = std::iter::once(0..prompt.len()).collect();
        } else if let Some(run) = runs.iter().map(Range::len).max() {
            let held = self.blocks.as_ref().and_then(BlockTable::run_max).unwrap_or(usize::MAX);
            let most = self.config.step_tokens_max.min(held);
            if run > most {
                return Err(Refused::RunTooLong { run, most });
            }
        }
        let new = Sequence {
            root,
            salt,
            prompt: prompt.len(),
            tokens: prompt,
            items,
            runs,
            gate: usize::MAX,
            computed: 0,
            came: self.plans,
            began: None,
            age: None,
            lacked: Vec::new(),
            preempted: false,
            reading,
            row,
            reused: Reused::default(),
            deadline,
        };
        self.waiting.push(client, sequence);
        self.sequences.insert(sequence, new);
        Ok(())
    }

    /// Decides the next step. The engine copies the blocks of [`Scheduler::next_import`], computes the spans, and
    /// reports [`Scheduler::done`]; if it cannot compute them, it finishes their sequences instead. `now` is on any
    /// monotonic clock.
    pub fn plan(&mut self, now: Duration) -> Plan {
        let mut plan = Plan::default();
        self.plans += 1;
        if let Some(blocks) = &mut self.blocks {
            blocks.set_time(now);
        }
        self.expire(now, &mut plan);
        self.admit();
        let lengths = self.lengths(now);
        self.take_blocks(&lengths, &mut plan);
        plan
    }

    /// Reports that a plan's spans are computed, and how long the step took. Their full blocks are published, so a
    /// sequence with NaN logits must be discarded before; sequences that have ended since the plan are skipped.
    pub fn done(&mut self, plan: &Plan, elapsed: Duration) {
        let (mut decodes, mut prompt_tokens, mut prompt_known) = (0, 0, false);
        for span in &plan.spans {
            match span.tokens.len() {
                1 => decodes += 1,
                more => prompt_tokens += more,
            }
            let sequence = self.sequences.get_mut(&span.sequence);
            let Some(sequence) = sequence.filter(|sequence| sequence.computed == span.tokens.start) else { continue };
            sequence.computed = span.tokens.end.min(sequence.tokens.len());
            prompt_known |= sequence.computed == sequence.prompt;
            if let Some(blocks) = self.blocks.as_mut().filter(|_| sequence.reading == Reading::Shared) {
                let text = SequenceText { tokens: &sequence.tokens[..sequence.computed], ..sequence.text() };
                blocks.publish(span.sequence, text);
            }
        }
        if prompt_known {
            self.look_again();
        }
        if !plan.spans.is_empty() {
            self.pace.record(decodes, prompt_tokens, elapsed);
        }
    }

    /// Appends a sampled token, for a span that asked for logits.
    pub fn push(&mut self, sequence: u64, token: u32) {
        if let Some(sequence) = self.sequences.get_mut(&sequence) {
            sequence.tokens.push(token);
        }
    }

    /// Removes a completed or cancelled sequence, in whatever state. Its blocks are free at once.
    pub fn finish(&mut self, sequence: u64) {
        self.close(sequence, true);
    }

    /// Removes a broken sequence, whose model state must not be reused.
    pub fn discard(&mut self, sequence: u64) {
        self.close(sequence, false);
    }

    fn close(&mut self, id: u64, sound: bool) {
        let Some(mut sequence) = self.sequences.remove(&id) else { return };
        self.waiting.remove(id);
        self.running.retain(|other| *other != id);
        match &mut self.blocks {
            Some(blocks) => blocks.close(id),
            None => {
                sequence.tokens.truncate(sequence.computed);
                let is_kept = sound && sequence.reading == Reading::Shared;
                let seen = is_kept.then_some((sequence.tokens, sequence.items));
                self.states.close(id, sequence.salt, seen);
            }
        }
    }

    /// Sets the first token of a sequence that waits for an item; `usize::MAX` if none does.
    pub fn set_gate(&mut self, sequence: u64, token: usize) {
        if let Some(sequence) = self.sequences.get_mut(&sequence) {
            sequence.gate = token;
        }
    }

    /// Makes the next plan leave the time for prompts beside streams to something else.
    pub fn yield_prompts(&mut self, yields: bool) {
        self.yields = yields;
    }

    /// Time that something besides the forward pass may take in a step with so many decodes.
    pub fn spare_time(&self, decodes: usize) -> Duration {
        self.pace.spare_time(decodes)
    }

    /// Time of a step of so many decodes and nothing else, if that is known.
    pub fn decode_time(&self, decodes: usize) -> Option<Duration> {
        self.pace.decode_time(decodes)
    }

    /// Reports that something else was computed beside the current step's decodes, whose time says little about them alone.
    pub fn disturb(&mut self) {
        self.pace.disturb();
    }

    /// Running sequences with their numbers of computed tokens, oldest first.
    pub fn progress(&self) -> impl Iterator<Item = (u64, usize)> {
        self.running.iter().filter_map(|id| Some((*id, self.sequences.get(id)?.computed)))
    }

    /// Returns the next block to copy from disk, for the oldest sequence that waits for one. The engine copies it,
    /// reports [`Scheduler::imported`] and asks again, as often per step as it likes, and keeps none for later.
    pub fn next_import(&self) -> Option<Import> {
        let blocks = self.blocks.as_ref()?;
        self.running.iter().find_map(|&sequence| blocks.import_of(sequence))
    }

    /// Reports the result of the import from [`Scheduler::next_import`].
    pub fn imported(&mut self, import: Import, done: bool) {
        let (Some(blocks), Some(sequence)) = (&mut self.blocks, self.sequences.get_mut(&import.sequence)) else {
            return;
        };
        blocks.imported(import.sequence, sequence.text(), done);
        let known = blocks.known(import.sequence);
        let gained = known.saturating_sub(sequence.computed);
        sequence.computed += gained;
        if !sequence.preempted {
            sequence.reused.disk += gained;
        }
    }

    pub fn tokens(&self, sequence: u64) -> &[u32] {
        self.sequences.get(&sequence).map_or(&[], |sequence| &sequence.tokens)
    }

    /// A sequence's location in each cache group; empty for an opaque model.
    pub fn cache_locations(&self, sequence: u64) -> impl Iterator<Item = CacheLocation<'_>> {
        self.blocks.iter().flat_map(move |blocks| blocks.cache_locations(sequence))
    }

    /// Returns the id of a sequence's state in an opaque model; for any other model, the sequence's id.
    pub fn state_of(&self, sequence: u64) -> u64 {
        self.states.state_of(sequence)
    }

    /// The states of an opaque model, for pending changes and for metrics.
    pub fn states(&mut self) -> &mut StateTable {
        &mut self.states
    }

    /// Prompt tokens of a sequence that came from the prefix cache.
    pub fn reused(&self, sequence: u64) -> Reused {
        self.sequences.get(&sequence).map(|sequence| sequence.reused).unwrap_or_default()
    }

    /// Which sequence took the memory of the block from which a sequence's prompt has to be computed, and when.
    pub fn eviction(&self, sequence: u64) -> Option<Eviction> {
        let text = self.sequences.get(&sequence)?.text();
        self.blocks.as_ref()?.eviction_of_next(sequence, text)
    }

    /// The block table, for the disk tier and for metrics.
    pub fn blocks(&mut self) -> Option<&mut BlockTable> {
        self.blocks.as_mut()
    }

    pub fn running(&self) -> usize {
        self.running.len()
    }

    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    fn expire(&mut self, now: Duration, plan: &mut Plan) {
        let late = |(id, sequence): (&u64, &Sequence)| sequence.deadline.filter(|at| *at <= now).map(|_| *id);
        let mut late: Vec<u64> = self.sequences.iter().filter_map(late).collect();
        late.sort_unstable();
        for sequence in late {
            self.finish(sequence);
            plan.ended.push((sequence, Ended::Deadline));
        }
    }

    /// Admits waiting sequences while there is room. The head of the queue blocks the others: a small request that
    /// slipped past a large one would take the room that the large one waits for.
    fn admit(&mut self) {
        while self.running.len() < self.config.sequences_max {
            let Some(id) = self.waiting.next() else { return };
            if !self.enter(id) {
                return;
            }
            self.waiting.pop();
            let Some(sequence) = self.sequences.get_mut(&id) else { continue };
            let age = *sequence.age.get_or_insert(self.admitted);
            self.admitted += u64::from(age == self.admitted);
            let older = |other: &u64| self.sequences.get(other).is_some_and(|other| other.age < Some(age));
            self.running.insert(self.running.partition_point(older), id);
        }
    }

    /// Opens a sequence's tables, if all its tokens fit beside what the running sequences are about to need.
    fn enter(&mut self, id: u64) -> bool {
        let Some(blocks) = &mut self.blocks else {
            if let Some(sequence) = self.sequences.get_mut(&id) {
                let text = if sequence.reading == Reading::Shared { sequence.text() } else { [][..].into() };
                let known = self.states.open(id, &sequence.salt, text);
                sequence.take_over(known);
            }
            return true;
        };
        let running = self.running.iter().filter_map(|other| Some((other, self.sequences.get(other)?)));
        let outstanding = running.map(|(other, sequence)| blocks.lacks(*other, sequence.tokens.len()));
        let outstanding = outstanding.fold(Vec::new(), add);
        let alone = self.running.is_empty();
        let Some(sequence) = self.sequences.get_mut(&id) else { return true };
        if !alone && !blocks.has_room_for(&add(outstanding.clone(), sequence.lacked.clone())) {
            return false;
        }
        blocks.open(id, sequence.root);
        if sequence.reading == Reading::Shared {
            blocks.share(id, sequence.text(), 0);
        }
        sequence.lacked = blocks.lacks(id, sequence.tokens.len());
        let enters = alone || blocks.has_room_for(&add(outstanding, sequence.lacked.clone()));
        if enters {
            sequence.take_over(blocks.known(id));
        } else {
            blocks.close(id);
        }
        enters
    }

    /// Called after a prompt is published: the next sequence may share its prefix and lack less than before.
    fn look_again(&mut self) {
        if let Some(next) = self.waiting.next().and_then(|id| self.sequences.get_mut(&id)) {
            next.lacked.clear();
        }
    }

    /// Number of tokens that each running sequence computes in this step.
    fn lengths(&mut self, now: Duration) -> Vec<usize> {
        let mut lengths = vec![0; self.running.len()];
        let (mut streams, mut reading) = (Vec::new(), Vec::new());
        let mut claimed = Vec::new();
        for (index, length) in lengths.iter_mut().enumerate() {
            let id = self.running[index];
            let ready = self.sequences[&id].left() <= 1 || self.look_ahead(id, &mut claimed);
            let sequence = &self.sequences[&id];
            let end = sequence.tokens.len().min(sequence.gate);
            match sequence.left() {
                left @ 0..=1 if sequence.reading != Reading::Whole => {
                    *length = left.min(end - sequence.computed.min(end));
                    if sequence.tokens.len() > sequence.prompt {
                        streams.push(id);
                    }
                }
                _ if ready && end > sequence.computed => reading.push((index, id, end)),
                _ => {}
            }
        }
        for id in &streams {
            if let Some(stream) = self.sequences.get_mut(id) {
                stream.began.get_or_insert((self.plans, now));
            }
        }
        let decodes = lengths.iter().sum();
        let prompt = |&(index, id, end): &(usize, u64, usize)| {
            let sequence = &self.sequences[&id];
            Prompt { index, start: sequence.computed, end, runs: &sequence.runs }
        };
        let (rows, texts): (Vec<_>, Vec<_>) = reading.iter().partition(|(_, id, _)| self.sequences[id].row);
        let [texts, rows]: [Vec<Prompt<'_>>; 2] = [texts, rows].map(|of_kind| of_kind.iter().map(prompt).collect());
        let yields = self.yields && decodes > 0;
        if !reading.is_empty() && !yields {
            let has_items = reading.iter().any(|(_, id, _)| !self.sequences[id].items.is_empty());
            let patience = if has_items { Duration::ZERO } else { self.patience(&streams, &reading, now) };
            let chunk = self.pace.chunk(decodes, has_items, patience).min(self.config.step_tokens_max - decodes);
            let left = reading.iter().map(|(_, id, end)| end - self.sequences[id].computed).sum();
            let chunk = pace::even(chunk, left);
            // Many texts for rows, one after the other, would keep a prompt from ever being the oldest or the shortest.
            let mut rest = chunk;
            for (share, prompts) in [(chunk.div_ceil(2), &texts), (chunk, &rows), (chunk, &texts)] {
                rest -= plan::split(share.min(rest), prompts, &mut lengths).min(rest);
            }
        }
        lengths
    }

    /// How long streams wait for prompts that came before any of them had its first token: as long, in all, as a step of prompts
    /// may take. In one step with theirs, these prompts would have kept them waiting as well, and many small chunks take longer.
    fn patience(&self, streams: &[u64], reading: &[(usize, u64, usize)], now: Duration) -> Duration {
        let newest = reading.iter().map(|(_, id, _)| self.sequences[id].came).max().unwrap_or_default();
        let began = streams.iter().map(|id| self.sequences[id].began);
        let Some(began) = began.collect::<Option<Vec<_>>>() else { return Duration::ZERO };
        match began.into_iter().min() {
            Some((plan, first)) if plan > newest => self.config.prefill_step.saturating_sub(now.saturating_sub(first)),
            _ => Duration::ZERO,
        }
    }

    /// Reuses blocks of a prompt published since the last step. Returns false if its next block is already coming: from
    /// disk, or because an older sequence with the same text is computing it.
    fn look_ahead(&mut self, id: u64, claimed: &mut Vec<Key>) -> bool {
        let (Some(blocks), Some(sequence)) = (&mut self.blocks, self.sequences.get_mut(&id)) else { return true };
        if sequence.reading != Reading::Shared {
            return true;
        }
        let importing = blocks.import_of(id).is_some();
        if !importing && blocks.share(id, sequence.text(), sequence.computed) > 0 {
            sequence.take_over(blocks.known(id));
        }
        let Some(next) = blocks.next_key(id, sequence.text()) else { return !importing };
        if claimed.contains(&next) {
            return false;
        }
        claimed.push(next);
        !importing && !blocks.recall(id, sequence.text(), sequence.computed)
    }

    /// Allocates blocks for the step from the oldest sequence to the newest, at the expense of the newest.
    fn take_blocks(&mut self, lengths: &[usize], plan: &mut Plan) {
        let mut index = 0;
        while let Some(&id) = self.running.get(index) {
            let Some(sequence) = self.sequences.get(&id) else { return };
            let (tokens, prompt) = (sequence.computed..sequence.computed + lengths[index], sequence.prompt);
            let (all, is_shared) = (sequence.tokens.len(), sequence.reading == Reading::Shared);
            if !tokens.is_empty() {
                let Some(end) = self.make_room(index, tokens.clone(), plan) else { return };
                let tokens = tokens.start..end;
                let runs = self.sequences.get(&id).map_or(&[][..], |sequence| &sequence.runs);
                if let Some(blocks) = self.blocks.as_mut().filter(|_| is_shared) {
                    blocks.plan_checkpoints(id, tokens.start, end, end == prompt, runs);
                }
                plan.spans.push(Span { sequence: id, logits: end == all, tokens });
            }
            index += 1;
        }
    }

    /// Allocates room for some tokens of a running sequence, and returns the end of the range that fits. Newer
    /// sequences are preempted for it, and finally the sequence itself; if it is the only one left, it computes fewer
    /// tokens at once.
    fn make_room(&mut self, index: usize, tokens: Range<usize>, plan: &mut Plan) -> Option<usize> {
        let (id, mut end) = (self.running[index], tokens.end);
        while self.blocks.as_mut().is_some_and(|blocks| blocks.extend(id, tokens.start, end).is_err()) {
            let newest = self.running.len() - 1;
            let runs = self.sequences.get(&id).map_or(&[][..], |sequence| &sequence.runs);
            let fewer = plan::round_down(runs, tokens.start, end - (end - tokens.start) / 2);
            if newest == 0 && fewer > tokens.start && fewer < end {
                end = fewer;
                continue;
            }
            if newest == 0 {
                self.finish(id);
                plan.ended.push((id, Ended::NoRoom));
            } else {
                self.preempt(newest, plan);
            }
            if newest == index {
                return None;
            }
        }
        Some(end)
    }

    fn preempt(&mut self, index: usize, plan: &mut Plan) {
        let id = self.running.remove(index);
        let (Some(blocks), Some(sequence)) = (&mut self.blocks, self.sequences.get_mut(&id)) else { return };
        blocks.close(id);
        (sequence.computed, sequence.preempted) = (0, true);
        sequence.lacked.clear();
        self.waiting.push_preempted(sequence.age.unwrap_or(u64::MAX), id);
        plan.preempted.push(id);
    }
}

impl Sequence {
    fn text(&self) -> SequenceText<'_> {
        SequenceText { tokens: &self.tokens, items: &self.items, runs: &self.runs }
    }

    fn left(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Marks its first `known` tokens as computed by others.
    fn take_over(&mut self, known: usize) {
        let gained = known.saturating_sub(self.computed);
        self.computed += gained;
        if !self.preempted {
            self.reused.memory += gained;
        }
    }
}

/// Adds two lists elementwise; either may be shorter.
fn add(mut ones: Vec<usize>, others: Vec<usize>) -> Vec<usize> {
    ones.resize(ones.len().max(others.len()), 0);
    ones.iter_mut().zip(others).for_each(|(one, other)| *one += other);
    ones
}
