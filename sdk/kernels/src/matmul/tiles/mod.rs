//! Products of many rows on the matrix unit.
//!
//! Weights are unpacked to `bf16` once for all rows, 256 columns of some panels at a time: these stay in the L2 cache while
//! the rows pass over them, and 32 rows of activations stay in L1 while the panels pass over those. Sums are kept in `f32`
//! over all columns, so that formats with a scale per 16 or 32 values cost no more than others. Quantized weights and
//! their activations are rounded to `bf16`; dense ones are split into up to three numbers of it, which have all bits of an
//! `f32`, and the products that matter are summed, so that they stay as exact as by vectors. All products of a step are summed
//! without leaving the tiles.
//!
//! Every sum is in the order of its columns, so a row is the same to the last bit among however many others.

mod fill;
mod inner;
mod left;
mod shares;

use std::cell::RefCell;

use super::super::pool::{Disjoint, Pool};
use super::super::quant::SEGMENT;
use super::super::simd::{Amx, Avx512, Factors, Line, Parts, Split, Sums, TILE_COLS, TILE_ROWS, TILE_SUMS, Tiles};
use super::super::tile::PAIR;
use super::panels::Panels;
use super::quantized::Panel;
use super::{Matrix, Output, Product};
use fill::{Filler, filler};
pub(super) use inner::{can_pass_on, feed_forward};
use left::Left;
use pensieve_weights::Dtype;
use shares::{Shares, Task};

/// Steps of 32 columns per segment.
const STEPS: usize = SEGMENT / TILE_COLS;
/// Outputs of a pair of panels.
const OUTPUTS: usize = PAIR * TILE_SUMS;
/// Pairs of panels that rows pass over together, at most: unpacked, they take a small part of the L2 cache.
const PAIRS_MAX: usize = 8;

/// Computes `out[n, rows] = x[n, cols] · wᵀ` for each of some matrices.
pub(super) fn multiply(pool: &Pool, amx: Amx, products: &mut [Product<'_>], x: &[f32]) {
    let Some(cols) = products.first().map(|product| product.weight.cols) else { return };
    let split = products.iter().map(|product| parts(product.weight.dtype).left()).max();
    let left = Left::new(pool, amx, x, cols, split.unwrap_or(Split(1)));
    multiply_packed(pool, amx, products, &left);
}

fn multiply_packed(pool: &Pool, amx: Amx, products: &mut [Product<'_>], left: &Left) {
    let outputs: Vec<usize> = products.iter().map(|product| product.weight.rows).collect();
    let jobs: Vec<Job<'_>> =
        products.iter_mut().map(|Product { weight, out }| Job::new(weight, left, Some(Disjoint::new(out)))).collect();
    let shares = Shares::new(&outputs, left.n, pool.threads(), PAIRS_MAX);
    pool.run(pool.threads(), |thread| {
        WORK.with_borrow_mut(|Work { right, sums }| {
            while let Some((job, task)) = shares.next(thread) {
                run(&jobs[job..=job], amx, left, &task, right, sums);
            }
        });
    });
}

/// How activations and weights are split.
fn parts(dtype: Dtype) -> Parts {
    match dtype {
        Dtype::BF16 => Parts::ThreeByOne,
        Dtype::F16 | Dtype::Fp8 => Parts::ThreeByTwo,
        Dtype::F32 => Parts::ThreeByThree,
        _ => Parts::OneByOne,
    }
}

struct Job<'a> {
    panels: Panels<'a>,
    rows: usize,
    cols: usize,
    /// Rows of activations.
    n: usize,
    parts: Parts,
    /// Where a segment of a row begins, and how it is unpacked.
    fill: (fn(usize) -> usize, Filler),
    /// Without it, sums stay where they are.
    out: Option<Output<'a>>,
}

/// Memory of a thread, reused for all its tasks.
#[derive(Default)]
struct Work {
    right: Right,
    sums: Vec<SumRow>,
}

/// A segment of weights.
#[derive(Default)]
struct Right {
    /// Weights are unpacked to codes first. To clear it for each would take longer than a tenth of the unpacking.
    panel: Option<Box<Panel<Avx512>>>,
    lines: Vec<Line>,
}

/// Sums of a row with a pair of panels.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct SumRow([f32; OUTPUTS]);

thread_local! {
    static WORK: RefCell<Work> = RefCell::default();
}

impl<'a> Job<'a> {
    fn new(weight: &Matrix<'a>, left: &Left, out: Option<Output<'a>>) -> Self {
        Self {
            panels: Panels::new(weight, TILE_SUMS),
            rows: weight.rows,
            cols: left.cols,
            n: left.n,
            parts: parts(weight.dtype),
            fill: filler(weight.dtype),
            out,
        }
    }

    /// Adds a segment's products of 16 or 32 rows with a pair of panels.
    #[inline(always)]
    fn block(&self, tiles: &Tiles, left: &Left, right: [&[Line]; PAIR], at: &Block<'_>, sums: &mut [SumRow]) {
        let Block { task, group, pair, first, steps } = *at;
        let is_two = group + 1 < task.groups.end;
        let rows = group * TILE_ROWS..(group + if is_two { 2 } else { 1 }) * TILE_ROWS;
        let wanted = pair * OUTPUTS..self.rows.min((pair + 1) * OUTPUTS);
        let sums = &mut sums[..rows.len()];
        let own = Sums { at: sums.as_mut_ptr().cast(), stride: OUTPUTS };
        let out = self.out.as_ref().filter(|_| first + steps == left.steps);
        let is_whole = rows.end <= self.n && wanted.len() == OUTPUTS;
        let from = if first == 0 { Sums { at: std::ptr::null_mut(), stride: 0 } } else { own };
        let mut to = own;
        if let Some(out) = out.filter(|_| is_whole) {
            self.panels.prefetch_to_write(pair, rows.clone(), out);
            let start = rows.start * self.rows + wanted.start;
            let end = (rows.end - 1) * self.rows + wanted.end;
            to = Sums { at: out.part(start..end).cast(), stride: self.rows };
        }
        let one = left.group(group, first, steps);
        let other = if is_two { left.group(group + 1, first, steps) } else { one };
        let (left, right) = (Factors::new([one, other], left.split), Factors::new(right, self.parts.right()));
        // SAFETY: all slices have as many lines as the steps need. Sums have 32 elements for each row; a row of the output
        // has them at these columns, which are within it, and each such part belongs to one task.
        unsafe {
            match is_two {
                true => tiles.two_by_two(self.parts, left, right, steps, from, to),
                false => tiles.one_by_two(self.parts, left, right, steps, from, to),
            }
        }
        if let Some(out) = out.filter(|_| !is_whole) {
            let skipped = wanted.start - self.panels.first(pair);
            for (row, sums) in (rows.start..self.n.min(rows.end)).zip(sums) {
                // SAFETY: each row's columns of a pair belong to one task.
                let out = unsafe { out.range(row * self.rows + wanted.start..row * self.rows + wanted.end) };
                for (at, out) in (skipped..).zip(out) {
                    out.write(sums.0[at]);
                }
            }
        }
    }
}

/// Computes a task of each of these products, whose rows pass over all of their panels together. Returns the sums, in the order of jobs,
/// pairs and rows.
fn run<'a>(
    jobs: &[Job<'_>],
    amx: Amx,
    left: &Left,
    task: &Task,
    right: &mut Right,
    sums: &'a mut Vec<SumRow>,
) -> &'a [SumRow] {
    let tiles = amx.tiles();
    let each = jobs.iter().map(|job| job.parts.right().lines(STEPS)).max().unwrap_or(0);
    let (pairs, rows) = (task.pairs.len(), task.groups.len() * TILE_ROWS);
    let codes = right.panel.get_or_insert_with(|| Box::new(Panel::new(amx.avx512())));
    let lines = at_least(&mut right.lines, jobs.len() * pairs * PAIR * each, Line::ZERO);
    let sums = at_least(sums, jobs.len() * pairs * rows, SumRow([0.0; OUTPUTS]));
    for first in (0..left.steps).step_by(STEPS) {
        let steps = STEPS.min(left.steps - first);
        for (job, lines) in jobs.iter().zip(lines.chunks_exact_mut(pairs * PAIR * each)) {
            let (bytes, fill) = job.fill;
            let cols = (job.cols - first * TILE_COLS).min(SEGMENT);
            for (panel, lines) in lines.chunks_exact_mut(each).enumerate() {
                let pair = task.pairs.start + panel / PAIR;
                let rows = job.panels.rows(pair, panel % PAIR);
                fill(amx, rows.skip(bytes(first * TILE_COLS)), cols, codes, lines);
                if first + steps < left.steps {
                    job.panels.prefetch_next(pair, first / STEPS, bytes(SEGMENT), panel % PAIR);
                }
            }
        }
        for group in task.groups.clone().step_by(2) {
            left.prefetch(group + 2..task.groups.end.min(group + 4), first, steps);
            let row = (group - task.groups.start) * TILE_ROWS;
            for index in 0..jobs.len() * pairs {
                let (job, pair) = (&jobs[index / pairs], task.pairs.start + index % pairs);
                let right = [0, 1].map(|panel| &lines[(index * PAIR + panel) * each..][..each]);
                job.block(
                    &tiles,
                    left,
                    right,
                    &Block { task, group, pair, first, steps },
                    &mut sums[index * rows + row..],
                );
            }
        }
    }
    sums
}

/// The first elements of memory that grows if it must: to clear it for every task would take as long as a part of the task.
fn at_least<T: Copy>(memory: &mut Vec<T>, len: usize, empty: T) -> &mut [T] {
    if memory.len() < len {
        memory.resize(len, empty);
    }
    &mut memory[..len]
}

/// Place of a block of products.
struct Block<'a> {
    task: &'a Task,
    group: usize,
    pair: usize,
    first: usize,
    steps: usize,
}
