//! Feed-forward blocks on the matrix unit.
//!
//! Inner values go from the sums of gate and up right to the left factors of the last product, which have two bytes for each value if its
//! weights are quantized, and six if not. As results of two products they would be eight bytes, which another loop activates, and
//! a third one packs.

use std::mem::MaybeUninit;

use super::super::super::activation::{Activation, apply};
use super::super::super::pool::Pool;
use super::super::super::simd::{Amx, Avx512, Simd, Split, TILE_COLS, TILE_ROWS, TILE_SUMS, TileKernel};
use super::super::{FeedForward, Layer, Product};
use super::left::{Left, Lines};
use super::shares::{Shares, Task};
use super::{Job, OUTPUTS, PAIRS_MAX, SumRow, WORK, Work, multiply_packed, parts, run};

// The sums of a row with a pair of panels become its numbers of one step.
const _: () = assert!(OUTPUTS == TILE_COLS);

/// True if so many inner values fill whole steps, so that each step belongs to one task.
pub(in super::super) fn can_pass_on(values: usize) -> bool {
    values > 0 && values.is_multiple_of(OUTPUTS)
}

/// Computes a block without the bias of `down`. Its inner values can be [passed on](can_pass_on).
pub(in super::super) fn feed_forward(
    pool: &Pool,
    amx: Amx,
    block: &FeedForward<'_>,
    x: &[f32],
    out: &mut [MaybeUninit<f32>],
) {
    let (values, cols) = (block.up.weight.rows, block.up.weight.cols);
    assert!(can_pass_on(values), "{values} inner values");
    let layers: Vec<Layer<'_>> = block.gate.into_iter().chain([block.up]).collect();
    let split = layers.iter().map(|layer| parts(layer.weight.dtype).left()).max();
    let left = Left::new(pool, amx, x, cols, split.unwrap_or(Split(1)));
    let jobs: Vec<Job<'_>> = layers.iter().map(|layer| Job::new(&layer.weight, &left, None)).collect();
    let shares = Shares::new(&[values], left.n, pool.threads(), PAIRS_MAX / jobs.len());
    let inner = Left::written(left.n, values, parts(block.down.weight.dtype).left(), |lines| {
        pool.run(pool.threads(), |thread| {
            WORK.with_borrow_mut(|Work { right, sums }| {
                while let Some((_, task)) = shares.next(thread) {
                    let sums = run(&jobs, amx, &left, &task, right, sums);
                    let of_layers = sums.chunks_exact(sums.len() / layers.len()).zip(&layers);
                    let mut values = of_layers.map(|(sums, layer)| Values { sums, bias: layer.bias });
                    if let Some(first) = values.next() {
                        let (activation, factor) = (block.activation, values.next());
                        amx.enter(Pack { activation, first, factor, task: &task, n: left.n, lines });
                    }
                }
            });
        });
    });
    multiply_packed(pool, amx, &mut [Product { weight: block.down.weight, out }], &inner);
}

/// Packs the inner values of a task.
struct Pack<'a> {
    activation: Activation,
    /// Of the gate if there is one, else of up.
    first: Values<'a>,
    /// Of up if there is a gate.
    factor: Option<Values<'a>>,
    task: &'a Task,
    n: usize,
    lines: &'a Lines<'a>,
}

/// The results of a layer.
struct Values<'a> {
    sums: &'a [SumRow],
    bias: Option<&'a [f32]>,
}

impl TileKernel for Pack<'_> {
    #[inline(always)]
    fn run(self, amx: Amx) {
        let Self { activation, first, factor, task, n, lines } = self;
        let simd = amx.avx512();
        let mut rows = 0;
        for pair in task.pairs.clone() {
            for group in task.groups.clone() {
                // SAFETY: these columns of these rows are this task's.
                let lines_of_step = unsafe { lines.step(group, pair) };
                for row in 0..TILE_ROWS.min(n - group * TILE_ROWS) {
                    let mut values = first.row(simd, rows + row, pair);
                    apply(simd, activation, &mut values);
                    let mut columns = [simd.load(&values), simd.load(&values[TILE_SUMS..])];
                    if let Some(factor) = &factor {
                        let up = factor.row(simd, rows + row, pair);
                        columns =
                            [simd.mul(columns[0], simd.load(&up)), simd.mul(columns[1], simd.load(&up[TILE_SUMS..]))];
                    }
                    lines.split.store_row(amx, columns, row, lines_of_step);
                }
                rows += TILE_ROWS;
            }
        }
    }
}

impl Values<'_> {
    /// Those of a row and a pair of panels.
    #[inline(always)]
    fn row(&self, simd: Avx512, row: usize, pair: usize) -> [f32; OUTPUTS] {
        let SumRow(mut values) = self.sums[row];
        if let Some(bias) = self.bias {
            let bias = &bias[pair * OUTPUTS..];
            for at in [0, TILE_SUMS] {
                simd.store(simd.add(simd.load(&values[at..]), simd.load(&bias[at..])), &mut values[at..]);
            }
        }
        values
    }
}
