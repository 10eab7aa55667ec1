//! Recurrent layers on Metal against the same, token by token in double precision.

use candle_core::{Device, Tensor};
use pensieve_kernels::Activation;
use std::sync::LazyLock;

use super::{
    libraries::RECURRENCE,
    product_tests::{activated, near},
    program::{Program, bytes, values},
    recurrence::{ConvShape, RecurrenceShape, Sequences},
};
use crate::{
    Batch, Output, Span, StateCopy, Table, Want,
    nn::{
        backend::noise::Noise,
        spec::{Recurrence, ShortConv},
    },
};

static PROGRAM: LazyLock<Program> = LazyLock::new(|| Program::compile(&RECURRENCE));

/// Slots of a layer's memory.
const SLOTS: usize = 8;

/// A sequence's rows, how many came before, the slot that it goes on from, those of copies after some rows, and the last one.
type Stretch = (usize, usize, Option<u32>, &'static [(usize, u32)], u32);

/// Prompts, old and new, with states on the way; and decodes.
const STEPS: [&[Stretch]; 2] = [
    &[(9, 4, Some(2), &[(2, 5), (8, 1)], 2), (1, 3, Some(0), &[], 7), (13, 0, None, &[(1, 4), (9, 6)], 3)],
    &[(1, 4, Some(2), &[], 2), (1, 0, None, &[], 3), (1, 7, Some(5), &[], 0)],
];

fn with_batch<T>(step: &[Stretch], run: impl FnOnce(&Batch<'_>) -> T) -> T {
    let (mut spans, mut start) = (Vec::new(), 0);
    for (index, (len, past, read, copies, write)) in step.iter().enumerate() {
        let copies = copies.iter().map(|(rows, slot)| StateCopy { after: past + rows, slot: *slot }).collect();
        spans.push(Span {
            sequence: index as u64,
            start,
            len: *len,
            past: *past,
            want: Want::Last,
            output: Output::Logits,
            mask: &[],
            adapter: 0,
            adapter_scale: 0.0,
            caches: vec![Table::Slots { read: *read, write: *write, copies }],
        });
        start += len;
    }
    let ids = vec![0; start];
    run(&Batch { tokens: &ids, positions: &ids, spans, top: 0 })
}

/// Takes each sequence of a step through `token`, which changes its state, and gives the memory and the output that are left.
fn expected(
    step: &[Stretch],
    memory: &[f32],
    mut token: impl FnMut(usize, &mut Vec<f64>) -> Vec<f64>,
) -> (Vec<f64>, Vec<f64>) {
    let size = memory.len() / SLOTS;
    let slot = |slot: u32| slot as usize * size..(slot as usize + 1) * size;
    let before: Vec<f64> = memory.iter().map(|value| f64::from(*value)).collect();
    let (mut after, mut out, mut row) = (before.clone(), Vec::new(), 0);
    for (len, _, read, copies, write) in step {
        let mut state = read.map_or_else(|| vec![0.0; size], |read| before[slot(read)].to_vec());
        for done in 1..=*len {
            out.extend(token(row, &mut state));
            row += 1;
            for (_, to) in copies.iter().filter(|(rows, _)| *rows == done) {
                after[slot(*to)].copy_from_slice(&state);
            }
        }
        after[slot(*write)].copy_from_slice(&state);
    }
    (after, out)
}

fn hold(ours: &[f32], expected: &[f64], what: &str) -> Result<(), String> {
    for (place, (ours, value)) in ours.iter().zip(expected).enumerate() {
        near(*ours, *value, 1.0 + value.abs(), 2e-5, &format!("{what}: value {place}"))?;
    }
    if ours.len() == expected.len() { Ok(()) } else { Err(format!("{what} has {} values", ours.len())) }
}

fn words(words: &[u32]) -> Vec<u8> {
    bytemuck::cast_slice(words).to_vec()
}

/// Holds a convolution with so many taps over both steps.
pub(super) fn check_conv(program: &Program, taps: usize, has_bias: bool) -> Result<(), String> {
    for step in STEPS {
        let (channels, before, tokens) = (37, taps - 1, step.iter().map(|one| one.0).sum::<usize>());
        let (x, memory) = (Noise::new(1).values(tokens * channels), Noise::new(2).values(SLOTS * before * channels));
        let (weight, bias) = (Noise::new(3).values(taps * channels), Noise::new(4).values(channels));
        let conv = ShortConv {
            layer: 0,
            part: 0,
            taps: Tensor::from_slice(&weight, (taps, channels), &Device::Cpu).unwrap(),
            bias: has_bias.then(|| Tensor::from_slice(&bias, channels, &Device::Cpu).unwrap()),
            activation: has_bias.then_some(Activation::Silu),
        };
        let of = with_batch(step, |batch| Sequences::of(batch, 0)).expect("a group of states");
        let shape = ConvShape::new(&conv, &of).expect("few enough taps");
        let shape_bytes = bytemuck::bytes_of(&shape).to_vec();
        let (sequences, tables) = (words(of.sequences.as_flattened()), words(&of.tables));
        let (conv_launch, keep_launch) = shape.launches();
        let buffers = [
            bytes(&x),
            words(&of.sequence_of),
            sequences.clone(),
            tables.clone(),
            bytes(&weight),
            bytes(&bias),
            shape_bytes.clone(),
            bytes(&memory),
            vec![0xFF; 4 * tokens * channels],
        ];
        let made = program.run(&conv_launch, &buffers)?;
        let mut states = made[7].clone();
        if let Some(launch) = keep_launch {
            states = program.run(&launch, &[bytes(&x), sequences, tables, shape_bytes, states])?[4].clone();
        }
        let (after, out) = expected(step, &memory, |row, state| {
            state.extend(x[row * channels..(row + 1) * channels].iter().map(|x| f64::from(*x)));
            let value = |channel: usize| {
                let sum: f64 = (0..taps)
                    .map(|tap| state[tap * channels + channel] * f64::from(weight[tap * channels + channel]))
                    .sum();
                if has_bias { activated(Activation::Silu, sum + f64::from(bias[channel])) } else { sum }
            };
            let out = (0..channels).map(value).collect();
            state.drain(..channels);
            out
        });
        hold(&values(&made[8]), &out, "a convolution")?;
        hold(&values(&states), &after, "a convolution's state")?;
    }
    Ok(())
}

/// A layer's matrices.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matrices {
    heads: usize,
    key_heads: usize,
    interleaved_heads: bool,
    key_dim: usize,
    value_dim: usize,
    corrects: bool,
    has_skip: bool,
}

const DELTA: Matrices = Matrices {
    heads: 4,
    key_heads: 2,
    interleaved_heads: false,
    key_dim: 32,
    value_dim: 40,
    corrects: true,
    has_skip: false,
};

/// The gated delta rule, Mamba-2's, and widths of keys for each kernel.
pub(super) const MATRICES: [Matrices; 6] = [
    DELTA,
    Matrices { interleaved_heads: true, ..DELTA },
    Matrices { corrects: false, has_skip: true, key_heads: 1, key_dim: 128, value_dim: 64, ..DELTA },
    Matrices { key_dim: 16, value_dim: 16, heads: 2, ..DELTA },
    Matrices { key_dim: 60, value_dim: 8, heads: 2, key_heads: 1, ..DELTA },
    Matrices { key_dim: 256, value_dim: 32, heads: 1, key_heads: 1, corrects: false, ..DELTA },
];

/// Holds a layer's matrices over both steps.
pub(super) fn check_matrices(program: &Program, case: &Matrices) -> Result<(), String> {
    let Matrices { heads, key_heads, interleaved_heads, key_dim, value_dim, corrects, has_skip } = *case;
    for step in STEPS {
        let tokens = step.iter().map(|one| one.0).sum::<usize>();
        let scaled = |seed, count: usize, by: f32| -> Vec<f32> {
            Noise::new(seed).values(count).iter().map(|x| x * by).collect()
        };
        let keys = tokens * key_heads * key_dim;
        // Keys of about length one, or the delta rule would not be stable.
        let (q, k) = (scaled(1, keys, 0.3), scaled(2, keys, 1.5 / (key_dim as f32).sqrt()));
        let v = scaled(3, tokens * heads * value_dim, 1.0);
        let decay: Vec<f32> = scaled(4, tokens * heads, 0.5).iter().map(|x| -x.abs()).collect();
        let beta: Vec<f32> = scaled(5, tokens * heads, 1.0).iter().map(|x| x.abs()).collect();
        let skip = scaled(6, heads, 1.0);
        let memory = scaled(7, SLOTS * heads * key_dim * value_dim, 0.5);
        let of = with_batch(step, |batch| Sequences::of(batch, 0)).expect("a group of states");
        let spec =
            Recurrence { interleaved_heads, ..Recurrence::new(0, heads, key_heads, key_dim, value_dim).unwrap() };
        let shape = RecurrenceShape::new(&spec, corrects, has_skip);
        let mut buffers: Vec<Vec<u8>> = [&q, &k, &v, &decay, &beta, &skip].map(|x| bytes(x)).to_vec();
        buffers.extend([words(of.sequences.as_flattened()), words(&of.tables), bytemuck::bytes_of(&shape).to_vec()]);
        buffers.extend([bytes(&memory), vec![0xFF; 4 * tokens * heads * value_dim]]);
        let made = program.run(&shape.launch(of.sequences.len()).expect("keys that a lane holds"), &buffers)?;
        let (after, out) = expected(step, &memory, |row, state| {
            let mut out = Vec::new();
            for head in 0..heads {
                let key_head = if interleaved_heads { head % key_heads } else { head / (heads / key_heads) };
                let at = (row * key_heads + key_head) * key_dim;
                let fade = f64::from(decay[row * heads + head]).exp();
                for column in 0..value_dim {
                    let cell = |key: usize| (head * key_dim + key) * value_dim + column;
                    let value = f64::from(v[(row * heads + head) * value_dim + column]);
                    let known: f64 = (0..key_dim).map(|key| f64::from(k[at + key]) * state[cell(key)] * fade).sum();
                    let write = f64::from(beta[row * heads + head]) * if corrects { value - known } else { value };
                    let mut read = if has_skip { f64::from(skip[head]) * value } else { 0.0 };
                    for key in 0..key_dim {
                        state[cell(key)] = state[cell(key)] * fade + write * f64::from(k[at + key]);
                        read += f64::from(q[at + key]) * state[cell(key)];
                    }
                    out.push(read);
                }
            }
            out
        });
        hold(&values(&made[10]), &out, &format!("{case:?}"))?;
        hold(&values(&made[9]), &after, &format!("states of {case:?}"))?;
    }
    Ok(())
}

#[test]
fn short_convolutions_on_metal_go_on_from_their_states_and_keep_them() {
    for (taps, has_bias) in [(3, false), (4, true), (8, false), (1, false)] {
        check_conv(&PROGRAM, taps, has_bias).unwrap();
    }
}

#[test]
fn recurrences_on_metal_are_those_of_token_by_token() {
    for case in MATRICES {
        check_matrices(&PROGRAM, &case).unwrap();
    }
}

#[test]
fn recurrences_that_no_kernel_takes_are_declined() {
    let wide = Recurrence::new(0, 1, 1, 257, 8).unwrap();
    assert!(RecurrenceShape::new(&wide, true, false).launch(1).is_none());
    let of = with_batch(STEPS[1], |batch| Sequences::of(batch, 0)).unwrap();
    let taps = Tensor::zeros((9, 4), candle_core::DType::F32, &Device::Cpu).unwrap();
    assert!(ConvShape::new(&ShortConv { layer: 0, part: 0, taps, bias: None, activation: None }, &of).is_none());
    assert!(with_batch(STEPS[0], |batch| Sequences::of(batch, 1)).is_none());
}
