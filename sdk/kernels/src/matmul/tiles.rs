//! Products of many rows on the matrix unit.
//!
//! Weights are unpacked to `bf16` once for all rows, 256 columns of some panels at a time: these stay in the L2 cache while
//! the rows pass over them, and 32 rows of activations stay in L1 while the panels pass over those. Sums are kept in `f32`
//! over all columns, so that formats with a scale per 16 or 32 values cost no more than others. Quantized weights and
//! their activations are rounded to `bf16`; dense ones are split into up to three numbers of it, which have all bits of an
//! `f32`, and the products that matter are summed, so that they stay as exact as by vectors.
//!
//! Every sum is in the order of its columns, so a row is the same to the last bit among however many others.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::float::{BF16, Dense, F16, F32, Fp8};
use super::super::pool::{Disjoint, Pool};
use super::super::quant::{Format, Layout, SEGMENT, with_format};
use super::super::simd::{Amx, Avx512, Line, Rows, Simd, Sums, TILE_COLS, TILE_ROWS, TILE_SUMS, TileKernel, Tiles};
use super::super::tile::PAIR;
use super::Product;
use super::panels::Panels;
use super::quantized::Panel;
use pensieve_weights::Dtype;

/// Steps of 32 columns per segment.
const STEPS: usize = SEGMENT / TILE_COLS;
/// Lines of a panel's segment.
const LINES: usize = STEPS * TILE_ROWS;
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
    let used = products.iter().flat_map(|product| summed(product.weight.dtype)).map(|(left, _)| left);
    let left = Left::new(pool, amx, x, cols, parts(used));
    let jobs: Vec<Job<'_>> = products
        .iter_mut()
        .map(|Product { weight, out }| Job {
            panels: Panels::new(weight, TILE_SUMS),
            rows: weight.rows,
            cols,
            n,
            products: summed(weight.dtype),
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

/// The parts of activations and weights whose products are summed. Each part has 8 more bits of a number, so the products that
/// are left out are below the last bit of an `f32`.
fn summed(dtype: Dtype) -> &'static [(usize, usize)] {
    match dtype {
        Dtype::BF16 => &[(0, 0), (1, 0), (2, 0)],
        Dtype::F16 | Dtype::Fp8 => &[(0, 0), (1, 0), (0, 1), (2, 0), (1, 1)],
        Dtype::F32 => &[(0, 0), (1, 0), (0, 1), (2, 0), (1, 1), (0, 2)],
        _ => &[(0, 0)],
    }
}

/// Number of parts, of which these are used.
fn parts<'a>(used: impl Iterator<Item = &'a usize>) -> usize {
    used.max().map_or(1, |last| last + 1)
}

/// Activations in `bf16`, in the order in which tiles read them.
struct Left {
    lines: Vec<Line>,
    steps: usize,
    /// Groups of 16 rows.
    groups: usize,
}

impl Left {
    fn new(pool: &Pool, amx: Amx, x: &[f32], cols: usize, parts: usize) -> Self {
        let (n, steps) = (x.len() / cols, cols.div_ceil(TILE_COLS));
        let groups = n.div_ceil(TILE_ROWS);
        let each = steps * TILE_ROWS;
        let len = parts * groups * each;
        let mut lines = LEFT.take();
        // Rows that pad a group keep what they have, as their products are not written.
        if lines.len() < len {
            lines = vec![Line::ZERO; len];
        }
        let all = Disjoint::new(&mut lines[..len]);
        pool.run(groups, |group| {
            let rows = group * TILE_ROWS..n.min((group + 1) * TILE_ROWS);
            let x = &x[rows.start * cols..rows.end * cols];
            let lines = (0..parts).map(|part| {
                let first = (part * groups + group) * each;
                // SAFETY: each part of a group belongs to the group's task.
                unsafe { all.range(first..first + each) }
            });
            amx.enter(Pack { x, cols, parts: &mut lines.collect::<Vec<_>>() });
        });
        Self { lines, steps, groups }
    }

    /// The lines of a group from a step on.
    #[inline(always)]
    fn at(&self, part: usize, group: usize, step: usize, steps: usize) -> *const Line {
        let first = ((part * self.groups + group) * self.steps + step) * TILE_ROWS;
        self.lines[first..first + steps * TILE_ROWS].as_ptr()
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
struct Pack<'a, 'b> {
    x: &'a [f32],
    cols: usize,
    parts: &'a mut [&'b mut [Line]],
}

impl TileKernel for Pack<'_, '_> {
    #[inline(always)]
    fn run(self, amx: Amx) {
        let Self { x, cols, parts } = self;
        let simd = amx.avx512();
        for row in 0..x.len() / cols {
            let x = &x[row * cols..(row + 1) * cols];
            for step in 0..cols.div_ceil(TILE_COLS) {
                let values = &x[step * TILE_COLS..cols.min((step + 1) * TILE_COLS)];
                let mut columns = if values.len() == TILE_COLS {
                    [simd.load(values), simd.load(&values[TILE_SUMS..])]
                } else {
                    let mut padded = [0.0; TILE_COLS];
                    padded[..values.len()].copy_from_slice(values);
                    [simd.load(&padded), simd.load(&padded[TILE_SUMS..])]
                };
                for lines in parts.iter_mut() {
                    let rounded = amx.row(columns);
                    amx.store(rounded, &mut lines[step * TILE_ROWS + row]);
                    columns = amx.rest_of_row(columns, rounded);
                }
            }
        }
    }
}

/// Unpacks `cols` columns of 16 rows of weights to parts, each of [`LINES`].
type Filler = fn(Amx, Rows<'_>, usize, &mut Panel<Avx512>, &mut [Line]);

struct Job<'a> {
    panels: Panels<'a>,
    rows: usize,
    cols: usize,
    /// Rows of activations.
    n: usize,
    products: &'static [(usize, usize)],
    /// Where a segment of a row begins, and how it is unpacked.
    fill: (fn(usize) -> usize, Filler),
    out: Disjoint<'a, f32>,
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
        let parts = parts(self.products.iter().map(|(_, right)| right));
        let panels = task.pairs.len() * PAIR;
        let rows = task.groups.len() * TILE_ROWS;
        let codes = work.panel.get_or_insert_with(|| Box::new(Panel::new(amx.avx512())));
        work.right.resize(panels * parts * LINES, Line::ZERO);
        work.sums.resize(task.pairs.len() * rows, [Sum([0.0; TILE_SUMS]); PAIR]);
        for first in (0..left.steps).step_by(STEPS) {
            let steps = STEPS.min(left.steps - first);
            let (bytes, fill) = self.fill;
            let cols = (self.cols - first * TILE_COLS).min(SEGMENT);
            for (panel, lines) in work.right.chunks_exact_mut(parts * LINES).enumerate() {
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
                    let right = [right, right + 1].map(|panel| &work.right[panel * parts * LINES..][..parts * LINES]);
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
        for (index, (left_part, right_part)) in self.products.iter().enumerate() {
            let from = if first == 0 && index == 0 { Sums { at: std::ptr::null_mut(), stride: 0 } } else { own };
            let mut to = own;
            if is_last && is_whole && index + 1 == self.products.len() {
                let start = rows.start * self.rows + wanted.start;
                let end = (rows.end - 1) * self.rows + wanted.end;
                to = Sums { at: self.out.part(start..end), stride: self.rows };
            }
            let lines = |panel: usize| right[panel][right_part * LINES..][..steps * TILE_ROWS].as_ptr();
            let right = [lines(0), lines(1)];
            let one = left.at(*left_part, group, first, steps);
            // SAFETY: all slices have as many lines as the steps need. Sums have 32 elements for each row; a row of the
            // output has them at these columns, which are within it, and each such part belongs to one task.
            unsafe {
                if is_two {
                    let other = left.at(*left_part, group + 1, first, steps);
                    tiles.two_by_two::<1>([one, other], right, steps, from, to);
                } else {
                    tiles.one_by_two(one, right, steps, from, to);
                }
            }
        }
        if is_last && !is_whole {
            let skipped = wanted.start - self.panels.first(pair);
            for (row, sums) in (rows.start..self.n.min(rows.end)).zip(sums) {
                // SAFETY: each row's columns of a pair belong to one task.
                let out = unsafe { self.out.range(row * self.rows + wanted.start..row * self.rows + wanted.end) };
                for (at, out) in (skipped..).zip(out) {
                    *out = sums[at / TILE_SUMS].0[at % TILE_SUMS];
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
            let mut both = [columns[2 * line], columns[2 * line + 1]];
            for part in 0..PARTS {
                let rounded = amx.pairs(both);
                amx.store(rounded, &mut self.lines[part * LINES + line]);
                both = amx.rest_of_pairs(both, rounded);
            }
        }
    }
}
