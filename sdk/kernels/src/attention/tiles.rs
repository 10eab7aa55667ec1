//! Attention of many rows on the matrix unit.
//!
//! Everything is transposed: scores are products of keys with 32 queries, so that a vector has one position's scores of 16
//! queries, and maxima, sums and masks need nothing from their neighbours. Weights then already lie as the right factors of
//! the values' product, whose sums have a query per column until the end.
//!
//! Numbers are split into parts of `bf16`, and the products of parts that matter are summed. A cache in `f32` has three parts of
//! everything, which is all bits. In `f16` and below, scores are products of two parts of keys and queries, 16 bits: with one they were
//! off by more than the rounding of activations to 8 bits costs. Weights and values have one part there, each rounded by at most a
//! 256th, as much as products with quantized weights then round the result. All products of a step are summed without leaving the
//! tiles, in an order in which each of them loads the next part of one side only.

use std::marker::PhantomData;
use std::ops::Range;

use super::{Attend, TileRows, load_part};
use crate::{
    float::{F32, Float, fill},
    kv::Kv,
    simd::{
        Amx, Avx512, Factors, Line, Parts, Rows, Simd, Sums, TILE_COLS, TILE_ROWS, TILE_SUMS, TileKernel, Tiles, tanh,
    },
};

/// Queries that are multiplied together: two tiles of columns.
const QUERIES: usize = 2 * TILE_SUMS;
/// Rows of sums that are computed together: two tiles of rows.
const PAIR_ROWS: usize = 2 * TILE_ROWS;
/// Positions whose keys and values are loaded together, from multiples of their number on. With more of them the sums of
/// values, which lie in memory, are read and written less often.
const LOADED: usize = 128;
/// Positions of a step of the products with values, which are also a pair of tiles of scores. Steps that none of 32 rows sees are
/// skipped.
const STEP: usize = TILE_COLS;
const STEPS: usize = LOADED / STEP;
const _: () = assert!(STEP == PAIR_ROWS);
/// Below every score: a maximum that nothing was compared with yet.
const LOWEST: f32 = f32::MIN / 2.0;

/// A vector of 16 numbers.
type Vector = <Avx512 as Simd>::F;

/// How the keys and queries of a cache are split, and its values and their weights: both factors of a product into as many parts.
#[derive(Clone, Copy)]
struct Precision {
    scores: Parts,
    sums: Parts,
}

impl Precision {
    const fn of(cache: Kv<'_>) -> Self {
        match cache {
            Kv::F16(_) | Kv::Packed(..) => Self { scores: Parts::TwoByTwo, sums: Parts::OneByOne },
            Kv::F32(_) => Self { scores: Parts::ThreeByThree, sums: Parts::ThreeByThree },
        }
    }
}

/// Scratch memory of a part, reused for all positions.
struct Work<F> {
    amx: Amx,
    tiles: Tiles,
    precision: Precision,
    key_steps: usize,
    /// Right factors of each 16 queries.
    queries: Vec<Line>,
    /// Left factors of each 16 positions, and of each 16 dimensions.
    keys: Vec<Line>,
    values: Vec<Line>,
    /// Right factors of each 16 queries of a pair.
    weights: Vec<Line>,
    /// `[LOADED, QUERIES]`.
    scores: Vec<[Vector; 2]>,
    /// `[pairs, dimensions, QUERIES]`.
    sums: Vec<[Vector; 2]>,
    /// Dimensions of values, filled up to pairs of tiles.
    dims: usize,
    /// The running maximum and sum of each query of a pair.
    state: Vec<[(Vector, Vector); 2]>,
    /// A vector of positions per dimension, for 32 positions.
    columns: [Vec<Vector>; 2],
    /// Rows of a packed cache.
    unpacked: Vec<f32>,
    format: PhantomData<F>,
}

impl<F: Float> TileKernel for Attend<'_, F> {
    #[inline(always)]
    fn run(self, amx: Amx) {
        let mut work = Work::new(amx, &self);
        let (rows, all) = (self.rows(), self.seen());
        let position = |row: usize| self.first() + row / self.group();
        for start in (all.start / LOADED * LOADED..all.end).step_by(LOADED) {
            let loaded = LOADED.min(all.end - start);
            work.fetch(&self, start, loaded);
            for pair in 0..rows.div_ceil(QUERIES) {
                let of_pair = pair * QUERIES..rows.min((pair + 1) * QUERIES);
                let (least, most) = (self.seen_by(position(of_pair.start)), self.seen_by(position(of_pair.end - 1)));
                let first = least.start.saturating_sub(start) / STEP;
                let steps = first..most.end.saturating_sub(start).min(loaded).div_ceil(STEP);
                if steps.is_empty() {
                    continue;
                }
                let positions = start + steps.start * STEP..start + steps.end * STEP;
                let is_whole = most.start <= positions.start && positions.end <= least.end.min(all.end);
                work.score(pair, steps.clone());
                for half in 0..2 {
                    let first = of_pair.start + half * TILE_SUMS;
                    let rows = first..of_pair.end.min(first + TILE_SUMS);
                    if self.scores.distances.is_some() || !is_whole {
                        work.restrict(&self, rows, half, start, steps.clone());
                    }
                    work.weigh(pair, half, steps.clone(), self.scores.softcap);
                }
                work.gather(pair, steps);
            }
        }
        work.finish(&self);
    }
}

impl<F: Float> Work<F> {
    #[inline(always)]
    fn new(amx: Amx, of: &Attend<'_, F>) -> Self {
        let simd = amx.avx512();
        let zero = simd.splat(0.0);
        let precision = Precision::of(of.past.keys.1);
        let (of_scores, of_sums) = (precision.scores.left(), precision.sums.left());
        let (dim, value_dim) = (of.past.keys.0.head_dim, of.past.value_dim);
        let (key_steps, dims) = (dim.div_ceil(TILE_COLS), value_dim.next_multiple_of(PAIR_ROWS));
        let pairs = of.rows().div_ceil(QUERIES);
        let mut queries = vec![Line::ZERO; 2 * pairs * of_scores.lines(key_steps)];
        let padded = key_steps * TILE_COLS;
        let mut rows = vec![0.0; TILE_SUMS * padded];
        let mut columns = vec![zero; padded];
        for (half, lines) in queries.chunks_exact_mut(of_scores.lines(key_steps)).enumerate() {
            let first = (half * TILE_SUMS).min(of.rows());
            let count = TILE_SUMS.min(of.rows() - first);
            for (row, to) in rows.chunks_exact_mut(padded).enumerate().take(count) {
                for (to, query) in to.iter_mut().zip(of.queries(first + row)) {
                    *to = query;
                }
            }
            rows[count * padded..].fill(0.0);
            fill::<Avx512, F32>(
                simd,
                Rows { bytes: Kv::F32(&rows).bytes(), stride: padded * F32::BYTES },
                &mut columns,
            );
            for (line, two) in columns.chunks_exact(2).enumerate() {
                of_scores.store_pairs(amx, [two[0], two[1]], line, lines);
            }
        }
        Self {
            amx,
            tiles: amx.tiles(),
            precision,
            key_steps,
            queries,
            keys: vec![Line::ZERO; LOADED / TILE_ROWS * of_scores.lines(key_steps)],
            values: vec![Line::ZERO; dims / TILE_ROWS * of_sums.lines(STEPS)],
            weights: vec![Line::ZERO; 2 * of_sums.lines(STEPS)],
            scores: vec![[zero; 2]; LOADED],
            sums: vec![[zero; 2]; pairs * dims],
            dims,
            state: vec![[(simd.splat(LOWEST), zero); 2]; pairs],
            columns: [vec![zero; value_dim], vec![zero; value_dim]],
            unpacked: Vec::new(),
            format: PhantomData,
        }
    }

    /// Loads the keys and values of some positions.
    #[inline(always)]
    fn fetch(&mut self, of: &Attend<'_, F>, start: usize, loaded: usize) {
        let (amx, split) = (self.amx, self.precision.scores.left());
        let simd = amx.avx512();
        let dim = of.past.keys.0.head_dim;
        let rows = of.rows_of(of.past.keys, (start, loaded), &mut self.unpacked);
        for position in 0..loaded {
            let lines = &mut self.keys[position / TILE_ROWS * split.lines(self.key_steps)..];
            let lines = &mut lines[..split.lines(self.key_steps)];
            let bytes = &rows.at(position)[..dim * F::BYTES];
            for (step, bytes) in bytes.chunks(TILE_COLS * F::BYTES).enumerate() {
                let (first, second) = bytes.split_at(bytes.len().min(TILE_SUMS * F::BYTES));
                let columns = [load_part::<Avx512, F>(simd, first), load_part::<Avx512, F>(simd, second)];
                split.store_row(amx, columns, step * TILE_ROWS + position % TILE_ROWS, lines);
            }
        }
        let split = self.precision.sums.left();
        let rows = of.rows_of(of.past.values, (start, loaded), &mut self.unpacked);
        let dim = of.past.values.0.head_dim;
        for step in 0..loaded.div_ceil(STEP) {
            for (half, columns) in self.columns.iter_mut().enumerate() {
                let first = step * STEP + half * TILE_SUMS;
                load_columns::<F>(simd, rows, dim, (first, loaded), columns);
            }
            for (d, (first, second)) in self.columns[0].iter().zip(&self.columns[1]).enumerate() {
                let lines = &mut self.values[d / TILE_ROWS * split.lines(STEPS)..];
                let lines = &mut lines[..split.lines(STEPS)];
                split.store_row(amx, [*first, *second], step * TILE_ROWS + d % TILE_ROWS, lines);
            }
        }
    }

    /// Multiplies the keys of some steps with a pair's queries.
    #[inline(always)]
    fn score(&mut self, pair: usize, steps: Range<usize>) {
        let split = self.precision.scores.left();
        let each = split.lines(self.key_steps);
        let right = [2 * pair, 2 * pair + 1].map(|half| &self.queries[half * each..][..each]);
        let right = Factors::new(right, split);
        let keys = self.keys.chunks_exact(2 * each).zip(self.scores.chunks_exact_mut(PAIR_ROWS));
        for (keys, scores) in keys.take(steps.end).skip(steps.start) {
            let (left, to) = (Factors::new(keys.split_at(each).into(), split), sums_in(scores));
            let from = Sums { at: std::ptr::null_mut(), ..to };
            // SAFETY: all factors have as many lines as the steps need, and the scores are 32 rows of 32 elements.
            unsafe { self.tiles.two_by_two(self.precision.scores, left, right, self.key_steps, from, to) };
        }
    }

    /// Adds what depends on the distance to the scores of some rows, and hides the positions that they do not see.
    #[inline(always)]
    fn restrict(&mut self, of: &Attend<'_, F>, rows: Range<usize>, half: usize, start: usize, steps: Range<usize>) {
        let simd = self.amx.avx512();
        let (start, len) = (start + steps.start * STEP, steps.len() * STEP);
        let end = of.seen().end.saturating_sub(start).min(len);
        let mut bounds = [[f32::NEG_INFINITY; TILE_SUMS]; LOADED];
        let mut biases = [[0.0; TILE_SUMS]; LOADED];
        for (lane, row) in rows.enumerate() {
            let position = of.first() + row / of.group();
            let visible = of.visible(position, start, end);
            if let Some(distances) = of.scores.distances {
                let (of_head, far) = (distances.of_head(of.head(row) % of.heads), distances.far.cast_signed());
                for at in visible.clone() {
                    let distance = (start + at).cast_signed() - position.cast_signed();
                    biases[at][lane] = of_head[(distance.clamp(-far, far) + far).cast_unsigned()];
                }
            }
            for bounds in &mut bounds[visible] {
                bounds[lane] = f32::INFINITY;
            }
        }
        let scores = &mut self.scores[steps.start * STEP..][..len];
        for ((scores, bound), bias) in scores.iter_mut().zip(&bounds).zip(&biases) {
            let score = simd.add(scores[half], simd.load(bias));
            // The bound if there is no number, as where positions were never written.
            scores[half] = simd.min(score, simd.load(bound));
        }
    }

    /// Turns the scores of 16 queries into weights relative to their running maximum, and rescales their sums if that grows.
    #[inline(always)]
    fn weigh(&mut self, pair: usize, half: usize, steps: Range<usize>, softcap: Option<f32>) {
        let (amx, split) = (self.amx, self.precision.sums.left());
        let simd = amx.avx512();
        let scores = &mut self.scores[steps.start * STEP..steps.end * STEP];
        if let Some(cap) = softcap {
            let cap = simd.splat(cap);
            for scores in scores.iter_mut() {
                // What is hidden stays so.
                let bent = simd.mul(tanh(simd, simd.div(scores[half], cap)), cap);
                scores[half] = simd.min(bent, simd.sub(scores[half], simd.splat(-1e30)));
            }
        }
        let (before, sum) = self.state[pair][half];
        let mut tops = [before; 4];
        for scores in scores.chunks_exact(tops.len()) {
            for (top, scores) in tops.iter_mut().zip(scores) {
                *top = simd.max(*top, scores[half]);
            }
        }
        let top = simd.max(simd.max(tops[0], tops[1]), simd.max(tops[2], tops[3]));
        let twos = simd.splat(std::f32::consts::LOG2_E);
        let top_twos = simd.mul(top, twos);
        let less = simd.sub(simd.splat(0.0), top_twos);
        let mut added = [simd.splat(0.0); 4];
        let each = split.lines(STEPS);
        let lines = &mut self.weights[half * each..][..each];
        let lines = &mut lines[split.lines(steps.start)..split.lines(steps.end)];
        for (group, scores) in scores.chunks_exact(added.len()).enumerate() {
            let mut weights = [simd.splat(0.0); 4];
            for (at, scores) in scores.iter().enumerate() {
                weights[at] = simd.power_of_two(simd.fma(scores[half], twos, less));
                added[at] = simd.add(added[at], weights[at]);
            }
            split.store_pairs(amx, [weights[0], weights[1]], 2 * group, lines);
            split.store_pairs(amx, [weights[2], weights[3]], 2 * group + 1, lines);
        }
        let mut kept = sum;
        if simd.differ(top, before) {
            let shrink = simd.power_of_two(simd.sub(simd.mul(before, twos), top_twos));
            for sums in &mut self.sums[pair * self.dims..][..self.dims] {
                sums[half] = simd.mul(sums[half], shrink);
            }
            kept = simd.mul(kept, shrink);
        }
        let added = simd.add(simd.add(added[0], added[1]), simd.add(added[2], added[3]));
        self.state[pair][half] = (top, simd.add(kept, added));
    }

    /// Adds the values of some steps, weighted, to a pair's sums.
    #[inline(always)]
    fn gather(&mut self, pair: usize, steps: Range<usize>) {
        let split = self.precision.sums.left();
        let (each, first) = (split.lines(STEPS), split.lines(steps.start));
        let of_steps = |lines: [&[Line]; 2]| Factors::new(lines.map(|lines| &lines[first..]), split);
        let right = of_steps(self.weights.split_at(each).into());
        let sums = self.sums[pair * self.dims..][..self.dims].chunks_exact_mut(PAIR_ROWS);
        for (values, sums) in self.values.chunks_exact(2 * each).zip(sums) {
            let (left, sums) = (of_steps(values.split_at(each).into()), sums_in(sums));
            // SAFETY: all factors have as many lines as the steps need, and the sums are 32 rows of 32 elements.
            unsafe { self.tiles.two_by_two(self.precision.sums, left, right, steps.len(), sums, sums) };
        }
    }

    /// Divides the sums by those of the weights, and writes them to the rows of the result.
    #[inline(always)]
    fn finish(&self, of: &Attend<'_, F>) {
        let simd = self.amx.avx512();
        let dim = of.past.value_dim;
        let (mut tops, mut totals) = ([0.0; TILE_SUMS], [0.0; TILE_SUMS]);
        let mut means = [0.0; TILE_SUMS * TILE_SUMS];
        let mut of_rows = [simd.splat(0.0); TILE_SUMS];
        for half in 0..of.rows().div_ceil(TILE_SUMS) {
            let (pair, first) = (half / 2, half * TILE_SUMS);
            let rows = first..of.rows().min(first + TILE_SUMS);
            let (top, sum) = self.state[pair][half % 2];
            simd.store(top, &mut tops);
            simd.store(sum, &mut totals);
            for (lane, row) in rows.clone().enumerate() {
                totals[lane] = of.total(of.head(row), tops[lane], totals[lane]);
            }
            let total = simd.load(&totals);
            for at in (0..dim).step_by(TILE_SUMS) {
                for (mean, sums) in means.chunks_exact_mut(TILE_SUMS).zip(&self.sums[pair * self.dims + at..]) {
                    simd.store(simd.div(sums[half % 2], total), mean);
                }
                let stride = TILE_SUMS * F32::BYTES;
                fill::<Avx512, F32>(simd, Rows { bytes: Kv::F32(&means).bytes(), stride }, &mut of_rows);
                let len = TILE_SUMS.min(dim - at);
                for (row, of_row) in rows.clone().zip(&of_rows) {
                    let start = of.head(row) * dim + at;
                    // SAFETY: each row and head belong to one part of one span, as spans do not overlap.
                    let out = unsafe { of.out.range(start..start + len) };
                    if len == TILE_SUMS {
                        simd.store(*of_row, out);
                    } else {
                        let mut lanes = [0.0; TILE_SUMS];
                        simd.store(*of_row, &mut lanes);
                        out.copy_from_slice(&lanes[..len]);
                    }
                }
            }
        }
    }
}

/// Rows of 32 sums.
#[inline(always)]
fn sums_in(rows: &mut [[Vector; 2]]) -> Sums {
    Sums { at: rows.as_mut_ptr().cast(), stride: QUERIES }
}

/// Loads a vector of positions from `first` on for each dimension of rows of `dim`. Those from `last` on are zeros.
#[inline(always)]
fn load_columns<F: Float>(
    simd: Avx512,
    rows: TileRows<'_>,
    dim: usize,
    (first, last): (usize, usize),
    columns: &mut [Vector],
) {
    if first >= last {
        return columns.fill(simd.splat(0.0));
    }
    if rows.are_adjacent(TILE_SUMS) && first + TILE_SUMS <= last {
        let rows = Rows { bytes: rows.at(first), stride: dim * F::BYTES };
        return fill::<Avx512, F>(simd, rows, columns);
    }
    for (d, column) in columns.iter_mut().enumerate() {
        let mut lanes = [0.0; TILE_SUMS];
        for (lane, position) in lanes.iter_mut().zip(first..last.min(first + TILE_SUMS)) {
            *lane = F::widen(&rows.at(position)[d * F::BYTES..]);
        }
        *column = simd.load(&lanes);
    }
}
