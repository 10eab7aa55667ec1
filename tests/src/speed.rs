//! How fast the Llama plugin computes, without an engine around it: prints figures for a GGUF file of the user's choice.
//!
//! `PENSIEVE_SPEED_MODEL=FILE cargo test -p pensieve-tests speed -- --ignored --nocapture`; a file of random weights in a real
//! size comes from `tests/reference/random_model.py`. Nothing else may run beside it.

use pensieve_plugin_api::{Batch, NO_ADAPTER, Span, Want};
use std::{env, fs, path::PathBuf, time::Instant};

use crate::{
    artifacts::plugin,
    driver::{Driver, Options, Sequence, best},
};

const PROMPT: usize = 512;
const STEPS: usize = 24;

/// One decode of several sequences in one batch; answers their next tokens.
fn decode(driver: &mut Driver, sequences: &mut [Sequence], tokens: &[u32]) -> Vec<u32> {
    let positions: Vec<u32> = sequences.iter().map(|sequence| sequence.past).collect();
    let spans: Vec<Span<'_>> = (sequences.iter().enumerate())
        .map(|(at, sequence)| Span {
            sequence: sequence.id,
            start: at as u32,
            len: 1,
            past: sequence.past,
            want: Want::LAST,
            adapter: NO_ADAPTER,
            adapter_scale: 1.0,
            blocks: sequence.blocks.as_slice().into(),
        })
        .collect();
    let batch = Batch { tokens: tokens.into(), positions: positions.as_slice().into(), spans: spans.as_slice().into() };
    let width = driver.card.vocabulary as usize;
    let mut logits = vec![0.0; tokens.len() * width];
    driver.model.forward(&batch, logits.as_mut_slice().into()).into_result().unwrap();
    sequences.iter_mut().for_each(|sequence| sequence.past += 1);
    logits.chunks_exact(width).map(best).collect()
}

/// Bytes of this process that are in memory, of which some are the file's pages.
fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
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
            let mut sequences: Vec<Sequence> = (0..streams).map(|_| driver.begin()).collect();
            for sequence in &mut sequences {
                // Blocks for the whole run, and a past of some length.
                driver.feed(sequence, &prompt[..64 + STEPS], Want::NONE).unwrap();
                sequence.past = 64;
            }
            let mut tokens = vec![17; streams];
            let start = Instant::now();
            for _ in 0..STEPS {
                tokens = decode(&mut driver, &mut sequences, &tokens);
            }
            let rate = (STEPS * streams) as f64 / start.elapsed().as_secs_f64();
            println!("round {round}: {streams} streams: {rate:.1} tokens/s");
            sequences.into_iter().for_each(|sequence| driver.release(sequence));
        }
    }
    if let Some(bytes) = resident_bytes() {
        println!("resident: {} MiB, the file has {} MiB", bytes >> 20, fs::metadata(&model).unwrap().len() >> 20);
    }
}
