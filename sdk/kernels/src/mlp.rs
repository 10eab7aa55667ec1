//! Feed-forward blocks, some hundred rows at a time.
//!
//! Inner values are several times as many as a row's inputs. For all rows of a long prompt they would be tens of megabytes a layer:
//! they leave the caches before they are used, and the allocator maps as much anew for each layer. So rows pass all matrices
//! of a block before the next ones begin.

use super::activation::{Activation, activate_in_place};
use super::elementwise::{add, add_row};
use super::experts::Layer;
use super::matmul::{matmul_all, matmul_into};
use super::pool::Pool;

/// Most rows that pass together, unless a step has fewer. The unpacking of weights is worth it for half of these.
const ROWS: usize = 512;

/// `down(act(gate(x)) · up(x))`, or `down(act(up(x)))` without a gate.
#[derive(Clone, Copy, Debug)]
pub struct Mlp<'a> {
    pub gate: Option<Layer<'a>>,
    pub up: Layer<'a>,
    pub down: Layer<'a>,
    pub activation: Activation,
}

/// Applies a block to the rows of `x`, in stretches as for [`matmul_of`](super::matmul_of), and adds the result to `residual`.
pub fn mlp(pool: &Pool, block: &Mlp<'_>, x: &[f32], stretches: &[usize], residual: Option<&[f32]>) -> Vec<f32> {
    let (inputs, outputs) = (block.up.weight.cols, block.down.weight.rows);
    let n = stretches.iter().sum::<usize>();
    assert_eq!(Some(x.len()), n.checked_mul(inputs), "values for {n} rows of {inputs}");
    let mut out = Vec::with_capacity(n * outputs);
    let (mut x, mut rest) = (x, &mut out.spare_capacity_mut()[..n * outputs]);
    for stretches in pieces(stretches) {
        let rows = stretches.iter().sum::<usize>();
        let (here, later) = x.split_at(rows * inputs);
        let (written, unwritten) = rest.split_at_mut(rows * outputs);
        matmul_into(pool, &block.down.weight, &inner(pool, block, here, &stretches), &stretches, written);
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

fn inner(pool: &Pool, block: &Mlp<'_>, x: &[f32], stretches: &[usize]) -> Vec<f32> {
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

/// Packs stretches into pieces of at most [`ROWS`] rows. A longer stretch is cut into equal parts, so that each of them counts
/// as many rows where the whole does.
fn pieces(stretches: &[usize]) -> Vec<Vec<usize>> {
    let parts = stretches.iter().flat_map(|&stretch| {
        let parts = stretch.div_ceil(ROWS).max(1);
        (0..parts).map(move |part| (part + 1) * stretch / parts - part * stretch / parts)
    });
    let (mut pieces, mut rows): (Vec<Vec<usize>>, usize) = (Vec::new(), 0);
    for part in parts {
        match pieces.last_mut() {
            Some(piece) if rows + part <= ROWS => piece.push(part),
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
    use super::super::activation::{activate, activate_mul};
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
        let cases: [(&[usize], &[&[usize]]); 6] = [
            (&[], &[]),
            (&[1], &[&[1]]),
            (&[500, 12, 1], &[&[500, 12], &[1]]),
            (&[513], &[&[256], &[257]]),
            (&[1, 1024, 3], &[&[1], &[512], &[512], &[3]]),
            (&[2, 1500], &[&[2, 500], &[500], &[500]]),
        ];
        for (stretches, expected) in cases {
            assert_eq!(pieces(stretches), expected);
        }
        assert!((ROWS + 1..4 * ROWS).all(|rows| pieces(&[rows]).concat().into_iter().all(|part| part >= MANY)));
    }

    #[test]
    fn blocks_are_their_products_to_the_last_bit() {
        const WIDTH: usize = 64;
        const INNER: usize = 96;
        let bytes = |values: Vec<f32>| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        let weights = [0.31, 0.17, 0.23].map(|step| bytes(wave(WIDTH * INNER, step)));
        let biases = [wave(INNER, 0.9), wave(INNER, 1.9), wave(WIDTH, 2.9)];
        let layer = |index: usize, with_bias: bool| {
            let (rows, cols) = if index == 2 { (WIDTH, INNER) } else { (INNER, WIDTH) };
            let weight = Matrix { dtype: Dtype::F32, data: &weights[index], rows, cols };
            Layer { weight, bias: with_bias.then_some(&biases[index]) }
        };
        let stretches = [1, 700, 3, MANY, 90];
        let n = stretches.iter().sum::<usize>();
        let (x, residual) = (wave(n * WIDTH, 0.7), wave(n * WIDTH, 0.4));
        for level in Level::available() {
            let pool = Pool::with_level(3, level);
            let product = |layer: Layer<'_>, x: &[f32]| {
                let mut out = vec![0.0; n * layer.weight.rows];
                matmul_of(&pool, &layer.weight, x, &stretches, &mut out);
                if let Some(bias) = layer.bias {
                    add_row(&pool, bias, &mut out);
                }
                out
            };
            for (with_gate, with_bias) in [(true, true), (true, false), (false, true), (false, false)] {
                let [gate, up, down] = [0, 1, 2].map(|index| layer(index, with_bias));
                let block = Mlp { gate: with_gate.then_some(gate), up, down, activation: Activation::Silu };
                let inner = match block.gate {
                    Some(gate) => activate_mul(&pool, Activation::Silu, &product(gate, &x), &product(up, &x)),
                    None => activate(&pool, Activation::Silu, &product(up, &x)),
                };
                let mut expected = product(down, &inner);
                assert_eq!(mlp(&pool, &block, &x, &stretches, None), expected, "{}", level.name());
                add(&pool, &residual, &mut expected);
                assert_eq!(mlp(&pool, &block, &x, &stretches, Some(&residual)), expected, "{}", level.name());
            }
        }
    }
}
