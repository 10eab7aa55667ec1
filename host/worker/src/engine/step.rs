//! One step of the engine, from the scheduler's plan to the events: [`Engine::step`] is the whole story. Everything
//! here runs on the one thread that owns the model, and nothing blocks: jobs come in between steps, events are
//! collected for the session to send, and the disk tier copies a few blocks per step.
//!
//! A step fails in parts. NaN logits, a misbehaving sampler, a prompt that is too long: each ends its own job with an
//! event. A model that returns an error leaves the sequences of that batch undefined, so those end; by the contract the
//! model itself must still be usable, and the next step serves the others.

mod admission;
mod media;
mod rows;

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use super::{
    active_job::{ActiveJob, Pick, Text},
    active_jobs::{ActiveJobs, Close},
    adapters::Adapters,
    blocks::{Eviction, Kind},
    chain::Samplers,
    device_failures::DeviceFailures,
    grammars::Grammars,
    items::Items,
    model::{Asked, Computed, Model, micros},
    recorder::Recorder,
    scheduler::{Config, Ended, Plan, Scheduler, Span},
    states::Change,
    tier::Tier,
};
use media::EncoderTurn;
use pensieve_protocol::{
    job::{Event, Evicted, Failure, FailureCode, Finish, Tokens, Usage},
    wire::{Load, Loaded, Stats},
};

/// Pause of a worker that has waiting jobs but nothing to compute.
pub const PAUSE: Duration = Duration::from_millis(5);
/// Time for disk imports in one step. Beside streams it is also limited to the time of the last forward pass, so that a
/// step becomes at most twice as long.
const IMPORT_TIME: Duration = Duration::from_millis(20);

/// The most tokens of a prompt in a step on such devices, for which memory is planned. A larger chunk unpacks weights less often;
/// but several GPUs work on several chunks at a time, and Metal's kernels hold buffers for the largest one.
fn chunk_max(device: &str) -> usize {
    if device.starts_with("metal") || device.contains('+') { 512 } else { 1024 }
}

/// A loaded model and its jobs.
pub struct Engine {
    model: Model,
    jobs: ActiveJobs,
    tier: Tier,
    text: Text,
    samplers: Samplers,
    adapters: Adapters,
    grammars: Grammars,
    items: Items,
    encoder_turn: EncoderTurn,
    device_failures: DeviceFailures,
    recorder: Recorder,
    events: Vec<(u64, Event)>,
    /// Length of a loop that ends an answer; 0 to let loops run.
    loop_tokens: u32,
    /// The same for reasoning.
    thought_loop_tokens: u32,
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
            chunk_max: chunk_max(&model.resident.device),
            ..Config::default()
        };
        let blocks = tier.table(&model);
        let text = Text::of(&model.card);
        let mut scheduler = Scheduler::new(config, blocks);
        let items =
            model.media_use().map_or_else(Items::default, |media| Items::new(media.rows_bytes(), media.batch_rows()));
        let device_failures = DeviceFailures::of(&model.resident.device);
        if model.copies_sequences {
            scheduler.states().allow_copies();
        }
        Self {
            model,
            jobs: ActiveJobs::new(scheduler),
            tier,
            text,
            samplers,
            adapters: Adapters::new(load.spec.adapter_memory, load.adapter_deadline),
            grammars: Grammars::default(),
            items,
            encoder_turn: EncoderTurn::default(),
            device_failures,
            recorder: Recorder::default(),
            events: Vec::new(),
            loop_tokens: limits.loop_tokens,
            thought_loop_tokens: limits.thought_loop_tokens,
            stats: Stats::default(),
            last_forward: Duration::ZERO,
            born: Instant::now(),
        }
    }

    /// Computes one step. False if there was nothing to compute.
    pub fn step(&mut self) -> bool {
        let began = Instant::now();
        self.admit_waiting();
        self.tier.spill_before_step(self.jobs.scheduler_mut(), &mut self.model);
        self.set_gates();
        let mut plan = self.jobs.plan(self.born.elapsed());
        self.note(&plan);
        self.release_states();
        plan.spans.retain(|span| self.jobs.contains(span.sequence));
        let patience = if plan.spans.is_empty() { IMPORT_TIME } else { self.last_forward.min(IMPORT_TIME) };
        let imported = self.tier.import(self.jobs.scheduler_mut(), &mut self.model, patience);
        let encoding = self.encode(&plan);
        self.place(&mut plan);
        if plan.spans.is_empty() {
            return imported || !encoding.is_zero();
        }
        // The pace of prompts depends on the rest of the step alone.
        let began = began + encoding;
        let computing = Instant::now();
        let wanted = |span: &Span| {
            let job = self.jobs.get(span.sequence);
            let hidden = job.and_then(|job| job.pool.as_ref()).map(|pool| pool.want(&span.tokens, span.logits));
            Asked { adapter: job.and_then(|job| job.adapter.as_ref()).map(|lease| lease.span), hidden }
        };
        let wanted: Vec<Asked> = plan.spans.iter().map(wanted).collect();
        let continued = |(span, wanted): &(&Span, &Asked)| span.logits && wanted.hidden.is_none();
        let continued = plan.spans.iter().zip(&wanted).filter(continued).map(|(span, _)| span.sequence);
        let continued: Vec<u64> = continued.collect();
        let asked: HashSet<u64> = continued.iter().copied().collect();
        let only_best = asked.iter().all(|id| self.jobs.get(*id).is_some_and(ActiveJob::takes_best));
        let (jobs, scheduler) = self.jobs.split();
        let bound = jobs.filter(|(id, _)| asked.contains(id));
        let constraints = bound.filter_map(|(_, job)| job.constraint_mut()).collect();
        let rows = self.grammars.overlap(constraints, || self.model.forward(&plan, scheduler, &wanted, only_best));
        let computed = computing.elapsed();
        self.last_forward = computed;
        self.device_failures.note(&rows);
        match rows {
            Err(failure) => self.fail_all(&plan, &failure),
            Ok(Computed { rows, hidden }) => {
                let rows: Vec<_> = continued.into_iter().zip(rows).collect();
                let picks = self.jobs.pick(&rows, &mut self.samplers);
                let pooled = self.pool(&plan, &wanted, &hidden);
                self.charge_encoder(&plan, began.elapsed());
                self.take(&plan, picks, began);
                self.hand_out(pooled);
                self.leave_items(&plan);
            }
        }
        let rows: usize = plan.spans.iter().map(|span| span.tokens.len()).sum();
        self.recorder.note(began, Instant::now(), || format!("step of {rows} tokens"));
        self.recorder.note(computing, computing + computed, || "model".into());
        self.stats.steps += 1;
        self.stats.forward_us += micros(computed);
        self.stats.overhead_us += micros(began.elapsed().saturating_sub(computed));
        true
    }

    /// Cancels a job; its blocks are free at once.
    pub fn cancel(&mut self, id: u64) {
        let waiting = self.grammars.cancel(id).or_else(|| self.adapters.cancel(id, &mut self.model));
        if let Some(job) = waiting {
            let usage = Usage { prompt: job.tokens.len() as u32, ..Usage::default() };
            self.events.push((id, Event::Finished { reason: Finish::Cancelled, usage }));
        }
        self.end(id, Finish::Cancelled);
    }

    /// Returns the events since the last call.
    pub fn take_events(&mut self) -> Vec<(u64, Event)> {
        let mut events = std::mem::take(&mut self.events);
        if let Some(job) = self.recorder.job()
            && let Some(end) = events.iter().position(|(id, event)| *id == job && event.is_last())
            && let Some(timeline) = self.recorder.finish(&mut self.model)
        {
            events.insert(end, (job, Event::Timeline(timeline)));
        }
        events
    }

    /// The reason to end this process, if its device is lost.
    pub fn lost_device(&self) -> Option<Failure> {
        self.device_failures.lost()
    }

    pub fn is_idle(&self) -> bool {
        self.jobs.is_empty() && self.grammars.is_empty() && self.adapters.waiting() == 0
    }

    /// Spills some cached blocks to disk while the engine is idle. Returns false once none is left to spill.
    pub fn tidy(&mut self) -> bool {
        self.tier.spill_when_idle(self.jobs.scheduler_mut(), &mut self.model)
    }

    /// Returns the log notes since the last call.
    pub fn take_notes(&mut self) -> Vec<String> {
        self.adapters.take_notes()
    }

    /// Returns the log warnings since the last call: problems that are not the failure of a job.
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
            disk_blocks: self.jobs.scheduler_mut().blocks().map_or(0, |blocks| blocks.usage().disk as u64),
            samplers: self.samplers.names(),
            no_text: self.text.vocabulary.as_ref().err().cloned(),
        }
    }

    pub fn stats(&mut self) -> Stats {
        let scheduler = self.jobs.scheduler_mut();
        let usage = scheduler.blocks().map(|blocks| blocks.usage()).unwrap_or_default();
        let (adapter_loads, adapter_unloads) = self.adapters.counts();
        Stats {
            running: scheduler.running() as u64,
            waiting: (scheduler.waiting() + self.grammars.len() + self.adapters.waiting()) as u64,
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

    /// Carries out everything in a plan besides its spans: preemptions, ended sequences and start events.
    fn note(&mut self, plan: &Plan) {
        for &id in &plan.preempted {
            self.stats.preemptions += 1;
            self.model.release(id);
            self.items.lost(id);
        }
        for &(id, ended) in &plan.ended {
            let reason = match ended {
                Ended::Deadline => Finish::Deadline,
                Ended::NoRoom => Finish::ContextFull,
            };
            self.end(id, reason);
        }
        for span in &plan.spans {
            let reused = self.jobs.scheduler().reused(span.sequence);
            let is_new = self.jobs.get(span.sequence).is_some_and(|job| !job.started);
            let eviction = if is_new { self.jobs.scheduler().eviction(span.sequence) } else { None };
            let Some(job) = self.jobs.get_mut(span.sequence) else { continue };
            if job.usage().generated == 0 {
                job.reused = u32::try_from(reused.memory + reused.disk).unwrap_or(u32::MAX);
            }
            if is_new {
                job.started = true;
                let (prompt_tokens, reused_tokens) = (job.prompt(), job.reused);
                if reused.disk > 0 || eviction.is_some() {
                    let age = |eviction: Eviction| self.born.elapsed().saturating_sub(eviction.at);
                    let evicted = eviction.map(|eviction| Evicted { by: eviction.by, ago: age(eviction) });
                    let disk_tokens = u32::try_from(reused.disk).unwrap_or(u32::MAX);
                    self.events.push((span.sequence, Event::Cache { disk_tokens, evicted }));
                }
                self.events.push((span.sequence, Event::Started { prompt_tokens, reused_tokens }));
            }
        }
    }

    fn fail_all(&mut self, plan: &Plan, failure: &Failure) {
        for span in &plan.spans {
            self.fail(span.sequence, failure.clone());
        }
    }

    /// Processes the results of a step: a pick or a failure for each row of logits.
    fn take(&mut self, plan: &Plan, picks: Vec<(u64, Result<Pick, Failure>)>, began: Instant) {
        let mut picked = Vec::with_capacity(picks.len());
        for (id, pick) in picks {
            match pick {
                Ok(pick) => picked.push((id, pick)),
                // Before this step's blocks are published: their content must not be reused.
                Err(failure) => self.fail(id, failure),
            }
        }
        self.jobs.done(plan, began.elapsed());
        for span in &plan.spans {
            self.stats.computed_tokens += span.tokens.len() as u64;
            let Some(job) = self.jobs.get(span.sequence) else { continue };
            if !span.logits && job.usage().generated == 0 {
                let (computed, total) = (span.tokens.end as u32, job.prompt());
                self.events.push((span.sequence, Event::Prompt { computed, total }));
            }
        }
        for (id, pick) in picked {
            self.push(id, pick);
        }
    }

    fn push(&mut self, id: u64, pick: Pick) {
        let Some(job) = self.jobs.get_mut(id) else { return };
        if job.is_full() {
            // A job may ask for zero tokens, just to have its prompt cached.
            return self.end(id, Finish::Length);
        }
        let step = match job.push(pick.token, &self.text) {
            Ok(step) => step,
            Err(failure) => return self.fail(id, failure),
        };
        self.jobs.push(id, pick.token);
        self.stats.generated_tokens += 1;
        let logprobs = pick.logprobs.into_iter().collect();
        self.events.push((id, Event::Tokens(Tokens { ids: vec![pick.token], bytes: step.bytes, logprobs })));
        if let Some(reason) = step.finish {
            self.end(id, reason);
        }
    }

    fn end(&mut self, id: u64, reason: Finish) {
        let Some(mut job) = self.close(id, Close::Intact) else { return };
        let rest = job.rest();
        if !rest.is_empty() {
            self.events.push((id, Event::Tokens(Tokens { bytes: rest, ..Tokens::default() })));
        }
        self.events.push((id, Event::Finished { reason, usage: job.usage() }));
    }

    fn fail(&mut self, id: u64, failure: Failure) {
        if self.close(id, Close::Broken).is_some() {
            self.events.push((id, Event::Failed(failure)));
        }
    }

    /// Frees everything that a job holds.
    fn close(&mut self, id: u64, how: Close) -> Option<ActiveJob> {
        self.displace(id);
        let mut job = self.jobs.close(id, how)?;
        self.stats.reused_tokens += u64::from(job.reused);
        if !self.model.is_opaque() {
            self.model.release(id);
        }
        self.release_states();
        self.items.forget(id);
        self.close_items();
        self.return_lease(&mut job);
        Some(job)
    }

    fn return_lease(&mut self, job: &mut ActiveJob) {
        if let Some(lease) = job.adapter.take() {
            self.adapters.end(lease, &mut self.model);
        }
    }

    /// Makes an opaque model copy the states that several sequences continue from, and drop those that none will.
    fn release_states(&mut self) {
        for change in self.jobs.scheduler_mut().states().take_changes() {
            match change {
                Change::Drop(state) => self.model.release(state),
                Change::Copy { from, to } if self.model.fork(from, to) => {}
                Change::Copy { to, .. } => {
                    let message = "the model could not copy the state that this text continues from";
                    self.fail(to, Failure::new(FailureCode::Plugin, message));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::chunk_max;

    #[test]
    fn chunks_are_longer_where_one_device_takes_them_whole() {
        for (device, tokens) in [("cpu", 1024), ("cuda:0", 1024), ("cuda:0+cuda:1", 512), ("metal:0", 512)] {
            assert_eq!(chunk_max(device), tokens, "{device}");
        }
    }
}
