//! Mixture of experts: two parallel loops over all experts of a layer, and one that sums each row's outputs.
//!
//! A single token uses about eight small experts. One product after the other would start the threads two dozen times
//! per layer, with too little work for each. So the inner values of all experts are cut into slices, each of which is a
//! task that computes gate, up and their product; the outputs are then cut the same way. Within a task, a product runs
//! on the task's own thread, with the same summation order as everywhere.

use std::ops::Range;

use super::activation::{Activation, activate_mul};
use super::matmul::{Matrix, matmul_of};
use super::pool::{Disjoint, Pool};
use super::simd::{Kernel, Simd};

/// The activation between an expert's up and down projections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Glu {
    /// `act(gate) · up`.
    Plain(Activation),
    /// The gpt-oss variant: `(up + 1) · gate · sigmoid(alpha · gate)` on clamped values.
    Clamped {
        /// Slope of the sigmoid.
        alpha: f64,
        /// Upper bound of `gate`, and bound of `|up|`.
        limit: f64,
    },
    /// Nemotron's squared ReLU: `relu(up)²`, without a gate.
    Square,
}

/// One linear layer of an expert.
#[derive(Clone, Copy, Debug)]
pub struct Layer<'a> {
    pub weight: Matrix<'a>,
    pub bias: Option<&'a [f32]>,
}

/// An expert, and the rows routed to it.
#[derive(Clone, Debug)]
pub struct Expert<'a> {
    pub gate: Layer<'a>,
    pub up: Layer<'a>,
    pub down: Layer<'a>,
    pub rows: Range<usize>,
}

/// Slices are multiples of this many weight rows, a whole number of panels for every instruction set.
const SLICE: usize = 64;

/// Slices per thread, so that threads finish together.
const SLICES: usize = 4;

/// Computes `out[rows] = down · glu(gate · x[rows], up · x[rows])` for each expert's rows, which partition `x`.
pub fn experts(pool: &Pool, experts: &[Expert<'_>], glu: Glu, x: &[f32], out: &mut [f32]) {
    let Some(first) = experts.first() else { return };
    let (width, inner, outputs) = (first.gate.weight.cols, first.gate.weight.rows, first.down.weight.rows);
    for expert in experts {
        let Expert { gate, up, down, rows } = expert;
        assert_eq!((gate.weight.rows, gate.weight.cols), (up.weight.rows, up.weight.cols), "gate and up");
        assert_eq!((gate.weight.rows, gate.weight.cols), (inner, width), "experts of one size");
        assert_eq!((down.weight.rows, down.weight.cols), (outputs, inner), "experts of one size");
        assert!(rows.end * width <= x.len() && rows.end * outputs <= out.len(), "rows {rows:?}");
    }
    assert!(experts.is_sorted_by(|a, b| a.rows.end <= b.rows.start), "the experts' rows overlap");
    let mut hidden = vec![0.0; x.len() / width.max(1) * inner];
    sliced(pool, experts, inner, &mut hidden, |expert, slice| {
        let x = &x[expert.rows.start * width..expert.rows.end * width];
        if glu == Glu::Square {
            let up = product(pool, &expert.up, slice, x);
            return up.into_iter().map(|up| up.max(0.0).powi(2)).collect();
        }
        let gate = product(pool, &expert.gate, slice.clone(), x);
        let up = product(pool, &expert.up, slice, x);
        activated(pool, glu, &gate, &up)
    });
    sliced(pool, experts, outputs, out, |expert, slice| {
        product(pool, &expert.down, slice, &hidden[expert.rows.start * inner..expert.rows.end * inner])
    });
}

/// Computes the rows of `out`, `columns` values each, one slice of columns for one expert's rows at a time.
fn sliced(
    pool: &Pool,
    experts: &[Expert<'_>],
    columns: usize,
    out: &mut [f32],
    compute: impl Fn(&Expert<'_>, Range<usize>) -> Vec<f32> + Sync,
) {
    let slice = (columns * experts.len()).div_ceil(pool.threads() * SLICES).next_multiple_of(SLICE);
    let slices = columns.div_ceil(slice);
    let out = Disjoint::new(out);
    pool.run(experts.len() * slices, |task| {
        let (expert, start) = (&experts[task / slices], task % slices * slice);
        let range = start..columns.min(start + slice);
        let values = compute(expert, range.clone());
        for (row, values) in expert.rows.clone().zip(values.chunks_exact(range.len())) {
            // SAFETY: each row belongs to one expert, as checked, and each slice of columns to one task.
            let out = unsafe { out.range(row * columns + range.start..row * columns + range.end) };
            out.copy_from_slice(values);
        }
    });
}

/// Computes some outputs of a layer.
fn product(pool: &Pool, layer: &Layer<'_>, outputs: Range<usize>, x: &[f32]) -> Vec<f32> {
    let Matrix { dtype, data, rows, cols } = layer.weight;
    let row_bytes = data.len() / rows.max(1);
    let data = &data[outputs.start * row_bytes..outputs.end * row_bytes];
    let n = x.len() / cols.max(1);
    let mut out = vec![0.0; n * outputs.len()];
    // An expert's rows are of several sequences, so each counts by itself.
    matmul_of(pool, &Matrix { dtype, data, rows: outputs.len(), cols }, x, &vec![1; n], &mut out);
    if let Some(bias) = layer.bias {
        for out in out.chunks_exact_mut(outputs.len()) {
            out.iter_mut().zip(&bias[outputs.clone()]).for_each(|(out, bias)| *out += bias);
        }
    }
    out
}

fn activated(pool: &Pool, glu: Glu, gate: &[f32], up: &[f32]) -> Vec<f32> {
    match glu {
        Glu::Plain(activation) => activate_mul(pool, activation, gate, up),
        Glu::Clamped { alpha, limit } => {
            let (alpha, limit) = (alpha as f32, limit as f32);
            let clamped = |(gate, up): (&f32, &f32)| {
                let gate = gate.min(limit);
                (up.clamp(-limit, limit) + 1.0) * gate / (1.0 + (-alpha * gate).exp())
            };
            gate.iter().zip(up).map(clamped).collect()
        }
        Glu::Square => up.iter().map(|up| up.max(0.0).powi(2)).collect(),
    }
}

/// Values per task: below this, another thread costs more than it gains.
const PIECE: usize = 1 << 14;

/// Sums `places.len() / rows` rows of `x`, in the order of `places`, into each row of `out`, each times its weight.
pub fn combine(pool: &Pool, x: &[f32], places: &[u32], weights: &[f32], rows: usize, out: &mut [f32]) {
    if rows == 0 {
        return;
    }
    let (width, terms) = (out.len() / rows, places.len() / rows);
    assert!(out.len() == rows * width && places.len() == rows * terms, "sums for {rows} rows");
    assert_eq!(places.len(), weights.len(), "a weight for each term");
    if width == 0 {
        return;
    }
    let some = PIECE.div_ceil(width);
    pool.run_pieces(out, some * width, |index, out| {
        for (i, out) in out.chunks_exact_mut(width).enumerate() {
            let terms = (index * some + i) * terms..(index * some + i + 1) * terms;
            pool.level().run(Sum { x, places: &places[terms.clone()], weights: &weights[terms], out });
        }
    });
}

struct Sum<'a> {
    x: &'a [f32],
    places: &'a [u32],
    weights: &'a [f32],
    out: &'a mut [f32],
}

impl<S: Simd> Kernel<S> for Sum<'_> {
    #[inline(always)]
    fn run(self, simd: S) {
        let Self { x, places, weights, out } = self;
        let width = out.len();
        out.fill(0.0);
        for term in 0..places.len() {
            let x = &x[places[term] as usize * width..][..width];
            let weight = simd.splat(weights[term]);
            for at in 0..width / S::LANES {
                let at = at * S::LANES;
                simd.store(simd.fma(simd.load(&x[at..]), weight, simd.load(&out[at..])), &mut out[at..]);
            }
            for at in width / S::LANES * S::LANES..width {
                out[at] += x[at] * weights[term];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{matmul::matmul, simd::Level};
    use super::*;
    use pensieve_weights::Dtype;

    fn wave(len: usize, step: f32) -> Vec<f32> {
        (0..len).map(|i| (i as f32 * step).sin()).collect()
    }

    #[test]
    fn sums_rows_by_their_weights() {
        let (width, rows) = (37, 600);
        let (x, weights) = (wave(50 * width, 0.3), wave(3 * rows, 1.1));
        let places: Vec<u32> = (0..3 * rows as u32).map(|i| i * 7 % 50).collect();
        for level in Level::available() {
            let mut out = vec![f32::NAN; rows * width];
            combine(&Pool::with_level(3, level), &x, &places, &weights, rows, &mut out);
            for (i, out) in out.iter().enumerate() {
                let terms = i / width * 3..i / width * 3 + 3;
                let expected: f32 = terms.map(|t| weights[t] * x[places[t] as usize * width + i % width]).sum();
                assert!((out - expected).abs() < 1e-6, "{}: {out} for {expected} at {i}", level.name());
            }
        }
    }

    #[test]
    fn experts_together_are_experts_alone_bit_for_bit() {
        const WIDTH: usize = 48;
        const INNER: usize = 200;
        let bytes = |values: Vec<f32>| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        let weights: Vec<[Vec<u8>; 3]> =
            (1..4).map(|e| [0.31, 0.17, 0.23].map(|step| bytes(wave(WIDTH * INNER, step * e as f32)))).collect();
        let matrix = |data, rows, cols| Layer { weight: Matrix { dtype: Dtype::F32, data, rows, cols }, bias: None };
        let x = wave(7 * WIDTH, 0.7);
        let of = |e: usize, rows: Range<usize>| Expert {
            gate: matrix(&weights[e][0], INNER, WIDTH),
            up: matrix(&weights[e][1], INNER, WIDTH),
            down: matrix(&weights[e][2], WIDTH, INNER),
            rows,
        };
        for glu in [Glu::Plain(Activation::Silu), Glu::Clamped { alpha: 1.7, limit: 0.5 }, Glu::Square] {
            let (one, many) = (Pool::new(1), Pool::new(5));
            let mut together = vec![0.0; x.len()];
            experts(&many, &[of(0, 0..3), of(1, 3..4), of(2, 4..7)], glu, &x, &mut together);
            for (row, together) in together.chunks_exact(WIDTH).enumerate() {
                let mut alone = vec![0.0; WIDTH];
                let expert = of([0, 0, 0, 1, 2, 2, 2][row], 0..1);
                experts(&one, &[expert], glu, &x[row * WIDTH..][..WIDTH], &mut alone);
                assert_eq!(alone, together, "{glu:?}, row {row}");
            }
        }
    }

    /// Bytes per second that the pool's threads read when they do nothing else.
    fn read_rate(pool: &Pool, data: &[u8]) -> f64 {
        let words = data.as_chunks::<8>().0;
        let piece = 1 << 16;
        let times = (0..8).map(|_| {
            let begun = std::time::Instant::now();
            pool.run(words.len().div_ceil(piece), |task| {
                let words = &words[task * piece..words.len().min((task + 1) * piece)];
                std::hint::black_box(words.iter().fold(0, |sum, word| sum ^ u64::from_le_bytes(*word)));
            });
            begun.elapsed()
        });
        data.len() as f64 / times.min().unwrap_or_default().as_secs_f64()
    }

    /// Compares the throughput of chosen experts' weights with a dense block of equal size and with a plain read:
    /// `cargo test --release -p pensieve-kernels --lib experts::tests::bytes -- --ignored --nocapture`.
    #[test]
    #[ignore = "measures"]
    fn bytes_of_experts_pass_as_fast_as_those_of_a_dense_block() {
        const WIDTH: usize = 2048;
        const INNER: usize = 768;
        const CHOSEN: usize = 8;
        for dtype in [Dtype::Q8_0, Dtype::Q4K] {
            let pool = Pool::new(0);
            let bytes = |cols: usize, rows: usize| dtype.row_bytes(cols).unwrap_or_default() * rows;
            // Separate experts, far apart; no byte is read again before it has left the caches.
            let all = 256;
            let data = vec![0x11_u8; all * bytes(WIDTH, INNER) * 3];
            let read = read_rate(&pool, &data) / 1e9;
            let part = |at: usize, len: usize| &data[at..at + len];
            let layer = |data, rows, cols| Layer { weight: Matrix { dtype, data, rows, cols }, bias: None };
            let of = |expert: usize, rows: Range<usize>| {
                let (start, len) = (expert * 3 * bytes(WIDTH, INNER), bytes(WIDTH, INNER));
                Expert {
                    gate: layer(part(start, len), INNER, WIDTH),
                    up: layer(part(start + len, len), INNER, WIDTH),
                    down: layer(part(start + 2 * len, len), WIDTH, INNER),
                    rows,
                }
            };
            let (x, mut out) = (wave(CHOSEN * WIDTH, 0.7), vec![0.0; CHOSEN * WIDTH]);
            let mut times = [Vec::new(), Vec::new()];
            for round in 0..40 {
                let first = round * CHOSEN % all;
                let begun = std::time::Instant::now();
                let chosen: Vec<_> = (0..CHOSEN).map(|i| of(first + i, i..i + 1)).collect();
                experts(&pool, &chosen, Glu::Plain(Activation::Silu), &x, &mut out);
                times[0].push(begun.elapsed());
                let begun = std::time::Instant::now();
                let start = (first + all / 2) % all * 3 * bytes(WIDTH, INNER);
                let dense = part(start, CHOSEN * 3 * bytes(WIDTH, INNER));
                let rows = CHOSEN * 3 * INNER;
                let mut out = vec![0.0; rows];
                matmul(&pool, &Matrix { dtype, data: dense, rows, cols: WIDTH }, &x[..WIDTH], 1, &mut out);
                times[1].push(begun.elapsed());
            }
            let [experts, dense] = times.map(|mut times| {
                times.sort();
                (CHOSEN * 3 * bytes(WIDTH, INNER)) as f64 / times[times.len() / 2].as_secs_f64() / 1e9
            });
            println!("{dtype}: experts {experts:.1} GB/s, dense {dense:.1} GB/s, only read {read:.1} GB/s");
        }
    }
}
