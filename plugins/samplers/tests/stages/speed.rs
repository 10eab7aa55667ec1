//! What the stages cost on a vocabulary of 128k; prints, and asserts nothing, as machines differ:
//! `cargo test --release -p pensieve-samplers -- --ignored --nocapture`.

use std::time::Instant;

use pensieve_sdk::sampler::{Candidates, History};

use crate::chain::{Noise, stage};

const VOCABULARY: usize = 128_256;

/// The best of many runs of a chain in ms, without the time to copy the logits.
fn measure(stages: &[(&str, &str)], original: &[f32], history: History<'_>) -> f64 {
    let mut stages: Vec<_> = stages.iter().map(|(name, text)| stage(name, text, VOCABULARY, 1).unwrap()).collect();
    let (mut ids, mut logits) = (vec![0; VOCABULARY], vec![0.0; VOCABULARY]);
    let mut best = f64::INFINITY;
    for _ in 0..200 {
        ids.iter_mut().zip(0..).for_each(|(slot, id)| *slot = id);
        logits.copy_from_slice(original);
        let mut candidates = Candidates::new(&mut ids, &mut logits, false).unwrap();
        let start = Instant::now();
        for stage in &mut stages {
            stage.sample(&mut candidates, history).unwrap();
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e3);
    }
    best
}

#[test]
#[ignore = "prints times instead of checking anything"]
fn prints_milliseconds_on_a_vocabulary_of_128k() {
    let mut noise = Noise::new(1);
    // Like a model's: a bulk far below a head of a few hundred.
    let mut peaked = noise.logits(VOCABULARY, 2.0);
    (0..300).for_each(|place| peaked[place * 401] = 18.0 - (place as f32 + 1.0).ln() * 2.0);
    let wide = noise.logits(VOCABULARY, 3.0);
    let flat = noise.logits(VOCABULARY, 0.3);
    let tokens: Vec<u32> = (0..8192).map(|_| noise.below(VOCABULARY as u32)).collect();
    let same = vec![7; 8192];
    let chains: &[&[(&str, &str)]] = &[
        &[("top_k", "")],
        &[("top_k", r#"{"k": 1000}"#)],
        &[("top_p", "")],
        &[("top_k", ""), ("top_p", "")],
        &[("top_p", ""), ("top_k", "")],
        &[("min_p", "")],
        &[("typical", "")],
        &[("temperature", r#"{"temperature": 0.7}"#)],
        &[("temperature", r#"{"temperature": 0}"#)],
        &[("xtc", r#"{"probability": 1, "threshold": 0.01}"#)],
        &[("greedy", "")],
        &[("seeded", "")],
        &[("mirostat", "")],
        &[("penalties", r#"{"repetition": 1.1, "presence": 0.5}"#)],
        &[("dry", "")],
        &[
            ("penalties", r#"{"repetition": 1.1}"#),
            ("dry", ""),
            ("top_k", ""),
            ("top_p", ""),
            ("temperature", ""),
            ("seeded", ""),
        ],
    ];
    println!(
        "{:>9} {:>9} {:>9} {:>9}  (ms; 8k of history, in the last column one token)",
        "peaked", "wide", "flat", "repeated"
    );
    for stages in chains {
        let various = History { tokens: &tokens, prompt: 100 };
        let times =
            [(&peaked, various), (&wide, various), (&flat, various), (&peaked, History { tokens: &same, prompt: 100 })]
                .map(|(logits, history)| format!("{:>9.3}", measure(stages, logits, history)));
        let names: Vec<String> = stages.iter().map(|(name, text)| format!("{name}{text}")).collect();
        println!("{}  {}", times.join(" "), names.join(" + "));
    }
}
