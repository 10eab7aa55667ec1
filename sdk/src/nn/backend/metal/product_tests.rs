//! Products on Metal against the SDK's own unpacking of weights and sums in double precision.

use half::f16;
use pensieve_kernels::{Activation, Glu};
use std::sync::LazyLock;

use super::{
    libraries::PRODUCTS,
    products::{EmbedShape, MATRICES, Part, ProductShape, READ, Use, alignment, format_number},
    program::{Program, bytes, values},
};
use crate::{
    nn::backend::noise::{Noise, Weight},
    weights::Dtype,
};

static PROGRAM: LazyLock<Program> = LazyLock::new(|| Program::compile(&PRODUCTS));

/// Rows of all three kinds of kernels, full and not.
const ROWS: [usize; 8] = [1, 2, 3, 4, 7, 13, 17, 40];

/// Products of `rows` rows with matrices of these formats and outputs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case<'a> {
    pub(super) rows: usize,
    pub(super) inputs: usize,
    pub(super) parts: &'a [(Dtype, usize)],
    pub(super) has_bias: bool,
    pub(super) used: Use,
}

/// A product, and the sum of the sizes of what is added up in it, of which an error is a part.
#[derive(Clone, Copy, Default)]
struct Sum {
    value: f64,
    size: f64,
}

/// The products of a row of `x` with the rows of a weight.
fn sums(x: &[f32], weight: &[Vec<f32>], bias: Option<&[f32]>) -> Vec<Sum> {
    let product = |(output, row): (usize, &Vec<f32>)| {
        let mut sum = Sum::default();
        for (x, w) in x.iter().zip(row) {
            sum.value += f64::from(*x) * f64::from(*w);
            sum.size += f64::from(*x * *w).abs();
        }
        let bias = bias.map_or(0.0, |bias| f64::from(bias[output]));
        Sum { value: sum.value + bias, size: sum.size + bias.abs() }
    };
    weight.iter().enumerate().map(product).collect()
}

/// The activations, as papers have them.
pub(super) fn activated(kind: Activation, x: f64) -> f64 {
    let sigmoid = 1.0 / (1.0 + (-x).exp());
    match kind {
        Activation::Silu => x * sigmoid,
        Activation::Sigmoid => sigmoid,
        Activation::Softplus => x.exp().ln_1p(),
        Activation::GeluTanh => {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        }
        // The integral of the normal density by Simpson's rule.
        Activation::GeluErf => {
            let (steps, density) = (400, |t: f64| (-t * t / 2.0).exp() / std::f64::consts::TAU.sqrt());
            let h = x / f64::from(steps);
            let inner: f64 = (1..steps).map(|i| density(h * f64::from(i)) * f64::from(2 + i % 2 * 2)).sum();
            x * (0.5 + h / 3.0 * (density(0.0) + inner + density(x)))
        }
    }
}

pub(super) fn gated(glu: Glu, gate: f64, up: f64) -> f64 {
    match glu {
        Glu::Plain(kind) => activated(kind, gate) * up,
        Glu::Clamped { alpha, limit } => {
            let gate = gate.min(limit);
            gate / (1.0 + (-alpha * gate).exp()) * (up.clamp(-limit, limit) + 1.0)
        }
        Glu::Square => up.max(0.0).powi(2),
    }
}

fn has_tiles(kernel: &str) -> bool {
    kernel.ends_with("_many")
}

/// Errors that kernels may make, as a part of the sizes.
pub(super) fn allowed(kernel: &str) -> f64 {
    if has_tiles(kernel) { 1e-5 } else { 2e-6 }
}

/// A weight's rows as a kernel multiplies them: tiles hold them in `f16`.
pub(super) fn read_by(kernel: &str, weight: &Weight) -> Vec<Vec<f32>> {
    let mut rows = weight.rows();
    if has_tiles(kernel) {
        rows.iter_mut().flatten().for_each(|value| *value = f16::from_f32(*value).to_f32());
    }
    rows
}

/// Says where a value is too far from its sum.
pub(super) fn near(ours: f32, value: f64, size: f64, allowed: f64, what: &str) -> Result<(), String> {
    // What is no number is not near any.
    let is_near = (f64::from(ours) - value).abs() <= allowed * (size + 1e-3);
    if is_near { Ok(()) } else { Err(format!("{what} is {ours}, not {value}")) }
}

/// Holds a dispatch against sums in double precision.
pub(super) fn check(program: &Program, case: &Case<'_>) -> Result<(), String> {
    let Case { rows, inputs, parts, has_bias, used } = *case;
    let x = Noise::new(1).values(rows * inputs);
    let weights: Vec<Weight> = parts
        .iter()
        .enumerate()
        .map(|(place, (dtype, outputs))| Weight::noise(*dtype, *outputs, inputs, 10 + place))
        .collect();
    let biases: Vec<Vec<f32>> = parts.iter().map(|(_, outputs)| Noise::new(*outputs).values(*outputs)).collect();
    let residual = Noise::new(2).values(rows * parts[0].1);
    let described: Vec<Part> =
        parts.iter().map(|(dtype, outputs)| Part { dtype: *dtype, outputs: *outputs, has_bias }).collect();
    let shape = ProductShape::new(rows, inputs, &described, used).expect("formats that the kernels read");

    let mut buffers = vec![bytes(&x)];
    buffers.extend((0..MATRICES).map(|place| weights.get(place).map_or_else(Vec::new, |weight| weight.bytes.clone())));
    buffers.extend((0..MATRICES).map(|place| biases.get(place).map_or_else(Vec::new, |bias| bytes(bias))));
    buffers.push(bytes(&residual));
    buffers.push(bytemuck::bytes_of(&shape).to_vec());
    let outs = if matches!(used, Use::Gated(_)) { 1 } else { parts.len() };
    let room = |place: usize| if place < outs { vec![0xFF; 4 * rows * parts[place].1] } else { Vec::new() };
    buffers.extend((0..MATRICES).map(room));
    let launch = shape.launch();
    let made = program.run(&launch, &buffers)?;
    let out: Vec<Vec<f32>> = made[MATRICES * 2 + 3..].iter().map(|bytes| values(bytes)).collect();

    let unpacked: Vec<Vec<Vec<f32>>> = weights.iter().map(|weight| read_by(launch.kernel, weight)).collect();
    let allowed = allowed(launch.kernel);
    for row in 0..rows {
        let x = &x[row * inputs..(row + 1) * inputs];
        let of = |place: usize| sums(x, &unpacked[place], has_bias.then_some(biases[place].as_slice()));
        for place in 0..outs {
            for (output, sum) in of(place).into_iter().enumerate() {
                let at = row * parts[place].1 + output;
                let what = format!("{case:?}, {}: value {output} of row {row}", launch.kernel);
                let (value, size) = match used {
                    Use::Plain => (sum.value, sum.size),
                    Use::Added => (sum.value + f64::from(residual[at]), sum.size + 1.0),
                    Use::Activated(kind) => (activated(kind, sum.value), 2.0 * sum.size),
                    Use::Gated(glu) => {
                        let up = of(1)[output];
                        (gated(glu, sum.value, up.value), 2.0 * (1.0 + sum.size) * (1.0 + up.size))
                    }
                };
                near(out[place][at], value, size, allowed, &what)?;
            }
        }
    }
    Ok(())
}

const LLAMA: Case<'_> = Case {
    rows: 1,
    inputs: 512,
    parts: &[(Dtype::Q4K, 40), (Dtype::Q4K, 12), (Dtype::Q6K, 12)],
    has_bias: false,
    used: Use::Plain,
};

/// Dispatches of all families' layers, with fewer outputs.
pub(super) const CASES: [(&str, Case<'_>); 9] = [
    ("q, k, v of Q4_K_M", LLAMA),
    (
        "q, k, v with biases",
        Case { has_bias: true, parts: &[(Dtype::Q8_0, 24), (Dtype::Q8_0, 7), (Dtype::Q8_0, 7)], ..LLAMA },
    ),
    ("one behind a residual", Case { parts: &[(Dtype::Q6K, 33)], used: Use::Added, ..LLAMA }),
    (
        "gate and up",
        Case { parts: &[(Dtype::Q4K, 37), (Dtype::Q4K, 37)], used: Use::Gated(Glu::Plain(Activation::Silu)), ..LLAMA },
    ),
    (
        "Gemma's gate",
        Case {
            parts: &[(Dtype::Q4_0, 18), (Dtype::Q4_0, 18)],
            used: Use::Gated(Glu::Plain(Activation::GeluTanh)),
            ..LLAMA
        },
    ),
    (
        "gpt-oss's gate",
        Case {
            parts: &[(Dtype::MXFP4, 18), (Dtype::MXFP4, 18)],
            has_bias: true,
            used: Use::Gated(Glu::Clamped { alpha: 1.702, limit: 7.0 }),
            ..LLAMA
        },
    ),
    (
        "Phi's first layer",
        Case { parts: &[(Dtype::F16, 30)], has_bias: true, used: Use::Activated(Activation::GeluErf), ..LLAMA },
    ),
    (
        "a width of no whole blocks",
        Case { inputs: 100, parts: &[(Dtype::BF16, 9), (Dtype::F16, 5), (Dtype::F32, 3)], ..LLAMA },
    ),
    ("a router in single precision", Case { inputs: 96, parts: &[(Dtype::F32, 130)], ..LLAMA }),
];

#[test]
fn products_on_metal_are_the_sums_for_the_layers_of_all_families() {
    for (_, case) in CASES {
        for rows in ROWS {
            check(&PROGRAM, &Case { rows, ..case }).unwrap();
        }
    }
}

#[test]
fn products_on_metal_read_every_format() {
    for dtype in READ {
        for (rows, inputs) in [(1, 512), (5, 256), (33, 256)] {
            check(&PROGRAM, &Case { rows, inputs, parts: &[(dtype, 10)], ..LLAMA }).unwrap();
        }
    }
}

#[test]
fn widths_of_few_blocks_are_whole_products() {
    for inputs in [32, 64, 96, 160] {
        for rows in [1, 6, 20] {
            check(
                &PROGRAM,
                &Case { rows, inputs, parts: &[(Dtype::Q8_0, 3), (Dtype::Q4_0, 6), (Dtype::MXFP4, 5)], ..LLAMA },
            )
            .unwrap();
        }
    }
}

/// Holds the rows of a table against its own unpacking.
pub(super) fn check_embeddings(program: &Program) -> Result<(), String> {
    let ids: [u32; 5] = [3, 0, 6, 6, 1];
    for dtype in READ {
        let width = if dtype.is_quantized() { 512 } else { 100 };
        let table = Weight::noise(dtype, 7, width, 5);
        let shape = EmbedShape::new(ids.len(), width, dtype).expect("a format that the kernels read");
        let buffers = [
            table.bytes.clone(),
            bytemuck::cast_slice(&ids).to_vec(),
            bytemuck::bytes_of(&shape).to_vec(),
            vec![0xFF; 4 * ids.len() * width],
        ];
        let out = values(&program.run(&shape.launch(), &buffers)?[3]);
        let rows = table.rows();
        for (place, id) in ids.iter().enumerate() {
            for (ours, value) in out[place * width..].iter().zip(&rows[*id as usize]) {
                // Scale times code less minimum may be rounded once more or less.
                near(
                    *ours,
                    f64::from(*value),
                    1.0 + f64::from(value.abs()),
                    2e-7,
                    &format!("{dtype}: a value of {id}"),
                )?;
            }
        }
    }
    Ok(())
}

#[test]
fn embeddings_on_metal_are_rows_of_the_table() {
    check_embeddings(&PROGRAM).unwrap();
}

#[test]
fn formats_that_no_kernel_reads_are_declined() {
    for dtype in Dtype::ALL {
        let part = Part { dtype, outputs: 8, has_bias: false };
        let is_read = ProductShape::new(1, 256, &[part], Use::Plain).is_some();
        assert_eq!(is_read, READ.contains(&dtype), "{dtype}");
        assert_eq!(format_number(dtype), READ.iter().position(|read| *read == dtype).map(|place| place as u32));
        // A block further on is as well aligned as the first.
        assert!(!is_read || dtype.block_bytes() % alignment(dtype) == 0, "{dtype}");
    }
    let part = |dtype: Dtype, outputs| Part { dtype, outputs, has_bias: false };
    let used = Use::Gated(Glu::Plain(Activation::Silu));
    assert!(ProductShape::new(1, 256, &[part(Dtype::Q4K, 8), part(Dtype::Q6K, 8)], used).is_none());
    assert!(ProductShape::new(1, 256, &[part(Dtype::Q4K, 8), part(Dtype::Q4K, 9)], used).is_none());
    assert!(ProductShape::new(1, 100, &[part(Dtype::Q4K, 8)], Use::Plain).is_none());
    assert!(ProductShape::new(1, 256, &[], Use::Plain).is_none());
}
