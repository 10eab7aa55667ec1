//! The kernels of a model's device against the formulas on the CPU, in the shapes of all families.

use candle_core::{Device, Tensor};
use pensieve_kernels::Activation;
use serde_json::{Value, json};

use super::{Bench, difference, figure, layer::Layer, layers};
use crate::{
    Result,
    nn::{
        backend::{
            Backend, Formulas,
            cases::{Activations, CASES, Case, PACKED, Part, wave},
        },
        memory::store::StoreShape,
        spec::{BLOCK_TOKENS, KvType},
    },
};

/// Sequences of the first step, which fills caches, and of the second: a decode, a chunk of a prompt after a past, and a whole prompt.
const FIRST: [Part; 3] = [(0, 137), (0, 20), (0, 0)];
const SECOND: [Part; 3] = [(137, 1), (20, 9), (0, 70)];

/// A prompt, a second one behind its first blocks, and a decode of each, which share these blocks.
const SHARING: [&[Part]; 3] =
    [&[(0, 300), (0, 0)], &[(300, 0), (SHARED_BLOCKS * BLOCK_TOKENS, 18)], &[(300, 1), (290, 1)]];
const SHARED_BLOCKS: usize = 17;

/// The steps of a case, of which there is a row each.
const STEPS: [&str; 3] = ["prompts", "a decode, a chunk and a prompt", "two decodes that share a prefix"];

/// The steps of a case with packed keys and values, and whether the row is about these or about attention.
const PACKED_STEPS: [(&str, bool); 4] = [
    ("rows of prompts", true),
    ("prompts", false),
    ("rows of a decode, a chunk and a prompt", true),
    ("a decode, a chunk and a prompt", false),
];

/// The difference that attention may have, where keys and values are rounded to f16 or packed, and where they are not.
const TOLERANCES: [f32; 2] = [5e-3, 2e-3];
const NORM_TOLERANCE: f32 = 1e-4;

pub(super) fn measure(bench: &Bench<'_>) -> Result<Value> {
    let backend = bench.backend();
    let cases = cases(&*backend, |done, total, what| bench.progress(done, total, what));
    Ok(json!({ "device": bench.name, "kernels": backend.note(), "cases": cases }))
}

/// Every case, with its largest error or the reason why it was not computed.
pub(super) fn cases(backend: &dyn Backend, progress: impl Fn(usize, usize, &str)) -> Vec<Value> {
    let formulas = Formulas::plain(Device::Cpu);
    let ops = layers::ops();
    // Not every backend has packed rows.
    let one_row = |case: &Case| StoreShape { kv_heads: 1, slots: 1, head_dim: case.head_dim, kind: case.kv };
    let packed: Vec<Case> = PACKED.into_iter().filter(|case| backend.store(one_row(case)).is_ok()).collect();
    let total = CASES.len() + packed.len() + NORMS.len() + ACTIVATIONS.len() + ops.len();
    let mut rows = Vec::new();
    for (at, case) in CASES.into_iter().enumerate() {
        progress(at, total, case.name);
        let tolerance = TOLERANCES[usize::from(case.kv == KvType::F32)];
        let computed = both_steps(backend, &formulas, case)
            .and_then(|[first, second]| Ok([first, second, shared_prefix(backend, &formulas, case)?]));
        match computed {
            Ok(steps) => {
                let named = STEPS.into_iter().zip(steps);
                let row = |(step, result)| row(&format!("attention: {}, {step}", case.name), Ok(result), tolerance);
                rows.extend(named.map(row));
            }
            Err(error) => rows.push(row(&format!("attention: {}", case.name), Err(error), tolerance)),
        }
    }
    for (at, case) in packed.iter().enumerate() {
        progress(CASES.len() + at, total, case.name);
        let tolerance = |is_stored| if is_stored { case.packed_step() } else { TOLERANCES[0] };
        let row =
            |(step, is_stored), result| row(&format!("attention: {}, {step}", case.name), result, tolerance(is_stored));
        match both_packed(backend, &formulas, *case) {
            Ok(results) => {
                rows.extend(PACKED_STEPS.into_iter().zip(results).map(|(step, result)| row(step, Ok(result))));
            }
            Err(error) => rows.push(row(PACKED_STEPS[0], Err(error))),
        }
    }
    let attentions = CASES.len() + packed.len();
    for (at, (tokens, width)) in NORMS.into_iter().enumerate() {
        progress(attentions + at, total, "norms");
        let result = rms_norm(backend, tokens, width).and_then(|ours| {
            backend.finish()?;
            difference(&ours, &rms_norm(&formulas, tokens, width)?)
        });
        rows.push(row(&format!("rms_norm, {tokens} × {width}"), result, NORM_TOLERANCE));
    }
    for (at, (name, kind)) in ACTIVATIONS.into_iter().enumerate() {
        progress(attentions + NORMS.len() + at, total, "activations");
        let gated = |backend: &dyn Backend| -> Result<Tensor> {
            let (gate, up) = (wave(3, 1000, backend.device())?, wave(3, 1000, backend.device())?);
            backend.gate(&gate, &up, kind)
        };
        let result = gated(backend).and_then(|ours| {
            backend.finish()?;
            difference(&ours, &gated(&formulas)?)
        });
        rows.push(row(&format!("gate: {name}"), result, NORM_TOLERANCE));
    }
    for (at, op) in ops.iter().enumerate() {
        progress(total - ops.len() + at, total, &op.name);
        let compared = op.both(backend).and_then(|both| both.map(|[a, b]| difference(&a, &b)).transpose());
        let Some(result) = compared.transpose() else { continue };
        let size = result.as_ref().map_or(1.0, |[_, size]| size.max(1.0));
        rows.push(row(&op.name, result, op.tolerance * size));
    }
    rows
}

const NORMS: [(usize, usize); 4] = [(1, 64), (3, 2048), (2, 300), (5, 4096)];

const ACTIVATIONS: [(&str, Activation); 4] = [
    ("silu", Activation::Silu),
    ("gelu_erf", Activation::GeluErf),
    ("gelu_tanh", Activation::GeluTanh),
    ("sigmoid", Activation::Sigmoid),
];

fn rms_norm(backend: &dyn Backend, rows: usize, width: usize) -> Result<Tensor> {
    let weight = wave(1, width, backend.device())?.squeeze(0)?;
    backend.rms_norm(&wave(rows, width, backend.device())?, &weight, 1e-5)
}

/// Differences of two steps over one cache, and the largest values.
fn both_steps(backend: &dyn Backend, formulas: &Formulas, case: Case) -> Result<[[f32; 2]; 2]> {
    let lengths =
        FIRST.iter().zip(&SECOND).map(|((_, first), (past, len))| (past + len).max(*first)).collect::<Vec<_>>();
    let mut ours = Layer::new(backend, case, &lengths)?;
    let mut reference = Layer::new(formulas, case, &lengths)?;
    let mut step = |parts: &[Part]| -> Result<[f32; 2]> {
        let tokens = parts.iter().map(|(_, len)| len).sum();
        let attended = ours.step(parts, &Activations::of(case, tokens, backend.device())?, 1)?;
        backend.finish()?;
        difference(&attended, &reference.step(parts, &Activations::of(case, tokens, &Device::Cpu)?, 1)?)
    };
    Ok([step(&FIRST)?, step(&SECOND)?])
}

/// Differences of two steps over packed keys and values: of the rows that each has written, and of attention over ours. That
/// of the formulas over theirs would differ where a value was rounded the other way.
fn both_packed(backend: &dyn Backend, formulas: &Formulas, case: Case) -> Result<[[f32; 2]; 4]> {
    let lengths =
        FIRST.iter().zip(&SECOND).map(|((_, first), (past, len))| (past + len).max(*first)).collect::<Vec<_>>();
    let mut ours = Layer::new(backend, case, &lengths)?;
    let mut reference = Layer::new(formulas, case, &lengths)?;
    let mut step = |parts: &[Part]| -> Result<[[f32; 2]; 2]> {
        let tokens = parts.iter().map(|(_, len)| len).sum();
        let attended = ours.step(parts, &Activations::of(case, tokens, backend.device())?, 1)?;
        backend.finish()?;
        let x = Activations::of(case, tokens, &Device::Cpu)?;
        reference.step(parts, &x, 1)?;
        let rows = |layer: &mut Layer<'_>| -> Result<Tensor> {
            let rows = [(0, 0), (1, 0), (0, 1), (1, 1)].map(|(part, span)| layer.cached(parts, part, span));
            let flat = rows.into_iter().map(|rows| Ok(rows?.to_device(&Device::Cpu)?.flatten_all()?));
            Ok(Tensor::cat(&flat.collect::<Result<Vec<_>>>()?, 0)?)
        };
        let stored = difference(&rows(&mut ours)?, &rows(&mut reference)?)?;
        Ok([stored, difference(&attended, &reference.step_over(&ours, parts, &x)?)?])
    };
    let ([first_rows, first], [second_rows, second]) = (step(&FIRST)?, step(&SECOND)?);
    Ok([first_rows, first, second_rows, second])
}

/// The difference of the last step of [`SHARING`], and its largest value.
fn shared_prefix(backend: &dyn Backend, formulas: &Formulas, case: Case) -> Result<[f32; 2]> {
    let compute = |backend: &dyn Backend| -> Result<Tensor> {
        let mut layer = Layer::new(backend, case, &[301, 291])?;
        layer.share(SHARED_BLOCKS);
        let [first, second, decodes] = SHARING.map(|parts| {
            let tokens = parts.iter().map(|(_, len)| len).sum();
            let attended = layer.step(parts, &Activations::of(case, tokens, backend.device())?, 1)?;
            backend.finish().map(|()| attended)
        });
        first.and(second).and(decodes)
    };
    difference(&compute(backend)?, &compute(formulas)?)
}

fn row(name: &str, result: Result<[f32; 2]>, tolerance: f32) -> Value {
    match result {
        Ok([error, size]) => json!({
            "case": name, "largest_error": figure(error), "largest_value": figure(size), "tolerance": tolerance,
        }),
        Err(error) => json!({ "case": name, "error": error.message, "tolerance": tolerance }),
    }
}
