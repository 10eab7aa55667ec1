//! The laws, tried on good models, which must pass, and on models with one fault each, where the first broken law must
//! be the one that tells an author what is wrong.

#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod adapting;
mod attending;
mod encoding;
mod grouped;
mod mutants;
mod recurrent;
mod sampling;

use attending::{Attending, VOCABULARY};
use pensieve_sdk::{
    Batch, Cache, Model, Output, Resident, Result, Span, Table, Want,
    testing::{Options, Outcome, Reference, Report, conformance, conformance_with},
};
use recurrent::Recurrent;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// The length of the toy models' vectors.
const WIDTH: usize = 8;

/// Pseudo-random weights: the same ones for the same token and use.
fn embed(token: u32, salt: u32) -> [f32; WIDTH] {
    std::array::from_fn(|place| {
        let mixed = (token * 97 + salt * 8191 + place as u32 * 131 + 7).wrapping_mul(0x9e37_79b1);
        let mixed = (mixed ^ (mixed >> 15)).wrapping_mul(0x85eb_ca77);
        ((mixed ^ (mixed >> 13)) % 2001) as f32 / 1000.0 - 1.0
    })
}

fn dot(a: &[f32; WIDTH], b: &[f32; WIDTH]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn attending(fault: attending::Fault) -> Report {
    attending::check(fault, false)
}

fn recurrent(fault: recurrent::Fault) -> Report {
    recurrent::check(fault, false)
}

/// The logits of a text that a model reads in one step.
fn logits(model: &mut dyn Model, tokens: &[u32], caches: Vec<Table<'_>>) -> Vec<f32> {
    let positions: Vec<u32> = (0..tokens.len() as u32).collect();
    let (adapter, adapter_scale, mask, output) = (0, 1.0, &[][..], Output::Logits);
    let (len, want) = (tokens.len(), Want::All);
    let span = Span { sequence: 1, start: 0, len, past: 0, want, output, mask, adapter, adapter_scale, caches };
    let mut logits = vec![0.0; len * model.resident().vocabulary as usize];
    let batch = Batch { tokens, positions: &positions, spans: vec![span], top: 0 };
    assert!(model.forward(&batch, &mut logits).is_ok());
    logits
}

#[track_caller]
fn assert_first_broken(report: &Report, law: &str) {
    let first = report.broken().next().map(|verdict| verdict.law);
    assert_eq!(first, Some(law), "\n{report}");
}

#[test]
fn a_good_sampler_and_a_good_adapter_format_break_no_law() {
    for report in [sampling::check(sampling::Fault::None, false), adapting::check(adapting::Fault::None, false)] {
        assert!(report.passed(), "\n{report}");
    }
}

#[test]
fn good_models_pass_to_the_last_bit() {
    let attending = attending::check(attending::Fault::None, true);
    let (encoding, grouped) =
        (encoding::check(encoding::Fault::None, true), grouped::check(grouped::Fault::None, true));
    for report in [attending, recurrent(recurrent::Fault::None), encoding, grouped] {
        assert!(report.passed(), "\n{report}");
        let inexact = report.verdicts.iter().find(|verdict| matches!(verdict.outcome, Outcome::WithinRounding { .. }));
        assert!(inexact.is_none(), "\n{report}");
    }
}

#[test]
fn a_good_model_is_tried_on_all_that_concerns_it() {
    let untried = |report: &Report| -> Vec<&str> {
        let untried = report.verdicts.iter().filter(|v| matches!(v.outcome, Outcome::NotApplicable { .. }));
        untried.map(|verdict| verdict.law).collect()
    };
    let paged = untried(&attending(attending::Fault::None));
    let adapters = ["adapter-fits", "adapter-scale", "adapter-apart"];
    let media =
        ["media", "media-order", "media-pieces", "media-batched", "media-passed", "media-closed", "media-refuses"];
    let others = ["hidden", "counts", "checkpoints", "window", "sequence-state"];
    assert_eq!(paged, [&others[..], &adapters, &media, &["reference"]].concat());
    let grouped = untried(&grouped::check(grouped::Fault::None, true));
    assert_eq!(grouped, [&["counts", "sequence-state", "adapters"][..], &adapters, &media].concat());
    assert_eq!(untried(&adapting::check(adapting::Fault::None, false)).last(), Some(&"reference"));
    let per_sequence = untried(&recurrent(recurrent::Fault::None));
    let places =
        ["garbage", "shuffled", "hidden", "own-places", "shared-prefix", "drafted", "checkpoints", "window", "reach"];
    assert_eq!(per_sequence, [&places[..], &["kv-transfer", "adapters"], &adapters, &media, &["reference"]].concat());
}

#[test]
fn small_contexts_and_few_blocks_pass() {
    for (context, blocks) in [(64, 8), (40, 6), (17, 3), (5, 2), (64, 1)] {
        let report = conformance(Box::new(Attending::new(attending::Fault::None, context, blocks)));
        assert!(report.passed(), "context {context}, {blocks} blocks\n{report}");
        assert_eq!(report.outcome("chunked"), Some(&Outcome::Exact), "context {context}, {blocks} blocks\n{report}");
    }
    let report = conformance(Box::new(Attending::new(attending::Fault::None, 64, 8)));
    for law in ["batched", "released", "own-places", "shared-prefix", "kv-transfer", "refuses"] {
        assert_eq!(report.outcome(law), Some(&Outcome::Exact), "\n{report}");
    }
}

#[test]
fn a_model_for_one_sequence_at_a_time_passes() {
    let report = conformance(Box::new(Recurrent::new(recurrent::Fault::None, 1)));
    assert!(report.passed(), "\n{report}");
    assert_eq!(report.outcome("chunked"), Some(&Outcome::Exact), "\n{report}");
    assert!(matches!(report.outcome("batched"), Some(Outcome::NotApplicable { .. })), "\n{report}");
}

#[test]
fn a_bigram_passes_and_is_said_not_to_look_back() {
    let report = recurrent(recurrent::Fault::Bigram);
    assert!(report.passed(), "\n{report}");
    assert!(matches!(report.outcome("past"), Some(Outcome::Noted { what }) if what.contains("bigram")), "\n{report}");
}

#[test]
fn an_architecture_without_positions_passes_when_it_says_so() {
    let options = Options { positionless: true, ..Options::default() };
    let model = Attending::new(attending::Fault::PositionsIgnored, 256, 64);
    let report = conformance_with(Box::new(model), &options);
    assert!(report.passed(), "\n{report}");
}

#[test]
fn a_reference_that_does_not_fit_the_model_is_no_pass() {
    let (tokens, logits) = (vec![1; 65], vec![0.0; 65 * VOCABULARY]);
    let options = Options {
        references: vec![Reference { tokens, logits, tolerance: 1.0, ..Reference::default() }],
        ..Options::default()
    };
    for (context, blocks, why) in [(64, 64, "65 tokens, more than the context of 64"), (256, 4, "needs more blocks")] {
        let report = conformance_with(Box::new(Attending::new(attending::Fault::None, context, blocks)), &options);
        assert_first_broken(&report, "reference");
        let Some(Outcome::Broken { what, hint }) = report.outcome("reference") else { panic!("{report}") };
        assert!(what.starts_with("reference 0 was not compared: it ") && what.contains(why), "{what}");
        assert!(hint.contains("shorter text"), "{hint}");
    }
}

#[test]
fn faults_of_models_that_hardly_look_back_are_found() {
    let check = |fault| conformance(Box::new(Attending::faint(fault)));
    assert!(check(attending::Fault::None).passed());
    assert_first_broken(&check(attending::Fault::PositionsFromChunk), "chunked");
    assert_first_broken(&check(attending::Fault::PastOneShort), "chunked");
    assert_first_broken(&check(attending::Fault::ExportsKeysOnly), "kv-transfer");
    let blunt = Options { finest: 0.02, ..Options::default() };
    let unseen = conformance_with(Box::new(Attending::faint(attending::Fault::PositionsFromChunk)), &blunt);
    assert!(unseen.passed(), "the tolerance need not follow the model after all\n{unseen}");
}

#[test]
fn whether_only_distances_count_is_noted() {
    let says = |fault| match attending(fault).outcome("shift") {
        Some(Outcome::Noted { what }) => what.clone(),
        other => panic!("{other:?}"),
    };
    assert!(says(attending::Fault::None).contains("only distances count"));
    assert!(says(attending::Fault::QueryRotatedOtherwise).contains("unless"));
}

#[test]
fn a_broken_law_says_what_was_seen_and_where_to_look() {
    let report = attending(attending::Fault::CacheAtChunkIndex).to_string();
    assert!(report.contains("chunks of 1: the logits at token 1 differ by"), "\n{report}");
    assert!(report.contains("the token's index in the chunk instead of in the sequence"), "\n{report}");
    let report = attending(attending::Fault::Panics).to_string();
    assert!(report.contains("not today"), "\n{report}");
    assert!(report.contains("not tried: law 'repeatable' comes first"), "\n{report}");
}

/// A good model that counts what it is asked, and whose logits are rounded otherwise in batches of other sizes.
struct Coarse {
    inner: Attending,
    noise: f32,
    steps: Arc<AtomicUsize>,
    tokens: Arc<AtomicUsize>,
}

impl Coarse {
    fn new(noise: f32) -> Self {
        let inner = Attending::new(attending::Fault::None, 4096, 256);
        Self { inner, noise, steps: Arc::default(), tokens: Arc::default() }
    }
}

impl Model for Coarse {
    fn resident(&self) -> Resident {
        self.inner.resident()
    }

    fn forward(&mut self, batch: &Batch<'_>, logits: &mut [f32]) -> Result<()> {
        self.steps.fetch_add(1, Relaxed);
        self.tokens.fetch_add(batch.tokens.len(), Relaxed);
        self.inner.forward(batch, logits)?;
        let Some(first) = logits.first_mut() else { return Ok(()) };
        *first += self.noise * (batch.tokens.len() % 3) as f32;
        Ok(())
    }

    fn release(&mut self, sequence: u64) {
        self.inner.release(sequence);
    }
}

#[test]
fn rounding_passes_and_is_reported() {
    let report = conformance(Box::new(Coarse::new(1e-3)));
    assert!(report.passed(), "\n{report}");
    assert!(matches!(report.outcome("chunked"), Some(Outcome::WithinRounding { worst }) if *worst > 0.0), "\n{report}");
    let options = Options { tolerance: 1e-5, finest: 1e-5, ..Options::default() };
    let report = conformance_with(Box::new(Coarse::new(1e-3)), &options);
    assert_first_broken(&report, "chunked");
}

/// Reckoned at 50 tokens of prompt or 8 steps a second: a billion parameters on two cores.
#[test]
fn the_laws_take_about_a_minute_of_a_large_model() {
    let model = Coarse::new(0.0);
    let (steps, tokens) = (Arc::clone(&model.steps), Arc::clone(&model.tokens));
    assert!(conformance(Box::new(model)).passed());
    let (steps, tokens) = (steps.load(Relaxed), tokens.load(Relaxed));
    assert!(steps > 100 && steps / 8 + tokens / 50 < 65, "{steps} steps of {tokens} tokens");
}

/// A model whose blocks are not there.
struct Nowhere;

impl Model for Nowhere {
    fn resident(&self) -> Resident {
        let (device, note, caches) = ("cpu".into(), String::new(), vec![(Cache::Tokens { bytes: 1 }, 0)]);
        let (weight_bytes, state_bytes, vocabulary, hidden, context, block_tokens) = (0, 0, 9, 0, 64, 16);
        Resident { device, note, weight_bytes, state_bytes, vocabulary, hidden, context, block_tokens, caches }
    }

    fn forward(&mut self, _: &Batch<'_>, _: &mut [f32]) -> Result<()> {
        panic!("a model without blocks cannot be asked")
    }

    fn release(&mut self, _: u64) {}
}

#[test]
fn a_model_without_room_is_said_to_be_so() {
    assert_first_broken(&conformance(Box::new(Nowhere)), "resident");
}
