//! Products of activations with weights that stay in the checkpoint's format.
//!
//! Weights are unpacked on the fly, a panel of rows and a segment of columns at a time: into bytes with a scale per
//! group if quantized, otherwise into `f32`. The panel stays in the L1 cache while all rows of the batch pass over it.
//! With one row this reads weights at memory speed, with many rows it runs at the speed of the multipliers, and either
//! way an output is summed in the same order, group by group.

mod activations;
mod dense;
mod heads;
mod panels;
mod quantized;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod tiles;
mod vectors;

use std::mem::MaybeUninit;
use std::ops::Range;

pub use heads::matmul_heads;

use super::activation::Activation;
use super::float::{BF16, Dense, F16, F32, Fp8};
use super::pool::{Disjoint, Pool};
use super::quant::{Expanded, Format, Layout, with_format};
use super::tile::MANY;
use pensieve_error::{Error, Result};
use pensieve_weights::{Dtype, RawTensor, quote};

/// Maximum number of batch rows that pass over a panel together; for quantized weights, as many as have activations
/// that fit the L2 cache.
pub(super) const BATCH: usize = 512;

/// A matrix as a checkpoint stores it: `rows` consecutive rows of `cols` values.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    pub dtype: Dtype,
    pub data: &'a [u8],
    pub rows: usize,
    pub cols: usize,
}

/// A matrix and its bias.
#[derive(Clone, Copy, Debug)]
pub struct Layer<'a> {
    pub weight: Matrix<'a>,
    pub bias: Option<&'a [f32]>,
}

/// `down(act(gate(x)) · up(x))`, or `down(act(up(x)))` without a gate.
#[derive(Clone, Copy, Debug)]
pub struct FeedForward<'a> {
    pub gate: Option<Layer<'a>>,
    pub up: Layer<'a>,
    pub down: Layer<'a>,
    pub activation: Activation,
}

/// One of several products of the same activations. All of its result is written.
struct Product<'a> {
    weight: Matrix<'a>,
    out: &'a mut [MaybeUninit<f32>],
}

/// A result that tasks write in parallel.
type Output<'a> = Disjoint<'a, MaybeUninit<f32>>;

/// Computes some pairs of a product's panels by vectors.
type PanelTask<'a> = Box<dyn Fn(Range<usize>) + Sync + 'a>;

/// Computes `out[n, rows] = x[n, cols] · wᵀ`, for rows that come together: `MANY` of them are computed by the matrix unit,
/// if the pool has one. Among fewer, and among more, each result row is bitwise independent of the other rows.
///
/// For quantized weights the activations of few rows are rounded to 8 bits with one scale per 32 values, those of many rows
/// to `bf16`. A row of activations that contains NaN, infinity or, for quantized weights and few rows, a number beyond 10³³,
/// gives a row without finite numbers.
pub fn matmul(pool: &Pool, w: &Matrix<'_>, x: &[f32], n: usize, out: &mut [f32]) {
    matmul_of(pool, w, x, &[n], out);
}

/// As [`matmul`], for stretches of rows of these lengths: each counts its own rows only. So a row is the same whatever else
/// is in the batch.
pub fn matmul_of(pool: &Pool, w: &Matrix<'_>, x: &[f32], stretches: &[usize], out: &mut [f32]) {
    matmul_into(pool, w, x, stretches, unwritten(out));
}

/// As [`matmul_of`], for outputs that nothing has been written to.
pub(super) fn matmul_into(pool: &Pool, w: &Matrix<'_>, x: &[f32], stretches: &[usize], out: &mut [MaybeUninit<f32>]) {
    multiply(pool, &mut [Product { weight: *w, out }], x, stretches);
}

/// As [`matmul_of`], for several products of the same activations, which are packed once. Their weights have the same
/// number of columns.
pub fn matmul_all(pool: &Pool, weights: &[Matrix<'_>], x: &[f32], stretches: &[usize]) -> Vec<Vec<f32>> {
    let n = stretches.iter().sum::<usize>();
    let mut outs: Vec<Vec<f32>> = weights.iter().map(|w| Vec::with_capacity(n * w.rows)).collect();
    let rooms = weights.iter().zip(&mut outs);
    let products = rooms.map(|(w, out)| Product { weight: *w, out: &mut out.spare_capacity_mut()[..n * w.rows] });
    multiply(pool, &mut products.collect::<Vec<_>>(), x, stretches);
    for (w, out) in weights.iter().zip(&mut outs) {
        // SAFETY: that many outputs were written.
        unsafe { out.set_len(n * w.rows) };
    }
    outs
}

/// Computes a block of rows that the matrix unit computes, without the bias of `down`, if it can pass inner values on. Otherwise it
/// returns false and writes nothing.
pub(super) fn feed_forward_by_tiles(
    pool: &Pool,
    block: &FeedForward<'_>,
    x: &[f32],
    n: usize,
    out: &mut [MaybeUninit<f32>],
) -> bool {
    let FeedForward { gate, up, down, .. } = block;
    let inner = up.weight.rows;
    for Layer { weight, bias } in gate.iter().chain([up]) {
        weight.check();
        assert_eq!((weight.rows, weight.cols), (inner, up.weight.cols), "gate and up");
        assert!(bias.is_none_or(|bias| bias.len() == inner), "a bias for each inner value");
    }
    down.weight.check();
    assert_eq!(down.weight.cols, inner, "inner values of {n} rows");
    assert_eq!(Some(x.len()), n.checked_mul(up.weight.cols), "activations for {n} rows of {}", up.weight.cols);
    assert_eq!(Some(out.len()), n.checked_mul(down.weight.rows), "outputs for {n} rows of {}", down.weight.rows);
    #[cfg(target_arch = "x86_64")]
    if let Some(amx) = pool.level().tiles()
        && !x.is_empty()
        && !out.is_empty()
        && n <= BATCH
        && tiles::can_pass_on(inner)
    {
        tiles::feed_forward(pool, amx, block, x, out);
        return true;
    }
    let _ = pool;
    false
}

/// Rows of `width` outputs.
pub(super) struct Outputs<'a> {
    pub(super) width: usize,
    pub(super) out: &'a mut [MaybeUninit<f32>],
}

/// True if the matrix unit computes a stretch of so many rows.
pub(super) fn is_many(pool: &Pool, stretch: usize) -> bool {
    pool.level().has_tiles() && stretch >= MANY
}

/// Calls `compute` for the stretches of few and of many rows: with whether they are many, their activations, which are rows of `cols`,
/// the stretches and their outputs, all of which it writes. Each call reads all weights, so rows of a kind are gathered if they lie in several places.
pub(super) fn by_kind(
    (x, cols): (&[f32], usize),
    stretches: &[usize],
    outs: &mut [Outputs<'_>],
    is_many: impl Fn(usize) -> bool,
    mut compute: impl FnMut(bool, &[f32], &[usize], &mut [Outputs<'_>]),
) {
    let stretches: Vec<usize> = stretches.iter().copied().filter(|stretch| *stretch > 0).collect();
    let mut end = 0;
    let groups = stretches.chunk_by(|a, b| is_many(*a) == is_many(*b)).map(|group| {
        let start = end;
        end += group.iter().sum::<usize>();
        (is_many(group[0]), start..end, group)
    });
    let groups: Vec<(bool, Range<usize>, &[usize])> = groups.collect();
    if groups.len() <= 2 {
        for (many, rows, stretches) in groups {
            let mut outs: Vec<_> = outs.iter_mut().map(|outs| outs.part(rows.clone())).collect();
            compute(many, &x[rows.start * cols..rows.end * cols], stretches, &mut outs);
        }
        return;
    }
    for kind in [false, true] {
        let of_kind = || groups.iter().filter(|(many, ..)| *many == kind);
        let stretches: Vec<usize> = of_kind().flat_map(|(_, _, stretches)| *stretches).copied().collect();
        let rows = || of_kind().map(|(_, rows, _)| rows.clone());
        let gathered: Vec<f32> = rows().flat_map(|rows| &x[rows.start * cols..rows.end * cols]).copied().collect();
        let n = stretches.iter().sum::<usize>();
        let mut results: Vec<Vec<f32>> = outs.iter().map(|outs| vec![0.0; n * outs.width]).collect();
        let mut of_results: Vec<_> = results
            .iter_mut()
            .zip(&*outs)
            .map(|(result, outs)| Outputs { width: outs.width, out: unwritten(result) })
            .collect();
        compute(kind, &gathered, &stretches, &mut of_results);
        for (result, outs) in results.iter().zip(&mut *outs) {
            let mut rest = &result[..];
            for rows in rows() {
                let (some, others) = rest.split_at(rows.len() * outs.width);
                outs.part(rows).out.write_copy_of_slice(some);
                rest = others;
            }
        }
    }
}

impl Outputs<'_> {
    /// Those of some rows.
    fn part(&mut self, rows: Range<usize>) -> Outputs<'_> {
        Outputs { width: self.width, out: &mut self.out[rows.start * self.width..rows.end * self.width] }
    }
}

/// Values to be written over.
fn unwritten(values: &mut [f32]) -> &mut [MaybeUninit<f32>] {
    // SAFETY: these have the same layout, and nothing but numbers is written here.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), values.len()) }
}

fn multiply(pool: &Pool, products: &mut [Product<'_>], x: &[f32], stretches: &[usize]) {
    let n = stretches.iter().sum::<usize>();
    let Some(cols) = products.first().map(|product| product.weight.cols) else { return };
    assert_eq!(Some(x.len()), n.checked_mul(cols), "activations for {n} rows of {cols}");
    for Product { weight: w, out } in &mut *products {
        assert_eq!(w.cols, cols, "products of the same activations");
        w.check();
        assert_eq!(Some(out.len()), n.checked_mul(w.rows), "outputs for {n} rows of {}", w.rows);
        if cols == 0 {
            out.fill(MaybeUninit::new(0.0));
        }
    }
    let mut products: Vec<Product<'_>> = part(products, 0..n).filter(|product| !product.out.is_empty()).collect();
    if cols == 0 || products.is_empty() {
        return;
    }
    let weights: Vec<Matrix<'_>> = products.iter().map(|product| product.weight).collect();
    let mut outs: Vec<_> =
        products.iter_mut().map(|product| Outputs { width: product.weight.rows, out: product.out }).collect();
    by_kind(
        (x, cols),
        stretches,
        &mut outs,
        |stretch| is_many(pool, stretch),
        |many, x, _, outs| {
            let products = weights.iter().zip(outs).map(|(weight, outs)| Product { weight: *weight, out: outs.out });
            of_kind(pool, &mut products.collect::<Vec<_>>(), many, x);
        },
    );
}

/// The products of some rows.
fn part<'a>(products: &'a mut [Product<'_>], rows: Range<usize>) -> impl Iterator<Item = Product<'a>> {
    products.iter_mut().map(move |product| {
        let width = product.weight.rows;
        Product { weight: product.weight, out: &mut product.out[rows.start * width..rows.end * width] }
    })
}

/// Computes rows of one kind.
fn of_kind(pool: &Pool, products: &mut [Product<'_>], many: bool, x: &[f32]) {
    let Some(cols) = products.first().map(|product| product.weight.cols) else { return };
    let n = x.len() / cols;
    for first in (0..n).step_by(BATCH) {
        let batch = first..n.min(first + BATCH);
        let x = &x[batch.start * cols..batch.end * cols];
        let mut products: Vec<Product<'_>> = part(products, batch).collect();
        #[cfg(target_arch = "x86_64")]
        if let Some(amx) = pool.level().tiles().filter(|_| many) {
            tiles::multiply(pool, amx, &mut products, x);
            continue;
        }
        let _ = many;
        vectors::multiply(pool, &mut products, x);
    }
}

/// Converts one row to `f32`.
pub fn dequantize_row(dtype: Dtype, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(Some(bytes.len()), dtype.row_bytes(out.len()), "{dtype:?} bytes for {} values", out.len());
    with_format!(
        dtype,
        F => expand::<F>(bytes, out),
        match dtype {
            Dtype::F16 => F16::widen_row(bytes, out),
            Dtype::BF16 => BF16::widen_row(bytes, out),
            Dtype::Fp8 => Fp8::widen_row(bytes, out),
            _ => F32::widen_row(bytes, out),
        }
    );
}

/// Returns all values of a tensor of any type.
pub fn dequantize(raw: &RawTensor) -> Result<Vec<f32>> {
    if !raw.dtype.is_quantized() {
        return raw.to_f32();
    }
    if raw.dtype.tensor_bytes(&raw.shape) != Some(raw.data.len()) {
        let (name, shape, bytes) = (quote(&raw.name), &raw.shape, raw.data.len());
        return Err(Error::invalid(format!("tensor {name} has {bytes} bytes, which is not its shape {shape:?}")));
    }
    let mut values = vec![0.0; raw.shape.iter().product()];
    dequantize_row(raw.dtype, &raw.data, &mut values);
    Ok(values)
}

/// Calls `take` with each group's integers, scale and minimum: a value is `scale · integer − minimum`. Dense formats
/// have no groups.
pub fn each_group(dtype: Dtype, bytes: &[u8], mut take: impl FnMut(&[i8], f32, f32)) {
    with_format!(dtype, F => integers::<F>(bytes, &mut take), ());
}

fn integers<F: Format>(bytes: &[u8], take: &mut impl FnMut(&[i8], f32, f32)) {
    let (mut expanded, mut integers) = (Expanded::default(), [0; super::quant::SEGMENT]);
    for block in bytes.chunks_exact(F::BYTES) {
        F::expand(block, &mut expanded);
        for (integer, code) in integers.iter_mut().zip(&expanded.codes[..F::BLOCK]) {
            *integer = code.wrapping_sub(F::OFFSET).cast_signed();
        }
        for (group, integers) in integers[..F::BLOCK].chunks_exact(F::GROUP).enumerate() {
            let minimum = if <F::Shape as Layout>::MINIMUMS { expanded.minimums[group] } else { 0.0 };
            take(integers, expanded.scales[group], minimum);
        }
    }
}

impl Matrix<'_> {
    fn check(&self) {
        let Self { rows, cols, dtype, data } = self;
        assert_eq!(Some(data.len()), self.row_bytes().checked_mul(*rows), "a matrix of {rows} × {cols} {dtype:?}");
    }

    fn row_bytes(&self) -> usize {
        let bytes = self.dtype.row_bytes(self.cols);
        assert!(bytes.is_some(), "rows of {} values cannot be {:?}", self.cols, self.dtype);
        bytes.unwrap_or_default()
    }
}

fn expand<F: Format>(bytes: &[u8], out: &mut [f32]) {
    let mut expanded = Expanded::default();
    for (block, out) in bytes.chunks_exact(F::BYTES).zip(out.chunks_exact_mut(F::BLOCK)) {
        F::expand(block, &mut expanded);
        for (group, out) in out.chunks_exact_mut(F::GROUP).enumerate() {
            let minimum = if <F::Shape as Layout>::MINIMUMS { expanded.minimums[group] } else { 0.0 };
            for (code, out) in expanded.codes[group * F::GROUP..].iter().zip(out) {
                *out = expanded.scales[group] * (f32::from(*code) - f32::from(F::OFFSET)) - minimum;
            }
        }
    }
}
