//! A long prompt in the scheduler's own chunks: each is waited for, and a cancelled one is the last.

use std::time::Duration;

use pensieve_worker::engine::{
    blocks::{BlockTable, CacheLocation, Group, Kind, Layout},
    scheduler::{Config, Plan, Request, Scheduler},
};

use super::*;

const PROMPT_TOKENS: usize = 18_000;

/// The time of a prompt's token, of which the scheduler makes the size of chunks.
const TOKEN: Duration = Duration::from_millis(2);

/// Scheduler and model, as a worker has them.
struct Run {
    scheduler: Scheduler,
    model: PagedModel<Tiny<2>>,
    double: Double,
    now: Duration,
}

impl Run {
    /// With a prompt that has not begun. Dispatches are recorded alone: what they compute is tested with shorter prompts.
    fn new() -> Self {
        let (model, double) = recorded::<2>(16 << 20);
        double.record().is_idle = true;
        let (block_tokens, capacity) = (BLOCK_TOKENS, model.resident().caches[0].1);
        let groups = vec![Group { kind: Kind::Tokens, capacity, disk_bytes: 1 }];
        let blocks = BlockTable::new(Layout { block_tokens, groups, disk_bytes: 0 }, &[0; 16]);
        let scheduler = Scheduler::new(Config::default(), Some(blocks));
        let mut run = Self { scheduler, model, double, now: Duration::ZERO };
        run.submit(1, PROMPT_TOKENS);
        run
    }

    fn submit(&mut self, sequence: u64, tokens: usize) {
        let prompt = (0..tokens).map(|at| (at * 31 + sequence as usize) as u32 % VOCABULARY as u32).collect();
        assert_eq!(self.scheduler.submit(Request { sequence, prompt, ..Request::default() }), Ok(()));
    }

    /// Computes the next step.
    fn step(&mut self) -> Plan {
        let plan = self.scheduler.plan(self.now);
        let (mut tokens, mut positions, mut spans) = (Vec::new(), Vec::new(), Vec::new());
        for span in &plan.spans {
            let location = self.scheduler.cache_locations(span.sequence).next();
            let Some(CacheLocation::Blocks(blocks)) = location else { panic!("{location:?}") };
            spans.push(Span {
                sequence: span.sequence,
                start: tokens.len(),
                len: span.tokens.len(),
                past: span.tokens.start,
                want: if span.logits { Want::Last } else { Want::None },
                output: Output::Candidates,
                mask: &[],
                adapter: 0,
                adapter_scale: 0.0,
                caches: vec![Table::Blocks(blocks.into())],
            });
            tokens.extend_from_slice(&self.scheduler.tokens(span.sequence)[span.tokens.clone()]);
            positions.extend(span.tokens.clone().map(|at| at as u32));
        }
        if !spans.is_empty() {
            let batch = Batch { tokens: &tokens, positions: &positions, spans, top: 1 };
            let rows = batch.wanted().len();
            let (mut ids, mut scores, mut totals) = (vec![0; rows], vec![0.0; rows], vec![0.0; 2 * rows]);
            let candidates = CandidateRows { ids: &mut ids, scores: &mut scores, totals: &mut totals };
            let (logits, hidden, vocabulary) = (&mut [][..], &mut [][..], VOCABULARY);
            self.model.forward_to(&batch, &mut Outputs { logits, candidates, hidden, vocabulary }).unwrap();
        }
        let elapsed = TOKEN * tokens.len() as u32;
        self.now += elapsed;
        self.scheduler.done(&plan, elapsed);
        plan
    }

    fn submitted(&self) -> usize {
        self.double.record().command_buffers.len()
    }
}

#[test]
fn a_prompt_of_18_000_tokens_is_computed_in_the_scheduler_s_chunks_that_are_each_waited_for() {
    let mut run = Run::new();
    let (mut computed, mut steps) = (0, 0);
    while computed < PROMPT_TOKENS {
        let plan = run.step();
        let [span] = plan.spans.as_slice() else { panic!("{plan:?}") };
        assert_eq!(span.tokens.start, computed);
        computed = span.tokens.end;
        steps += 1;
        assert_eq!(span.logits, computed == PROMPT_TOKENS);
        // A second, and no more than the arena was made for.
        assert!(TOKEN * span.tokens.len() as u32 <= Config::default().prefill_step, "{span:?}");
        assert_eq!((run.submitted(), run.double.record().encoded.len()), (steps, 0), "what was launched still runs");
    }
    assert!((PROMPT_TOKENS / 512..PROMPT_TOKENS / 256).contains(&steps), "{steps} steps");
    let record = run.double.record();
    assert_eq!(record.reads, [3 * size_of::<f32>()], "the best token behind the prompt alone");
    assert_eq!(record.allocations, Vec::<usize>::new(), "all chunks use what was allocated at load");
}

#[test]
fn a_prompt_that_is_cancelled_ends_within_the_chunk_that_is_being_computed() {
    let mut run = Run::new();
    for _ in 0..5 {
        run.step();
    }
    let submitted = run.submitted();
    // The worker hears of it while the fifth chunk runs, and looks when that is done.
    run.scheduler.finish(1);
    assert_eq!(run.step(), Plan::default());
    assert_eq!(run.submitted(), submitted, "nothing of the prompt is computed any more");
    run.submit(2, 40);
    let plan = run.step();
    assert_eq!((plan.spans[0].sequence, plan.spans[0].tokens.start), (2, 0), "the next one has the machine");
    assert_eq!(run.submitted(), submitted + 1);
}
