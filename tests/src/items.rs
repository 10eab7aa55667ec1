//! Images in the prompts of a worker, with the test plugin `eyes`, whose answers depend on every row and on positions. The
//! same request alone, under another API key, tells what an answer has to be.

use std::path::Path;

use crate::{
    artifacts::test_plugin,
    worker::{Outcome, Worker, faults, job, prompt, with, with_disk},
};
use pensieve_protocol::{
    job::{Event, FailureCode, Finish, Job},
    media::{ItemKind, ItemSize, PromptItem},
    wire::{Command, Load, Provider},
};

const SLOT: u32 = 257;
const OPEN: u32 = 258;
const CLOSE: u32 = 259;
const BLOCK_TOKENS: usize = 16;

/// A load of the plugin with these options and so many blocks.
fn eyes(options: &str, blocks: u64) -> Load {
    let architecture = Provider { plugin: test_plugin("eyes"), name: "eyes".into() };
    with(Load { architecture, ..faults() }, |spec| {
        spec.options = options.into();
        spec.kv_budget = Some(blocks << 6);
    })
}

/// The colours of an image's cells, which one number decides.
fn colours(image: u8, rows: usize) -> Vec<u8> {
    (0..rows).flat_map(|row| [image, row as u8, 77]).collect()
}

/// Appends an image of this many cells in a row and in a column.
fn add(job: &mut Job, image: u8, across: u32, down: u32) {
    let rows = (across * down) as usize;
    let prepared = colours(image, rows);
    let item = PromptItem {
        start: job.tokens.len() as u32,
        len: rows as u32 + 2,
        size: ItemSize { kind: ItemKind::Image, width: 16 * across, height: 16 * down },
        layout: [across.to_le_bytes(), down.to_le_bytes()].concat(),
        digest: [image; 32],
        field: format!("messages.0.content.{}", job.media.len()),
        prepared: prepared.into(),
    };
    job.tokens.push(OPEN);
    job.tokens.extend(std::iter::repeat_n(SLOT, rows));
    job.tokens.push(CLOSE);
    job.media.push(item);
}

/// A prompt of text with these images in between, each given as its number and its cells.
fn with_images(id: u64, seed: u64, images: &[(u8, u32, u32)], answer: u32) -> Job {
    let mut job = job(id, prompt(seed, 20), answer);
    for (image, across, down) in images {
        add(&mut job, *image, *across, *down);
        job.tokens.extend(prompt(seed + 1, 7));
    }
    job
}

/// The same job under an API key of its own, so that nothing is reused.
fn alone(job: &Job) -> Job {
    Job { id: job.id + 1_000_000, salt: job.id.to_le_bytes().to_vec(), ..job.clone() }
}

/// The job that continues a conversation: with the answer and another question.
fn next_turn(id: u64, job: &Job, answer: &Outcome) -> Job {
    let tokens = [&job.tokens[..], &answer.ids[..], &prompt(9, 11)[..]].concat();
    Job { id, tokens, ..job.clone() }
}

#[test]
fn answers_depend_on_images_which_are_encoded_once_for_all_turns() {
    let mut worker = Worker::start(eyes("{}", 4096));
    let first = with_images(1, 1, &[(10, 5, 4), (11, 3, 9)], 20);
    let answer = worker.run(&first);
    assert_eq!(answer.ids.len(), 20);
    assert_eq!(worker.stats().encoded_items, 2);

    let turn = next_turn(2, &first, &answer);
    let second = worker.run(&turn);
    let known = (first.tokens.len() + 19) / BLOCK_TOKENS * BLOCK_TOKENS;
    assert_eq!(second.usage().reused as usize, known, "all of the first turn");
    assert_eq!(worker.stats().encoded_items, 2, "nothing was encoded again");
    assert_eq!(second.ids, worker.run(&alone(&turn)).ids);

    // Equal tokens before and after an image with other pixels, or after another layout.
    let other = with_images(3, 1, &[(10, 5, 4), (12, 3, 9)], 20);
    assert_eq!(other.tokens, first.tokens);
    let others = worker.run(&other);
    assert_ne!(others.ids, answer.ids);
    assert_eq!(others.ids, worker.run(&alone(&other)).ids);
    assert_eq!(others.usage().reused as usize, 48, "up to the block in which the images differ");
    let turned = with_images(4, 1, &[(10, 2, 10), (11, 3, 9)], 20);
    let outcome = worker.run(&turned);
    assert_ne!(outcome.ids, answer.ids, "positions differ");
    assert_eq!(outcome.ids, worker.run(&alone(&turned)).ids);
    let swapped = with_images(5, 1, &[(11, 5, 4), (10, 3, 9)], 20);
    assert_eq!(worker.run(&swapped).ids, worker.run(&alone(&swapped)).ids);

    // A prefix that ends inside of an image.
    let long = with_images(6, 2, &[(20, 16, 16)], 10);
    let before = worker.run(&long);
    let mut cut = with_images(7, 2, &[(20, 16, 16)], 10);
    cut.tokens.truncate(20 + 258);
    let encoded = worker.stats().encoded_items;
    let answer = worker.run(&cut);
    assert_eq!(worker.stats().encoded_items, encoded, "the rows in its last block were kept");
    assert_eq!(answer.usage().reused, 272);
    assert_eq!(answer.ids, worker.run(&alone(&cut)).ids);
    assert_eq!(before.ids, worker.run(&alone(&long)).ids);
    worker.drain();
}

#[test]
fn requests_with_images_are_served_beside_each_other_as_alone() {
    for options in [r#"{"encode_us": 100}"#, r#"{"whole": true}"#] {
        let mut worker = Worker::start(eyes(options, 4096));
        let images = |n: u64| (0..n % 4).map(|image| ((n % 3 + image) as u8 + 10, 5, (n % 2) as u32 + 3)).collect();
        let jobs = (0..16).map(|n| {
            let images: Vec<(u8, u32, u32)> = images(n);
            Job { salt: vec![(n % 2) as u8], ..with_images(n, n % 5, &images, 15) }
        });
        let jobs: Vec<Job> = jobs.collect();
        jobs.iter().for_each(|job| worker.submit(job));
        let outcomes: Vec<Outcome> = jobs.iter().map(|job| worker.outcome(job.id)).collect();
        let encoded = worker.stats().encoded_items;
        assert!(encoded < jobs.iter().map(|job| job.media.len() as u64).sum(), "{encoded}: some share rows");
        for (job, outcome) in jobs.iter().zip(&outcomes) {
            assert_eq!(outcome.ids, worker.run(&alone(job)).ids, "{options}: job {}", job.id);
        }
        worker.drain();
    }
}

#[test]
fn preempted_requests_see_their_images_again() {
    let mut worker = Worker::start(eyes(r#"{"whole": true}"#, 24));
    let jobs: Vec<Job> = (1..6).map(|n| with_images(n, n, &[(n as u8, 5, 5)], 90)).collect();
    jobs.iter().for_each(|job| worker.submit(job));
    let outcomes: Vec<Outcome> = jobs.iter().map(|job| worker.outcome(job.id)).collect();
    let stats = worker.stats();
    assert!(stats.preemptions > 0 && stats.encoded_items >= 5, "{stats:?}");
    for (job, outcome) in jobs.iter().zip(&outcomes) {
        assert_eq!(outcome.ids, worker.run(&alone(job)).ids, "job {}", job.id);
    }
    worker.drain();
}

#[test]
fn images_in_a_prefix_on_disk_are_told_apart_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let start = |folder: &Path| Worker::start(with_disk(eyes("{}", 256), folder));
    let mut worker = start(folder.path());
    let first = with_images(1, 1, &[(10, 8, 8)], 20);
    let answer = worker.run(&first);
    worker.drain();
    let mut worker = start(folder.path());
    let turn = next_turn(2, &first, &answer);
    let second = worker.run(&turn);
    assert!(second.usage().reused > 96, "{:?}", second.usage());
    assert_eq!(worker.stats().encoded_items, 0);
    let mut other = turn.clone();
    (other.id, other.media[0].digest, other.media[0].prepared) = (3, [11; 32], colours(11, 64).into());
    let others = worker.run(&other);
    assert_eq!(others.usage().reused, 16, "the text before the image");
    assert_eq!(second.ids, worker.run(&alone(&turn)).ids);
    assert_eq!(others.ids, worker.run(&alone(&other)).ids);
    worker.drain();
}

#[test]
fn an_image_that_fails_ends_its_own_request_alone() {
    let mut worker = Worker::start(eyes(r#"{"encode_us": 200}"#, 4096));
    let good = with_images(1, 1, &[(10, 8, 8)], 30);
    worker.submit(&good);
    // The plugin fails with these colours.
    for (id, colour, message) in [(2, 1, "not opened"), (3, 2, "not encoded"), (4, 3, "panicked")] {
        let mut bad = with_images(id, 1, &[(10, 2, 2), (30, 2, 3)], 10);
        bad.media[1].prepared = vec![colour; 18].into();
        bad.media[1].digest = [colour; 32];
        let outcome = worker.run(&bad);
        let failure = outcome.failure();
        assert!(failure.message.contains(message), "{failure}");
        assert_eq!(failure.field, "messages.0.content.1");
    }
    let mut short = with_images(5, 1, &[(10, 2, 2)], 10);
    short.media[0].prepared = vec![7; 11].into();
    short.media[0].digest = [9; 32];
    assert!(worker.run(&short).failure().message.contains("11 bytes for 4 rows"));
    let mut blind = with_images(6, 1, &[(10, 2, 2)], 10);
    blind.media[0].size.kind = ItemKind::Audio;
    assert_eq!(worker.run(&blind).failure().code, FailureCode::Unsupported);
    let long = with_images(7, 1, &[(10, 17, 16)], 10);
    let outcome = worker.run(&long);
    assert_eq!(outcome.failure().message, "the image takes 272 tokens, this model reads 1 to 256");
    assert_eq!(outcome.failure().code, FailureCode::Invalid);

    // Cancelled while its image is encoded.
    let cancelled = with_images(8, 2, &[(40, 16, 16), (41, 16, 16)], 10);
    worker.submit(&cancelled);
    worker.send(&Command::Cancel { id: 8 });
    assert_eq!(worker.outcome(8).reason(), Finish::Cancelled);
    assert_eq!(worker.outcome(1).ids, worker.run(&alone(&good)).ids);
    worker.drain();
}

#[test]
fn a_model_without_eyes_refuses_images_and_one_with_a_small_step_long_runs() {
    let mut worker = Worker::start(faults());
    let failure = worker.run(&with_images(1, 1, &[(10, 2, 2)], 10));
    assert_eq!(failure.failure().message, "this model reads text alone");
    worker.drain();
    let small = with(eyes(r#"{"whole": true}"#, 4096), |spec| {
        spec.limits.sequences_max = 4;
        spec.limits.step_tokens_max = 100;
    });
    let mut worker = Worker::start(small);
    let outcome = worker.run(&with_images(1, 1, &[(10, 11, 10)], 10));
    assert_eq!(outcome.failure().code, FailureCode::TooLong);
    assert_eq!(outcome.failure().field, "messages.0.content.0");
    let fits = with_images(2, 1, &[(10, 9, 10)], 10);
    assert_eq!(worker.run(&fits).ids, worker.run(&alone(&fits)).ids);
    worker.drain();
}

#[test]
fn streams_go_on_while_an_image_is_encoded() {
    let mut worker = Worker::start(eyes(r#"{"step_us": 2000, "encode_us": 2000}"#, 4096));
    worker.submit(&job(1, prompt(1, 10), 10_000));
    worker.wait_for(1, |event| matches!(event, Event::Tokens(_)));
    // Half a second of encoding.
    let outcome = worker.run(&with_images(2, 2, &[(10, 16, 16)], 1));
    assert_eq!(outcome.reason(), Finish::Length);
    // Other prompts get their turns again.
    assert_eq!(worker.run(&job(3, prompt(3, 400), 3)).ids.len(), 3);
    worker.send(&Command::Cancel { id: 1 });
    let beside = worker.outcome(1).ids.len();
    assert!(beside > 50, "{beside} tokens");
    worker.drain();
}
