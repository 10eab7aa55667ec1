//! Norms, single values and the best of logits on Metal against the formulas.

use candle_core::{Device, Tensor};
use pensieve_kernels::Activation;
use std::sync::LazyLock;

use super::{
    elementwise::{BestShape, CandidatesShape, ColumnsShape, ElementShape, HeadNormShape, Norm, NormShape, RANGES},
    libraries,
    program::{Program, bytes, close, of, values},
};
use crate::{
    nn::backend::{Backend, Formulas, best_of_row},
    outputs::CandidateRows,
};

static NORMS: LazyLock<Program> = LazyLock::new(|| Program::compile(&libraries::NORMS));
static ELEMENTWISE: LazyLock<Program> = LazyLock::new(|| Program::compile(&libraries::ELEMENTWISE));
static LOGITS: LazyLock<Program> = LazyLock::new(|| Program::compile(&libraries::LOGITS));

fn formulas() -> Formulas {
    Formulas::plain(Device::Cpu)
}

fn empty(values: usize) -> Vec<u8> {
    vec![0xFF; 4 * values]
}

/// Holds the norms of rows against the formulas.
pub(super) fn check_norms(program: &Program) -> Result<(), String> {
    let formulas = formulas();
    for (rows, width) in [(1, 64), (3, 2048), (2, 300), (1, 7)] {
        let x = formulas.wave(rows, width).unwrap();
        let weight = formulas.wave(1, width).unwrap().squeeze(0).unwrap();
        let bias = (&weight * 0.2).unwrap();
        let shape = bytemuck::bytes_of(&NormShape { width: width as u32, eps: 1e-5 }).to_vec();
        let read = |tensor: &Tensor| bytes(&of(tensor));
        let room = || empty(rows * width);

        let buffers = [read(&x), read(&weight), shape.clone(), room()];
        let out = program.run(&NormShape::launch(Norm::Rms, rows), &buffers)?;
        close(&values(&out[3]), &of(&formulas.rms_norm(&x, &weight, 1e-5).unwrap()), 1e-5, "rms_norm")?;

        let buffers = [read(&x), read(&weight), read(&bias), shape, room()];
        let out = program.run(&NormShape::launch(Norm::Layer, rows), &buffers)?;
        close(&values(&out[4]), &of(&formulas.layer_norm(&x, &weight, &bias, 1e-5).unwrap()), 1e-5, "layer_norm")?;
    }
    Ok(())
}

/// Holds the norms of heads against the formula.
pub(super) fn check_heads(program: &Program) -> Result<(), String> {
    let formulas = formulas();
    for (tokens, heads, kv_heads, head_dim) in [(1, 4, 1, 128), (3, 7, 2, 64), (5, 2, 2, 80)] {
        let x = [heads, kv_heads].map(|heads| formulas.wave(tokens * heads, head_dim).unwrap());
        let weights = [1.0, 0.7].map(|by| (formulas.wave(1, head_dim).unwrap().squeeze(0).unwrap() * by).unwrap());
        let shape = HeadNormShape {
            tokens: tokens as u32,
            heads: heads as u32,
            kv_heads: kv_heads as u32,
            head_dim: head_dim as u32,
            eps: 1e-6,
        };
        let mut buffers: Vec<Vec<u8>> = x.iter().chain(&weights).map(|tensor| bytes(&of(tensor))).collect();
        buffers.push(bytemuck::bytes_of(&shape).to_vec());
        buffers.extend([heads, kv_heads].map(|heads| empty(tokens * heads * head_dim)));
        let out = program.run(&shape.launch(), &buffers)?;
        for place in 0..2 {
            let normed = formulas.rms_norm(&x[place], &weights[place], 1e-6).unwrap();
            close(&values(&out[5 + place]), &of(&normed), 1e-5, "norm of heads")?;
        }
    }
    Ok(())
}

/// Rows of logits: ordinary ones, with their highest twice, masked in part, and such as make no distribution.
fn logits() -> [Vec<f32>; 7] {
    let width = 1500;
    let wave: Vec<f32> = (0..width).map(|i| (i as f32 * 1.7).sin() * 20.0).collect();
    let with = |places: &[(usize, f32)]| {
        let mut row = wave.clone();
        places.iter().for_each(|(place, value)| row[*place] = *value);
        row
    };
    let masked = wave.iter().enumerate().map(|(i, x)| if i % 3 == 0 { *x } else { f32::NEG_INFINITY }).collect();
    [
        wave.clone(),
        with(&[(1400, 30.0), (33, 30.0), (700, 30.0)]),
        masked,
        with(&[(5, f32::NAN)]),
        with(&[(5, f32::INFINITY)]),
        vec![f32::NEG_INFINITY; width],
        with(&[(1499, -0.0)]).iter().map(|x| -x.abs() - 1.0).collect(),
    ]
}

/// Holds the best of rows of logits against what the host makes of them.
pub(super) fn check_best(program: &Program) -> Result<(), String> {
    let rows = logits();
    let shape = BestShape { width: rows[0].len() as u32 };
    let buffers = [bytes(&rows.concat()), bytemuck::bytes_of(&shape).to_vec(), empty(3 * rows.len())];
    let out = values(&program.run(&BestShape::launch(rows.len()), &buffers)?[2]);
    for (row, (ours, logits)) in out.as_chunks::<3>().0.iter().zip(&rows).enumerate() {
        let expected = best_of_row(logits);
        if !expected[2].is_finite() {
            if ours[2].is_finite() {
                return Err(format!("row {row}: the total is {}, not {}", ours[2], expected[2]));
            }
            continue;
        }
        close(&ours[..2], &expected[..2], 0.0, &format!("row {row}"))?;
        close(&ours[2..], &expected[2..], 1e-4, &format!("row {row}"))?;
    }
    Ok(())
}

/// Holds candidates against what the host chooses, by masks and without.
pub(super) fn check_candidates(program: &Program) -> Result<(), String> {
    let mut rows = logits().to_vec();
    // Many equals, of which the first count.
    rows[6].iter_mut().for_each(|x| *x = x.round());
    let width = rows[0].len();
    let words = width.div_ceil(32);
    for (top, has_masks) in [(1, false), (40, false), (512, true), (7, true)] {
        let mask = |row: usize| (0..words).map(move |word| 0x9249_2492_u32.rotate_left((word + row) as u32));
        // The last row may choose nothing.
        let masks: Vec<u32> =
            (0..rows.len()).flat_map(|row| mask(row).map(move |word| if row == 5 { 0 } else { word })).collect();
        let shape = CandidatesShape::new(width, top, has_masks).expect("few enough candidates");
        let buffers = [
            bytes(&rows.concat()),
            bytemuck::cast_slice(&masks).to_vec(),
            bytemuck::bytes_of(&shape).to_vec(),
            empty(rows.len() * top),
            empty(rows.len() * top),
            empty(rows.len() * 2),
        ];
        let out = program.run(&CandidatesShape::launch(rows.len()), &buffers)?;
        let (mut ids, mut scores) = (vec![0; rows.len() * top], vec![0.0; rows.len() * top]);
        let mut totals = vec![0.0; rows.len() * 2];
        let mut expected = CandidateRows { ids: &mut ids, scores: &mut scores, totals: &mut totals };
        for (row, logits) in rows.iter().enumerate() {
            let mask = if has_masks { &masks[row * words..(row + 1) * words] } else { &[] };
            expected.choose(row, top, logits, mask);
        }
        let what = |row: usize| format!("row {row} of {top} candidates");
        let ours: Vec<u32> = out[3].as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        if let Some(place) = (0..ours.len()).find(|place| ours[*place] != ids[*place]) {
            return Err(format!("{}: id {place} is {}, not {}", what(place / top), ours[place], ids[place]));
        }
        for (place, (ours, score)) in values(&out[4]).iter().zip(&scores).enumerate() {
            if ours.to_bits() != score.to_bits() {
                return Err(format!("{}: a score is {ours}, not {score}", what(place / top)));
            }
        }
        for (place, (ours, total)) in values(&out[5]).iter().zip(&totals).enumerate() {
            let is_same = (ours - total).abs() <= 1e-4 || ours == total || ours.is_nan() && total.is_nan();
            if !is_same {
                return Err(format!("{}: total {place} is {ours}, not {total}", what(place / 2)));
            }
        }
    }
    Ok(())
}

const KINDS: [Activation; 5] =
    [Activation::Silu, Activation::GeluErf, Activation::GeluTanh, Activation::Sigmoid, Activation::Softplus];

#[test]
fn norms_on_metal_are_the_formulas() {
    check_norms(&NORMS).unwrap();
    check_heads(&NORMS).unwrap();
}

#[test]
fn the_best_of_logits_on_metal_is_the_host_s() {
    check_best(&LOGITS).unwrap();
}

#[test]
fn candidates_on_metal_are_the_host_s() {
    check_candidates(&LOGITS).unwrap();
    assert!(CandidatesShape::new(1000, 513, false).is_none());
}

#[test]
fn activations_on_metal_are_the_formulas_far_from_zero_too() {
    check_activations(&ELEMENTWISE).unwrap();
}

pub(super) fn check_activations(program: &Program) -> Result<(), String> {
    let (rows, width) = (3, 101);
    let x: Vec<f32> = (0..rows * width).map(|i| (i as f32 - 150.0) * 0.7).collect();
    let tensor = Tensor::from_slice(&x, (rows, width), &Device::Cpu).unwrap();
    let column = |by: f32| formulas().wave(1, width).unwrap().squeeze(0).unwrap().affine(f64::from(by), 0.0).unwrap();
    let (bias, factor) = (column(0.5), column(2.0));
    for kind in KINDS.into_iter().map(Some).chain([None]) {
        for (has_bias, has_factor) in [(false, false), (true, false), (true, true)] {
            let shape = ElementShape::new(rows, width, kind).unwrap().with(has_bias, has_factor);
            let shape_bytes = bytemuck::bytes_of(&shape).to_vec();
            let buffers = [bytes(&x), bytes(&of(&bias)), bytes(&of(&factor)), shape_bytes, empty(x.len())];
            let out = values(&program.run(&shape.launch("bias_act_scale"), &buffers)?[4]);
            let used = |has: bool, column| has.then_some(column);
            let formula = formulas().bias_act_scale(&tensor, used(has_bias, &bias), kind, used(has_factor, &factor));
            close(&out, &of(&formula.unwrap()), 5e-5, &format!("{kind:?}"))?;
        }
    }
    Ok(())
}

#[test]
fn gates_and_sums_on_metal_are_the_formulas() {
    check_gates(&ELEMENTWISE).unwrap();
}

pub(super) fn check_gates(program: &Program) -> Result<(), String> {
    let (x, y) = (formulas().wave(3, 200).unwrap(), (formulas().wave(3, 200).unwrap() * 0.4).unwrap());
    let run = |kernel, kind| {
        let shape = ElementShape::new(3, 200, kind).unwrap();
        let buffers = [bytes(&of(&x)), bytes(&of(&y)), bytemuck::bytes_of(&shape).to_vec(), empty(600)];
        Ok::<_, String>(values(&program.run(&shape.launch(kernel), &buffers)?[3]))
    };
    close(&run("add", None)?, &of(&(&x + &y).unwrap()), 0.0, "add")?;
    for kind in KINDS {
        close(&run("gate", Some(kind))?, &of(&formulas().gate(&x, &y, kind).unwrap()), 1e-5, "gate")?;
    }
    Ok(())
}

#[test]
fn columns_on_metal_are_ranges_of_rows() {
    check_columns(&ELEMENTWISE).unwrap();
}

pub(super) fn check_columns(program: &Program) -> Result<(), String> {
    let x = formulas().wave(3, 50).unwrap();
    let parts = [(0, 20), (20, 1), (30, 15), (45, 5)];
    for parts in [&parts[..3], &parts[..]] {
        let shape = ColumnsShape::new(3, 50, parts).unwrap();
        let mut buffers = vec![bytes(&of(&x)), bytemuck::bytes_of(&shape).to_vec()];
        buffers.extend((0..RANGES).map(|place| parts.get(place).map_or_else(Vec::new, |(_, len)| empty(3 * len))));
        let out = program.run(&shape.launch(), &buffers)?;
        for (place, columns) in formulas().columns(&x, parts).unwrap().iter().enumerate() {
            close(&values(&out[2 + place]), &of(columns), 0.0, "columns")?;
        }
    }
    Ok(())
}
