//! How a worker ends, and what it survives: a plugin's error costs the streams of that step, a hang or crash costs the
//! process, and a worker exits when its server is gone.

use pensieve_protocol::{
    job::{Event, FailureCode, Finish},
    wire::{Command, Load, Report},
};
use pensieve_worker::process::{EXIT_BAD_COMMAND, EXIT_DEVICE_LOST, EXIT_NOT_LOADED, EXIT_STALLED};
use std::{
    os::unix::process::ExitStatusExt,
    time::{Duration, Instant},
};

use crate::worker::{Worker, faults, job, prompt, with};

const ERROR: u32 = 258;
const PANIC: u32 = 259;
const LOOP: u32 = 260;
const EXIT: u32 = 261;
const CRASH: u32 = 262;
const DEVICE: u32 = 263;

/// Starts two streams and a job whose prompt ends with a fault.
fn with_fault(worker: &mut Worker, fault: u32) {
    for id in [1, 2] {
        worker.submit(&job(id, prompt(id, 30), 5_000));
        worker.wait_for(id, |event| matches!(event, Event::Tokens(_)));
    }
    worker.submit(&job(3, vec![97, 98, fault], 10));
}

fn stalling(deadline: Duration) -> Load {
    let mut load = faults();
    load.spec.limits.step_timeout = deadline;
    load
}

#[test]
fn an_error_or_a_panic_in_forward_fails_that_batch_and_the_worker_goes_on() {
    let mut worker = Worker::start(faults());
    let before = worker.run(&job(50, prompt(7, 40), 30));
    for (fault, words) in [(ERROR, "as told, no memory"), (PANIC, "panicked: as told, in forward")] {
        with_fault(&mut worker, fault);
        for id in [1, 2, 3] {
            let outcome = worker.outcome(id);
            assert_eq!(outcome.failure().code, FailureCode::Plugin, "{}", outcome.failure());
            assert!(outcome.failure().message.contains(words), "{}", outcome.failure());
        }
        let after = worker.run(&job(60, prompt(7, 40), 30));
        assert_eq!(after.ids, before.ids);
        assert_eq!(worker.stats().blocks_active, 0);
    }
}

#[test]
fn an_exit_within_forward_ends_the_worker() {
    for _ in 0..3 {
        let mut worker = Worker::start(faults());
        with_fault(&mut worker, EXIT);
        assert_eq!(worker.exit_status().code(), Some(0));
        assert!(!worker.others().contains(&Report::Drained), "it was not asked to end");
    }
}

#[test]
fn a_crash_within_forward_ends_the_worker() {
    for _ in 0..3 {
        let mut worker = Worker::start(faults());
        with_fault(&mut worker, CRASH);
        let status = worker.exit_status();
        assert_eq!(status.signal(), Some(libc::SIGSEGV), "{status}");
    }
}

#[test]
fn a_loop_within_forward_ends_the_worker_at_its_deadline_with_the_reason() {
    let deadline = Duration::from_millis(700);
    let mut worker = Worker::start(stalling(deadline));
    with_fault(&mut worker, LOOP);
    let began = Instant::now();
    let status = worker.exit_status();
    assert!(began.elapsed() < deadline + Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!(status.code(), Some(EXIT_STALLED));
    let said = worker.others().iter().find_map(|report| match report {
        Report::Dying(failure) => Some(failure),
        _ => None,
    });
    let failure = said.expect("last words");
    assert_eq!(failure.code, FailureCode::Stalled);
    assert!(failure.message.contains("0.7 s"), "{failure}");
}

#[test]
fn a_device_that_fails_three_steps_in_a_row_ends_the_worker_with_the_drivers_words() {
    let mut worker = Worker::start(with(faults(), |spec| spec.options = r#"{"gpu": 1}"#.into()));
    let fails = |worker: &mut Worker, id| {
        worker.submit(&job(id, vec![97, DEVICE], 10));
        let failure = worker.outcome(id).failure().clone();
        assert_eq!(failure.code, FailureCode::Device, "{failure}");
        assert!(failure.message.contains("the driver ignores submissions"), "{failure}");
    };
    for round in 0..3 {
        for id in 1..3 {
            fails(&mut worker, 10 * round + id);
        }
        // It works again, so that two failures were two requests'.
        assert_eq!(worker.run(&job(10 * round + 3, prompt(7, 40), 5)).ids.len(), 5);
    }
    for id in 51..54 {
        fails(&mut worker, id);
    }
    assert_eq!(worker.exit_status().code(), Some(EXIT_DEVICE_LOST));
    let said = worker.others().iter().find_map(|report| match report {
        Report::Dying(failure) => Some(failure),
        _ => None,
    });
    let failure = said.expect("last words");
    assert_eq!(failure.code, FailureCode::Device);
    assert!(failure.message.contains("3 times in a row, at last with: as told, the driver"), "{failure}");
    // The processor is not lost.
    let mut worker = Worker::start(faults());
    for id in 1..8 {
        fails(&mut worker, id);
    }
    assert_eq!(worker.run(&job(9, prompt(7, 40), 5)).ids.len(), 5);
}

#[test]
fn a_worker_ends_with_its_server_whatever_it_is_doing() {
    let idle = Worker::start(faults());
    let mut busy = Worker::start(with(faults(), |spec| spec.options = r#"{"step_us": 20000}"#.into()));
    busy.submit(&job(1, prompt(1, 30), 30_000));
    busy.wait_for(1, |event| matches!(event, Event::Tokens(_)));
    let mut hung = Worker::start(faults());
    with_fault(&mut hung, LOOP);
    let unloaded = Worker::spawn();
    for mut worker in [idle, busy, hung, unloaded] {
        worker.hang_up();
        let began = Instant::now();
        let status = worker.exit_status();
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
        assert_eq!(status.code(), Some(0));
    }
}

#[test]
fn a_worker_ends_on_an_invalid_frame() {
    for nonsense in [&[0xff; 8][..], &[1, 0, 0, 0, 0x7f], &[5, 0, 0, 0, 6, 0, 0, 0, 0]] {
        let mut worker = Worker::start(faults());
        worker.send_raw(nonsense);
        assert_eq!(worker.exit_status().code(), Some(EXIT_BAD_COMMAND), "{nonsense:?}");
    }
    let mut worker = Worker::spawn();
    worker.send(&Command::Stats);
    assert_eq!(worker.exit_status().code(), Some(EXIT_BAD_COMMAND), "a first command that is no load");
}

#[test]
fn a_load_that_fails_says_why_and_ends_the_worker() {
    let check = |load: Load, words: &str| {
        let mut worker = Worker::spawn();
        worker.send(&Command::Load(Box::new(load)));
        let report = worker.until(|report| matches!(report, Report::LoadFailed(_)));
        let Report::LoadFailed(failure) = report else { panic!("{report:?}") };
        assert!(failure.to_string().contains(words), "{failure}");
        assert_eq!(worker.exit_status().code(), Some(EXIT_NOT_LOADED));
    };
    check(with(faults(), |spec| spec.kv_budget = Some(10)), "10 bytes hold no block");
    let mut load = faults();
    load.architecture.name = "other".into();
    check(load, "has no architecture 'other' (it has: faults)");
    let mut load = faults();
    load.architecture.plugin = "/nowhere/x.so".into();
    check(load, "was not found; check the path");
}

#[test]
fn a_drained_worker_finishes_its_jobs_takes_no_more_and_ends() {
    let mut worker = Worker::start(with(faults(), |spec| spec.options = r#"{"step_us": 5000}"#.into()));
    worker.submit(&job(1, prompt(1, 30), 60));
    worker.submit(&job(2, prompt(2, 30), 20));
    worker.wait_for(1, |event| matches!(event, Event::Tokens(_)));
    worker.send(&Command::Drain);
    worker.submit(&job(3, prompt(3, 30), 20));
    assert_eq!(worker.outcome(3).failure().code, FailureCode::Draining);
    for (id, tokens) in [(1, 60), (2, 20)] {
        let outcome = worker.outcome(id);
        assert_eq!((outcome.reason(), outcome.ids.len()), (Finish::Length, tokens));
    }
    worker.until(|report| *report == Report::Drained);
    assert_eq!(worker.exit_status().code(), Some(0));
}

#[test]
fn a_server_that_does_not_read_for_a_while_loses_nothing() {
    let mut worker = Worker::start(faults());
    for id in 0..20 {
        worker.submit(&job(id, prompt(id, 20), 3_000));
    }
    std::thread::sleep(Duration::from_secs(3));
    for id in 0..20 {
        assert_eq!(worker.outcome(id).ids.len(), 3_000);
    }
}
