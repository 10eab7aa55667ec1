//! Phi checkpoints against transformers' numbers, with the shipped plugin.

use pensieve_plugin_api::{AdapterData, LowRankPair, Want};

use crate::{
    artifacts::plugin,
    driver::{Driver, Options},
    reference::{Comparison, Reference, distance, fixture},
};

/// Tolerance for rounding activations to 8 bits: about twice the effect in `tests/fixtures/phi/report.txt`.
const ROUNDED: f32 = 0.45;
/// The context up to which LongRoPE uses its short factors in the fixtures.
const ORIGINAL: u32 = 72;

fn exact(fixture: &str, file: &str) {
    Comparison::of(&plugin("pensieve-phi"), fixture, file).check_both();
}

fn within(fixture: &str, file: &str, logits: &str, tolerance: f32) {
    let plugin = plugin("pensieve-phi");
    Comparison { logits, tolerance, ..Comparison::of(&plugin, fixture, file) }.check_both();
}

/// Compares both sides of LongRoPE's switch, which depends on the context that the model is loaded for.
fn both_sides(fixture: &str, file: &str) {
    let plugin = plugin("pensieve-phi");
    let short = || Comparison::of(&plugin, fixture, file);
    Comparison { context: ORIGINAL, ..short() }.check_both();
    Comparison { context: 0, logits: "logits_long", tokens: "tokens_long", ..short() }.check_both();
    Comparison { context: ORIGINAL + 16, logits: "logits_long", tokens: "tokens_long", ..short() }.check_both();
}

#[test]
fn parallel_blocks_biases_and_partial_rotation() {
    exact("phi/phi2", "");
    exact("phi/phi2", "f32.gguf");
    exact("phi/phi1_5", "");
}

#[test]
fn queries_keys_and_values_in_one_tensor_with_one_bias() {
    exact("phi/phi2", "fused.gguf");
}

#[test]
fn quantized_weights() {
    within("phi/phi2", "q8_0.gguf", "logits_q8_0", ROUNDED);
    within("phi/window", "f16.gguf", "logits_f16", crate::reference::EXACT);
    within("phi/window", "q8_0.gguf", "logits_q8_0", ROUNDED);
}

#[test]
fn stacked_projections_and_a_window_shorter_than_the_text() {
    exact("phi/window", "");
    exact("phi/window", "f32.gguf");
}

#[test]
fn longrope_on_both_sides_of_its_switch() {
    both_sides("phi/longrope", "");
    both_sides("phi/longrope", "f32.gguf");
}

#[test]
fn partial_rotation_and_tied_embeddings_with_longrope() {
    both_sides("phi/mini", "");
    both_sides("phi/mini", "f32.gguf");
}

#[test]
fn neither_window_nor_scaling() {
    exact("phi/phi4", "");
    exact("phi/phi4", "f32.gguf");
}

#[test]
fn greedy_generation_is_that_of_transformers() {
    for (name, file) in [
        ("phi2", "fused.gguf"),
        ("phi1_5", ""),
        ("window", "f32.gguf"),
        ("longrope", ""),
        ("mini", "f32.gguf"),
        ("phi4", ""),
    ] {
        let reference = Reference::of(&format!("phi/{name}"));
        let (prompt, expected) = (reference.tokens("tokens"), reference.tokens("greedy"));
        let checkpoint = fixture(&format!("phi/{name}")).join(file);
        let options = Options { context: ORIGINAL, ..Options::default() };
        let mut driver = Driver::load(&plugin("pensieve-phi"), &checkpoint, &options).unwrap();
        assert_eq!(driver.generate(&prompt[..8], expected.len()).unwrap(), expected, "{name}");
    }
}

const RANK: usize = 3;

fn values(len: usize, salt: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7 + salt * 13) as f32 * 0.37).sin() * 0.2).collect()
}

fn pair(target: &str, outputs: usize, a: &[f32], b: &[f32]) -> LowRankPair {
    LowRankPair {
        target: target.into(),
        rank: RANK as u32,
        inputs: (a.len() / RANK) as u32,
        outputs: outputs as u32,
        scale: 0.5,
        a: a.to_vec().into(),
        b: b.to_vec().into(),
    }
}

fn adapted(driver: &mut Driver, pairs: Vec<LowRankPair>, tokens: &[u32]) -> Vec<Vec<f32>> {
    let adapter = AdapterData { base: "".into(), fingerprint: "test".into(), pairs: pairs.into_iter().collect() };
    let id = driver.model.attach(&adapter).into_result().unwrap();
    let mut sequence = driver.begin();
    sequence.adapter = (id, 1.0);
    let logits = driver.feed(&mut sequence, tokens, Want::ALL).unwrap();
    driver.release(sequence);
    logits
}

#[test]
fn an_adapter_names_a_stack_or_its_parts_whichever_the_checkpoint_has() {
    // Two heads of 16: queries, keys and values of 32 rows each, stacked in one of the files and not in the other.
    let attention = "model.layers.1.self_attn";
    let (a, b) = (values(RANK * 32, 1), values(96 * RANK, 2));
    let tokens: Vec<u32> = (0..24).map(|i| i * 11 % 128).collect();
    for file in ["", "fused.gguf"] {
        for kernels in ["auto", "generic"] {
            let options = Options::with_settings(format!(r#"{{"kernels": "{kernels}", "kv": "f32"}}"#));
            let mut driver = Driver::load(&plugin("pensieve-phi"), &fixture("phi/phi2").join(file), &options).unwrap();
            let plain = driver.logits(&tokens).unwrap();
            let stack = vec![pair(&format!("{attention}.qkv_proj"), 96, &a, &b)];
            let parts = ["q_proj", "k_proj", "v_proj"].iter().zip(b.chunks(32 * RANK));
            let parts = parts.map(|(part, b)| pair(&format!("{attention}.{part}"), 32, &a, b)).collect();
            let stack = adapted(&mut driver, stack, &tokens);
            assert!(distance(&stack, &plain) > 0.1, "the adapter must be worth noticing");
            assert_eq!(adapted(&mut driver, parts, &tokens), stack, "{file} ({kernels} kernels)");
            assert_eq!(driver.logits(&tokens).unwrap(), plain, "a sequence without the adapter");
        }
    }
}

#[test]
fn an_adapter_changes_a_part_of_a_stack_once() {
    let mut driver = Driver::load(&plugin("pensieve-phi"), &fixture("phi/window"), &Options::default()).unwrap();
    let attach = |driver: &mut Driver, pairs: Vec<LowRankPair>| {
        let adapter = AdapterData { base: "".into(), fingerprint: "test".into(), pairs: pairs.into_iter().collect() };
        driver.model.attach(&adapter).into_result()
    };
    let stack = pair("model.layers.0.mlp.gate_up_proj", 128, &values(RANK * 32, 1), &values(128 * RANK, 2));
    let part = pair("model.layers.0.mlp.up_proj", 64, &values(RANK * 32, 1), &values(64 * RANK, 2));
    attach(&mut driver, vec![stack.clone()]).unwrap();
    attach(&mut driver, vec![part.clone()]).unwrap();
    let twice = attach(&mut driver, vec![stack, part.clone()]).unwrap_err();
    assert!(twice.message.contains("up_proj': the adapter changes this weight twice"), "{twice}");
    let small = pair("model.layers.0.mlp.gate_up_proj", 64, &values(RANK * 32, 1), &values(64 * RANK, 2));
    let misfit = attach(&mut driver, vec![small]).unwrap_err();
    assert!(misfit.message.contains("the adapter maps 32→64, the model's layer maps 32→128"), "{misfit}");
}
