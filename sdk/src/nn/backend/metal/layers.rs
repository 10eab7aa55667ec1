//! Launches the kernels of linear layers, embeddings, norms and what lies between them.

use candle_core::{DType, Tensor};
use pensieve_kernels::{Activation, Glu};

use super::{
    driver::{Arg, Driver},
    elementwise::{BestShape, CandidatesShape, ColumnsShape, ElementShape, HeadNormShape, Norm, NormShape, RANGES},
    kernels::{MetalKernels, failed},
    placement::Weight,
    products::{EmbedShape, MATRICES, Part, ProductShape, Use, format_number},
};
use crate::{
    Result,
    nn::backend::{Backend, Columns, Form, Layer, Matrix},
    weights::{Dtype, RawTensor},
};

pub(super) fn weight_of(matrix: &Matrix) -> Option<&Weight> {
    match &matrix.form {
        Form::Metal(weight) => Some(weight),
        _ => None,
    }
}

impl<D: Driver> MetalKernels<D> {
    /// A weight that kernels read as it is; `None` if they do not.
    pub(super) fn weight(&self, raw: &RawTensor) -> Result<Option<Form>> {
        let is_read = format_number(raw.dtype).is_some() && raw.dtype.row_bytes(raw.shape[1]).is_some();
        if !is_read || !self.usable.products {
            return Ok(None);
        }
        Ok(Some(Form::Metal(Weight::new(raw))))
    }

    /// Products of one activation; `None` if there is no kernel for them.
    pub(super) fn products(
        &self,
        x: &Tensor,
        layers: &[Layer<'_>],
        residual: Option<&Tensor>,
        used: Use,
    ) -> Result<Option<Vec<Tensor>>> {
        let (rows, inputs) = x.dims2()?;
        let weights: Option<Vec<&Weight>> = layers.iter().map(|(matrix, _)| weight_of(matrix)).collect();
        let Some(weights) = weights else { return Ok(None) };
        let tensors = weights.iter().map(|weight| self.placed(weight)).collect::<Result<Vec<_>>>()?;
        let part = |((matrix, bias), weight): (&Layer<'_>, &&Weight)| Part {
            dtype: weight.dtype,
            outputs: matrix.outputs,
            has_bias: bias.is_some(),
        };
        let parts: Vec<Part> = layers.iter().zip(&weights).map(part).collect();
        let Some(shape) = ProductShape::new(rows, inputs, &parts, used) else { return Ok(None) };
        let count = if matches!(used, Use::Gated(_)) { 1 } else { parts.len() };
        let outs = parts[..count].iter().map(|part| self.room(rows, part.outputs)).collect::<Result<Vec<_>>>()?;
        // What a dispatch does not have is bound to anything.
        let mut args = vec![Arg::Read(x)];
        args.extend((0..MATRICES).map(|at| Arg::Read(tensors.get(at).unwrap_or(x))));
        args.extend((0..MATRICES).map(|at| Arg::Read(layers.get(at).and_then(|(_, bias)| *bias).unwrap_or(x))));
        args.push(Arg::Read(residual.unwrap_or(x)));
        args.push(Arg::Bytes(bytemuck::bytes_of(&shape)));
        args.extend((0..MATRICES).map(|at| outs.get(at).map_or(Arg::Read(x), Arg::Written)));
        self.launch(&shape.launch(), &args)?;
        Ok(Some(outs))
    }

    /// The only output of [`Self::products`].
    pub(super) fn product(
        &self,
        x: &Tensor,
        layers: &[Layer<'_>],
        residual: Option<&Tensor>,
        used: Use,
    ) -> Result<Option<Tensor>> {
        Ok(self.products(x, layers, residual, used)?.and_then(|mut outs| outs.pop()))
    }

    /// Rows of a table by their ids; `None` if there is no kernel for its form.
    pub(super) fn look_up(&self, matrix: &Matrix, ids: &[u32]) -> Result<Option<Tensor>> {
        let Some(weight) = weight_of(matrix) else { return Ok(None) };
        self.rows_of(&self.placed(weight)?, weight.dtype, matrix.inputs, ids)
    }

    /// Rows of an activation.
    pub(super) fn rows_at(&self, x: &Tensor, rows: &[u32]) -> Result<Option<Tensor>> {
        if !self.usable.products {
            return Ok(None);
        }
        self.rows_of(x, Dtype::F32, x.dim(1)?, rows)
    }

    pub(super) fn rows_of(&self, table: &Tensor, dtype: Dtype, width: usize, ids: &[u32]) -> Result<Option<Tensor>> {
        let Some(shape) = EmbedShape::new(ids.len(), width, dtype) else { return Ok(None) };
        let (ids, out) = (self.arena.ids(ids)?, self.room(ids.len(), width)?);
        let bytes = bytemuck::bytes_of(&shape);
        self.launch(&shape.launch(), &[Arg::Read(table), Arg::Read(&ids), Arg::Bytes(bytes), Arg::Written(&out)])?;
        Ok(Some(out))
    }

    pub(super) fn norm_rows(&self, norm: Norm, x: &Tensor, weights: &[&Tensor], eps: f32) -> Result<Tensor> {
        let (rows, width) = x.dims2()?;
        let (shape, out) = (NormShape { width: width as u32, eps }, self.room(rows, width)?);
        let mut args = vec![Arg::Read(x)];
        args.extend(weights.iter().copied().map(Arg::Read));
        args.extend([Arg::Bytes(bytemuck::bytes_of(&shape)), Arg::Written(&out)]);
        self.launch(&NormShape::launch(norm, rows), &args)?;
        Ok(out)
    }

    /// The norms of each head of queries and keys, in one dispatch.
    pub(super) fn norms_of_heads(
        &self,
        [q, k]: [&Tensor; 2],
        [q_weight, k_weight]: [&Tensor; 2],
        eps: f32,
    ) -> Result<(Tensor, Tensor)> {
        let ((tokens, q_width), (_, k_width)) = (q.dims2()?, k.dims2()?);
        let head_dim = q_weight.dim(0)?;
        let narrow = |value: usize| u32::try_from(value).map_err(|_| failed(format!("{value} is too much")));
        let shape = HeadNormShape {
            tokens: narrow(tokens)?,
            heads: narrow(q_width / head_dim)?,
            kv_heads: narrow(k_width / head_dim)?,
            head_dim: narrow(head_dim)?,
            eps,
        };
        let outs = (self.room(tokens, q_width)?, self.room(tokens, k_width)?);
        let mut args: Vec<Arg<'_>> = [q, k, q_weight, k_weight].into_iter().map(Arg::Read).collect();
        args.extend([Arg::Bytes(bytemuck::bytes_of(&shape)), Arg::Written(&outs.0), Arg::Written(&outs.1)]);
        self.launch(&shape.launch(), &args)?;
        Ok(outs)
    }

    /// `add` or `gate`; `None` for more values than a kernel counts.
    pub(super) fn pairwise(
        &self,
        kernel: &'static str,
        [x, y]: [&Tensor; 2],
        kind: Option<Activation>,
    ) -> Result<Option<Tensor>> {
        let (rows, width) = x.dims2()?;
        let shape = ElementShape::new(rows, width, kind).filter(|_| self.usable.elementwise);
        let Some(shape) = shape else { return Ok(None) };
        let out = self.room(rows, width)?;
        let bytes = bytemuck::bytes_of(&shape);
        self.launch(&shape.launch(kernel), &[Arg::Read(x), Arg::Read(y), Arg::Bytes(bytes), Arg::Written(&out)])?;
        Ok(Some(out))
    }

    pub(super) fn each(
        &self,
        x: &Tensor,
        bias: Option<&Tensor>,
        kind: Option<Activation>,
        factor: Option<&Tensor>,
    ) -> Result<Option<Tensor>> {
        let (rows, width) = x.dims2()?;
        let shape = ElementShape::new(rows, width, kind).filter(|_| self.usable.elementwise);
        let Some(shape) = shape.map(|shape| shape.with(bias.is_some(), factor.is_some())) else { return Ok(None) };
        let out = self.room(rows, width)?;
        let args = [
            Arg::Read(x),
            Arg::Read(bias.unwrap_or(x)),
            Arg::Read(factor.unwrap_or(x)),
            Arg::Bytes(bytemuck::bytes_of(&shape)),
            Arg::Written(&out),
        ];
        self.launch(&shape.launch("bias_act_scale"), &args)?;
        Ok(Some(out))
    }

    pub(super) fn ranges(&self, x: &Tensor, parts: &[Columns]) -> Result<Option<Vec<Tensor>>> {
        let (rows, width) = x.dims2()?;
        let shape = ColumnsShape::new(rows, width, parts).filter(|_| self.usable.elementwise);
        let Some(shape) = shape else { return Ok(None) };
        let outs = parts.iter().map(|(_, len)| self.room(rows, *len)).collect::<Result<Vec<_>>>()?;
        let mut args = vec![Arg::Read(x), Arg::Bytes(bytemuck::bytes_of(&shape))];
        args.extend((0..RANGES).map(|at| outs.get(at).map_or(Arg::Read(x), Arg::Written)));
        self.launch(&shape.launch(), &args)?;
        Ok(Some(outs))
    }

    pub(super) fn best_of(&self, logits: &Tensor) -> Result<Option<Tensor>> {
        if !self.usable.logits {
            return Ok(None);
        }
        let (rows, width) = logits.dims2()?;
        let (shape, out) = (BestShape { width: width as u32 }, self.room(rows, 3)?);
        let bytes = bytemuck::bytes_of(&shape);
        self.launch(&BestShape::launch(rows), &[Arg::Read(logits), Arg::Bytes(bytes), Arg::Written(&out)])?;
        Ok(Some(out))
    }

    /// The best of each row of logits that its mask allows: `top` ids and as many scores for each, and two totals,
    /// all read back at once. `None` if there is no kernel for so many of them.
    pub(super) fn candidates_of(&self, logits: &Tensor, masks: &[u32], top: usize) -> Result<Option<Vec<u32>>> {
        let (rows, width) = logits.dims2()?;
        let shape = CandidatesShape::new(width, top, !masks.is_empty()).filter(|_| self.finds_candidates(top));
        let Some(shape) = shape else { return Ok(None) };
        let masks = if masks.is_empty() { None } else { Some(self.arena.ids(masks)?) };
        let out = self.arena.tensor(DType::U32, &[rows * (2 * top + 2)])?;
        let part = |from: usize, words: usize| out.narrow(0, from, words);
        let parts = [part(0, rows * top)?, part(rows * top, rows * top)?, part(2 * rows * top, 2 * rows)?];
        let mut args = vec![Arg::Read(logits), Arg::Read(masks.as_ref().unwrap_or(logits))];
        args.push(Arg::Bytes(bytemuck::bytes_of(&shape)));
        args.extend(parts.iter().map(Arg::Written));
        self.launch(&CandidatesShape::launch(rows), &args)?;
        let mut words = vec![0; out.elem_count()];
        self.finish()?;
        match self.driver.read(&out, 0, bytemuck::cast_slice_mut(&mut words))? {
            true => Ok(Some(words)),
            false => Err(failed("candidates lie where the host cannot read them")),
        }
    }

    /// `kind(gate(x)) · up(x)` in one dispatch; `None` if the two differ in form.
    pub(super) fn gated_product(&self, x: &Tensor, layers: [Layer<'_>; 2], kind: Activation) -> Result<Option<Tensor>> {
        self.product(x, &layers, None, Use::Gated(Glu::Plain(kind)))
    }
}
