//! The example of a third-party plugin, built in its own workspace: Qwen2 against transformers' numbers.

use std::path::PathBuf;

use crate::{
    artifacts::outside_plugin,
    conformance,
    driver::{Driver, Options},
    reference::{Comparison, Reference, fixture},
};

/// Tolerance for rounding activations to 8 bits: about twice the effect in `tests/fixtures/qwen2/report.txt`.
const ROUNDED: f32 = 0.2;

fn qwen2() -> PathBuf {
    outside_plugin("qwen2-plugin")
}

#[test]
fn biases_on_queries_keys_and_values() {
    let plugin = qwen2();
    for file in ["", "f32.gguf"] {
        Comparison::of(&plugin, "qwen2/biases", file).check_both();
    }
    let quantized = Comparison::of(&plugin, "qwen2/biases", "q8_0.gguf");
    Comparison { logits: "logits_q8_0", tolerance: ROUNDED, ..quantized }.check_both();
}

#[test]
fn tied_embeddings() {
    for file in ["", "f32.gguf"] {
        Comparison::of(&qwen2(), "qwen2/tied", file).check_both();
    }
}

#[test]
fn windows_in_the_upper_layers() {
    Comparison::of(&qwen2(), "qwen2/windows", "").check_both();
}

#[test]
fn greedy_generation_is_that_of_transformers() {
    for name in ["biases", "tied", "windows"] {
        let reference = Reference::of(&format!("qwen2/{name}"));
        let (prompt, expected) = (reference.tokens("tokens"), reference.tokens("greedy"));
        let checkpoint = fixture(&format!("qwen2/{name}"));
        let mut driver = Driver::load(&qwen2(), &checkpoint, &Options::default()).unwrap();
        assert_eq!(driver.generate(&prompt[..8], expected.len()).unwrap(), expected, "{name}");
    }
}

#[test]
fn obeys_the_laws() {
    for kernels in ["auto", "generic"] {
        conformance::check(&qwen2(), "qwen2/windows", kernels);
        conformance::check(&qwen2(), "qwen2/biases/q8_0.gguf", kernels);
    }
}
