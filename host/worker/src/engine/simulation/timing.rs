//! A worker on a simulated clock, where steps take the time given by a cost model. Shows what streams feel of a prompt.

use std::time::Duration;

use fastrand::Rng;

use crate::engine::{
    blocks::{BlockTable, Layout},
    scheduler::{Config, Plan, Request, Scheduler},
};

/// Ids below this are streams.
const STREAMS: u64 = 8;
const PROMPT: u64 = 100;
const PROMPT_TOKENS: usize = 8192;

/// Costs in milliseconds.
#[derive(Clone, Copy)]
struct Cost {
    step: f64,
    stream: f64,
    token: f64,
    /// Extra cost of a token after 8192 others.
    context: f64,
    /// Every cost varies by up to this share.
    noise: f64,
    /// Factor for the duration of the first steps.
    cold: f64,
}

const LAPTOP: Cost = Cost { step: 30.0, stream: 0.5, token: 1.5, context: 0.0, noise: 0.1, cold: 1.0 };

struct Clocked {
    cost: Cost,
    rng: Rng,
    scheduler: Scheduler,
    now: Duration,
    steps: u64,
}

impl Clocked {
    fn new(cost: Cost) -> Self {
        let layout = Layout::plain(2048, 16, 0);
        let scheduler = Scheduler::new(Config::default(), Some(BlockTable::new(layout, &[0; 16])));
        Self { cost, rng: Rng::with_seed(1), scheduler, now: Duration::ZERO, steps: 0 }
    }

    fn submit(&mut self, sequence: u64, tokens: usize) {
        let prompt = (0..tokens as u32).map(|i| i * 7 + sequence as u32).collect();
        let request = Request { sequence, client: sequence, prompt, ..Request::default() };
        assert_eq!(self.scheduler.submit(request), Ok(()));
    }

    fn step(&mut self) -> Plan {
        let plan = self.scheduler.plan(self.now);
        let mut ms = self.cost.step;
        for span in &plan.spans {
            let past = span.tokens.start as f64 / 8192.0;
            ms += match span.tokens.len() {
                1 => self.cost.stream,
                more => more as f64 * self.cost.token * (1.0 + past * self.cost.context),
            };
        }
        ms *= 1.0 + self.cost.noise * (2.0 * self.rng.f64() - 1.0);
        if self.steps < 5 {
            ms *= self.cost.cold;
        }
        let elapsed = Duration::from_secs_f64(ms / 1000.0);
        self.steps += 1;
        self.now += elapsed;
        self.scheduler.done(&plan, elapsed);
        for span in plan.spans.iter().filter(|span| span.logits) {
            self.scheduler.push(span.sequence, 0);
        }
        plan
    }

    /// Runs while the condition holds, and returns the times between two tokens of the same stream in milliseconds,
    /// sorted.
    fn gaps(&mut self, mut on: impl FnMut(&Self, &Plan) -> bool) -> Vec<f64> {
        let mut last = [self.now; STREAMS as usize];
        let mut gaps = Vec::new();
        loop {
            let plan = self.step();
            for span in plan.spans.iter().filter(|span| span.logits && span.sequence < STREAMS) {
                let last = &mut last[span.sequence as usize];
                gaps.push((self.now - *last).as_secs_f64() * 1000.0);
                *last = self.now;
            }
            if !on(self, &plan) {
                gaps.sort_by(f64::total_cmp);
                return gaps;
            }
        }
    }
}

fn prompt_goes_on(_: &Clocked, plan: &Plan) -> bool {
    !plan.spans.iter().any(|span| span.sequence == PROMPT && span.logits)
}

/// The effect of a long prompt on other streams: (median without it, 99th percentile with it, seconds that the prompt took).
fn long_prompt_beside(streams: u64, cost: Cost) -> (f64, f64, f64) {
    let mut worker = Clocked::new(cost);
    (0..streams).for_each(|stream| worker.submit(stream, 100));
    worker.gaps(|worker, _| worker.steps < 60);
    let alone = worker.gaps(|worker, _| worker.steps < 360);
    let median = alone[alone.len() / 2];
    worker.submit(PROMPT, PROMPT_TOKENS);
    let began = worker.now;
    let beside = worker.gaps(prompt_goes_on);
    (median, beside[beside.len() * 99 / 100], (worker.now - began).as_secs_f64())
}

#[test]
fn a_long_prompt_slows_streams_to_a_third_at_most() {
    let costs = [
        ("8 streams on a laptop", 8, LAPTOP),
        ("8 with loud noise", 8, Cost { noise: 0.2, ..LAPTOP }),
        ("8 with costs that grow", 8, Cost { context: 1.0, ..LAPTOP }),
        ("8 with a cold start", 8, Cost { cold: 10.0, ..LAPTOP }),
        ("8 on a fast device", 8, Cost { step: 8.0, stream: 0.05, token: 0.1, ..LAPTOP }),
        ("1 on two cores", 1, Cost { step: 40.0, stream: 20.0, token: 18.0, ..LAPTOP }),
    ];
    for (name, streams, cost) in costs {
        let (median, p99, seconds) = long_prompt_beside(streams, cost);
        println!("{name}: median {median:.1} ms, p99 {p99:.1} ms ({:.2}), prompt {seconds:.1} s", p99 / median);
        assert!(p99 <= 3.0 * median, "{name}: p99 {p99:.1} ms, median {median:.1} ms");
        assert!(p99 >= 1.8 * median, "{name}: the prompt gets less than it could, p99 {p99:.1} ms of {median:.1} ms");
        let per_step = 1.2 * median / cost.token / (1.0 + cost.context);
        let steps = PROMPT_TOKENS as f64 / per_step.min(512.0) * 1.15;
        assert!(seconds * 1000.0 < steps * 2.4 * median, "{name}: the prompt took {seconds:.1} s");
    }
}

#[test]
fn streams_that_start_together_with_a_long_prompt_keep_their_pace() {
    let mut worker = Clocked::new(LAPTOP);
    worker.submit(PROMPT, PROMPT_TOKENS);
    (0..STREAMS).for_each(|stream| worker.submit(stream, 20));
    worker.gaps(|worker, _| worker.steps < 60);
    let gaps = worker.gaps(prompt_goes_on);
    assert!(gaps[gaps.len() * 99 / 100] <= 3.0 * 34.0, "{gaps:?}");
}

#[test]
fn a_short_prompt_is_answered_while_a_long_one_is_read() {
    let mut worker = Clocked::new(LAPTOP);
    (0..STREAMS).for_each(|stream| worker.submit(stream, 20));
    worker.gaps(|worker, _| worker.steps < 60);
    worker.submit(PROMPT, PROMPT_TOKENS);
    worker.gaps(|worker, _| worker.steps < 90);
    worker.submit(PROMPT + 1, 100);
    let began = worker.steps;
    worker.gaps(|_, plan| !plan.spans.iter().any(|span| span.sequence == PROMPT + 1 && span.logits));
    assert!(worker.steps - began <= 10, "it took {} steps", worker.steps - began);
    assert!(worker.scheduler.tokens(PROMPT).len() == PROMPT_TOKENS, "the long one is still being read");
}

#[test]
fn a_prompt_alone_is_computed_in_large_chunks() {
    let mut worker = Clocked::new(Cost { noise: 0.0, ..LAPTOP });
    worker.submit(PROMPT, PROMPT_TOKENS);
    worker.gaps(prompt_goes_on);
    assert!(worker.steps <= 35, "{} steps", worker.steps);
}
