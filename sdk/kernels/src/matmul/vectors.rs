//! Products by vectors. Those of the same activations are one loop, so that threads wait for each other once, and quantize
//! the activations once for all formats that want them alike.

use std::any::type_name_of_val;

use super::super::pool::{Disjoint, Pool};
use super::super::quant::with_format;
use super::super::simd::{Kernel, Simd};
use super::activations::{Activations, Rounding};
use super::panels::Panels;
use super::{PanelTask, Product, dense, part, quantized};

/// Tasks per thread, so that threads finish together.
const TASKS: usize = 8;

/// Computes `out[n, rows] = x[n, cols] · wᵀ` for each of some matrices.
pub(super) fn multiply(pool: &Pool, products: &mut [Product<'_>], x: &[f32]) {
    let Some(cols) = products.first().map(|product| product.weight.cols) else { return };
    let n = x.len() / cols;
    let is_quantized = products.iter().any(|product| product.weight.dtype.is_quantized());
    let batch = if is_quantized { Activations::batch(n, cols) } else { n };
    for first in (0..n).step_by(batch) {
        let rows = first..n.min(first + batch);
        let x = &x[rows.start * cols..rows.end * cols];
        let mut products: Vec<_> = part(products, rows).collect();
        pool.level().run_on_bytes(Multiply { pool, products: &mut products, x, cols });
    }
}

struct Multiply<'a, 'b> {
    pool: &'a Pool,
    products: &'a mut [Product<'b>],
    x: &'a [f32],
    cols: usize,
}

impl<S: Simd> Kernel<S> for Multiply<'_, '_> {
    #[inline(always)]
    fn run(self, simd: S) {
        let Self { pool, products, x, cols } = self;
        let mut quantized: Vec<Activations> = Vec::with_capacity(products.len());
        for product in &*products {
            let rounding = with_format!(product.weight.dtype, F => Some(Rounding::of::<S, F>()), None);
            if let Some(rounding) = rounding
                && quantized.iter().all(|x| x.rounding != rounding)
            {
                quantized.push(Activations::quantize(pool, x, cols, rounding));
            }
        }
        let quantized = |rounding| quantized.iter().find(|x| x.rounding == rounding);
        let mut jobs: Vec<(usize, PanelTask<'_>)> = Vec::with_capacity(products.len());
        for Product { weight, out } in products {
            let (panels, out) = (Panels::new(weight, S::LANES), Disjoint::new(out));
            let pairs = panels.pairs();
            let task = with_format!(
                weight.dtype,
                F => match quantized(Rounding::of::<S, F>()) {
                    Some(x) => quantized::task::<S, F>(simd, panels, x, out),
                    None => unreachable!("activations are quantized for all formats"),
                },
                dense::task(simd, weight.dtype, panels, (x, cols), out)
            );
            jobs.push((pairs, task));
        }
        // Long enough to read memory sequentially, and short enough that threads finish together.
        let stretch = jobs.iter().map(|(pairs, _)| pairs).sum::<usize>().div_ceil(TASKS * pool.threads());
        let tasks = |pairs: usize| pairs.div_ceil(stretch);
        let run = |mut index: usize| {
            for (pairs, task) in &jobs {
                if index < tasks(*pairs) {
                    return task(index * stretch..(*pairs).min((index + 1) * stretch));
                }
                index -= tasks(*pairs);
            }
        };
        pool.run_named(type_name_of_val(&run), jobs.iter().map(|(pairs, _)| tasks(*pairs)).sum(), &run);
    }
}
