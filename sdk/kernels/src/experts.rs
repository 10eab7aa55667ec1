//! Mixture of experts: two parallel loops over all experts of a layer, and one that sums each row's outputs.
//!
//! A single token uses about eight small experts. One product after the other would start the threads two dozen times
//! per layer, with too little work for each. So the inner values of all experts are cut into slices, each of which is a
//! task that computes gate, up and their product; the outputs are then cut the same way. Within a task, a product runs
//! on the task's own thread, with the same summation order as everywhere. A task copies its expert's rows from where they
//! are, so that no thread gathers them for all.

use std::borrow::Cow;
use std::cell::Cell;
use std::cmp::Reverse;
use std::ops::Range;

use super::activation::{Activation, activate_mul};
use super::matmul::{Layer, Matrix, matmul_all};
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

/// An expert, and the rows routed to it.
#[derive(Clone, Debug)]
pub struct Expert<'a> {
    pub gate: Layer<'a>,
    pub up: Layer<'a>,
    pub down: Layer<'a>,
    /// Its part of the sorted rows.
    pub rows: Range<usize>,
    /// How many of these belong to each sequence, as for [`matmul_of`](super::matmul_of).
    pub stretches: Vec<usize>,
}

/// The terms of each row's sum of experts' outputs. Rows are sorted by expert, once for each of their experts.
#[derive(Clone, Copy, Debug)]
pub struct ExpertTerms<'a> {
    /// The row that each sorted one is a copy of.
    pub sources: &'a [u32],
    /// For each row the sorted ones to sum, in this order.
    pub places: &'a [u32],
    /// The factor of each.
    pub weights: &'a [f32],
    /// How many of them each row has.
    pub top_k: usize,
}

/// Slices are multiples of this many weight rows, a whole number of panels for every instruction set.
const SLICE: usize = 64;

/// Tasks per thread, so that threads finish together.
const TASKS: usize = 4;

/// The cost of unpacking a weight, in multiplications.
const UNPACKING: usize = 16;

/// Most values that are kept for the next layer, 128 MiB: 4,096, inner ones and outputs, for each of eight experts of 1,024 rows.
const KEPT: usize = 32 << 20;

thread_local! {
    /// Memory of the last layer's inner values and outputs. To get as much from the system for each layer, and to give it
    /// back, took a tenth of a prompt's time.
    static MEMORY: Cell<[Vec<f32>; 2]> = const { Cell::new([Vec::new(), Vec::new()]) };
}

/// Computes `down · glu(gate · x, up · x)` of each expert for its rows, and each row's weighted sum of these.
pub fn experts(pool: &Pool, experts: &[Expert<'_>], glu: Glu, x: &[f32], terms: ExpertTerms<'_>) -> Vec<f32> {
    let Some(first) = experts.first() else { return Vec::new() };
    let (width, inner, outputs) = (first.gate.weight.cols, first.gate.weight.rows, first.down.weight.rows);
    let mut end = 0;
    for Expert { gate, up, down, rows, stretches } in experts {
        assert_eq!((gate.weight.rows, gate.weight.cols), (up.weight.rows, up.weight.cols), "gate and up");
        assert_eq!((gate.weight.rows, gate.weight.cols), (inner, width), "experts of one size");
        assert_eq!((down.weight.rows, down.weight.cols), (outputs, inner), "experts of one size");
        assert!(rows.start == end && rows.end >= end, "the experts' rows {rows:?} after {end}");
        assert_eq!(stretches.iter().sum::<usize>(), rows.len(), "stretches of the experts' rows");
        end = rows.end;
    }
    assert_eq!(end, terms.sources.len(), "rows of experts");
    assert!(x.len().is_multiple_of(width.max(1)), "{} values in rows of {width}", x.len());
    let [hidden, outs] = MEMORY.take();
    let hidden = sliced(pool, experts, inner, hidden, |expert, slice| {
        let x = gathered(x, width, &terms.sources[expert.rows.clone()]);
        if glu == Glu::Square {
            let [up] = products(pool, expert, [&expert.up], slice, &x);
            return activated(pool, glu, &[], &up);
        }
        let [gate, up] = products(pool, expert, [&expert.gate, &expert.up], slice, &x);
        activated(pool, glu, &gate, &up)
    });
    let outs = sliced(pool, experts, outputs, outs, |expert, slice| {
        let hidden = &hidden[expert.rows.start * inner..expert.rows.end * inner];
        let [out] = products(pool, expert, [&expert.down], slice, hidden);
        out
    });
    let sums = combine(pool, &outs, outputs, terms.places, terms.weights, terms.top_k);
    if hidden.capacity() + outs.capacity() <= KEPT {
        MEMORY.set([hidden, outs]);
    }
    sums
}

/// These rows of `x`, one after another.
fn gathered<'a>(x: &'a [f32], width: usize, sources: &[u32]) -> Cow<'a, [f32]> {
    let row = |source: u32| &x[source as usize * width..][..width];
    if let &[source] = sources {
        return Cow::Borrowed(row(source));
    }
    let mut rows = Vec::with_capacity(sources.len() * width);
    sources.iter().for_each(|&source| rows.extend_from_slice(row(source)));
    Cow::Owned(rows)
}

/// Computes rows of `columns` values in the memory of `out`: for each expert, whose rows follow those of the one before, a
/// slice of columns at a time.
fn sliced(
    pool: &Pool,
    experts: &[Expert<'_>],
    columns: usize,
    mut out: Vec<f32>,
    compute: impl Fn(&Expert<'_>, Range<usize>) -> Vec<f32> + Sync,
) -> Vec<f32> {
    let cost = |expert: &Expert<'_>| UNPACKING + expert.rows.len();
    let all: usize = experts.iter().map(cost).sum();
    let slices = experts.iter().flat_map(|expert| {
        // Experts with many rows are cut into more slices, so that tasks take similar times.
        let slice = (columns * all).div_ceil(cost(expert) * pool.threads() * TASKS).max(1).next_multiple_of(SLICE);
        (0..columns).step_by(slice).map(move |start| (expert, start..columns.min(start + slice)))
    });
    let mut slices: Vec<_> = slices.collect();
    // The longest first: at the end there are short ones to share.
    slices.sort_by_key(|(expert, slice)| Reverse(cost(expert) * slice.len()));
    let len = experts.last().map_or(0, |expert| expert.rows.end * columns);
    out.clear();
    out.reserve_exact(len);
    let rest = Disjoint::new(&mut out.spare_capacity_mut()[..len]);
    pool.run(slices.len(), |task| {
        let (expert, slice) = &slices[task];
        let values = compute(expert, slice.clone());
        assert_eq!(values.len(), expert.rows.len() * slice.len(), "values of a slice");
        for (row, values) in expert.rows.clone().zip(values.chunks_exact(slice.len())) {
            // SAFETY: each row belongs to one expert, as `experts` checks, and each slice of columns to one task.
            let out = unsafe { rest.range(row * columns + slice.start..row * columns + slice.end) };
            out.write_copy_of_slice(values);
        }
    });
    // SAFETY: the slices of all experts are all columns of all rows, and each was written.
    unsafe { out.set_len(len) };
    out
}

/// Computes some outputs of layers of an expert, which have the same input.
fn products<const N: usize>(
    pool: &Pool,
    expert: &Expert<'_>,
    layers: [&Layer<'_>; N],
    outputs: Range<usize>,
    x: &[f32],
) -> [Vec<f32>; N] {
    let weights = layers.map(|Layer { weight, .. }| {
        let row_bytes = weight.data.len() / weight.rows.max(1);
        let data = &weight.data[outputs.start * row_bytes..outputs.end * row_bytes];
        Matrix { data, rows: outputs.len(), ..*weight }
    });
    let mut outs = matmul_all(pool, &weights, x, &expert.stretches).into_iter();
    layers.map(|Layer { bias, .. }| {
        let mut out = outs.next().unwrap_or_default();
        if let Some(bias) = bias {
            for out in out.chunks_exact_mut(outputs.len()) {
                out.iter_mut().zip(&bias[outputs.clone()]).for_each(|(out, bias)| *out += bias);
            }
        }
        out
    })
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

/// Sums rows of `x`, of `width` values, each times its weight: each row of the result has `terms` of the `places`, in this order.
pub fn combine(pool: &Pool, x: &[f32], width: usize, places: &[u32], weights: &[f32], terms: usize) -> Vec<f32> {
    assert_eq!(places.len(), weights.len(), "a weight for each term");
    assert!(terms > 0 && places.len().is_multiple_of(terms), "{} places for sums of {terms}", places.len());
    if width == 0 {
        return Vec::new();
    }
    let some = PIECE.div_ceil(width);
    pool.computed(places.len() / terms * width, some * width, |index, out| {
        for (i, out) in out.rows(width).enumerate() {
            let terms = (index * some + i) * terms..(index * some + i + 1) * terms;
            let out = out.fill(0.0);
            pool.level().run(Sum { x, places: &places[terms.clone()], weights: &weights[terms], out });
        }
    })
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
    use super::super::{matmul::matmul, simd::Level, tile::MANY};
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
            let out = combine(&Pool::with_level(3, level), &x, width, &places, &weights, 3);
            assert_eq!(out.len(), rows * width);
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
        let of = |e: usize, start: usize, stretches: &[usize]| Expert {
            gate: matrix(&weights[e][0], INNER, WIDTH),
            up: matrix(&weights[e][1], INNER, WIDTH),
            down: matrix(&weights[e][2], WIDTH, INNER),
            rows: start..start + stretches.iter().sum::<usize>(),
            stretches: stretches.to_vec(),
        };
        // Two sequences: the rows of the second are many for the last expert, and few for the others.
        let together = [of(0, 0, &[2, 1]), of(1, 3, &[1]), of(2, 4, &[2, MANY])];
        let tokens = MANY + 3;
        let x = wave(tokens * WIDTH, 0.7);
        let sources: Vec<u32> = [0, 2, 3, 1, 0, 1].into_iter().chain(3..tokens as u32).collect();
        let row_of = |source: u32| &x[source as usize * WIDTH..][..WIDTH];
        // Sums of one term are the experts' outputs, in the order of the sorted rows.
        let places: Vec<u32> = (0..sources.len() as u32).collect();
        let ones = vec![1.0; sources.len()];
        for glu in [Glu::Plain(Activation::Silu), Glu::Clamped { alpha: 1.7, limit: 0.5 }, Glu::Square] {
            for level in Level::available() {
                let (one, many) = (Pool::with_level(1, level), Pool::with_level(5, level));
                let outs = experts(&many, &together, glu, &x, terms(&sources, &places, &ones));
                assert_eq!(outs.len(), sources.len() * WIDTH);
                let mut place = 0;
                for (e, expert) in together.iter().enumerate() {
                    for &stretch in &expert.stretches {
                        let rows = place..place + stretch;
                        place = rows.end;
                        let alone = experts(
                            &one,
                            &[of(e, 0, &[stretch])],
                            glu,
                            &x,
                            terms(&sources[rows.clone()], &places, &ones),
                        );
                        assert_eq!(alone, outs[rows.start * WIDTH..rows.end * WIDTH], "{glu:?}, rows {rows:?}");
                        let exact = exact(&together[e], glu, row_of(sources[rows.start]));
                        for (out, exact) in outs[rows.start * WIDTH..].iter().zip(exact) {
                            assert!((f64::from(*out) - exact).abs() < 1e-4 * (1.0 + exact.abs()), "{out} for {exact}");
                        }
                    }
                }
            }
        }
    }

    fn terms<'a>(sources: &'a [u32], places: &'a [u32], weights: &'a [f32]) -> ExpertTerms<'a> {
        ExpertTerms { sources, places: &places[..sources.len()], weights: &weights[..sources.len()], top_k: 1 }
    }

    /// An expert of one row in `f64`.
    fn exact(expert: &Expert<'_>, glu: Glu, x: &[f32]) -> Vec<f64> {
        let product = |layer: &Layer<'_>, x: &[f64]| -> Vec<f64> {
            let values: Vec<f64> =
                layer.weight.data.as_chunks().0.iter().map(|value| f64::from(f32::from_le_bytes(*value))).collect();
            values.chunks_exact(x.len()).map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
        };
        let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        let [gate, up] = [&expert.gate, &expert.up].map(|layer| product(layer, &x));
        let hidden = gate.into_iter().zip(up).map(|(gate, up)| match glu {
            Glu::Plain(_) => gate / (1.0 + (-gate).exp()) * up,
            Glu::Clamped { alpha, limit } => {
                let gate = gate.min(limit);
                (up.clamp(-limit, limit) + 1.0) * gate / (1.0 + (-alpha * gate).exp())
            }
            Glu::Square => up.max(0.0).powi(2),
        });
        product(&expert.down, &hidden.collect::<Vec<_>>())
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
                let stretches = vec![rows.len()];
                let (start, len) = (expert * 3 * bytes(WIDTH, INNER), bytes(WIDTH, INNER));
                Expert {
                    gate: layer(part(start, len), INNER, WIDTH),
                    up: layer(part(start + len, len), INNER, WIDTH),
                    down: layer(part(start + 2 * len, len), WIDTH, INNER),
                    rows,
                    stretches,
                }
            };
            let x = wave(WIDTH, 0.7);
            let (sources, places) = ([0; CHOSEN], (0..CHOSEN as u32).collect::<Vec<_>>());
            let terms = ExpertTerms { sources: &sources, places: &places, weights: &[0.1; CHOSEN], top_k: CHOSEN };
            let mut times = [Vec::new(), Vec::new()];
            for round in 0..40 {
                let first = round * CHOSEN % all;
                let begun = std::time::Instant::now();
                let chosen: Vec<_> = (0..CHOSEN).map(|i| of(first + i, i..i + 1)).collect();
                std::hint::black_box(experts(&pool, &chosen, Glu::Plain(Activation::Silu), &x, terms));
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
