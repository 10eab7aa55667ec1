//! Products with a matrix of its own for each head, such as the up-projections of latent attention.

use super::super::pool::{Disjoint, Pool};
use super::{Matrix, matmul_of};

/// Tasks per thread, so that threads finish together.
const TASKS: usize = 3;
/// A task computes a multiple of so many outputs of a head.
const SLICE: usize = 32;

/// Computes `x · wᵀ` for the part of each row of `x` that belongs to a head: `[n, heads · cols]` becomes `[n, heads · rows]`.
/// `w` has the heads' matrices one after another. Rows count as in [`matmul_of`].
pub fn matmul_heads(pool: &Pool, w: &Matrix<'_>, heads: usize, x: &[f32], stretches: &[usize]) -> Vec<f32> {
    let n = stretches.iter().sum::<usize>();
    assert!(heads > 0 && w.rows.is_multiple_of(heads), "{} rows of {heads} heads", w.rows);
    let (rows, cols) = (w.rows / heads, w.cols);
    let all = heads.checked_mul(cols).unwrap_or_default();
    assert!(cols > 0 && Some(x.len()) == n.checked_mul(all), "activations for {n} rows of {heads} heads of {cols}");
    let row_bytes = w.row_bytes();
    assert_eq!(Some(w.data.len()), row_bytes.checked_mul(w.rows), "a matrix of {} × {cols} {:?}", w.rows, w.dtype);
    // Each task writes columns of all rows, in no order that a result could be written in.
    let mut values = pool.zeros(n * w.rows);
    if values.is_empty() {
        return values;
    }
    let slices = (TASKS * pool.threads()).div_ceil(heads).min(rows.div_ceil(SLICE));
    let slice = rows.div_ceil(slices).next_multiple_of(SLICE);
    let slices = rows.div_ceil(slice);
    let out = Disjoint::new(&mut values);
    pool.run(heads * slices, |task| {
        let (head, start) = (task / slices, task % slices * slice);
        let outputs = start..rows.min(start + slice);
        let mine: Vec<f32> = x.chunks_exact(all).flat_map(|x| &x[head * cols..][..cols]).copied().collect();
        let first = head * rows + outputs.start;
        let data = &w.data[first * row_bytes..][..outputs.len() * row_bytes];
        let mut products = vec![0.0; n * outputs.len()];
        matmul_of(pool, &Matrix { data, rows: outputs.len(), ..*w }, &mine, stretches, &mut products);
        for (row, products) in products.chunks_exact(outputs.len()).enumerate() {
            let at = row * w.rows + first;
            // SAFETY: each task has outputs of its own.
            unsafe { out.range(at..at + outputs.len()) }.copy_from_slice(products);
        }
    });
    values
}
