//! Prints mask timings: `cargo test -p pensieve-grammar mask_times -- --ignored --nocapture`.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::json;

use super::fixture::*;
use crate::{Compiler, is_allowed};
use pensieve_protocol::{grammar::Grammar, vocabulary::Vocabulary};

fn synthetic(size: u32) -> Arc<Vocabulary> {
    let mut random = fastrand::Rng::with_seed(1);
    let letters = b"eeeettttaaooiinnsshhrrdlucmfwypvbgkjqxz    ETAOINSHR0123456789.,:;{}[]()\"'\\<>/_-";
    let mut vocab: Vec<(String, f32)> = (1..128u8).map(|byte| (char::from(byte).to_string(), 0.0)).collect();
    while vocab.len() < size as usize {
        let length = random.usize(2..9);
        vocab.push(((0..length).map(|_| char::from(*random.choice(letters).unwrap())).collect(), 0.0));
    }
    let document = json!({ "decoder": { "type": "Metaspace" }, "model": { "vocab": vocab },
        "added_tokens": [{ "id": 0, "content": "<|end|>", "special": true }] });
    Arc::new(Vocabulary::new(&document.to_string(), size, &[0]).unwrap())
}

#[test]
#[ignore = "prints figures"]
fn mask_times() {
    for size in [32_000, 128_000] {
        let began = Instant::now();
        let vocabulary = synthetic(size);
        let read = began.elapsed();
        let compiler = Compiler::new(vocabulary.clone(), Duration::from_secs(2));
        let began = Instant::now();
        compiler.prepare().unwrap();
        println!("{size} tokens: read in {read:?}, prepared in {:?}", began.elapsed());
        let tool = json!({ "type": "object", "required": ["command"], "additionalProperties": false, "properties": {
            "command": { "type": "string" }, "timeout": { "type": "integer" }, "mode": { "enum": ["a", "b"] } } });
        let grammars = [
            ("tool arguments", schema(&tool)),
            ("any object", Grammar::any_json_object()),
            ("regex", Grammar::Regex("[A-Z][a-z]+( [a-z]+)*\\.".to_owned())),
        ];
        for (name, grammar) in grammars {
            let began = Instant::now();
            let constraint = compiler.compile(&from_start(grammar)).unwrap();
            let compiled = began.elapsed();
            let mut times = Vec::new();
            let mut random = fastrand::Rng::with_seed(2);
            for _ in 0..20 {
                let mut constraint = constraint.clone();
                for _ in 0..40 {
                    let began = Instant::now();
                    let mask = constraint.mask().unwrap().unwrap();
                    times.push(began.elapsed());
                    let allowed: Vec<u32> = (0..vocabulary.size()).filter(|token| is_allowed(mask, *token)).collect();
                    constraint.accept(*random.choice(&allowed).unwrap()).unwrap();
                    if constraint.is_complete() {
                        break;
                    }
                }
            }
            times.sort_unstable();
            let at = |part: usize| times[(times.len() - 1) * part / 100];
            println!(
                "  {name}: compiled in {compiled:?}, mask median {:?}, p99 {:?}, most {:?}",
                at(50),
                at(99),
                at(100)
            );
        }
    }
}
