//! Times of attention by shape: prompts after pasts of several lengths, decodes, and 20 streams that decode together.

use serde_json::{Value, json};

use super::{
    Bench, figure,
    layer::Layer,
    timing::{Timed, time},
};
use crate::{
    Result,
    nn::backend::cases::{Activations, CASES, Case, Part},
};

/// Steps as streams, past and new tokens of each: Llama-3.1-8B's and Mistral-7B's 32 heads over 8.
const STEPS: [Step; 9] = [
    (1, 0, 512),
    (1, 4_096, 512),
    (1, 17_920, 128),
    (1, 512, 1),
    (1, 4_096, 1),
    (1, 18_000, 1),
    (8, 1_024, 1),
    (20, 1_024, 1),
    (20, 4_096, 1),
];
const QUICK_STEPS: [Step; 3] = [(1, 0, 32), (1, 256, 1), (20, 64, 1)];

type Step = (usize, usize, usize);

pub(super) fn measure(bench: &Bench<'_>) -> Result<Value> {
    let backend = bench.backend();
    let large = Case { heads: 32, kv_heads: 8, head_dim: 128, rotated: 128, ..CASES[0] };
    let (case, steps) = if bench.quick { (CASES[0], &QUICK_STEPS[..]) } else { (large, &STEPS[..]) };
    let mut rows = Vec::new();
    for (done, &(streams, past, new)) in steps.iter().enumerate() {
        let name = format!("{streams} × {new} tokens after {past}");
        bench.progress(done, steps.len(), &name);
        let timed = (|| -> Result<Timed> {
            let parts: Vec<Part> = vec![(past, new); streams];
            let mut layer = Layer::new(&*backend, case, &vec![past + new; streams])?;
            let x = Activations::of(case, streams * new, &bench.device)?;
            time(&*backend, bench.quick, |times| layer.step(&parts, &x, times).map(drop))
        })();
        let mut row = json!({ "streams": streams, "past": past, "new": new });
        match timed {
            Ok(Timed { ms, repeats, allocated_bytes }) => {
                // Scores and sums of values: two products of each query with each key that it sees.
                let seen = (past as f64 + (new as f64 + 1.0) / 2.0) * new as f64 * streams as f64;
                let multiply_adds = 2.0 * seen * (case.heads * case.head_dim) as f64;
                let kv_bytes = 2.0 * ((past + new) * streams * case.kv_heads * case.kv.row_bytes(case.head_dim)) as f64;
                row["ms"] = figure(ms);
                row["repeats"] = json!(repeats);
                row["allocated_bytes"] = json!(allocated_bytes);
                row["multiply_adds_per_s"] = figure(multiply_adds / ms * 1e3);
                row["cache_bytes_per_s"] = figure(kv_bytes / ms * 1e3);
            }
            Err(error) => row["error"] = json!(error.message),
        }
        rows.push(row);
    }
    let Case { heads, kv_heads, head_dim, .. } = case;
    let shape = json!({ "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "cache": "f16" });
    Ok(json!({ "device": bench.name, "kernels": backend.note(), "layer": shape, "steps": rows }))
}
