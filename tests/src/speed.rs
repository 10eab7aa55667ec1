//! The speed of the Llama plugin without an engine: prints figures for a GGUF file of the user's choice.
//!
//! `PENSIEVE_SPEED_MODEL=FILE cargo test -p pensieve-tests speed -- --ignored --nocapture`;
//! `tests/reference/random_model.py` writes files with random weights in realistic sizes. Nothing else may run at the
//! same time.

use pensieve_plugin_api::{AdapterData, Batch, LowRankPair, NO_ADAPTER, Output, Span, Want};
use std::{env, fs, path::PathBuf, time::Instant};

use crate::{
    artifacts::plugin,
    driver::{Driver, Options, Sequence, best, outputs},
};

const PROMPT: usize = 512;
const STEPS: usize = 24;

/// Decodes several sequences in one batch, each under its own adapter; returns their next tokens.
fn decode(driver: &mut Driver, sequences: &mut [Sequence], tokens: &[u32]) -> Vec<u32> {
    let positions: Vec<u32> = sequences.iter().map(|sequence| sequence.past).collect();
    let tables: Vec<_> = sequences.iter().map(|sequence| driver.tables(sequence)).collect();
    let spans: Vec<Span<'_>> = (sequences.iter().enumerate())
        .map(|(at, sequence)| Span {
            sequence: sequence.id,
            start: at as u32,
            len: 1,
            past: sequence.past,
            want: Want::LAST,
            output: Output::LOGITS,
            mask: [][..].into(),
            adapter: sequence.adapter.0,
            adapter_scale: sequence.adapter.1,
            caches: tables[at].as_slice().into(),
        })
        .collect();
    let batch =
        Batch { tokens: tokens.into(), positions: positions.as_slice().into(), spans: spans.as_slice().into(), top: 0 };
    let width = driver.card.vocabulary as usize;
    let mut logits = vec![0.0; tokens.len() * width];
    driver.model.forward(&batch, &mut outputs(&mut logits)).into_result().unwrap();
    sequences.iter_mut().for_each(|sequence| sequence.past += 1);
    logits.chunks_exact(width).map(best).collect()
}

/// Resident memory of this process in bytes, including mapped pages of the file.
fn resident_bytes() -> Option<u64> {
    Some(crate::processes::memory(std::process::id())?.resident)
}

/// Tokens per second with one stream per adapter.
fn decode_rate(driver: &mut Driver, prompt: &[u32], adapters: &[u32]) -> f64 {
    let mut sequences: Vec<Sequence> = adapters.iter().map(|_| driver.begin()).collect();
    for (sequence, adapter) in sequences.iter_mut().zip(adapters) {
        sequence.adapter = (*adapter, 1.0);
        // Blocks for the whole run, and a past of some length.
        driver.feed(sequence, &prompt[..64 + STEPS], Want::NONE).unwrap();
        sequence.past = 64;
    }
    let mut tokens = vec![17; sequences.len()];
    let start = Instant::now();
    for _ in 0..STEPS {
        tokens = decode(driver, &mut sequences, &tokens);
    }
    let rate = (STEPS * sequences.len()) as f64 / start.elapsed().as_secs_f64();
    sequences.into_iter().for_each(|sequence| driver.release(sequence));
    rate
}

/// An adapter for every linear layer of the Llama that `random_model.py` writes.
fn adapter(rank: u32, salt: usize) -> AdapterData {
    const LAYERS: usize = 16;
    const LINEARS: [(&str, u32, u32); 7] = [
        ("self_attn.q_proj", 2048, 2048),
        ("self_attn.k_proj", 2048, 512),
        ("self_attn.v_proj", 2048, 512),
        ("self_attn.o_proj", 2048, 2048),
        ("mlp.gate_proj", 2048, 8192),
        ("mlp.up_proj", 2048, 8192),
        ("mlp.down_proj", 8192, 2048),
    ];
    let values = |len: u32| (0..rank * len).map(|i| ((i as usize * 7 + salt) as f32 * 0.37).sin() * 0.02);
    let layer = |layer: usize| {
        LINEARS.iter().map(move |(name, inputs, outputs)| LowRankPair {
            target: format!("model.layers.{layer}.{name}").into(),
            rank,
            inputs: *inputs,
            outputs: *outputs,
            scale: 1.0,
            a: values(*inputs).collect(),
            b: values(*outputs).collect(),
        })
    };
    AdapterData { base: "".into(), fingerprint: "".into(), pairs: (0..LAYERS).flat_map(layer).collect() }
}

#[test]
#[ignore = "measures, for as long as it takes; needs PENSIEVE_SPEED_MODEL"]
fn speed_of_eight_adapters() {
    const ROUNDS: usize = 7;
    const WANTED: f64 = 0.7;
    let model = PathBuf::from(env::var_os("PENSIEVE_SPEED_MODEL").expect("PENSIEVE_SPEED_MODEL names a .gguf file"));
    let options = Options { context: 4096, state_bytes: 1 << 30, ..Options::default() };
    let mut driver = Driver::load(&plugin("pensieve-llama"), &model, &options).unwrap();
    let before = driver.model.resident().weight_bytes;
    let adapters: Vec<u32> =
        (0..8).map(|salt| driver.model.attach(&adapter(16, salt)).into_result().unwrap()).collect();
    let bytes = driver.model.resident().weight_bytes - before;
    println!("{}; 8 adapters of rank 16 on all linears: {} MiB", driver.resident.note, bytes >> 20);
    let prompt: Vec<u32> = (0..PROMPT as u32).map(|i| 300 + i * 37 % 20_000).collect();
    let mut shares = Vec::new();
    for round in 0..ROUNDS {
        // One right after the other, so that both run under the same conditions.
        let plain = decode_rate(&mut driver, &prompt, &[NO_ADAPTER; 8]);
        let adapted = decode_rate(&mut driver, &prompt, &adapters);
        println!("round {round}: 8 streams: {plain:.1} tokens/s, each under its adapter: {adapted:.1}");
        shares.push(adapted / plain);
    }
    shares.sort_by(f64::total_cmp);
    println!("with adapters, {:.0} % of the speed without (median)", shares[ROUNDS / 2] * 100.0);
    assert!(shares[ROUNDS / 2] >= WANTED, "{shares:?}");
}

#[test]
#[ignore = "measures, for as long as it takes; needs PENSIEVE_SPEED_MODEL"]
fn speed_of_a_model() {
    let model = PathBuf::from(env::var_os("PENSIEVE_SPEED_MODEL").expect("PENSIEVE_SPEED_MODEL names a .gguf file"));
    let plugin = plugin("pensieve-llama");
    let start = Instant::now();
    let options = Options { context: 4096, state_bytes: 1 << 30, ..Options::default() };
    let mut driver = Driver::load(&plugin, &model, &options).unwrap();
    println!("{}: {}; loaded in {:.2} s", model.display(), driver.resident.note, start.elapsed().as_secs_f64());
    let prompt: Vec<u32> = (0..PROMPT as u32).map(|i| 300 + i * 37 % 20_000).collect();
    for round in 0..3 {
        let mut sequence = driver.begin();
        let start = Instant::now();
        driver.feed(&mut sequence, &prompt, Want::LAST).unwrap();
        println!("round {round}: prompt of {PROMPT}: {:.1} tokens/s", PROMPT as f64 / start.elapsed().as_secs_f64());
        driver.release(sequence);
        for streams in [1, 8, 20] {
            let rate = decode_rate(&mut driver, &prompt, &vec![NO_ADAPTER; streams]);
            println!("round {round}: {streams} streams: {rate:.1} tokens/s");
        }
    }
    if let Some(bytes) = resident_bytes() {
        println!("resident: {} MiB, the file has {} MiB", bytes >> 20, fs::metadata(&model).unwrap().len() >> 20);
    }
}
