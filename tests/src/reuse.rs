//! Prefix reuse in a worker: of prompts that it has seen, in memory and on disk, and only for those who may share them.

use pensieve_protocol::{
    job::{Event, Job},
    wire::{DiskTier, Limits, Load, Report},
};
use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use crate::worker::{PATIENCE, Worker, faults, job, prompt, recurrent, with, with_disk};

/// Waits until the worker has spilled everything to disk.
fn settle(worker: &mut Worker) -> u64 {
    let mut before = u64::MAX;
    loop {
        let disk = worker.stats().blocks_disk;
        if disk == before {
            return disk;
        }
        before = disk;
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn blocks_in(folder: &Path) -> Vec<std::path::PathBuf> {
    let models = fs::read_dir(folder).unwrap().flatten().filter(|entry| entry.path().is_dir());
    let files = models.flat_map(|model| fs::read_dir(model.path()).unwrap().flatten());
    files.map(|file| file.path()).filter(|path| path.file_name().unwrap().len() == 34).collect()
}

#[test]
fn the_next_turn_of_a_conversation_reuses_the_last_one_and_says_the_same() {
    let mut worker = Worker::start(faults());
    let first = worker.run(&job(1, prompt(1, 100), 50));
    assert_eq!(first.usage().reused, 0);
    let next = [prompt(1, 100), first.ids, prompt(2, 20)].concat();
    let again = worker.run(&job(2, next.clone(), 30));
    // 149 tokens were computed: 9 whole blocks.
    assert_eq!(again.usage().reused, 144);
    assert_eq!(again.events[0], Event::Started { prompt_tokens: 170, reused_tokens: 144 });
    let fresh = worker.run(&Job { salt: b"other".to_vec(), ..job(3, next, 30) });
    assert_eq!((fresh.usage().reused, &fresh.ids), (0, &again.ids), "another key shares nothing");
}

#[test]
fn a_model_with_a_state_per_sequence_goes_on_from_where_the_last_turn_ended() {
    let mut worker = Worker::start(recurrent(3));
    let first = worker.run(&job(1, prompt(1, 100), 50));
    let next = [prompt(1, 100), first.ids.clone(), prompt(2, 20)].concat();
    let again = worker.run(&job(2, next.clone(), 30));
    assert_eq!(again.usage().reused, 149, "all but the last token, which was never computed");
    let fresh = worker.run(&Job { salt: b"other".to_vec(), ..job(3, next.clone(), 30) });
    assert_eq!((fresh.usage().reused, &fresh.ids), (0, &again.ids), "another key shares nothing");
    // More conversations than states: running ones take the place of parked ones.
    for id in 4..40 {
        worker.submit(&job(id, prompt(id, 50), 20));
    }
    for id in 4..40 {
        assert!(worker.outcome(id).end.is_ok());
    }
    let forgotten = worker.run(&job(40, next, 30));
    assert_eq!((forgotten.usage().reused, &forgotten.ids), (0, &again.ids));
}

#[test]
fn a_conversation_is_found_on_disk_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let load = || with_disk(faults(), folder.path());
    let conversation = prompt(1, 8_000);
    let mut worker = Worker::start(load());
    let first = worker.run(&job(1, conversation.clone(), 100));
    worker.drain();

    let next = [conversation, first.ids, prompt(2, 30)].concat();
    let mut worker = Worker::start(load());
    assert!(worker.loaded.disk_blocks >= 8_000 / 16);
    let again = worker.run(&job(1, next.clone(), 40));
    let usage = again.usage();
    assert!(f64::from(usage.reused) >= 0.95 * f64::from(usage.prompt), "{usage:?}");
    assert_eq!(again.events[0], Event::Cache { disk_tokens: usage.reused, evicted: None });
    let fresh = worker.run(&Job { salt: b"other".to_vec(), ..job(2, next, 40) });
    assert_eq!((fresh.usage().reused, fresh.ids), (0, again.ids));
}

#[test]
fn a_worker_tells_which_job_took_the_memory_of_a_prompt() {
    // A hundred blocks.
    let mut worker = Worker::start(with(faults(), |spec| spec.kv_budget = Some(100 * 64)));
    let first = worker.run(&job(1, prompt(1, 800), 4));
    assert!(matches!(first.events[0], Event::Started { .. }), "{:?}", first.events[0]);
    worker.run(&job(2, prompt(2, 800), 4));
    worker.run(&job(3, prompt(3, 1_000), 4));
    let again = worker.run(&job(4, prompt(1, 800), 4));
    let Event::Cache { disk_tokens: 0, evicted: Some(evicted) } = &again.events[0] else {
        panic!("{:?}", again.events);
    };
    assert!([2, 3].contains(&evicted.by) && evicted.ago < Duration::from_secs(60), "{evicted:?}");
    // A text that was never there was not evicted.
    let other = worker.run(&job(5, prompt(9, 800), 4));
    assert!(matches!(other.events[0], Event::Started { .. }), "{:?}", other.events[0]);
}

#[test]
fn a_request_that_comes_while_the_cache_is_written_waits_for_one_block() {
    let folder = tempfile::tempdir().unwrap();
    let slow = with(faults(), |spec| spec.options = r#"{"export_us": 300000}"#.into());
    let mut worker = Worker::start(with_disk(slow, folder.path()));
    worker.run(&job(1, prompt(1, 160), 1));
    let began = Instant::now();
    worker.run(&job(2, prompt(2, 5), 1));
    let waited = began.elapsed();
    assert!(waited < Duration::from_millis(1200), "{waited:?} for blocks of 300 ms");
    let disk = worker.stats().blocks_disk;
    assert!(disk < 8, "{disk} blocks were written");
}

#[test]
fn a_worker_that_is_killed_leaves_its_cache_behind() {
    let folder = tempfile::tempdir().unwrap();
    let mut worker = Worker::start(with_disk(faults(), folder.path()));
    worker.run(&job(1, prompt(1, 1_000), 20));
    assert_eq!(settle(&mut worker), 63);
    worker.child.kill().unwrap();
    worker.exit_status();
    let mut worker = Worker::start(with_disk(faults(), folder.path()));
    assert_eq!(worker.run(&job(1, prompt(1, 1_000), 20)).usage().reused, 992);
}

#[test]
fn a_cache_is_read_only_under_settings_that_leave_its_numbers_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let reused = |load: Load| {
        let mut worker = Worker::start(with_disk(load, folder.path()));
        let reused = worker.run(&job(1, prompt(1, 1_000), 20)).usage().reused;
        settle(&mut worker);
        worker.drain();
        reused
    };
    assert_eq!(reused(faults()), 0);
    // LongRoPE's factors depend on the context that a model is loaded for.
    assert_eq!(reused(with(faults(), |spec| spec.context = 2_048)), 0);
    assert_eq!(reused(with(faults(), |spec| spec.options = r#"{"other": 1}"#.into())), 0);
    let limits = Limits { step_tokens_max: 64, ..Limits::default() };
    for same in [faults(), with(faults(), |spec| spec.threads = 1), with(faults(), |spec| spec.limits = limits)] {
        assert_eq!(reused(same), 992);
    }
}

#[test]
fn damaged_blocks_are_computed_again_and_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let mut worker = Worker::start(with_disk(faults(), folder.path()));
    let before = worker.run(&job(1, prompt(1, 1_000), 20));
    settle(&mut worker);
    worker.drain();
    let files = blocks_in(folder.path());
    assert_eq!(files.len(), 63);
    for (number, file) in files.iter().enumerate() {
        let mut bytes = fs::read(file).unwrap();
        if number % 8 == 0 {
            let last = bytes.len() - 1 - number % 64;
            bytes[last] ^= 4;
            fs::write(file, bytes).unwrap();
        }
    }
    let mut worker = Worker::start(with_disk(faults(), folder.path()));
    let after = worker.run(&job(1, prompt(1, 1_000), 20));
    assert!(after.usage().reused < 992, "{:?}", after.usage());
    assert_eq!(after.ids, before.ids);
    settle(&mut worker);
    let again = worker.run(&job(2, prompt(1, 1_000), 20));
    assert_eq!((again.usage().reused, again.ids), (992, before.ids));
}

#[test]
fn the_disk_keeps_to_its_budget_and_memory_overflows_into_it() {
    let folder = tempfile::tempdir().unwrap();
    let file_bytes = 252;
    let disk = Some(DiskTier { folder: folder.path().into(), bytes: 200 * file_bytes });
    // 100 blocks in memory, 200 on disk.
    let mut worker = Worker::start(with(faults(), |spec| (spec.disk, spec.kv_budget) = (disk, Some(100 * 64))));
    let prompts: Vec<Vec<u32>> = (0..8).map(|n| prompt(n, 600)).collect();
    let first: Vec<_> = prompts.iter().zip(0..).map(|(prompt, id)| worker.run(&job(id, prompt.clone(), 20))).collect();
    settle(&mut worker);
    let stats = worker.stats();
    assert_eq!((stats.blocks_disk, blocks_in(folder.path()).len()), (200, 200));
    let bytes: u64 = blocks_in(folder.path()).iter().map(|file| fs::metadata(file).unwrap().len()).sum();
    assert!(bytes <= 200 * file_bytes, "{bytes}");
    // The last five prompts fit; from memory or from disk, the answer is the same.
    for (n, first) in first.iter().enumerate().rev().take(5) {
        let again = worker.run(&job(100 + n as u64, prompts[n].clone(), 20));
        assert_eq!(again.ids, first.ids);
        assert_eq!(again.usage().reused, 592, "prompt {n}");
    }
}

#[test]
fn a_second_worker_of_the_same_model_runs_without_the_cache_until_the_first_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = Worker::start(with_disk(faults(), folder.path()));
    let said = first.run(&job(1, prompt(1, 800), 5)).ids;
    let mut second = Worker::start(with_disk(faults(), folder.path()));
    let report = second.until(|report| matches!(report, Report::Log { .. }));
    let Report::Log { message, .. } = report else { panic!("{report:?}") };
    assert!(message.contains("until the worker of this model that has it ends"), "{message}");
    // Some blocks are in its memory before it finds them on disk, and some of its own are not on disk yet.
    assert_eq!(second.run(&job(1, prompt(1, 400), 5)).usage().reused, 0);
    assert_eq!(second.run(&job(2, prompt(2, 400), 5)).ids.len(), 5);
    assert_eq!(settle(&mut second), 0);
    first.drain();
    let deadline = Instant::now() + PATIENCE;
    while second.stats().blocks_disk < 800 / 16 + 400 / 16 {
        assert!(Instant::now() < deadline, "{:?}", second.stats());
        std::thread::sleep(Duration::from_millis(100));
    }
    let again = second.run(&job(3, prompt(1, 800), 5));
    assert_eq!((again.usage().reused, again.ids), (784, said));
    second.drain();
    let mut third = Worker::start(with_disk(faults(), folder.path()));
    assert_eq!(third.run(&job(1, prompt(2, 400), 5)).usage().reused, 384);
    third.drain();
}
