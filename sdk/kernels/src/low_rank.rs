//! Low-rank adapters: `out += scale · (x · downᵀ) · up` for some rows of a batch. Each row may have its own factors, so
//! one pass serves all adapters in a batch; the cost of a row is reading its factors.

use super::float::{BF16, F16, F32, Float};
use super::pool::{Disjoint, Pool};
use super::simd::{Kernel, Simd};
use pensieve_weights::Dtype;

/// The two factors of an adapter, as rows.
#[derive(Clone, Copy, Debug)]
pub struct Factors<'a> {
    /// A float type, shared by both.
    pub dtype: Dtype,
    pub rank: usize,
    /// `[rank, inputs]`; for an embedding `[tokens, rank]`.
    pub down: &'a [u8],
    /// `[rank, outputs]`.
    pub up: &'a [u8],
}

/// The adapter term of one output row.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    pub row: usize,
    pub factors: Factors<'a>,
    pub scale: f32,
    pub input: Input<'a>,
}

/// The input for a row's adapter term.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// Input of a linear layer.
    Values(&'a [f32]),
    /// Token of an embedding row.
    Token(usize),
}

/// Adds adapter terms to rows of `out`, which have `outputs` values each. No row may have two.
pub fn low_rank(pool: &Pool, changes: &[Change<'_>], outputs: usize, out: &mut [f32]) {
    let mut rows: Vec<usize> = changes.iter().map(|change| change.row).collect();
    rows.sort_unstable();
    assert!(rows.windows(2).all(|pair| pair[0] < pair[1]), "a row is changed twice");
    assert!(rows.last().is_none_or(|row| (row + 1) * outputs <= out.len()), "a row beyond the output");
    for Change { factors, input, .. } in changes {
        let bytes = factors.rank * factors.dtype.row_bytes(1).unwrap_or_default();
        let down = match input {
            Input::Values(values) => factors.down.len() == values.len() * bytes,
            Input::Token(token) => (token + 1) * bytes <= factors.down.len(),
        };
        assert!(down && factors.up.len() == outputs * bytes, "factors that do not fit their layer");
    }
    let out = Disjoint::new(out);
    pool.run(changes.len(), |index| {
        let change = &changes[index];
        // SAFETY: rows differ, as asserted, and each change is given to one task.
        let out = unsafe { out.range(change.row * outputs..(change.row + 1) * outputs) };
        match change.factors.dtype {
            Dtype::F16 => pool.level().run(Add::<F16> { change, out, format: std::marker::PhantomData }),
            Dtype::BF16 => pool.level().run(Add::<BF16> { change, out, format: std::marker::PhantomData }),
            _ => pool.level().run(Add::<F32> { change, out, format: std::marker::PhantomData }),
        }
    });
}

struct Add<'a, F> {
    change: &'a Change<'a>,
    out: &'a mut [f32],
    format: std::marker::PhantomData<F>,
}

impl<S: Simd, F: Float> Kernel<S> for Add<'_, F> {
    #[inline(always)]
    fn run(self, simd: S) {
        let Change { factors, scale, input, .. } = *self.change;
        let mut inner = Vec::with_capacity(factors.rank);
        match input {
            // No `map`: its closure would be compiled without the instruction set.
            Input::Values(x) => {
                for row in factors.down.chunks_exact(x.len().max(1) * F::BYTES) {
                    inner.push(scale * dot::<S, F>(simd, row, x));
                }
            }
            Input::Token(token) => {
                let row = factors.down.chunks_exact(factors.rank * F::BYTES).nth(token).unwrap_or_default();
                inner.extend(row.chunks_exact(F::BYTES).map(|value| scale * F::widen(value)));
            }
        }
        let row_bytes = self.out.len() * F::BYTES;
        let whole = self.out.len() / S::LANES * S::LANES;
        for (chunk, out) in self.out[..whole].chunks_exact_mut(S::LANES).enumerate() {
            let mut sum = simd.load(out);
            for (row, factor) in factors.up.chunks_exact(row_bytes).zip(&inner) {
                let values = F::load(simd, &row[chunk * S::LANES * F::BYTES..]);
                sum = simd.fma(simd.splat(*factor), values, sum);
            }
            simd.store(sum, out);
        }
        for (index, out) in self.out.iter_mut().enumerate().skip(whole) {
            for (row, factor) in factors.up.chunks_exact(row_bytes).zip(&inner) {
                *out += factor * F::widen(&row[index * F::BYTES..]);
            }
        }
    }
}

/// Dot product of an encoded row with as many values.
#[inline(always)]
fn dot<S: Simd, F: Float>(simd: S, row: &[u8], x: &[f32]) -> f32 {
    const SUMS: usize = 4;
    let mut sums = [simd.splat(0.0); SUMS];
    let step = SUMS * S::LANES;
    let whole = x.len() / step * step;
    for (x, row) in x[..whole].chunks_exact(step).zip(row.chunks_exact(step * F::BYTES)) {
        for (part, sum) in sums.iter_mut().enumerate() {
            let start = part * S::LANES;
            *sum = simd.fma(simd.load(&x[start..]), F::load(simd, &row[start * F::BYTES..]), *sum);
        }
    }
    let [a, b, c, d] = sums;
    let rest = x[whole..].iter().zip(row[whole * F::BYTES..].chunks_exact(F::BYTES));
    simd.sum(simd.add(simd.add(a, b), simd.add(c, d))) + rest.map(|(x, w)| x * F::widen(w)).sum::<f32>()
}

#[cfg(test)]
mod tests {
    use super::super::simd::Level;
    use super::*;

    fn values(len: usize, salt: usize) -> Vec<f32> {
        (0..len).map(|i| ((i * 7 + salt * 13) as f32 * 0.37).sin()).collect()
    }

    fn bytes(values: &[f32], dtype: Dtype) -> Vec<u8> {
        match dtype {
            Dtype::F16 => values.iter().flat_map(|value| half::f16::from_f32(*value).to_le_bytes()).collect(),
            Dtype::BF16 => values.iter().flat_map(|value| half::bf16::from_f32(*value).to_le_bytes()).collect(),
            _ => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        }
    }

    #[test]
    fn changes_are_what_the_formula_says_on_every_instruction_set() {
        let (rank, inputs, outputs) = (5, 147, 83);
        for level in Level::available() {
            let pool = Pool::with_level(2, level);
            for (dtype, tolerance) in [(Dtype::F32, 1e-4), (Dtype::F16, 0.2), (Dtype::BF16, 1.5)] {
                let (down, up) = (values(rank * inputs, 1), values(rank * outputs, 2));
                let (down_bytes, up_bytes) = (bytes(&down, dtype), bytes(&up, dtype));
                let factors = Factors { dtype, rank, down: &down_bytes, up: &up_bytes };
                let x = values(3 * inputs, 3);
                let (before, mut out) = (values(3 * outputs, 4), values(3 * outputs, 4));
                let at = |row: usize| Input::Values(&x[row * inputs..(row + 1) * inputs]);
                let changes = [0, 2].map(|row| Change { row, factors, scale: row as f32 - 0.5, input: at(row) });
                low_rank(&pool, &changes, outputs, &mut out);
                for row in 0..3 {
                    for j in 0..outputs {
                        let inner = (0..rank).map(|r| {
                            let dot: f32 = (0..inputs).map(|i| x[row * inputs + i] * down[r * inputs + i]).sum();
                            dot * up[r * outputs + j]
                        });
                        let scale = if row == 1 { 0.0 } else { row as f32 - 0.5 };
                        let expected = before[row * outputs + j] + scale * inner.sum::<f32>();
                        let found = out[row * outputs + j];
                        assert!(
                            (found - expected).abs() < tolerance,
                            "{} {dtype:?}: {found}, not {expected}",
                            level.name()
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_token_takes_its_own_row_of_the_table() {
        let (down, up) = (bytes(&[1.0, 2.0, 3.0, 4.0], Dtype::F32), bytes(&[1.0, 10.0, 100.0, 1000.0], Dtype::F32));
        let factors = Factors { dtype: Dtype::F32, rank: 2, down: &down, up: &up };
        let mut out = [0.5, 0.5];
        let change = Change { row: 0, factors, scale: 2.0, input: Input::Token(1) };
        low_rank(&Pool::new(1), &[change], 2, &mut out);
        assert_eq!(out, [0.5 + 2.0 * 403.0, 0.5 + 2.0 * 4030.0]);
    }
}
