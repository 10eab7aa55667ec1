//! Activations packed to left factors.
//!
//! A line has 32 columns of a row, and 16 lines a step. Segments of 256 columns follow each other, and in each the groups of 16 rows:
//! that is how they are read while rows pass over panels.

use std::cell::RefCell;
use std::ops::Range;

use super::super::super::pool::{Disjoint, Pool};
use super::super::super::simd::{Amx, Line, Simd, Split, TILE_COLS, TILE_ROWS, TILE_SUMS, TileKernel, prefetch};
use super::STEPS;

/// Buffers that a thread keeps for the next products: to clear them anew would take one thread as long as the product takes many. A
/// feed-forward block uses two.
const KEPT: usize = 2;
/// At most 32 MiB of activations each: 512 rows of 32,768 columns in one part.
const KEPT_LINES: usize = (32 << 20) / size_of::<Line>();

thread_local! {
    static FREE: RefCell<Vec<Vec<Line>>> = const { RefCell::new(Vec::new()) };
}

/// Activations in `bf16`, in the order in which tiles read them.
pub(super) struct Left {
    lines: Vec<Line>,
    pub(super) split: Split,
    pub(super) n: usize,
    pub(super) cols: usize,
    pub(super) steps: usize,
}

impl Left {
    /// Packs rows of `cols` activations.
    pub(super) fn new(pool: &Pool, amx: Amx, x: &[f32], cols: usize, split: Split) -> Self {
        let n = x.len() / cols;
        Self::written(n, cols, split, |left| {
            pool.run(n.div_ceil(TILE_ROWS), |group| {
                let rows = group * TILE_ROWS..n.min((group + 1) * TILE_ROWS);
                let x = &x[rows.start * cols..rows.end * cols];
                amx.enter(Pack { x, cols, group, left });
            });
        })
    }

    /// `n` rows of `cols` numbers, all of which `write` packs.
    pub(super) fn written(n: usize, cols: usize, split: Split, write: impl FnOnce(&Lines<'_>)) -> Self {
        let steps = cols.div_ceil(TILE_COLS);
        let len = n.div_ceil(TILE_ROWS) * split.lines(steps);
        let mut lines = FREE.with_borrow_mut(|free| {
            let fits = free.iter().position(|lines| lines.len() >= len).or(free.len().checked_sub(1));
            fits.map(|index| free.swap_remove(index)).unwrap_or_default()
        });
        // Rows that pad a group keep what they have, as their products are not written.
        if lines.len() < len {
            lines = vec![Line::ZERO; len];
        }
        write(&Lines { lines: Disjoint::new(&mut lines[..len]), split, n, steps });
        Self { lines, split, n, cols, steps }
    }

    /// Some steps of a segment of 16 rows.
    #[inline(always)]
    pub(super) fn group(&self, group: usize, first: usize, steps: usize) -> &[Line] {
        &self.lines[self.split.lines(place(self.n, self.steps, group, first))..][..self.split.lines(steps)]
    }

    /// Prefetches some steps of a segment of these groups, which the core will need after some thousand cycles.
    #[inline(always)]
    pub(super) fn prefetch(&self, groups: Range<usize>, first: usize, steps: usize) {
        groups.for_each(|group| self.group(group, first, steps).iter().for_each(|line| prefetch(line)));
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        let lines = std::mem::take(&mut self.lines);
        FREE.with_borrow_mut(|free| {
            if free.len() < KEPT && lines.len() <= KEPT_LINES {
                free.push(lines);
            }
        });
    }
}

/// Left factors that tasks write in parallel.
pub(super) struct Lines<'a> {
    lines: Disjoint<'a, Line>,
    pub(super) split: Split,
    n: usize,
    /// Of a row.
    steps: usize,
}

impl Lines<'_> {
    /// A step of 16 rows.
    ///
    /// # Safety
    /// No other task uses it.
    #[expect(clippy::mut_from_ref, reason = "as of the slice that is shared")]
    #[inline(always)]
    pub(super) unsafe fn step(&self, group: usize, step: usize) -> &mut [Line] {
        let start = self.split.lines(place(self.n, self.steps, group, step));
        // SAFETY: the caller's promise.
        unsafe { self.lines.range(start..start + self.split.lines(1)) }
    }
}

/// Where a step of a group begins.
#[inline(always)]
fn place(n: usize, steps: usize, group: usize, step: usize) -> usize {
    let first = step / STEPS * STEPS;
    first * n.div_ceil(TILE_ROWS) + group * STEPS.min(steps - first) + step - first
}

/// Packs a group of rows.
struct Pack<'a> {
    x: &'a [f32],
    cols: usize,
    group: usize,
    left: &'a Lines<'a>,
}

impl TileKernel for Pack<'_> {
    #[inline(always)]
    fn run(self, amx: Amx) {
        let Self { x, cols, group, left } = self;
        let simd = amx.avx512();
        for step in 0..cols.div_ceil(TILE_COLS) {
            // SAFETY: each group is one task's.
            let lines = unsafe { left.step(group, step) };
            for row in 0..x.len() / cols {
                let values = &x[row * cols..(row + 1) * cols][step * TILE_COLS..cols.min((step + 1) * TILE_COLS)];
                let columns = if values.len() == TILE_COLS {
                    [simd.load(values), simd.load(&values[TILE_SUMS..])]
                } else {
                    let mut padded = [0.0; TILE_COLS];
                    padded[..values.len()].copy_from_slice(values);
                    [simd.load(&padded), simd.load(&padded[TILE_SUMS..])]
                };
                left.split.store_row(amx, columns, row, lines);
            }
        }
    }
}
