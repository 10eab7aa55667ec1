//! Attention of prompts on the matrix unit.
//!
//! The same tiles of 64 positions as by vectors, and the same running maximum and sum. Queries, keys, values and weights are
//! rounded to `bf16`, scores and outputs are summed in `f32`. With products that fast most of the time goes into the weights,
//! so their exponentials are no more exact than the rounding needs, within 3·10⁻⁶.

use std::cell::RefCell;
use std::ops::Range;

use super::{Attend, POSITIONS, Part, Scores};
use crate::float::{F16, Float, fill};
use crate::simd::{Amx, Avx512, Line, Rows, Simd, Sums, TILE_COLS, TILE_ROWS, TILE_SUMS, TileKernel, Tiles, tanh};

/// Rows per part: enough to pay for unpacking keys and values.
pub(super) const ROWS: usize = 128;
/// Fewest rows of a span, as in products.
pub(super) const MANY: usize = crate::matmul::MANY;

/// Panels of positions.
const PANELS: usize = POSITIONS / TILE_SUMS;
/// Steps over positions.
const STEPS: usize = POSITIONS / TILE_COLS;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Sixteen([f32; TILE_SUMS]);

const ZERO: Sixteen = Sixteen([0.0; TILE_SUMS]);

/// Memory of a thread, reused for all its parts.
#[derive(Default)]
struct Work {
    queries: Vec<Line>,
    keys: Vec<Line>,
    values: Vec<Line>,
    weights: Vec<Line>,
    /// `[rows, POSITIONS]`.
    scores: Vec<[Sixteen; PANELS]>,
    /// `[rows, value_dim]`.
    sums: Vec<Sixteen>,
    /// The running maximum and sum of each row.
    state: Vec<(f32, f32)>,
}

thread_local! {
    static WORK: RefCell<Work> = RefCell::default();
}

/// Whether these scores and caches can be computed by tiles: blocks of whole panels, values of whole pairs of panels.
pub(super) fn fits(block_len: usize, value_dim: usize, scores: &Scores<'_>) -> bool {
    block_len.is_multiple_of(TILE_SUMS) && value_dim.is_multiple_of(2 * TILE_SUMS) && scores.distances.is_none()
}

pub(super) fn attend(amx: Amx, of: &Attend<'_, F16>) {
    WORK.with_borrow_mut(|work| amx.enter(Whole { of, work }));
}

struct Whole<'a> {
    of: &'a Attend<'a, F16>,
    work: &'a mut Work,
}

impl TileKernel for Whole<'_> {
    #[inline(always)]
    fn run(self, amx: Amx) {
        let Self { of, work } = self;
        let Part { span, at, len, .. } = of.part;
        let (group, tiles) = (of.group(), amx.tiles());
        work.begin(amx, of, len * group);
        let (first, end) = (span.past + at, span.past + at + len);
        let window = of.scores.window.unwrap_or(usize::MAX);
        let last = of.seen_to(end - 1).min(span.past + span.len);
        let start = (first + 1).saturating_sub(window) / POSITIONS * POSITIONS;
        for start in (start..last).step_by(POSITIONS) {
            let seen = POSITIONS.min(last - start);
            let mut from = first;
            while from < end && of.seen_to(from) <= start {
                from += 1;
            }
            let to = end.min((start + POSITIONS - 1).saturating_add(window)).max(from);
            let rows = (from - first) * group..(to - first) * group;
            if rows.is_empty() {
                continue;
            }
            let groups = rows.start / TILE_ROWS..rows.end.div_ceil(TILE_ROWS);
            work.fetch_keys(amx, of, start, seen);
            work.fetch_values(amx, of, start, seen);
            work.score(&tiles, of.past.keys.0.head_dim.div_ceil(TILE_COLS), groups.clone());
            for row in groups.start * TILE_ROWS..groups.end * TILE_ROWS {
                if !rows.contains(&row) {
                    work.clear(row);
                    continue;
                }
                let position = first + row / group;
                let low = (position + 1).saturating_sub(window).saturating_sub(start);
                work.weigh(amx, row, low..seen.min(of.seen_to(position) - start), of.scores.softcap);
            }
            work.gather(&tiles, of.past.value_dim, groups);
        }
        work.finish(amx, of);
    }
}

impl Work {
    /// Rounds the scaled queries of a part, and empties its sums.
    #[inline(always)]
    fn begin(&mut self, amx: Amx, of: &Attend<'_, F16>, rows: usize) {
        let (dim, groups) = (of.past.keys.0.head_dim, rows.div_ceil(TILE_ROWS));
        let steps = dim.div_ceil(TILE_COLS);
        self.queries.clear();
        self.queries.resize(groups * steps * TILE_ROWS, Line::ZERO);
        self.keys.resize(PANELS * steps * TILE_ROWS, Line::ZERO);
        self.values.resize(of.past.value_dim / TILE_SUMS * STEPS * TILE_ROWS, Line::ZERO);
        self.weights.resize(groups * STEPS * TILE_ROWS, Line::ZERO);
        self.scores.resize(groups * TILE_ROWS, [ZERO; PANELS]);
        self.sums.clear();
        self.sums.resize(groups * TILE_ROWS * of.past.value_dim / TILE_SUMS, ZERO);
        self.state.clear();
        self.state.resize(rows, (f32::NEG_INFINITY, 0.0));
        let simd = amx.avx512();
        for row in 0..rows {
            let q = &of.q[of.head(row) * dim..][..dim];
            for step in 0..steps {
                let mut padded = [0.0; TILE_COLS];
                let some = &q[step * TILE_COLS..dim.min((step + 1) * TILE_COLS)];
                padded[..some.len()].copy_from_slice(some);
                let scale = simd.splat(of.scores.scale);
                let both = [simd.mul(simd.load(&padded), scale), simd.mul(simd.load(&padded[TILE_SUMS..]), scale)];
                let line = (row / TILE_ROWS * steps + step) * TILE_ROWS + row % TILE_ROWS;
                amx.store(amx.row(both), &mut self.queries[line]);
            }
        }
    }

    /// Rounds a tile's keys, as panels of 16 positions with pairs of dimensions.
    #[inline(always)]
    fn fetch_keys(&mut self, amx: Amx, of: &Attend<'_, F16>, start: usize, seen: usize) {
        let (simd, dim) = (amx.avx512(), of.past.keys.0.head_dim);
        let lines = dim.div_ceil(TILE_COLS) * TILE_ROWS;
        for panel in 0..seen.div_ceil(TILE_SUMS) {
            let bytes = of.slot(of.past.keys, start + panel * TILE_SUMS);
            // As many dimensions at a time as fit the L1 cache.
            for first in (0..lines).step_by(2 * TILE_COLS) {
                let mut columns = [simd.splat(0.0); 4 * TILE_COLS];
                let count = columns.len().min(dim.saturating_sub(2 * first));
                let rows = Rows { bytes, stride: dim * F16::BYTES };
                if count > 0 {
                    fill::<Avx512, F16>(simd, rows.skip(2 * first * F16::BYTES), &mut columns[..count]);
                }
                for line in first..lines.min(first + 2 * TILE_COLS) {
                    let both = [columns[2 * (line - first)], columns[2 * (line - first) + 1]];
                    amx.store(amx.pairs(both), &mut self.keys[panel * lines + line]);
                }
            }
        }
    }

    /// Rounds a tile's values, as panels of 16 dimensions with pairs of positions.
    #[inline(always)]
    fn fetch_values(&mut self, amx: Amx, of: &Attend<'_, F16>, start: usize, seen: usize) {
        let (simd, dim) = (amx.avx512(), of.past.value_dim);
        let stride = of.past.values.0.head_dim * F16::BYTES;
        for some in 0..PANELS {
            // Positions of a block are neighbours.
            let first = some * TILE_SUMS;
            let bytes = if first < seen { of.slot(of.past.values, start + first) } else { &[] };
            for pair in 0..TILE_SUMS / 2 {
                for panel in 0..dim / TILE_SUMS {
                    // Slots that nothing was written to may hold anything, and nothing times a weight of 0 may not be 0.
                    let mut both = [simd.splat(0.0); 2];
                    for (side, values) in both.iter_mut().enumerate() {
                        if first + 2 * pair + side < seen {
                            let from = (2 * pair + side) * stride + panel * TILE_SUMS * F16::BYTES;
                            *values = F16::load(simd, &bytes[from..]);
                        }
                    }
                    let line = panel * STEPS * TILE_ROWS + first / 2 + pair;
                    amx.store(amx.pairs(both), &mut self.values[line]);
                }
            }
        }
    }

    /// Multiplies queries with a tile's keys.
    #[inline(always)]
    fn score(&mut self, tiles: &Tiles, steps: usize, groups: Range<usize>) {
        let lines = steps * TILE_ROWS;
        let start = Sums { at: std::ptr::null_mut(), stride: 0 };
        for group in groups.clone().step_by(2) {
            for panel in (0..PANELS).step_by(2) {
                let to = &mut self.scores[group * TILE_ROWS..];
                let to = Sums { at: to.as_mut_ptr().cast::<f32>().wrapping_add(panel * TILE_SUMS), stride: POSITIONS };
                let right = [panel, panel + 1].map(|panel| self.keys[panel * lines..][..lines].as_ptr());
                let left = self.queries[group * lines..][..lines].as_ptr();
                // SAFETY: the slices have the lines of the steps, and there is a row of scores for each row of the groups.
                unsafe {
                    if group + 1 < groups.end {
                        let other = self.queries[(group + 1) * lines..][..lines].as_ptr();
                        tiles.two_by_two([left, other], right, steps, start, to);
                    } else {
                        tiles.one_by_two(left, right, steps, start, to);
                    }
                }
            }
        }
    }

    /// Leaves a row as it is.
    #[inline(always)]
    fn clear(&mut self, row: usize) {
        for step in 0..STEPS {
            self.weights[(row / TILE_ROWS * STEPS + step) * TILE_ROWS + row % TILE_ROWS] = Line::ZERO;
        }
    }

    /// Turns a row's scores into weights relative to the running maximum, and rescales the row's sums if that grows.
    #[inline(always)]
    fn weigh(&mut self, amx: Amx, row: usize, visible: Range<usize>, softcap: Option<f32>) {
        let simd = amx.avx512();
        let mut scores = [simd.splat(0.0); PANELS];
        for (panel, scores) in scores.iter_mut().enumerate() {
            *scores = simd.load(&self.scores[row][panel].0);
            if let Some(cap) = softcap {
                let bent = tanh(simd, simd.div(*scores, simd.splat(cap)));
                *scores = simd.mul(bent, simd.splat(cap));
            }
            let lanes = panel * TILE_SUMS;
            if visible.start > lanes || visible.end < lanes + TILE_SUMS {
                let mut masked = [0.0; TILE_SUMS];
                simd.store(*scores, &mut masked);
                for (lane, score) in masked.iter_mut().enumerate() {
                    if !visible.contains(&(lanes + lane)) {
                        *score = f32::NEG_INFINITY;
                    }
                }
                *scores = simd.load(&masked);
            }
        }
        let (before, sum) = self.state[row];
        let mut top = simd.splat(before);
        for scores in &scores {
            top = simd.max(top, *scores);
        }
        let top = simd.top(top);
        let mut added = simd.splat(0.0);
        for scores in &mut scores {
            *scores = amx.exp_near(simd.sub(*scores, simd.splat(top)));
            added = simd.add(added, *scores);
        }
        for step in 0..STEPS {
            let line = (row / TILE_ROWS * STEPS + step) * TILE_ROWS + row % TILE_ROWS;
            amx.store(amx.row([scores[2 * step], scores[2 * step + 1]]), &mut self.weights[line]);
        }
        let mut shrunk = 1.0;
        if top != before {
            let shrink = amx.exp_near(simd.splat(before - top));
            let mut lanes = [0.0; TILE_SUMS];
            simd.store(shrink, &mut lanes);
            shrunk = lanes[0];
            let panels = self.sums.len() / self.scores.len();
            for panel in 0..panels {
                let sums = &mut self.sums[row * panels + panel].0;
                simd.store(simd.mul(simd.load(sums), shrink), sums);
            }
        }
        self.state[row] = (top, sum * shrunk + simd.sum(added));
    }

    /// Adds a tile's weighted values.
    #[inline(always)]
    fn gather(&mut self, tiles: &Tiles, dim: usize, groups: Range<usize>) {
        const LINES: usize = STEPS * TILE_ROWS;
        let panels = dim / TILE_SUMS;
        for group in groups.clone().step_by(2) {
            for panel in (0..panels).step_by(2) {
                let sums = &mut self.sums[group * TILE_ROWS * panels + panel..];
                let sums = Sums { at: sums.as_mut_ptr().cast(), stride: dim };
                let right = [panel, panel + 1].map(|panel| self.values[panel * LINES..][..LINES].as_ptr());
                let left = self.weights[group * LINES..][..LINES].as_ptr();
                // SAFETY: the slices have the lines of the steps, and there is a row of sums for each row of the groups.
                unsafe {
                    if group + 1 < groups.end {
                        let other = self.weights[(group + 1) * LINES..][..LINES].as_ptr();
                        tiles.two_by_two([left, other], right, STEPS, sums, sums);
                    } else {
                        tiles.one_by_two(left, right, STEPS, sums, sums);
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn finish(&self, amx: Amx, of: &Attend<'_, F16>) {
        let (simd, dim) = (amx.avx512(), of.past.value_dim);
        let panels = dim / TILE_SUMS;
        for (row, &(top, sum)) in self.state.iter().enumerate() {
            let head = of.head(row);
            // SAFETY: each row and head belong to one part of one span, as spans do not overlap.
            let out = unsafe { of.out.range(head * dim..(head + 1) * dim) };
            let mut total = sum;
            if let Some(sinks) = of.scores.sinks {
                total += (sinks[head % of.heads] - top).exp();
            }
            let total = simd.splat(total);
            for panel in 0..panels {
                let sums = simd.load(&self.sums[row * panels + panel].0);
                simd.store(simd.div(sums, total), &mut out[panel * TILE_SUMS..]);
            }
        }
    }
}
