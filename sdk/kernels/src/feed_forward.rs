//! Feed-forward blocks, some hundred rows at a time.
//!
//! Inner values are several times as many as a row's inputs. For all rows of a long prompt they would be tens of megabytes a layer:
//! they leave the caches before they are used, and the allocator maps as much anew for each layer. So rows pass all matrices
//! of a block before the next ones begin.

use super::activation::activate_in_place;
use super::elementwise::{add, add_row};
use super::matmul::{FeedForward, Layer, feed_forward_by_tiles, is_many, matmul_all, matmul_into};
use super::pool::Pool;

/// Maximum rows per piece. With half as many, unpacking the weights still pays.
const ROWS: usize = 512;

/// Maximum inner values per piece if they allow half of these rows: more than 32 MiB are mapped anew whatever the allocator is told.
const VALUES: usize = 8 << 20;

/// Applies a block to the rows of `x`, in stretches as for [`matmul_of`](super::matmul_of), and adds the result to `residual`.
pub fn feed_forward(
    pool: &Pool,
    block: &FeedForward<'_>,
    x: &[f32],
    stretches: &[usize],
    residual: Option<&[f32]>,
) -> Vec<f32> {
    let (inputs, outputs) = (block.up.weight.cols, block.down.weight.rows);
    let piece = (VALUES / block.up.weight.rows.max(1)).clamp(ROWS / 2, ROWS);
    let n = stretches.iter().sum::<usize>();
    assert_eq!(Some(x.len()), n.checked_mul(inputs), "values for {n} rows of {inputs}");
    let mut out = Vec::with_capacity(n * outputs);
    let (mut x, mut rest) = (x, &mut out.spare_capacity_mut()[..n * outputs]);
    for stretches in pieces(stretches, piece, |stretch| is_many(pool, stretch)) {
        let rows = stretches.iter().sum::<usize>();
        let (here, later) = x.split_at(rows * inputs);
        let (written, unwritten) = rest.split_at_mut(rows * outputs);
        if !feed_forward_by_tiles(pool, block, here, &stretches, written) {
            matmul_into(pool, &block.down.weight, &inner(pool, block, here, &stretches), &stretches, written);
        }
        (x, rest) = (later, unwritten);
    }
    // SAFETY: the pieces are all rows, and each was written.
    unsafe { out.set_len(n * outputs) };
    if let Some(bias) = block.down.bias {
        add_row(pool, bias, &mut out);
    }
    if let Some(residual) = residual {
        add(pool, residual, &mut out);
    }
    out
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
/// as many rows where the whole does. Each piece reads all weights, so parts of few and of many rows are kept apart only if they come in
/// at most three groups.
fn pieces(stretches: &[usize], most: usize, is_many: impl Fn(usize) -> bool) -> Vec<Vec<usize>> {
    let parts = stretches.iter().flat_map(|&stretch| {
        let parts = stretch.div_ceil(most).max(1);
        (0..parts).map(move |part| (part + 1) * stretch / parts - part * stretch / parts)
    });
    let parts: Vec<usize> = parts.collect();
    let are_apart = parts.chunk_by(|&a, &b| is_many(a) == is_many(b)).count() <= 3;
    let (mut pieces, mut rows): (Vec<Vec<usize>>, usize) = (Vec::new(), 0);
    for part in parts {
        match pieces.last_mut() {
            Some(piece) if rows + part <= most && !(are_apart && is_many(piece[0]) != is_many(part)) => {
                piece.push(part);
            }
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
            assert_eq!(pieces(stretches, ROWS, |_| false), expected);
        }
        let cases: [(&[usize], &[&[usize]]); 3] = [
            (&[1, 2, 100, 200], &[&[1, 2], &[100, 200]]),
            (&[1, 100, 2], &[&[1], &[100], &[2]]),
            (&[1, 100, 2, 100], &[&[1, 100, 2, 100]]),
        ];
        for (stretches, expected) in cases {
            assert_eq!(pieces(stretches, ROWS, |stretch| stretch >= MANY), expected);
        }
        for (most, rows) in [ROWS / 2, ROWS].into_iter().flat_map(|most| (most + 1..4 * ROWS).map(move |n| (most, n))) {
            let parts = pieces(&[rows], most, |_| true).concat();
            assert_eq!(parts.iter().sum::<usize>(), rows);
            assert!(parts.iter().all(|part| (MANY..=most).contains(part)), "{rows} rows: {parts:?}");
        }
    }

    #[test]
    fn blocks_are_their_products_to_the_last_bit() {
        for dtype in [Dtype::F32, Dtype::BF16, Dtype::Q8_0] {
            for stretches in [&[1, 700, 3, MANY, 90][..], &[513], &[2, 1], &[0], &[]] {
                check(dtype, stretches);
            }
        }
    }

    fn check(dtype: Dtype, stretches: &[usize]) {
        const WIDTH: usize = 64;
        const INNER: usize = 96;
        let bytes = |seed: usize| -> Vec<u8> {
            let values = wave(WIDTH * INNER, 0.1 + 0.07 * seed as f32);
            match dtype {
                Dtype::F32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
                Dtype::BF16 => values.iter().flat_map(|value| half::bf16::from_f32(*value).to_le_bytes()).collect(),
                _ => values.chunks(32).flat_map(block_of_bytes).collect(),
            }
        };
        let weights = [1, 2, 3].map(bytes);
        let biases = [wave(INNER, 0.9), wave(INNER, 1.9), wave(WIDTH, 2.9)];
        let layer = |index: usize, with_bias: bool| {
            let (rows, cols) = if index == 2 { (WIDTH, INNER) } else { (INNER, WIDTH) };
            let weight = Matrix { dtype, data: &weights[index], rows, cols };
            Layer { weight, bias: with_bias.then_some(&biases[index]) }
        };
        let n = stretches.iter().sum::<usize>();
        let (x, residual) = (wave(n * WIDTH, 0.7), wave(n * WIDTH, 0.4));
        for level in Level::available() {
            let pool = Pool::with_level(3, level);
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
                let what = format!("{} {dtype:?} {stretches:?}", level.name());
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
