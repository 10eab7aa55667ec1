//! Element-wise formulas, computed in one pass over their inputs.
//!
//! Tensor operations write each intermediate result to memory and read it back, which costs more than the arithmetic.
//! Here a formula is a list of steps, and all of them run over one piece of a row after another, while the piece is in
//! the L1 cache.

use std::ops::Range;

use super::activation::{Activation, apply};
use super::pool::Pool;
use super::results::Unwritten;
use super::simd::{Kernel, Simd};

/// Values per task: less work is not worth another thread.
const TASK: usize = 1 << 13;

/// Columns that are computed together, unless groups are wider.
const PIECE: usize = 256;

/// Where a step finds a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// An input, `[rows, width]`.
    Input(usize),
    /// A value per column.
    Columns(usize),
    /// The result of an earlier step.
    Step(usize),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    Number(f32),
    Add(Operand, Operand),
    Sub(Operand, Operand),
    Mul(Operand, Operand),
    Relu(Operand),
    Activate(Activation, Operand),
    /// The sum of each group of so many columns, for all columns of the group.
    SumGroups(Operand, usize),
}

impl Step {
    /// Its operands; a step with one has it twice.
    pub fn operands(&self) -> Option<[Operand; 2]> {
        match *self {
            Self::Number(_) => None,
            Self::Add(a, b) | Self::Sub(a, b) | Self::Mul(a, b) => Some([a, b]),
            Self::Relu(a) | Self::Activate(_, a) | Self::SumGroups(a, _) => Some([a, a]),
        }
    }
}

/// The values that a formula is computed from.
#[derive(Clone, Copy, Debug)]
pub struct Values<'a> {
    pub inputs: &'a [&'a [f32]],
    pub columns: &'a [&'a [f32]],
    pub width: usize,
}

/// Computes each of `outputs` for all rows.
pub fn elementwise(pool: &Pool, steps: &[Step], outputs: &[Operand], values: Values<'_>) -> Vec<Vec<f32>> {
    let Values { inputs, columns, width } = values;
    assert!(!inputs.is_empty(), "a formula without inputs");
    let count = inputs[0].len();
    check(steps, outputs, values, count);
    let groups = steps.iter().filter_map(|step| if let Step::SumGroups(_, group) = step { Some(*group) } else { None });
    let group = groups.fold(1, lcm);
    let (rows, piece) = (TASK.div_ceil(width), (PIECE / group).max(1) * group);
    pool.computed_all(outputs.len(), count, rows * width, |index, outs| {
        let start = index * rows * width;
        let range = start..count.min(start + rows * width);
        pool.level().run(Task { steps, outputs, inputs, columns, width, piece, range, outs });
    })
}

/// Copies the columns `start..start + len` of rows of `width` values.
pub fn columns(pool: &Pool, x: &[f32], width: usize, start: usize, len: usize) -> Vec<f32> {
    assert!(width > 0 && start + len <= width, "columns {start} + {len} of {width}");
    let rows = TASK.div_ceil(len.max(1));
    pool.computed(x.len() / width * len, (rows * len).max(1), |index, out| {
        for (row, out) in x.chunks_exact(width).skip(index * rows).zip(out.rows(len)) {
            out.copy(&row[start..start + len]);
        }
    })
}

/// Joins the rows of matrices with the same number of rows, each given with its width.
pub fn join(pool: &Pool, parts: &[(&[f32], usize)]) -> Vec<f32> {
    let width: usize = parts.iter().map(|(_, width)| width).sum();
    let count = parts.iter().find(|(_, width)| *width > 0).map_or(0, |(values, width)| values.len() / width);
    assert!(parts.iter().all(|(values, width)| values.len() == count * width), "matrices of {count} rows");
    let rows = TASK.div_ceil(width.max(1));
    pool.computed(count * width, (rows * width).max(1), |index, out| {
        for (row, mut out) in (index * rows..).zip(out.rows(width)) {
            for (values, width) in parts {
                out.take(*width).copy(&values[row * width..][..*width]);
            }
        }
    })
}

/// Adds `values` to `out`.
pub fn add(pool: &Pool, values: &[f32], out: &mut [f32]) {
    assert_eq!(values.len(), out.len(), "values to add");
    pool.run_pieces(out, TASK, |index, out| {
        out.iter_mut().zip(&values[index * TASK..]).for_each(|(out, value)| *out += value);
    });
}

/// Adds a row to each row of `out`.
pub fn add_row(pool: &Pool, row: &[f32], out: &mut [f32]) {
    let width = row.len().max(1);
    assert!(out.len().is_multiple_of(width), "{} values for rows of {width}", out.len());
    pool.run_pieces(out, TASK.div_ceil(width) * width, |_, out| {
        let rows = out.chunks_exact_mut(width);
        rows.for_each(|out| out.iter_mut().zip(row).for_each(|(out, value)| *out += value));
    });
}

fn check(steps: &[Step], outputs: &[Operand], values: Values<'_>, count: usize) {
    let Values { inputs, columns, width } = values;
    assert!(width > 0 && count.is_multiple_of(width), "{count} values in rows of {width}");
    assert!(inputs.iter().all(|input| input.len() == count), "inputs");
    assert!(columns.iter().all(|column| column.len() == width), "a value per column");
    let is_known = |operand: Operand, before: usize| match operand {
        Operand::Input(index) => index < inputs.len(),
        Operand::Columns(index) => index < columns.len(),
        Operand::Step(index) => index < before,
    };
    for (index, step) in steps.iter().enumerate() {
        assert!(step.operands().is_none_or(|all| all.iter().all(|one| is_known(*one, index))), "step {index}");
        if let Step::SumGroups(_, group) = step {
            assert!(*group > 0 && width.is_multiple_of(*group), "groups of {group} in {width} columns");
        }
    }
    assert!(outputs.iter().all(|output| is_known(*output, steps.len())), "an output");
}

fn lcm(a: usize, b: usize) -> usize {
    let (mut divisor, mut rest) = (a, b);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    a / divisor * b
}

/// Some whole rows.
struct Task<'a> {
    steps: &'a [Step],
    outputs: &'a [Operand],
    inputs: &'a [&'a [f32]],
    columns: &'a [&'a [f32]],
    width: usize,
    /// Columns that are computed together.
    piece: usize,
    /// The rows' values in the inputs.
    range: Range<usize>,
    outs: Vec<Unwritten<'a>>,
}

impl<S: Simd> Kernel<S> for Task<'_> {
    #[inline(always)]
    fn run(mut self, simd: S) {
        let mut results = vec![0.0; self.steps.len() * self.piece];
        for row in self.range.clone().step_by(self.width) {
            for column in (0..self.width).step_by(self.piece) {
                let len = self.piece.min(self.width - column);
                self.run_piece(simd, (row, column, len), &mut results);
            }
        }
    }
}

impl Task<'_> {
    #[inline(always)]
    fn run_piece<S: Simd>(&mut self, simd: S, (row, column, len): (usize, usize, usize), results: &mut [f32]) {
        let (inputs, columns, piece) = (self.inputs, self.columns, self.piece);
        for (index, step) in self.steps.iter().enumerate() {
            let (before, out) = results.split_at_mut(index * piece);
            let of = |operand: Operand| match operand {
                Operand::Input(input) => &inputs[input][row + column..][..len],
                Operand::Columns(at) => &columns[at][column..][..len],
                Operand::Step(step) => &before[step * piece..][..len],
            };
            let out = &mut out[..len];
            match *step {
                Step::Number(number) => out.fill(number),
                Step::Add(a, b) => map::<S, Add>(simd, of(a), of(b), out),
                Step::Sub(a, b) => map::<S, Sub>(simd, of(a), of(b), out),
                Step::Mul(a, b) => map::<S, Mul>(simd, of(a), of(b), out),
                Step::Relu(a) => map::<S, Relu>(simd, of(a), of(a), out),
                Step::Activate(kind, a) => {
                    out.copy_from_slice(of(a));
                    apply(simd, kind, out);
                }
                Step::SumGroups(a, group) => {
                    for (values, out) in of(a).chunks_exact(group).zip(out.chunks_exact_mut(group)) {
                        out.fill(sum(simd, values));
                    }
                }
            }
        }
        for (output, out) in self.outputs.iter().zip(self.outs.iter_mut()) {
            let value = match *output {
                Operand::Input(input) => &inputs[input][row + column..][..len],
                Operand::Columns(at) => &columns[at][column..][..len],
                Operand::Step(step) => &results[step * piece..][..len],
            };
            out.take(len).copy(value);
        }
    }
}

/// A function of two values. A trait for the reason that [`activation`](super::activation) gives.
trait Binary {
    fn of<S: Simd>(simd: S, a: S::F, b: S::F) -> S::F;
}

struct Add;
struct Sub;
struct Mul;
struct Relu;

impl Binary for Add {
    #[inline(always)]
    fn of<S: Simd>(simd: S, a: S::F, b: S::F) -> S::F {
        simd.add(a, b)
    }
}

impl Binary for Sub {
    #[inline(always)]
    fn of<S: Simd>(simd: S, a: S::F, b: S::F) -> S::F {
        simd.sub(a, b)
    }
}

impl Binary for Mul {
    #[inline(always)]
    fn of<S: Simd>(simd: S, a: S::F, b: S::F) -> S::F {
        simd.mul(a, b)
    }
}

impl Binary for Relu {
    #[inline(always)]
    fn of<S: Simd>(simd: S, a: S::F, _: S::F) -> S::F {
        // In this order NaN stays NaN.
        simd.max(simd.splat(0.0), a)
    }
}

#[inline(always)]
fn map<S: Simd, B: Binary>(simd: S, a: &[f32], b: &[f32], out: &mut [f32]) {
    let whole = out.len() / S::LANES * S::LANES;
    let vectors = a.chunks_exact(S::LANES).zip(b.chunks_exact(S::LANES)).zip(out.chunks_exact_mut(S::LANES));
    for ((a, b), out) in vectors {
        simd.store(B::of(simd, simd.load(a), simd.load(b)), out);
    }
    let (a, b, out) = (&a[whole..], &b[whole..], &mut out[whole..]);
    if !out.is_empty() {
        let mut lanes = [[0.0; 64]; 2];
        lanes[0][..a.len()].copy_from_slice(a);
        lanes[1][..b.len()].copy_from_slice(b);
        let value = B::of(simd, simd.load(&lanes[0]), simd.load(&lanes[1]));
        simd.store(value, &mut lanes[0]);
        out.copy_from_slice(&lanes[0][..out.len()]);
    }
}

#[inline(always)]
fn sum<S: Simd>(simd: S, values: &[f32]) -> f32 {
    let mut vectors = values.chunks_exact(S::LANES);
    let mut total = simd.splat(0.0);
    for vector in &mut vectors {
        total = simd.add(total, simd.load(vector));
    }
    vectors.remainder().iter().fold(simd.sum(total), |sum, value| sum + value)
}

#[cfg(test)]
mod tests {
    use super::super::simd::Level;
    use super::*;

    fn wave(len: usize, step: f32) -> Vec<f32> {
        (0..len).map(|i| (i as f32 * step).sin()).collect()
    }

    /// Every step, in rows longer than a piece and with columns left over.
    #[test]
    fn every_step_is_computed_for_every_column_of_every_row() {
        let (rows, group) = (40, 11);
        let width = 33 * group;
        let (x, y, weight) = (wave(rows * width, 0.7), wave(rows * width, 0.3), wave(width, 0.9));
        let [a, b, w] = [Operand::Input(0), Operand::Input(1), Operand::Columns(0)];
        let steps = [
            Step::Sub(b, a),
            Step::Mul(Operand::Step(0), w),
            Step::Add(Operand::Step(1), a),
            Step::Relu(Operand::Step(2)),
            Step::Number(0.5),
            Step::Mul(Operand::Step(4), b),
            Step::SumGroups(Operand::Step(5), group),
            Step::Activate(Activation::Sigmoid, b),
        ];
        let outputs = [2, 3, 6, 7].map(Operand::Step).into_iter().chain([a, w]).collect::<Vec<_>>();
        for level in Level::available() {
            let values = Values { inputs: &[&x, &y], columns: &[&weight], width };
            let outs = elementwise(&Pool::with_level(2, level), &steps, &outputs, values);
            for i in 0..rows * width {
                let mixed = x[i] + (y[i] - x[i]) * weight[i % width];
                let first = i - i % width % group;
                let sum: f32 = y[first..first + group].iter().map(|y| 0.5 * y).sum();
                let sigmoid = 1.0 / (1.0 + (-y[i]).exp());
                let expected = [mixed, mixed.max(0.0), sum, sigmoid, x[i], weight[i % width]];
                for (out, expected) in outs.iter().zip(expected) {
                    assert!((out[i] - expected).abs() < 1e-5, "{}, {i}: {} {expected}", level.name(), out[i]);
                }
            }
        }
    }

    #[test]
    fn columns_are_copied_from_every_row() {
        let (x, rows, width) = (wave(3000 * 7, 0.1), 3000, 7);
        let out = columns(&Pool::new(2), &x, width, 2, 4);
        assert_eq!(out.len(), rows * 4);
        assert!(out.chunks(4).zip(x.chunks(width)).all(|(out, row)| out == &row[2..6]));
    }

    #[test]
    fn joined_rows_come_apart_again() {
        let (rows, pool) = (3000, Pool::new(2));
        let (x, y, z) = (wave(rows * 5, 0.1), wave(rows, 0.2), wave(rows * 2, 0.3));
        let all = join(&pool, &[(&x, 5), (&y, 1), (&[], 0), (&z, 2)]);
        assert_eq!(all.len(), rows * 8);
        let parts = [(0, 5), (5, 1), (6, 2)].map(|(start, len)| columns(&pool, &all, 8, start, len));
        assert!(parts == [x, y, z]);
        assert!(join(&pool, &[]).is_empty());
    }

    #[test]
    fn a_value_that_is_no_number_stays_none() {
        for level in Level::available() {
            let values = Values { inputs: &[&[f32::NAN; 19]], columns: &[], width: 19 };
            let relu = [Step::Relu(Operand::Input(0))];
            let outs = elementwise(&Pool::with_level(1, level), &relu, &[Operand::Step(0)], values);
            assert_eq!(outs[0].len(), 19);
            assert!(outs[0].iter().all(|x| x.is_nan()), "{}", level.name());
        }
    }

    #[test]
    #[should_panic(expected = "step 0")]
    fn a_step_that_reads_a_later_one_is_refused() {
        let values = Values { inputs: &[&[1.0]], columns: &[], width: 1 };
        let steps = [Step::Relu(Operand::Step(0))];
        elementwise(&Pool::new(1), &steps, &[Operand::Step(0)], values);
    }
}
