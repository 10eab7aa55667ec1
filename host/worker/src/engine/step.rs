//! One turn of the loop around the scheduler, from the plan to the events: [`Engine::step`] is the whole story. Everything
//! here runs on the one thread that owns the model, and nothing here waits: jobs come in between steps, events are
//! collected for the session to send, and the disk is given a few blocks per step.
//!
//! A step fails in parts. Logits that are no numbers, a stage that misbehaves, a prompt that is too long: each ends its own
//! sequence with an event. A model that returns an error has left the sequences of that batch undefined, so those end; the
//! model itself must still be usable, says the contract, and the next step is for the others.

mod admission;

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use super::{
    adapters::Adapters,
    blocks::Kind,
    chain::Samplers,
    grammars::Grammars,
    logits::Row,
    model::{Model, micros},
    scheduler::{Config, Ended, Plan, Scheduler},
    sequence::{Pick, Sequence, Text},
    states::Change,
    tier::Tier,
};
use pensieve_protocol::{
    job::{Event, Failure, FailureCode, Finish, Tokens, Usage},
    wire::{Load, Loaded, Stats},
};

/// How long a worker with waiting jobs but nothing to compute lets pass before it looks again.
pub const PAUSE: Duration = Duration::from_millis(5);
/// How long blocks are brought back from disk in one step. Beside streams no longer than the model last took, so that a
/// step becomes at most twice as long.
const IMPORT_TIME: Duration = Duration::from_millis(20);

/// A loaded model and the jobs that it runs.
pub struct Engine {
    model: Model,
    scheduler: Scheduler,
    tier: Tier,
    text: Text,
    samplers: Samplers,
    adapters: Adapters,
    grammars: Grammars,
    sequences: HashMap<u64, Sequence>,
    events: Vec<(u64, Event)>,
    /// Tokens of a loop that ends an answer; 0 for none.
    loop_tokens: u32,
    stats: Stats,
    last_forward: Duration,
    born: Instant,
}

impl Engine {
    pub fn new(model: Model, mut tier: Tier, samplers: Samplers, load: &Load) -> Self {
        let limits = &load.spec.limits;
        let at_once = match model.sequences() {
            0 => limits.sequences_max,
            states => limits.sequences_max.min(states),
        };
        let config = Config {
            sequences_max: at_once as usize,
            waiting_max: limits.waiting_max as usize,
            step_tokens_max: limits.step_tokens_max as usize,
            ..Config::default()
        };
        let blocks = tier.table(&model);
        let text = Text::of(&model.card);
        let mut scheduler = Scheduler::new(config, blocks);
        if model.copies_sequences {
            scheduler.states().allow_copies();
        }
        Self {
            model,
            scheduler,
            tier,
            text,
            samplers,
            adapters: Adapters::new(load.spec.adapter_memory, load.adapter_deadline),
            grammars: Grammars::default(),
            sequences: HashMap::new(),
            events: Vec::new(),
            loop_tokens: limits.loop_tokens,
            stats: Stats::default(),
            last_forward: Duration::ZERO,
            born: Instant::now(),
        }
    }

    /// Computes one step. False if there was nothing to compute.
    pub fn step(&mut self) -> bool {
        let began = Instant::now();
        self.admit_waiting();
        self.tier.spill_before_step(&mut self.scheduler, &mut self.model);
        let mut plan = self.scheduler.plan(self.born.elapsed());
        self.note(&plan);
        self.release_states();
        plan.spans.retain(|span| self.sequences.contains_key(&span.sequence));
        let patience = if plan.spans.is_empty() { IMPORT_TIME } else { self.last_forward.min(IMPORT_TIME) };
        let imported = self.tier.import(&mut self.scheduler, &mut self.model, patience);
        if plan.spans.is_empty() {
            return imported;
        }
        let computing = Instant::now();
        let asked: HashSet<u64> = plan.spans.iter().filter(|span| span.logits).map(|span| span.sequence).collect();
        let only_best = asked.iter().all(|id| self.sequences.get(id).is_some_and(Sequence::takes_best));
        let bound = self.sequences.iter_mut().filter(|(id, _)| asked.contains(id));
        let constraints = bound.filter_map(|(_, sequence)| sequence.constraint_mut()).collect();
        let rows = self
            .grammars
            .overlap(constraints, || self.model.forward(&plan, &self.scheduler, &self.adapters.spans, only_best));
        let computed = computing.elapsed();
        self.last_forward = computed;
        match rows {
            Err(failure) => self.fail_all(&plan, &failure),
            Ok(rows) => {
                let wanted = plan.spans.iter().filter(|span| span.logits).zip(rows);
                let rows: Vec<_> = wanted.map(|(span, row)| (span.sequence, row)).collect();
                let picks = pick(&rows, &mut self.sequences, &self.scheduler, &mut self.samplers);
                self.take(&plan, picks, began);
            }
        }
        self.stats.steps += 1;
        self.stats.forward_us += micros(computed);
        self.stats.overhead_us += micros(began.elapsed().saturating_sub(computed));
        true
    }

    /// Gives a job up; its blocks are free at once.
    pub fn cancel(&mut self, id: u64) {
        let waiting = self.grammars.cancel(id).or_else(|| self.adapters.cancel(id, &mut self.model));
        if let Some(job) = waiting {
            let usage = Usage { prompt: job.tokens.len() as u32, ..Usage::default() };
            self.events.push((id, Event::Finished { reason: Finish::Cancelled, usage }));
        }
        self.end(id, Finish::Cancelled);
    }

    /// What has happened since it was last asked.
    pub fn take_events(&mut self) -> Vec<(u64, Event)> {
        std::mem::take(&mut self.events)
    }

    pub fn is_idle(&self) -> bool {
        self.sequences.is_empty() && self.grammars.is_empty() && self.adapters.waiting() == 0
    }

    /// Puts some of what is cached on disk, while there is nothing else to do. False once nothing is left to put there.
    pub fn tidy(&mut self) -> bool {
        self.tier.spill_when_idle(&mut self.scheduler, &mut self.model)
    }

    /// What a person may want to know since it was last asked, for the log.
    pub fn take_notes(&mut self) -> Vec<String> {
        self.adapters.take_notes()
    }

    /// What went wrong besides jobs since it was last asked, for the log.
    pub fn take_troubles(&mut self) -> Vec<String> {
        [self.tier.take_troubles(), self.samplers.take_troubles()].concat()
    }

    pub fn loaded(&mut self) -> Loaded {
        let (card, resident) = (&self.model.card, &self.model.resident);
        let of_tokens = |group: &&(Kind, u32)| group.0 == Kind::Tokens;
        let blocks = self.model.groups().and_then(|groups| groups.iter().find(of_tokens).map(|group| group.1));
        Loaded {
            architecture: card.architecture.to_string(),
            device: resident.device.to_string(),
            note: resident.note.to_string(),
            weight_bytes: resident.weight_bytes,
            state_bytes: resident.state_bytes,
            context: resident.context,
            vocabulary: card.vocabulary,
            blocks: blocks.unwrap_or(0),
            block_tokens: blocks.map_or(0, |_| card.block_tokens),
            sequences: self.model.sequences(),
            disk_blocks: self.scheduler.blocks().map_or(0, |blocks| blocks.usage().disk as u64),
            samplers: self.samplers.names(),
            no_text: self.text.vocabulary.as_ref().err().cloned(),
        }
    }

    pub fn stats(&mut self) -> Stats {
        let usage = self.scheduler.blocks().map(|blocks| blocks.usage()).unwrap_or_default();
        let (adapter_loads, adapter_unloads) = self.adapters.counts();
        Stats {
            running: self.scheduler.running() as u64,
            waiting: (self.scheduler.waiting() + self.grammars.len() + self.adapters.waiting()) as u64,
            blocks_free: usage.free as u64,
            blocks_cached: usage.cached as u64,
            blocks_active: usage.active as u64,
            blocks_disk: usage.disk as u64,
            adapters: self.adapters.stats(),
            adapter_loads,
            adapter_unloads,
            ..self.stats.clone()
        }
    }

    /// What the plan says of sequences besides their spans.
    fn note(&mut self, plan: &Plan) {
        for &id in &plan.preempted {
            self.stats.preemptions += 1;
            self.model.release(id);
        }
        for &(id, ended) in &plan.ended {
            let reason = match ended {
                Ended::Deadline => Finish::Deadline,
                Ended::NoRoom => Finish::ContextFull,
            };
            self.end(id, reason);
        }
        for span in &plan.spans {
            let Some(sequence) = self.sequences.get_mut(&span.sequence) else { continue };
            if sequence.usage().generated == 0 {
                let reused = self.scheduler.reused(span.sequence);
                sequence.reused = u32::try_from(reused.memory + reused.disk).unwrap_or(u32::MAX);
            }
            if !std::mem::replace(&mut sequence.started, true) {
                let (prompt_tokens, reused_tokens) = (sequence.prompt(), sequence.reused);
                self.events.push((span.sequence, Event::Started { prompt_tokens, reused_tokens }));
            }
        }
    }

    fn fail_all(&mut self, plan: &Plan, failure: &Failure) {
        for span in &plan.spans {
            self.fail(span.sequence, failure.clone());
        }
    }

    /// The model has computed a plan, and each row of logits has led to a pick or to a failure.
    fn take(&mut self, plan: &Plan, picks: Vec<(u64, Result<Pick, Failure>)>, began: Instant) {
        let mut picked = Vec::with_capacity(picks.len());
        for (id, pick) in picks {
            match pick {
                Ok(pick) => picked.push((id, pick)),
                // Before the blocks of this step become known: what is in them is not to be used again.
                Err(failure) => self.fail(id, failure),
            }
        }
        self.scheduler.done(plan, began.elapsed());
        for span in &plan.spans {
            self.stats.computed_tokens += span.tokens.len() as u64;
            let Some(sequence) = self.sequences.get(&span.sequence) else { continue };
            if !span.logits && sequence.usage().generated == 0 {
                let (computed, total) = (span.tokens.end as u32, sequence.prompt());
                self.events.push((span.sequence, Event::Prompt { computed, total }));
            }
        }
        for (id, pick) in picked {
            self.push(id, pick);
        }
    }

    fn push(&mut self, id: u64, pick: Pick) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        if sequence.is_full() {
            // A job may ask for no tokens at all, to have its prompt cached.
            return self.end(id, Finish::Length);
        }
        let step = match sequence.push(pick.token, &self.text) {
            Ok(step) => step,
            Err(failure) => return self.fail(id, failure),
        };
        self.scheduler.push(id, pick.token);
        self.stats.generated_tokens += 1;
        let logprobs = pick.logprobs.into_iter().collect();
        self.events.push((id, Event::Tokens(Tokens { ids: vec![pick.token], bytes: step.bytes, logprobs })));
        if let Some(reason) = step.finish {
            self.end(id, reason);
        }
    }

    fn end(&mut self, id: u64, reason: Finish) {
        let Some(mut sequence) = self.close(id) else { return };
        let rest = sequence.rest();
        if !rest.is_empty() {
            self.events.push((id, Event::Tokens(Tokens { bytes: rest, ..Tokens::default() })));
        }
        self.events.push((id, Event::Finished { reason, usage: sequence.usage() }));
    }

    fn fail(&mut self, id: u64, failure: Failure) {
        self.scheduler.discard(id);
        if self.close(id).is_some() {
            self.events.push((id, Event::Failed(failure)));
        }
    }

    /// Frees all that a sequence holds.
    fn close(&mut self, id: u64) -> Option<Sequence> {
        let sequence = self.sequences.remove(&id)?;
        self.stats.reused_tokens += u64::from(sequence.reused);
        self.scheduler.finish(id);
        if !self.model.is_opaque() {
            self.model.release(id);
        }
        self.release_states();
        self.adapters.end(id, &mut self.model);
        Some(sequence)
    }

    /// Has an opaque model copy the states that sequences go on from while they stay, and forget those that none will continue.
    fn release_states(&mut self) {
        for change in self.scheduler.states().take_changes() {
            match change {
                Change::Drop(state) => self.model.release(state),
                Change::Copy { from, to } if self.model.fork(from, to) => {}
                Change::Copy { to, .. } => {
                    let message = "the model could not copy the state that this text goes on from";
                    self.fail(to, Failure::new(FailureCode::Plugin, message));
                }
            }
        }
    }
}

/// Has every sequence pick a token out of its row of logits.
fn pick(
    rows: &[(u64, Row<'_>)],
    sequences: &mut HashMap<u64, Sequence>,
    scheduler: &Scheduler,
    samplers: &mut Samplers,
) -> Vec<(u64, Result<Pick, Failure>)> {
    let mut begun = Vec::with_capacity(rows.len());
    for &(id, row) in rows {
        let Some(sequence) = sequences.get_mut(&id) else { continue };
        begun.push((id, row, sequence.begin_pick(id, row, scheduler.tokens(id), samplers)));
    }
    let mut sampled = samplers.wait();
    let mut picks = Vec::with_capacity(begun.len());
    for (id, row, token) in begun {
        let Some(sequence) = sequences.get_mut(&id) else { continue };
        let missing = || Failure::new(FailureCode::Internal, "a sampler's token is missing");
        let token = token.and_then(|token| match token {
            Some(token) => Ok(token),
            None => sampled.remove(&id).ok_or_else(missing).and_then(|picked| sequence.take_back(picked)),
        });
        picks.push((id, token.map(|token| sequence.pick(token, row))));
    }
    picks
}
