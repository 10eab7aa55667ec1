//! The output of one worker's streams: the same as if each ran alone, whatever other streams there are and whatever
//! happens to them.

use pensieve_protocol::job::{Event, FailureCode, Finish, Job, StageSpec};
use std::time::{Duration, Instant};

use crate::{
    artifacts::plugin,
    worker::{Outcome, Worker, faults, job, prompt, with},
};

const NAN: u32 = 257;

fn all(worker: &mut Worker, jobs: &[Job]) -> Vec<Outcome> {
    jobs.iter().for_each(|job| worker.submit(job));
    jobs.iter().map(|job| worker.outcome(job.id)).collect()
}

/// Runs the same jobs one by one, under other ids.
fn alone(worker: &mut Worker, jobs: &[Job]) -> Vec<Outcome> {
    jobs.iter().map(|job| worker.run(&Job { id: job.id + 1_000_000, salt: b"alone".to_vec(), ..job.clone() })).collect()
}

fn assert_same(together: &[Outcome], alone: &[Outcome]) {
    for (number, (together, alone)) in together.iter().zip(alone).enumerate() {
        assert_eq!((&together.ids, &together.text), (&alone.ids, &alone.text), "stream {number}");
        assert_eq!(together.reason(), alone.reason(), "stream {number}");
    }
}

#[test]
fn twenty_streams_at_once_say_what_each_says_alone() {
    let mut worker = Worker::start(faults());
    let jobs: Vec<Job> = (0..20).map(|n| job(n, prompt(n, 20 + 17 * n as usize), 60)).collect();
    let together = all(&mut worker, &jobs);
    assert_same(&together, &alone(&mut worker, &jobs));
    assert!(together.iter().all(|outcome| outcome.ids.len() == 60 && outcome.reason() == Finish::Length));
    let stats = worker.stats();
    assert_eq!((stats.running, stats.waiting, stats.blocks_active), (0, 0, 0));
}

#[test]
fn streams_that_give_their_blocks_up_say_the_same() {
    // 40 blocks for 12 streams that need 7 each.
    let mut worker = Worker::start(with(faults(), |spec| spec.kv_budget = Some(40 * 64)));
    let jobs: Vec<Job> = (0..12).map(|n| job(n, prompt(n, 30), 80)).collect();
    let together = all(&mut worker, &jobs);
    assert!(worker.stats().preemptions > 0, "the test has lost its point");
    assert_same(&together, &alone(&mut worker, &jobs));
}

#[test]
fn a_seed_gives_the_same_text_alone_and_in_a_batch() {
    let load = pensieve_protocol::wire::Load { samplers: vec![plugin("pensieve-samplers")], ..faults() };
    let mut worker = Worker::start(load);
    let stage = |sampler: &str, parameters: &str| StageSpec {
        sampler: sampler.into(),
        parameters: parameters.into(),
        ..StageSpec::default()
    };
    let jobs: Vec<Job> = (0..8)
        .map(|n| {
            let stages = vec![
                stage("top_k", r#"{"k": 12}"#),
                stage("temperature", r#"{"temperature": 1.5}"#),
                stage("seeded", ""),
            ];
            Job { seed: n / 2, stages, ..job(n, prompt(1, 30), 50) }
        })
        .collect();
    let together = all(&mut worker, &jobs);
    assert_same(&together, &alone(&mut worker, &jobs));
    for pair in together.chunks(2) {
        assert_eq!(pair[0].ids, pair[1].ids, "equal seeds");
    }
    assert_ne!(together[0].ids, together[2].ids, "other seeds");
}

#[test]
fn a_stream_whose_logits_are_not_numbers_fails_alone() {
    let mut worker = Worker::start(faults());
    let good: Vec<Job> = (0..4).map(|n| job(n, prompt(n, 40), 40)).collect();
    good.iter().for_each(|job| worker.submit(job));
    worker.submit(&job(9, [prompt(9, 10), vec![NAN]].concat(), 40));
    assert_eq!(worker.outcome(9).failure().code, FailureCode::NotANumber);
    let together: Vec<Outcome> = good.iter().map(|job| worker.outcome(job.id)).collect();
    assert_same(&together, &alone(&mut worker, &good));
}

#[test]
fn a_stage_that_panics_fails_its_own_stream_and_parameters_are_the_clients_fault() {
    let samplers = vec![crate::artifacts::test_plugin("panics"), plugin("pensieve-samplers")];
    let mut worker = Worker::start(pensieve_protocol::wire::Load { samplers, ..faults() });
    let stages = |sampler: &str, parameters: &str| {
        vec![StageSpec { sampler: sampler.into(), parameters: parameters.into(), field: "samplers.0".into() }]
    };
    let good = job(1, prompt(1, 40), 200);
    worker.submit(&good);
    // The stage panics at its first token, as the prompt contains a 7.
    let panicking = stages("panics", r#"{"panic": "sample"}"#);
    let failed = worker.run(&Job { stages: panicking, ..job(2, vec![97, 7], 5) });
    assert_eq!(failed.failure().code, FailureCode::Plugin);
    assert!(failed.failure().message.contains("panicked: as told, in sample"), "{}", failed.failure());
    let wrong = worker.run(&Job { stages: stages("top_k", r#"{"k": -1}"#), ..job(3, vec![97], 5) });
    assert_eq!((wrong.failure().code, wrong.failure().field.as_str()), (FailureCode::Invalid, "samplers.0"));
    let together = [worker.outcome(1)];
    assert_same(&together, &alone(&mut worker, &[good]));
}

#[test]
fn a_stop_string_ends_a_stream_before_it_wherever_its_tokens_are_cut() {
    let mut worker = Worker::start(faults());
    let whole = worker.run(&job(1, prompt(3, 30), 60));
    assert_eq!(whole.text.len(), 60);
    for (id, (from, to)) in [(20, 23), (5, 6), (40, 50)].into_iter().enumerate() {
        let stop = whole.text[from..to].to_vec();
        let first = whole.text.windows(stop.len()).position(|window| window == stop).unwrap();
        let stops = vec![b"never said".to_vec(), stop.clone()];
        let stopped = worker.run(&Job { stops, ..job(10 + id as u64, prompt(3, 30), 60) });
        assert_eq!(stopped.reason(), Finish::StopString(1));
        assert_eq!(stopped.text, whole.text[..first]);
        assert_eq!(stopped.usage().generated as usize, first + stop.len(), "nothing is generated past a stop");
        assert_eq!(stopped.ids, whole.ids[..first + stop.len()]);
    }
}

#[test]
fn stop_tokens_and_the_end_of_a_turn_end_a_stream() {
    let mut worker = Worker::start(faults());
    let whole = worker.run(&job(1, prompt(4, 30), 60));
    let token = whole.ids[30];
    let first = whole.ids.iter().position(|other| *other == token).unwrap();
    let stopped = worker.run(&Job { stop_tokens: vec![token], ..job(2, prompt(4, 30), 60) });
    assert_eq!((stopped.reason(), stopped.ids.len()), (Finish::StopToken(token), first + 1));
    assert_eq!(stopped.text, whole.text[..first]);

    let mut worker = Worker::start(with(faults(), |spec| spec.options = r#"{"ends": 1}"#.into()));
    let ended = worker.run(&Job { ignore_end_of_turn: false, ..job(10, prompt(4, 20), 10_000) });
    assert_eq!(ended.reason(), Finish::EndOfTurn);
    assert_eq!(ended.ids.last(), Some(&256));
    assert_eq!(ended.text.len(), ended.ids.len() - 1, "the end has no text");
}

#[test]
fn log_probabilities_are_of_the_token_and_of_the_likeliest() {
    let mut worker = Worker::start(faults());
    let outcome = worker.run(&Job { logprobs: Some(3), ..job(1, prompt(5, 20), 10) });
    let tokens = outcome.events.iter().filter_map(|event| match event {
        Event::Tokens(tokens) => Some(tokens),
        _ => None,
    });
    for tokens in tokens {
        let likely = &tokens.logprobs[0];
        assert_eq!(likely.top.len(), 3);
        assert_eq!(likely.top[0], (tokens.ids[0], likely.logprob), "greedy takes the likeliest");
        assert!(likely.top.is_sorted_by(|a, b| a.1 >= b.1) && likely.logprob <= 0.0);
        assert!(likely.top.iter().map(|(_, logprob)| logprob.exp()).sum::<f32>() <= 1.0);
    }
}

#[test]
fn a_cancelled_stream_is_gone_before_the_next_step() {
    let load = with(faults(), |spec| spec.options = r#"{"step_us": 20000}"#.into());
    let mut worker = Worker::start(load);
    worker.submit(&job(1, prompt(1, 30), 10_000));
    worker.submit(&job(2, prompt(2, 30), 20));
    worker.wait_for(1, |event| matches!(event, Event::Tokens(_)));
    worker.send(&pensieve_protocol::wire::Command::Cancel { id: 1 });
    let cancelled = Instant::now();
    let outcome = worker.outcome(1);
    assert_eq!(outcome.reason(), Finish::Cancelled);
    assert!(cancelled.elapsed() < Duration::from_millis(500), "{:?}", cancelled.elapsed());
    assert_eq!(worker.outcome(2).ids.len(), 20);
    assert_eq!(worker.stats().blocks_active, 0);
}

#[test]
fn a_deadline_ends_a_stream_that_runs_and_one_that_waits() {
    let mut load = with(faults(), |spec| spec.options = r#"{"step_us": 5000}"#.into());
    load.spec.limits.sequences_max = 1;
    let mut worker = Worker::start(load);
    let deadline = Some(Duration::from_millis(300));
    worker.submit(&Job { deadline, ..job(1, prompt(1, 30), 100_000) });
    worker.submit(&Job { deadline: Some(Duration::from_millis(100)), ..job(2, prompt(2, 30), 10) });
    let waited = worker.outcome(2);
    assert_eq!((waited.reason(), waited.ids.len()), (Finish::Deadline, 0));
    let ran = worker.outcome(1);
    assert_eq!(ran.reason(), Finish::Deadline);
    assert!(!ran.ids.is_empty());
}

#[test]
fn a_stream_ends_where_the_context_does() {
    let mut worker = Worker::start(with(faults(), |spec| spec.context = 100));
    let outcome = worker.run(&job(1, prompt(1, 90), 1000));
    assert_eq!((outcome.reason(), outcome.ids.len()), (Finish::ContextFull, 10));
    assert_eq!(worker.run(&job(2, prompt(1, 100), 10)).failure().code, FailureCode::TooLong);
    assert_eq!(worker.run(&job(3, prompt(1, 99), 0)).reason(), Finish::Length);
}

#[test]
fn invalid_jobs_are_refused_with_the_reason() {
    let mut worker = Worker::start(faults());
    let refused = |worker: &mut Worker, job: Job, code, words: &str| {
        let outcome = worker.run(&job);
        assert_eq!(outcome.failure().code, code, "{}", outcome.failure());
        assert!(outcome.failure().message.contains(words), "{}", outcome.failure());
    };
    refused(&mut worker, job(1, vec![], 1), FailureCode::Invalid, "no tokens");
    refused(&mut worker, job(2, vec![5000], 1), FailureCode::Invalid, "token 5000");
    let stages = vec![StageSpec { sampler: "magic".into(), field: "samplers.0".into(), ..StageSpec::default() }];
    refused(&mut worker, Job { stages, ..job(3, vec![97], 1) }, FailureCode::Invalid, "'magic' (installed: none)");
    refused(&mut worker, Job { stops: vec![vec![]], ..job(4, vec![97], 1) }, FailureCode::Invalid, "stop string 0");
    let adapter = Some(pensieve_protocol::job::AdapterUse { name: "x".into(), scale: 1.0 });
    refused(&mut worker, Job { adapter, ..job(5, vec![97], 1) }, FailureCode::NotFound, "adapter is called 'x'");
    assert_eq!(worker.run(&job(6, vec![97], 3)).ids.len(), 3);
}

#[test]
fn a_model_that_keeps_states_per_sequence_is_served_too() {
    let architecture =
        pensieve_protocol::wire::Provider { plugin: crate::artifacts::test_plugin("panics"), name: "panics".into() };
    let load = pensieve_protocol::wire::Load { architecture, ..faults() };
    let mut worker = Worker::start(load);
    assert_eq!(worker.loaded.blocks, 0);
    assert!(worker.loaded.no_text.is_some());
    let jobs: Vec<Job> = (0..6).map(|n| job(n, vec![1 + n as u32 % 5, 2, 3], 20)).collect();
    let together = all(&mut worker, &jobs);
    assert_same(&together, &alone(&mut worker, &jobs));
    let stops = vec![b"x".to_vec()];
    let refused = worker.run(&Job { stops, ..job(50, vec![1], 2) });
    assert_eq!(refused.failure().code, FailureCode::Unsupported);
}
