//! Llama checkpoints against transformers' numbers, with the shipped plugin.

use crate::{
    artifacts::plugin,
    driver::{Driver, Options},
    reference::{Comparison, EXACT, Reference, fixture},
};

/// Tolerance for rounding activations to 8 bits: about twice the effect in `tests/fixtures/llama/report.txt`.
const ROUNDED: f32 = 0.4;

fn compare(fixture: &str, file: &str, logits: &str, tolerance: f32) {
    let plugin = plugin("pensieve-llama");
    Comparison { logits, tolerance, ..Comparison::of(&plugin, fixture, file) }.check_both();
}

macro_rules! references {
    ($($test:ident: $fixture:literal $file:literal => $logits:literal within $tolerance:expr;)*) => {
        $(#[test] fn $test() { compare($fixture, $file, $logits, $tolerance); })*
    };
}

references! {
    multi_head_folder: "llama/mha" "" => "logits" within EXACT;
    multi_head_gguf: "llama/mha" "f32.gguf" => "logits" within EXACT;
    multi_head_gguf_f16: "llama/mha" "f16.gguf" => "logits_f16" within EXACT;
    multi_head_gguf_q8_0: "llama/mha" "q8_0.gguf" => "logits_q8_0" within ROUNDED;
    grouped_heads_folder: "llama/gqa" "" => "logits" within EXACT;
    grouped_heads_gguf: "llama/gqa" "f32.gguf" => "logits" within EXACT;
    grouped_heads_gguf_f16: "llama/gqa" "f16.gguf" => "logits_f16" within EXACT;
    grouped_heads_gguf_q8_0: "llama/gqa" "q8_0.gguf" => "logits_q8_0" within ROUNDED;
    tied_embeddings_folder: "llama/tied" "" => "logits" within EXACT;
    tied_embeddings_gguf: "llama/tied" "f32.gguf" => "logits" within EXACT;
    tied_embeddings_gguf_f16: "llama/tied" "f16.gguf" => "logits_f16" within EXACT;
    tied_embeddings_gguf_q8_0: "llama/tied" "q8_0.gguf" => "logits_q8_0" within ROUNDED;
    llama3_scaling_folder: "llama/llama3" "" => "logits" within EXACT;
    llama3_scaling_gguf: "llama/llama3" "f32.gguf" => "logits" within EXACT;
    llama3_scaling_gguf_f16: "llama/llama3" "f16.gguf" => "logits_f16" within EXACT;
    llama3_scaling_gguf_q8_0: "llama/llama3" "q8_0.gguf" => "logits_q8_0" within ROUNDED;
    odd_vocabulary_folder: "llama/odd_vocab" "" => "logits" within EXACT;
    odd_vocabulary_gguf: "llama/odd_vocab" "f32.gguf" => "logits" within EXACT;
    odd_vocabulary_gguf_f16: "llama/odd_vocab" "f16.gguf" => "logits_f16" within EXACT;
    odd_vocabulary_gguf_q8_0: "llama/odd_vocab" "q8_0.gguf" => "logits_q8_0" within ROUNDED;
    wide_heads_folder: "llama/head_dim" "" => "logits" within EXACT;
    wide_heads_gguf: "llama/head_dim" "f32.gguf" => "logits" within EXACT;
    wide_heads_gguf_f16: "llama/head_dim" "f16.gguf" => "logits_f16" within EXACT;
    wide_heads_gguf_q8_0: "llama/head_dim" "q8_0.gguf" => "logits_q8_0" within ROUNDED;
    biases_folder: "llama/biases" "" => "logits" within EXACT;
    biases_gguf: "llama/biases" "f32.gguf" => "logits" within EXACT;
    linear_scaling_folder: "llama/linear" "" => "logits" within EXACT;
    linear_scaling_gguf: "llama/linear" "f32.gguf" => "logits" within EXACT;
    yarn_scaling_folder: "llama/yarn" "" => "logits" within EXACT;
    yarn_scaling_gguf: "llama/yarn" "f32.gguf" => "logits" within EXACT;
    sharded_folder: "llama/sharded" "" => "logits" within EXACT;
    bf16_folder: "llama/bf16" "" => "logits" within EXACT;
    f16_folder: "llama/f16" "" => "logits" within EXACT;
    every_block_format: "llama/kquant" "mixed.gguf" => "logits" within ROUNDED;
    formats_with_tables: "llama/iquant" "mixed.gguf" => "logits" within ROUNDED;
    ternary_formats: "llama/ternary" "mixed.gguf" => "logits" within ROUNDED;
}

#[test]
fn greedy_generation_is_that_of_transformers() {
    for name in ["mha", "gqa", "tied", "llama3", "odd_vocab", "head_dim", "biases", "yarn"] {
        let reference = Reference::of(&format!("llama/{name}"));
        let (prompt, expected) = (reference.tokens("tokens"), reference.tokens("greedy"));
        for file in ["", "f32.gguf"] {
            let checkpoint = fixture(&format!("llama/{name}")).join(file);
            let mut driver = Driver::load(&plugin("pensieve-llama"), &checkpoint, &Options::default()).unwrap();
            assert_eq!(driver.generate(&prompt[..8], expected.len()).unwrap(), expected, "{name} {file}");
        }
    }
}

#[test]
fn the_card_says_what_a_host_needs() {
    let mut driver =
        Driver::load(&plugin("pensieve-llama"), &fixture("llama/gqa/f32.gguf"), &Options::default()).unwrap();
    let card = driver.card.clone();
    assert_eq!((card.vocabulary, card.context, card.block_tokens), (264, 256, 16));
    assert_eq!(card.eos.as_slice(), &[1, 2]);
    assert_eq!(card.caches[0].bytes, 2 * 2 * 2 * 8 * 16 * 4, "K and V, layers, heads, width, tokens, f32");
    assert!(card.tokenizer.contains("\"model\""));
    assert_eq!(driver.resident.device.as_str(), "cpu");
    assert!(driver.generate(&[5], 1).is_ok());
}
