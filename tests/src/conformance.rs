//! The laws of the contract, on the shipped plugins.

use pensieve_laws::{Outcome, Report, Shape};
use pensieve_plugin_api::CacheGroup;
use std::path::Path;

use crate::{
    artifacts::{plugin, test_plugin},
    checkpoints,
    driver::{Driver, Options},
    reference::fixture,
};

/// Laws that compare a sequence's logits across chunks, batches, blocks and copies.
const COMPARED: [&str; 9] =
    ["repeatable", "garbage", "chunked", "shuffled", "batched", "want", "released", "shared-prefix", "kv-transfer"];

/// Loads a fixture's checkpoint and checks every law on it.
pub fn check(plugin: &Path, checkpoint: &str, kernels: &str) -> Report {
    let settings = format!(r#"{{"kernels": "{kernels}"}}"#);
    run(plugin, &fixture(checkpoint), settings)
}

/// Checks every law on a checkpoint loaded with these settings.
pub fn run(plugin: &Path, checkpoint: &Path, settings: String) -> Report {
    run_with(plugin, checkpoint, &Options::with_settings(settings))
}

/// Checks every law on a checkpoint loaded with these options.
pub fn run_with(plugin: &Path, checkpoint: &Path, options: &Options) -> Report {
    let mut driver = Driver::load(plugin, checkpoint, options).unwrap();
    let shape = Shape::from(&driver.card);
    // As in `pensieve plugins check`: states reveal the order of tokens. The plugin `eyes` counts positions by itself.
    let positionless = shape.caches.iter().any(CacheGroup::has_slots) || plugin == test_plugin("eyes");
    let media = std::mem::take(&mut driver.media);
    let options = pensieve_laws::Options { positionless, media, ..pensieve_laws::Options::default() };
    let report = pensieve_laws::check(&mut driver.model, shape, &options, &mut |_| {});
    println!("{}\n{report}", checkpoint.display());
    assert!(report.passed(), "{}\n{report}", checkpoint.display());
    report
}

#[test]
fn bigram_obeys_the_laws() {
    run(&plugin("bigram"), checkpoints::bigram(61, 512).path(), String::new());
}

#[test]
fn a_model_that_reads_images_obeys_the_laws_to_the_last_bit() {
    for settings in ["{}", r#"{"whole": true}"#] {
        let report = run(&test_plugin("eyes"), Path::new("nowhere"), settings.into());
        for law in
            ["media", "media-order", "media-pieces", "media-batched", "media-passed", "media-closed", "media-refuses"]
        {
            assert_eq!(report.outcome(law), Some(&Outcome::Exact), "{report}");
        }
    }
}

#[test]
fn llama_obeys_the_laws_by_formulas() {
    for checkpoint in ["llama/mha", "llama/gqa/q8_0.gguf", "llama/llama3/f16.gguf", "llama/kquant/mixed.gguf"] {
        check(&plugin("pensieve-llama"), checkpoint, "generic");
    }
}

/// One checkpoint for each way in which the families differ from Llama.
const OTHERS: [(&str, &str); 8] = [
    ("pensieve-llama", "mistral/window/q8_0.gguf"),
    ("pensieve-mistral", "mistral/window"),
    ("pensieve-mistral", "mistral/mixed_windows"),
    ("pensieve-mistral", "mistral/growing/f32.gguf"),
    ("pensieve-phi", "phi/phi2/fused.gguf"),
    ("pensieve-phi", "phi/window/q8_0.gguf"),
    ("pensieve-phi", "phi/longrope"),
    ("pensieve-phi", "phi/mini/f32.gguf"),
];

#[test]
fn mistral_and_phi_obey_the_laws_by_formulas() {
    for (package, checkpoint) in OTHERS {
        check(&plugin(package), checkpoint, "generic");
    }
}

#[test]
fn mistral_and_phi_obey_the_laws_to_the_last_bit_by_our_kernels() {
    if std::env::var("PENSIEVE_KERNELS").is_ok_and(|kernels| kernels == "generic") {
        return println!("skipped: PENSIEVE_KERNELS forces the generic kernels");
    }
    for (package, checkpoint) in OTHERS {
        let report = check(&plugin(package), checkpoint, "auto");
        for law in COMPARED {
            let is_exact = matches!(report.outcome(law), Some(Outcome::Exact));
            assert!(is_exact, "{checkpoint}: '{law}' is not exact\n{report}");
        }
    }
}

#[test]
fn llama_obeys_the_laws_to_the_last_bit_by_our_kernels() {
    if std::env::var("PENSIEVE_KERNELS").is_ok_and(|kernels| kernels == "generic") {
        return println!("skipped: PENSIEVE_KERNELS forces the generic kernels");
    }
    for checkpoint in [
        "llama/mha",
        "llama/bf16",
        "llama/gqa/f32.gguf",
        "llama/gqa/q8_0.gguf",
        "llama/llama3/f16.gguf",
        "llama/kquant/mixed.gguf",
    ] {
        let report = check(&plugin("pensieve-llama"), checkpoint, "auto");
        for law in COMPARED {
            assert!(
                matches!(report.outcome(law), Some(Outcome::Exact)),
                "{checkpoint}: '{law}' is not exact\n{report}"
            );
        }
    }
}
