//! Feed-forward blocks, some hundred rows at a time.
//!
//! Inner values are several times as many as a row's inputs. For all rows of a long prompt they would be tens of megabytes a layer:
//! they leave the caches before they are used, and the allocator maps as much anew for each layer. So rows pass all matrices
//! of a block before the next ones begin.

use std::mem::MaybeUninit;

use super::activation::activate_in_place;
use super::elementwise::{add, add_row};
use super::matmul::{
    BATCH, FeedForward, Layer, Outputs, by_kind, feed_forward_by_tiles, is_many, matmul_all, matmul_into,
};
use super::pool::Pool;

/// Maximum rows per piece. With half as many, unpacking the weights still pays.
const ROWS: usize = 512;

// Else the matrix unit would not take them together.
const _: () = assert!(ROWS <= BATCH);

/// Maximum bytes of a piece's inner values if they allow half of these rows: more are mapped anew whatever the allocator is told.
const BYTES: usize = 32 << 20;

/// Applies a block to the rows of `x`, in stretches as for [`matmul_of`](super::matmul_of), and adds the result to `residual`.
pub fn feed_forward(
    pool: &Pool,
    block: &FeedForward<'_>,
    x: &[f32],
    stretches: &[usize],
    residual: Option<&[f32]>,
) -> Vec<f32> {
    let (inputs, outputs) = (block.up.weight.cols, block.down.weight.rows);
    let n = stretches.iter().sum::<usize>();
    assert_eq!(Some(x.len()), n.checked_mul(inputs), "values for {n} rows of {inputs}");
    let mut out = Vec::with_capacity(n * outputs);
    let written = Outputs { width: outputs, out: &mut out.spare_capacity_mut()[..n * outputs] };
    by_kind(
        (x, inputs),
        stretches,
        &mut [written],
        |stretch| is_many(pool, stretch),
        |many, x, stretches, outs| {
            outs.iter_mut().for_each(|outs| of_kind(pool, block, x, (many, stretches), outs.out));
        },
    );
    // SAFETY: stretches of both kinds are all rows, and each was written.
    unsafe { out.set_len(n * outputs) };
    if let Some(bias) = block.down.bias {
        assert_eq!(bias.len(), outputs, "a bias for each output");
        add_row(pool, bias, &mut out);
    }
    if let Some(residual) = residual {
        add(pool, residual, &mut out);
    }
    out
}

/// Applies a block, without the bias of `down`, to stretches of few or of many rows.
fn of_kind(
    pool: &Pool,
    block: &FeedForward<'_>,
    mut x: &[f32],
    (many, stretches): (bool, &[usize]),
    mut out: &mut [MaybeUninit<f32>],
) {
    let (up, down) = (block.up.weight, block.down.weight);
    // Dense weights take their activations in three parts of two bytes.
    let value = if many && !down.dtype.is_quantized() { 6 } else { size_of::<f32>() };
    for stretches in pieces(stretches, (BYTES / (value * up.rows).max(1)).clamp(ROWS / 2, ROWS)) {
        let rows = stretches.iter().sum::<usize>();
        let (here, later) = x.split_at(rows * up.cols);
        let (written, unwritten) = out.split_at_mut(rows * down.rows);
        if !(many && feed_forward_by_tiles(pool, block, here, rows, written)) {
            matmul_into(pool, &down, &inner(pool, block, here, &stretches), &stretches, written);
        }
        (x, out) = (later, unwritten);
    }
}

fn inner(pool: &Pool, block: &FeedForward<'_>, x: &[f32], stretches: &[usize]) -> Vec<f32> {
    let layers: Vec<Layer<'_>> = block.gate.into_iter().chain([block.up]).collect();
    let weights: Vec<_> = layers.iter().map(|layer| layer.weight).collect();
    let mut outs = matmul_all(pool, &weights, x, stretches);
    for (layer, out) in layers.iter().zip(&mut outs) {
        if let Some(bias) = layer.bias {
            add_row(pool, bias, out);
        }
    }
    let factor = block.gate.and_then(|_| outs.pop());
    let mut inner = outs.swap_remove(0);
    activate_in_place(pool, block.activation, &mut inner, factor.as_deref());
    inner
}

/// Packs stretches into pieces of at most `most` rows. A longer stretch is cut into equal parts, so that each of them counts
/// as many rows where the whole does.
fn pieces(stretches: &[usize], most: usize) -> Vec<Vec<usize>> {
    let parts = stretches.iter().flat_map(|&stretch| {
        let parts = stretch.div_ceil(most).max(1);
        (0..parts).map(move |part| (part + 1) * stretch / parts - part * stretch / parts)
    });
    let (mut pieces, mut rows): (Vec<Vec<usize>>, usize) = (Vec::new(), 0);
    for part in parts {
        match pieces.last_mut() {
            Some(piece) if rows + part <= most => piece.push(part),
            _ => {
                pieces.push(vec![part]);
                rows = 0;
            }
        }
        rows += part;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::super::activation::{Activation, activate, activate_mul};
    use super::super::matmul::{Matrix, matmul_of};
    use super::super::simd::Level;
    use super::super::tile::MANY;
    use super::*;
    use pensieve_weights::Dtype;

    fn wave(len: usize, step: f32) -> Vec<f32> {
        (0..len).map(|i| (i as f32 * step).sin()).collect()
    }

    #[test]
    fn pieces_are_all_rows_and_parts_of_many_are_many() {
        let cases: [(&[usize], &[&[usize]]); 7] = [
            (&[], &[]),
            (&[0], &[&[0]]),
            (&[1], &[&[1]]),
            (&[500, 12, 1], &[&[500, 12], &[1]]),
            (&[513], &[&[256], &[257]]),
            (&[1, 1024, 3], &[&[1], &[512], &[512], &[3]]),
            (&[2, 1500], &[&[2, 500], &[500], &[500]]),
        ];
        for (stretches, expected) in cases {
            assert_eq!(pieces(stretches, ROWS), expected);
        }
        for (most, rows) in [ROWS / 2, ROWS].into_iter().flat_map(|most| (most + 1..4 * ROWS).map(move |n| (most, n))) {
            let parts = pieces(&[rows], most).concat();
            assert_eq!(parts.iter().sum::<usize>(), rows);
            assert!(parts.iter().all(|part| (MANY..=most).contains(part)), "{rows} rows: {parts:?}");
        }
    }

    #[test]
    fn blocks_are_their_products_to_the_last_bit() {
        for dtype in [Dtype::F32, Dtype::BF16, Dtype::Q8_0] {
            for stretches in [&[1, 700, 3, MANY, 90][..], &[513], &[2, 1], &[0], &[]] {
                check([dtype; 3], (64, 96), 3, stretches);
            }
        }
        for threads in [1, 3, 16] {
            for stretches in [&[MANY][..], &[65, 200], &[2, 100], &[1, 100, 2, 70, 1], &[100, 0, 80]] {
                check([Dtype::Q8_0, Dtype::F32, Dtype::BF16], (320, 1056), threads, stretches);
                check([Dtype::BF16, Dtype::Q8_0, Dtype::Q8_0], (320, 1056), threads, stretches);
            }
        }
        // Inner values that are no whole steps of tiles.
        check([Dtype::F32; 3], (64, 100), 3, &[100]);
    }

    #[test]
    fn the_matrix_unit_takes_whole_blocks() {
        let weights = [vec![0; 64 * 96 * 4], vec![0; 64 * 100 * 4]];
        for level in Level::available() {
            for (data, inner) in weights.iter().zip([96, 100]) {
                let up = Layer { weight: Matrix { dtype: Dtype::F32, data, rows: inner, cols: 64 }, bias: None };
                let down = Layer { weight: Matrix { rows: 64, cols: inner, ..up.weight }, bias: None };
                let block = FeedForward { gate: None, up, down, activation: Activation::Silu };
                let (pool, mut out) = (Pool::with_level(2, level), vec![MaybeUninit::new(0.0); MANY * 64]);
                let is_taken = feed_forward_by_tiles(&pool, &block, &wave(MANY * 64, 0.3), MANY, &mut out);
                assert_eq!(is_taken, level.has_tiles() && inner == 96, "{}", level.name());
            }
        }
    }

    /// `dtypes` are those of gate, up and down.
    fn check(dtypes: [Dtype; 3], (width, values): (usize, usize), threads: usize, stretches: &[usize]) {
        let bytes = |index: usize| -> Vec<u8> {
            let weights = wave(width * values, 0.17 + 0.07 * index as f32);
            match dtypes[index] {
                Dtype::F32 => weights.iter().flat_map(|weight| weight.to_le_bytes()).collect(),
                Dtype::BF16 => weights.iter().flat_map(|weight| half::bf16::from_f32(*weight).to_le_bytes()).collect(),
                _ => weights.chunks(32).flat_map(block_of_bytes).collect(),
            }
        };
        let weights = [0, 1, 2].map(bytes);
        let biases = [wave(values, 0.9), wave(values, 1.9), wave(width, 2.9)];
        let layer = |index: usize, with_bias: bool| {
            let (rows, cols) = if index == 2 { (width, values) } else { (values, width) };
            let weight = Matrix { dtype: dtypes[index], data: &weights[index], rows, cols };
            Layer { weight, bias: with_bias.then_some(&biases[index]) }
        };
        let n = stretches.iter().sum::<usize>();
        let (x, residual) = (wave(n * width, 0.7), wave(n * width, 0.4));
        for level in Level::available() {
            let pool = Pool::with_level(threads, level);
            let product = |layer: Layer<'_>, x: &[f32]| {
                let mut out = vec![0.0; n * layer.weight.rows];
                matmul_of(&pool, &layer.weight, x, stretches, &mut out);
                if let Some(bias) = layer.bias {
                    add_row(&pool, bias, &mut out);
                }
                out
            };
            for (with_gate, with_bias) in [(true, true), (true, false), (false, true), (false, false)] {
                let [gate, up, down] = [0, 1, 2].map(|index| layer(index, with_bias));
                let block = FeedForward { gate: with_gate.then_some(gate), up, down, activation: Activation::Silu };
                let inner = match block.gate {
                    Some(gate) => activate_mul(&pool, Activation::Silu, &product(gate, &x), &product(up, &x)),
                    None => activate(&pool, Activation::Silu, &product(up, &x)),
                };
                let mut expected = product(down, &inner);
                let what = format!("{} {dtypes:?} {threads} {stretches:?}", level.name());
                let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&feed_forward(&pool, &block, &x, stretches, None)), bits(&expected), "{what}");
                add(&pool, &residual, &mut expected);
                let sum = feed_forward(&pool, &block, &x, stretches, Some(&residual));
                assert_eq!(bits(&sum), bits(&expected), "{what}");
            }
        }
    }

    /// A block of Q8_0.
    fn block_of_bytes(values: &[f32]) -> Vec<u8> {
        let codes = values.iter().map(|value| ((value * 127.0) as i8).cast_unsigned());
        half::f16::from_f32(1.0 / 127.0).to_le_bytes().into_iter().chain(codes).collect()
    }
}
