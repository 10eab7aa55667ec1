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

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::float::{BF16, Dense, F16, F32, Fp8};
use super::super::pool::{Disjoint, Pool};
use super::super::quant::{Format, Layout, SEGMENT, with_format};
use super::super::simd::{
    Amx, Avx512, Factors, Line, Parts, Rows, Simd, Split, Sums, TILE_COLS, TILE_ROWS, TILE_SUMS, TileKernel, Tiles,
};
use super::super::tile::PAIR;
use super::panels::Panels;
use super::quantized::Panel;
use super::{Output, Product};
use pensieve_weights::Dtype;

/// Steps of 32 columns per segment.
const STEPS: usize = SEGMENT / TILE_COLS;
/// Outputs of a pair of panels.
const OUTPUTS: usize = PAIR * TILE_SUMS;
/// Pairs of panels that rows pass over together, at most: unpacked, they take a small part of the L2 cache.
const PAIRS_MAX: usize = 8;
/// Tasks per thread, so that threads finish together.
const TASKS: usize = 3;
/// Most rows of a task beside other threads: their activations take half of the L2 cache if they have 2,048 columns.
const ROWS_MAX: usize = 256;
/// 32 MiB of activations are kept for the next product: 512 rows of 32,768 columns in one part.
const KEPT_LINES: usize = (32 << 20) / size_of::<Line>();
/// Fewest rows for which weights are unpacked a second time to occupy another thread.
const ROWS_MIN: usize = 128;

/// Computes `out[n, rows] = x[n, cols] · wᵀ` for each of some matrices.
pub(super) fn multiply(pool: &Pool, amx: Amx, products: &mut [Product<'_>], x: &[f32]) {
    let Some(cols) = products.first().map(|product| product.weight.cols) else { return };
    let n = x.len() / cols;
    let split = products.iter().map(|product| parts(product.weight.dtype).left()).max();
    let left = Left::new(pool, amx, x, cols, split.unwrap_or(Split(1)));
    let jobs: Vec<Job<'_>> = products
        .iter_mut()
        .map(|Product { weight, out }| Job {
            panels: Panels::new(weight, TILE_SUMS),
            rows: weight.rows,
            cols,
            n,
            parts: parts(weight.dtype),
            fill: filler(weight.dtype),
            out: Disjoint::new(out),
        })
        .collect();
    let outputs: Vec<usize> = jobs.iter().map(|job| job.rows).collect();
    let shares = Shares::new(&outputs, n, pool.threads());
    pool.run(pool.threads(), |thread| {
        WORK.with_borrow_mut(|work| {
            while let Some((job, task)) = shares.next(thread) {
                jobs[job].run(amx, &left, &task, work);
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

/// Activations in `bf16`, in the order in which tiles read them.
struct Left {
    lines: Vec<Line>,
    split: Split,
    steps: usize,
}

impl Left {
    fn new(pool: &Pool, amx: Amx, x: &[f32], cols: usize, split: Split) -> Self {
        let (n, steps) = (x.len() / cols, cols.div_ceil(TILE_COLS));
        let groups = n.div_ceil(TILE_ROWS);
        let each = split.lines(steps);
        let len = groups * each;
        let mut lines = LEFT.take();
        // Rows that pad a group keep what they have, as their products are not written.
        if lines.len() < len {
            lines = vec![Line::ZERO; len];
        }
        let all = Disjoint::new(&mut lines[..len]);
        pool.run(groups, |group| {
            let rows = group * TILE_ROWS..n.min((group + 1) * TILE_ROWS);
            let x = &x[rows.start * cols..rows.end * cols];
            // SAFETY: the lines of a group belong to its task.
            let lines = unsafe { all.range(group * each..(group + 1) * each) };
            amx.enter(Pack { x, cols, split, lines });
        });
        Self { lines, split, steps }
    }

    /// Some steps of 16 rows.
    #[inline(always)]
    fn group(&self, group: usize, first: usize, steps: usize) -> &[Line] {
        &self.lines[self.split.lines(group * self.steps + first)..][..self.split.lines(steps)]
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        if self.lines.len() <= KEPT_LINES {
            LEFT.set(std::mem::take(&mut self.lines));
        }
    }
}

/// Splits some rows into parts.
struct Pack<'a> {
    x: &'a [f32],
    cols: usize,
    split: Split,
    lines: &'a mut [Line],
}

impl TileKernel for Pack<'_> {
    #[inline(always)]
    fn run(self, amx: Amx) {
        let Self { x, cols, split, lines } = self;
        let simd = amx.avx512();
        for row in 0..x.len() / cols {
            let x = &x[row * cols..(row + 1) * cols];
            for step in 0..cols.div_ceil(TILE_COLS) {
                let values = &x[step * TILE_COLS..cols.min((step + 1) * TILE_COLS)];
                let columns = if values.len() == TILE_COLS {
                    [simd.load(values), simd.load(&values[TILE_SUMS..])]
                } else {
                    let mut padded = [0.0; TILE_COLS];
                    padded[..values.len()].copy_from_slice(values);
                    [simd.load(&padded), simd.load(&padded[TILE_SUMS..])]
                };
                split.store_row(amx, columns, step * TILE_ROWS + row, lines);
            }
        }
    }
}

/// Unpacks `cols` columns of 16 rows of weights.
type Filler = fn(Amx, Rows<'_>, usize, &mut Panel<Avx512>, &mut [Line]);

struct Job<'a> {
    panels: Panels<'a>,
    rows: usize,
    cols: usize,
    /// Rows of activations.
    n: usize,
    parts: Parts,
    /// Where a segment of a row begins, and how it is unpacked.
    fill: (fn(usize) -> usize, Filler),
    out: Output<'a>,
}

/// Some outputs of some rows.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) pairs: Range<usize>,
    /// In groups of 16 rows.
    pub(super) groups: Range<usize>,
}

/// Products cut into tasks of similar cost.
pub(super) struct Shares {
    /// Pairs of panels of a product.
    pieces: Vec<(usize, Range<usize>)>,
    /// Groups of 16 rows, and the number of pieces that were taken with them.
    stretches: Vec<(Range<usize>, AtomicUsize)>,
}

impl Shares {
    pub(super) fn new(outputs: &[usize], n: usize, threads: usize) -> Self {
        let groups = n.div_ceil(TILE_ROWS);
        let pairs = outputs.iter().map(|outputs| outputs.div_ceil(OUTPUTS));
        let all: usize = pairs.clone().sum();
        // With fewer outputs than that many threads need, rows are divided as well.
        let cuts = match threads {
            1 => 1,
            _ => (TASKS * threads).div_ceil(all).min(n / ROWS_MIN).max(n.div_ceil(ROWS_MAX)),
        };
        let stretch = groups.div_ceil(cuts).next_multiple_of(2);
        let each = (all * cuts / (TASKS * threads)).clamp(1, PAIRS_MAX);
        let cut = |(product, pairs): (usize, usize)| {
            let pieces = pairs.div_ceil(each);
            (0..pieces).map(move |piece| (product, pairs * piece / pieces..pairs * (piece + 1) / pieces))
        };
        let stretches = (0..groups).step_by(stretch).map(|start| start..groups.min(start + stretch));
        Self {
            pieces: pairs.enumerate().flat_map(cut).collect(),
            stretches: stretches.map(|stretch| (stretch, AtomicUsize::new(0))).collect(),
        }
    }

    /// The next task of a thread. It stays with a stretch of rows, whose activations stay in its L2 cache, until nothing is left of
    /// that.
    pub(super) fn next(&self, thread: usize) -> Option<(usize, Task)> {
        let count = self.stretches.len();
        (0..count).find_map(|step| {
            let (groups, taken) = &self.stretches[(thread + step) % count];
            let (product, pairs) = self.pieces.get(taken.fetch_add(1, Ordering::Relaxed))?;
            Some((*product, Task { pairs: pairs.clone(), groups: groups.clone() }))
        })
    }
}

/// Memory of a thread, reused for all its tasks.
#[derive(Default)]
struct Work {
    /// Segments are unpacked to codes first. To clear it for each would take longer than a tenth of the unpacking.
    panel: Option<Box<Panel<Avx512>>>,
    right: Vec<Line>,
    sums: Vec<[Sum; PAIR]>,
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Sum([f32; TILE_SUMS]);

thread_local! {
    static WORK: RefCell<Work> = RefCell::default();
    /// Memory of the last product's activations: to clear it anew would take one thread as long as the product takes many.
    static LEFT: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
}

impl Job<'_> {
    fn run(&self, amx: Amx, left: &Left, task: &Task, work: &mut Work) {
        let tiles = amx.tiles();
        let each = self.parts.right().lines(STEPS);
        let panels = task.pairs.len() * PAIR;
        let rows = task.groups.len() * TILE_ROWS;
        let codes = work.panel.get_or_insert_with(|| Box::new(Panel::new(amx.avx512())));
        work.right.resize(panels * each, Line::ZERO);
        work.sums.resize(task.pairs.len() * rows, [Sum([0.0; TILE_SUMS]); PAIR]);
        for first in (0..left.steps).step_by(STEPS) {
            let steps = STEPS.min(left.steps - first);
            let (bytes, fill) = self.fill;
            let cols = (self.cols - first * TILE_COLS).min(SEGMENT);
            for (panel, lines) in work.right.chunks_exact_mut(each).enumerate() {
                let pair = task.pairs.start + panel / PAIR;
                let rows = self.panels.rows(pair, panel % PAIR);
                fill(amx, rows.skip(bytes(first * TILE_COLS)), cols, codes, lines);
                if first + steps < left.steps {
                    self.panels.prefetch_next(pair, first / STEPS, bytes(SEGMENT), panel % PAIR);
                }
            }
            for group in task.groups.clone().step_by(2) {
                for pair in task.pairs.clone() {
                    let (right, row) = ((pair - task.pairs.start) * PAIR, (group - task.groups.start) * TILE_ROWS);
                    let sums = &mut work.sums[(pair - task.pairs.start) * rows + row..][..];
                    let right = [right, right + 1].map(|panel| &work.right[panel * each..][..each]);
                    let at = Block { task, group, pair, first, steps };
                    self.block(&tiles, left, right, &at, sums);
                }
            }
        }
    }

    /// Adds a segment's products of 16 or 32 rows with a pair of panels.
    #[inline(always)]
    fn block(&self, tiles: &Tiles, left: &Left, right: [&[Line]; PAIR], at: &Block<'_>, sums: &mut [[Sum; PAIR]]) {
        let Block { task, group, pair, first, steps } = *at;
        let is_two = group + 1 < task.groups.end;
        let rows = group * TILE_ROWS..(group + if is_two { 2 } else { 1 }) * TILE_ROWS;
        let wanted = pair * OUTPUTS..self.rows.min((pair + 1) * OUTPUTS);
        let sums = &mut sums[..rows.len()];
        let own = Sums { at: sums.as_mut_ptr().cast(), stride: OUTPUTS };
        let is_last = first + steps == left.steps;
        let is_whole = rows.end <= self.n && wanted.len() == OUTPUTS;
        let from = if first == 0 { Sums { at: std::ptr::null_mut(), stride: 0 } } else { own };
        let mut to = own;
        if is_last && is_whole {
            self.panels.prefetch_to_write(pair, rows.clone(), &self.out);
            let start = rows.start * self.rows + wanted.start;
            let end = (rows.end - 1) * self.rows + wanted.end;
            to = Sums { at: self.out.part(start..end).cast(), stride: self.rows };
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
        if is_last && !is_whole {
            let skipped = wanted.start - self.panels.first(pair);
            for (row, sums) in (rows.start..self.n.min(rows.end)).zip(sums) {
                // SAFETY: each row's columns of a pair belong to one task.
                let out = unsafe { self.out.range(row * self.rows + wanted.start..row * self.rows + wanted.end) };
                for (at, out) in (skipped..).zip(out) {
                    out.write(sums[at / TILE_SUMS].0[at % TILE_SUMS]);
                }
            }
        }
    }
}

/// Place of a block of products.
struct Block<'a> {
    task: &'a Task,
    group: usize,
    pair: usize,
    first: usize,
    steps: usize,
}

/// Where a segment of a format's rows begins, and how it is unpacked.
fn filler(dtype: Dtype) -> (fn(usize) -> usize, Filler) {
    with_format!(
        dtype,
        F => (|cols| cols / F::BLOCK * F::BYTES, fill_quantized::<F>),
        match dtype {
            Dtype::F16 => (F16::bytes, fill_dense::<F16, 2>),
            Dtype::BF16 => (BF16::bytes, fill_dense::<BF16, 1>),
            Dtype::Fp8 => (Fp8::bytes, fill_dense::<Fp8, 2>),
            _ => (F32::bytes, fill_dense::<F32, 3>),
        }
    )
}

fn fill_quantized<F: Format>(amx: Amx, rows: Rows<'_>, cols: usize, panel: &mut Panel<Avx512>, lines: &mut [Line]) {
    amx.enter(FillQuantized::<F> { rows, cols, panel, lines, format: PhantomData });
}

struct FillQuantized<'a, F> {
    rows: Rows<'a>,
    cols: usize,
    panel: &'a mut Panel<Avx512>,
    lines: &'a mut [Line],
    format: PhantomData<F>,
}

impl<F: Format> TileKernel for FillQuantized<'_, F> {
    #[inline(always)]
    fn run(self, amx: Amx) {
        let simd = amx.avx512();
        let panel = self.panel;
        panel.fill::<F>(simd, self.rows, self.cols / F::BLOCK);
        let (byte, zero) = (simd.splat_bits(0xff), simd.splat(0.0));
        for group in 0..self.cols / F::GROUP {
            let scale = panel.scales[group];
            let mut least = simd.fnma(scale, simd.splat(f32::from(F::OFFSET)), zero);
            if <F::Shape as Layout>::MINIMUMS {
                least = simd.sub(least, panel.minimums[group]);
            }
            for word in group * F::GROUP / 4..(group + 1) * F::GROUP / 4 {
                let codes = panel.codes[word];
                let columns = [
                    simd.and(codes, byte),
                    simd.and(simd.shr(codes, 8), byte),
                    simd.and(simd.shr(codes, 16), byte),
                    simd.shr(codes, 24),
                ];
                for half in 0..2 {
                    let first = simd.fma(simd.integers_to_f32(columns[2 * half]), scale, least);
                    let second = simd.fma(simd.integers_to_f32(columns[2 * half + 1]), scale, least);
                    amx.store(amx.pairs([first, second]), &mut self.lines[2 * word + half]);
                }
            }
        }
    }
}

fn fill_dense<F: Dense, const PARTS: usize>(
    amx: Amx,
    rows: Rows<'_>,
    cols: usize,
    _panel: &mut Panel<Avx512>,
    lines: &mut [Line],
) {
    amx.enter(FillDense::<F, PARTS> { rows, cols, lines, format: PhantomData });
}

struct FillDense<'a, F, const PARTS: usize> {
    rows: Rows<'a>,
    cols: usize,
    lines: &'a mut [Line],
    format: PhantomData<F>,
}

impl<F: Dense, const PARTS: usize> TileKernel for FillDense<'_, F, PARTS> {
    #[inline(always)]
    fn run(self, amx: Amx) {
        let simd = amx.avx512();
        let mut columns = [simd.splat(0.0); SEGMENT];
        F::fill(simd, self.rows, &mut columns[..self.cols]);
        for line in 0..self.cols.div_ceil(TILE_COLS) * TILE_ROWS {
            Split(PARTS).store_pairs(amx, [columns[2 * line], columns[2 * line + 1]], line, self.lines);
        }
    }
}
