//! Attention of many rows on the matrix unit.
//!
//! Everything is transposed: scores are products of keys with 32 queries, so that a vector has one position's scores of 16
//! queries, and maxima, sums and masks need nothing from their neighbours. Weights then already lie as the right factors of
//! the values' product, whose sums have a query per column until the end.
//!
//! Numbers are split into parts of `bf16`, and the products of parts that matter are summed: beside keys and values in `f16`,
//! which two parts have exactly, two parts of each, which is 16 bits; beside `f32` three, which is all bits. In one part, scores
//! were off by more than the rounding of activations to 8 bits costs. All products of a step are summed without leaving the tiles,
//! in an order in which each of them loads the next part of one side only.

use std::marker::PhantomData;
use std::ops::Range;

use super::{Attend, POSITIONS, TileRows, load_part};
use crate::{
    float::{Float, fill},
    kv::Kv,
    simd::{
        Amx, Avx512, Factors, Line, Parts, Rows, Simd, Split, Sums, TILE_COLS, TILE_ROWS, TILE_SUMS, TileKernel, Tiles,
        exp, tanh,
    },
};

/// Queries that are multiplied together: two tiles of columns.
const QUERIES: usize = 2 * TILE_SUMS;
/// Rows of sums that are computed together: two tiles of rows.
const PAIR_ROWS: usize = 2 * TILE_ROWS;
/// Steps of 32 positions in a tile of keys and values.
const VALUE_STEPS: usize = POSITIONS / TILE_COLS;
/// Below every score: a maximum that nothing was compared with yet.
const LOWEST: f32 = f32::MIN / 2.0;

/// A vector of 16 numbers.
type Vector = <Avx512 as Simd>::F;

/// How queries, keys, weights and values are split beside those of a cache.
const fn beside(cache: Kv<'_>) -> Parts {
    match cache {
        Kv::F16(_) | Kv::Packed(..) => Parts::TwoByTwo,
        Kv::F32(_) => Parts::ThreeByThree,
    }
}

/// Scratch memory of a part, reused for all its tiles of keys.
struct Work<F> {
    amx: Amx,
    tiles: Tiles,
    parts: Parts,
    split: Split,
    key_steps: usize,
    /// Right factors of each 16 queries.
    queries: Vec<Line>,
    /// Left factors of each 16 positions, and of each 16 dimensions.
    keys: Vec<Line>,
    values: Vec<Line>,
    /// Right factors of each 16 queries of a pair.
    weights: Vec<Line>,
    /// `[POSITIONS, QUERIES]`.
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
        for start in (all.start / POSITIONS * POSITIONS..all.end).step_by(POSITIONS) {
            let seen = POSITIONS.min(all.end - start);
            work.fetch(&self, start, seen);
            for pair in 0..rows.div_ceil(QUERIES) {
                let all = pair * QUERIES..rows.min((pair + 1) * QUERIES);
                let (least, most) = (self.seen_by(position(all.start)), self.seen_by(position(all.end - 1)));
                // Queries too far before the tile do not see it, nor do those whose window has moved past it.
                if most.end <= start || least.start >= start + POSITIONS {
                    continue;
                }
                let is_whole = seen == POSITIONS && least.end >= start + POSITIONS && most.start <= start;
                work.score(pair, seen);
                for half in 0..2 {
                    let rows = all.start + half * TILE_SUMS..all.end.min(all.start + (half + 1) * TILE_SUMS);
                    if self.scores.distances.is_some() || !is_whole {
                        work.restrict(&self, rows, half, (start, seen));
                    }
                    work.weigh(pair, half, self.scores.softcap);
                }
                work.gather(pair);
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
        let parts = beside(of.past.keys.1);
        let split = parts.left();
        let (dim, value_dim) = (of.past.keys.0.head_dim, of.past.value_dim);
        let (key_steps, dims) = (dim.div_ceil(TILE_COLS), value_dim.next_multiple_of(PAIR_ROWS));
        let pairs = of.rows().div_ceil(QUERIES);
        let mut queries = vec![Line::ZERO; 2 * pairs * split.lines(key_steps)];
        let mut columns = vec![[0.0; TILE_SUMS]; key_steps * TILE_COLS];
        for (half, lines) in queries.chunks_exact_mut(split.lines(key_steps)).enumerate() {
            let first = half * TILE_SUMS;
            columns.fill([0.0; TILE_SUMS]);
            for row in first..of.rows().min(first + TILE_SUMS) {
                for (column, query) in columns.iter_mut().zip(of.queries(row)) {
                    column[row - first] = query;
                }
            }
            for (line, two) in columns.chunks_exact(2).enumerate() {
                split.store_pairs(amx, [simd.load(&two[0]), simd.load(&two[1])], line, lines);
            }
        }
        Self {
            amx,
            tiles: amx.tiles(),
            parts,
            split,
            key_steps,
            queries,
            keys: vec![Line::ZERO; POSITIONS / TILE_ROWS * split.lines(key_steps)],
            values: vec![Line::ZERO; dims / TILE_ROWS * split.lines(VALUE_STEPS)],
            weights: vec![Line::ZERO; 2 * split.lines(VALUE_STEPS)],
            scores: vec![[zero; 2]; POSITIONS],
            sums: vec![[zero; 2]; pairs * dims],
            dims,
            state: vec![[(simd.splat(LOWEST), zero); 2]; pairs],
            columns: [vec![zero; value_dim], vec![zero; value_dim]],
            unpacked: Vec::new(),
            format: PhantomData,
        }
    }

    /// Loads a tile's keys and values.
    #[inline(always)]
    fn fetch(&mut self, of: &Attend<'_, F>, start: usize, seen: usize) {
        let (amx, split) = (self.amx, self.split);
        let simd = amx.avx512();
        let dim = of.past.keys.0.head_dim;
        let rows = of.rows_of(of.past.keys, (start, seen), &mut self.unpacked);
        for position in 0..seen {
            let lines = &mut self.keys[position / TILE_ROWS * split.lines(self.key_steps)..];
            let lines = &mut lines[..split.lines(self.key_steps)];
            let bytes = &rows.at(position)[..dim * F::BYTES];
            for (step, bytes) in bytes.chunks(TILE_COLS * F::BYTES).enumerate() {
                let (first, second) = bytes.split_at(bytes.len().min(TILE_SUMS * F::BYTES));
                let columns = [load_part::<Avx512, F>(simd, first), load_part::<Avx512, F>(simd, second)];
                split.store_row(amx, columns, step * TILE_ROWS + position % TILE_ROWS, lines);
            }
        }
        let rows = of.rows_of(of.past.values, (start, seen), &mut self.unpacked);
        let dim = of.past.values.0.head_dim;
        for step in 0..VALUE_STEPS {
            for (half, columns) in self.columns.iter_mut().enumerate() {
                let first = step * TILE_COLS + half * TILE_SUMS;
                load_columns::<F>(simd, rows, dim, (first, seen), columns);
            }
            for (d, (first, second)) in self.columns[0].iter().zip(&self.columns[1]).enumerate() {
                let lines = &mut self.values[d / TILE_ROWS * split.lines(VALUE_STEPS)..];
                let lines = &mut lines[..split.lines(VALUE_STEPS)];
                split.store_row(amx, [*first, *second], step * TILE_ROWS + d % TILE_ROWS, lines);
            }
        }
    }

    /// Multiplies a tile's keys with a pair's queries.
    #[inline(always)]
    fn score(&mut self, pair: usize, seen: usize) {
        let each = self.split.lines(self.key_steps);
        let right = [2 * pair, 2 * pair + 1].map(|half| &self.queries[half * each..][..each]);
        let right = Factors::new(right, self.split);
        let keys = self.keys.chunks_exact(2 * each).zip(self.scores.chunks_exact_mut(PAIR_ROWS));
        for (keys, scores) in keys.take(seen.div_ceil(PAIR_ROWS)) {
            let (left, to) = (Factors::new(keys.split_at(each).into(), self.split), sums_in(scores));
            let from = Sums { at: std::ptr::null_mut(), ..to };
            // SAFETY: all factors have as many lines as the steps need, and the scores are 32 rows of 32 elements.
            unsafe { self.tiles.two_by_two(self.parts, left, right, self.key_steps, from, to) };
        }
    }

    /// Adds what depends on the distance to the scores of some rows, and hides the positions that they do not see.
    #[inline(always)]
    fn restrict(&mut self, of: &Attend<'_, F>, rows: Range<usize>, half: usize, (start, seen): (usize, usize)) {
        let simd = self.amx.avx512();
        let first = of.part.span.past + of.part.at;
        let mut bounds = [[f32::NEG_INFINITY; TILE_SUMS]; POSITIONS];
        let mut biases = [[0.0; TILE_SUMS]; POSITIONS];
        for (lane, row) in rows.enumerate() {
            let position = first + row / of.group();
            let visible = of.visible(position, start, seen);
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
        for ((scores, bound), bias) in self.scores.iter_mut().zip(&bounds).zip(&biases) {
            let score = simd.add(scores[half], simd.load(bias));
            // The bound if there is no number, as where positions were never written.
            scores[half] = simd.min(score, simd.load(bound));
        }
    }

    /// Turns the scores of 16 queries into weights relative to their running maximum, and rescales their sums if that grows.
    #[inline(always)]
    fn weigh(&mut self, pair: usize, half: usize, softcap: Option<f32>) {
        let (amx, split) = (self.amx, self.split);
        let simd = amx.avx512();
        if let Some(cap) = softcap {
            let cap = simd.splat(cap);
            for scores in &mut self.scores {
                // What is hidden stays so.
                let bent = simd.mul(tanh(simd, simd.div(scores[half], cap)), cap);
                scores[half] = simd.min(bent, simd.sub(scores[half], simd.splat(-1e30)));
            }
        }
        let (before, sum) = self.state[pair][half];
        let mut tops = [before; 4];
        for scores in self.scores.chunks_exact(tops.len()) {
            for (top, scores) in tops.iter_mut().zip(scores) {
                *top = simd.max(*top, scores[half]);
            }
        }
        let top = simd.max(simd.max(tops[0], tops[1]), simd.max(tops[2], tops[3]));
        let mut added = [simd.splat(0.0); 4];
        let each = split.lines(VALUE_STEPS);
        let lines = &mut self.weights[half * each..][..each];
        for (group, scores) in self.scores.chunks_exact(added.len()).enumerate() {
            let mut weights = [simd.splat(0.0); 4];
            for (at, scores) in scores.iter().enumerate() {
                weights[at] = exp(simd, simd.sub(scores[half], top));
                added[at] = simd.add(added[at], weights[at]);
            }
            split.store_pairs(amx, [weights[0], weights[1]], 2 * group, lines);
            split.store_pairs(amx, [weights[2], weights[3]], 2 * group + 1, lines);
        }
        let mut kept = sum;
        if simd.top(simd.sub(top, before)) > 0.0 {
            let shrink = exp(simd, simd.sub(before, top));
            for sums in &mut self.sums[pair * self.dims..][..self.dims] {
                sums[half] = simd.mul(sums[half], shrink);
            }
            kept = simd.mul(kept, shrink);
        }
        let added = simd.add(simd.add(added[0], added[1]), simd.add(added[2], added[3]));
        self.state[pair][half] = (top, simd.add(kept, added));
    }

    /// Adds a tile's values, weighted, to a pair's sums.
    #[inline(always)]
    fn gather(&mut self, pair: usize) {
        let each = self.split.lines(VALUE_STEPS);
        let right = Factors::new(self.weights.split_at(each).into(), self.split);
        let sums = self.sums[pair * self.dims..][..self.dims].chunks_exact_mut(PAIR_ROWS);
        for (values, sums) in self.values.chunks_exact(2 * each).zip(sums) {
            let (left, sums) = (Factors::new(values.split_at(each).into(), self.split), sums_in(sums));
            // SAFETY: all factors have as many lines as the steps need, and the sums are 32 rows of 32 elements.
            unsafe { self.tiles.two_by_two(self.parts, left, right, VALUE_STEPS, sums, sums) };
        }
    }

    #[inline(always)]
    fn finish(&self, of: &Attend<'_, F>) {
        let simd = self.amx.avx512();
        let dim = of.past.value_dim;
        let (mut tops, mut totals) = ([0.0; TILE_SUMS], [0.0; TILE_SUMS]);
        let mut columns = vec![[0.0; TILE_SUMS]; dim];
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
            for (column, sums) in columns.iter_mut().zip(&self.sums[pair * self.dims..]) {
                simd.store(simd.div(sums[half % 2], total), column);
            }
            for (lane, row) in rows.enumerate() {
                let start = of.head(row) * dim;
                // SAFETY: each row and head belong to one part of one span, as spans do not overlap.
                let out = unsafe { of.out.range(start..start + dim) };
                for (out, column) in out.iter_mut().zip(&columns) {
                    *out = column[lane];
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

/// Loads a vector of a tile's positions from `first` on for each dimension of rows of `dim`. Those from `last` on are zeros.
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
