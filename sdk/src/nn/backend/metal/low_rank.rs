//! Low-rank adapters by the kernels of products: two dispatches for each run of rows that one adapter changes.

use candle_core::Tensor;
use std::{ops::Range, ptr::addr_eq};

use super::{
    driver::{Arg, Driver},
    kernels::MetalKernels,
    products::{MATRICES, Part, ProductShape, Use},
};
use crate::{
    Result,
    nn::backend::{Backend, Changed, LowRank, LowRankForm, foreign},
    weights::Dtype,
};

impl<D: Driver> MetalKernels<D> {
    /// The factors as the kernels read them, in buffers that end with the adapter.
    pub(super) fn factors(&self, rank: usize, down: Vec<f32>, up: &[f32]) -> Result<LowRankForm> {
        let device = &self.formulas.device;
        let (outputs, down_len) = (up.len() / rank.max(1), down.len());
        let by_output = (0..outputs).flat_map(|output| (0..rank).map(move |at| at * outputs + output));
        let up = by_output.map(|at| up[at]).collect();
        Ok(LowRankForm::Metal {
            down: Tensor::from_vec(down, down_len, device)?,
            up: Tensor::from_vec(up, (outputs, rank), device)?,
        })
    }

    /// Adds `scale · (x · downᵀ) · upᵀ` to groups of rows.
    pub(super) fn add_changes(&self, x: &Tensor, out: Tensor, groups: &[Changed<'_>]) -> Result<Tensor> {
        self.change_rows(out, groups, |rows, change, down| {
            self.product_f32(&x.narrow(0, rows.start, rows.len())?, down, change.rank, None)
        })
    }

    /// Adds `scale · down[token] · upᵀ` to groups of rows.
    pub(super) fn add_vectors(&self, tokens: &[u32], out: Tensor, groups: &[Changed<'_>]) -> Result<Tensor> {
        self.change_rows(out, groups, |rows, change, down| {
            self.rows_of(down, Dtype::F32, change.rank, &tokens[rows])?.ok_or_else(|| foreign("a factor"))
        })
    }

    fn change_rows(
        &self,
        out: Tensor,
        groups: &[Changed<'_>],
        inner: impl Fn(Range<usize>, &LowRank, &Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        for (rows, change, scale) in joined(groups) {
            let LowRankForm::Metal { down, up } = &change.form else { return Err(foreign("a change")) };
            let mut inner = inner(rows.clone(), change, down)?;
            if scale != 1.0 {
                let factor = self.arena.values(&vec![scale; change.rank], &[change.rank])?;
                inner = self.bias_act_scale(&inner, None, None, Some(&factor))?;
            }
            // In place: the output is this layer's alone, and a thread writes what it has read.
            let rows = out.narrow(0, rows.start, rows.len())?;
            self.product_f32(&inner, up, up.dim(0)?, Some(&rows))?;
        }
        Ok(out)
    }

    /// The product with a matrix of `outputs` rows in `f32`; added to `to` in its place if that is given.
    fn product_f32(&self, x: &Tensor, matrix: &Tensor, outputs: usize, to: Option<&Tensor>) -> Result<Tensor> {
        let (rows, inputs) = x.dims2()?;
        let used = if to.is_some() { Use::Added } else { Use::Plain };
        let part = Part { dtype: Dtype::F32, outputs, has_bias: false };
        let Some(shape) = ProductShape::new(rows, inputs, &[part], used) else { return Err(foreign("a factor")) };
        let out = to.map_or_else(|| self.room(rows, outputs), |to| Ok(to.clone()))?;
        let mut args = vec![Arg::Read(x), Arg::Read(matrix)];
        // Two more matrices and three biases that this dispatch does not have, and the residual.
        args.extend((1..2 * MATRICES).map(|_| Arg::Read(x)));
        args.push(Arg::Read(to.unwrap_or(x)));
        args.push(Arg::Bytes(bytemuck::bytes_of(&shape)));
        args.push(Arg::Written(&out));
        args.extend((1..MATRICES).map(|_| Arg::Read(x)));
        self.launch(&shape.launch(), &args)?;
        Ok(out)
    }
}

/// Neighbours with the same change and scale as one.
fn joined<'a>(groups: &[Changed<'a>]) -> Vec<Changed<'a>> {
    let mut joined: Vec<Changed<'a>> = Vec::with_capacity(groups.len());
    for (rows, change, scale) in groups {
        match joined.last_mut() {
            Some((last, same, its_scale))
                if last.end == rows.start && addr_eq(*same, *change) && *its_scale == *scale =>
            {
                last.end = rows.end;
            }
            _ => joined.push((rows.clone(), change, *scale)),
        }
    }
    joined
}
