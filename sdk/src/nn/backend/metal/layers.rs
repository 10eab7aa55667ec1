//! Launches the kernels of linear layers, embeddings, norms and what lies between them.

use candle_core::Tensor;
use pensieve_kernels::{Activation, Glu};

use super::{
    driver::{Arg, Driver},
    elementwise::{BestShape, ColumnsShape, ElementShape, Norm, NormShape, RANGES},
    kernels::MetalKernels,
    products::{EmbedShape, MATRICES, Part, ProductShape, Use, alignment, format_number},
};
use crate::{
    Result,
    nn::backend::{Columns, Form, Layer, Matrix},
    weights::{Dtype, RawTensor},
};

/// A weight in its checkpoint's format, where the GPU reads it.
#[derive(Clone, Debug)]
pub(in crate::nn) struct Weight {
    /// Its bytes.
    tensor: Tensor,
    dtype: Dtype,
    /// The mapping whose pages the tensor may lie in.
    raw: RawTensor,
}

impl Weight {
    pub(in crate::nn) fn is_f32(&self) -> bool {
        self.dtype == Dtype::F32
    }

    /// Bytes, and whether they are pages of a file.
    pub(in crate::nn) fn bytes(&self) -> (u64, bool) {
        (self.raw.data.len() as u64, self.raw.data.is_in_file())
    }
}

fn weight_of(matrix: &Matrix) -> Option<&Weight> {
    match &matrix.form {
        Form::Metal(weight) => Some(weight),
        _ => None,
    }
}

impl<D: Driver> MetalKernels<D> {
    /// Brings a weight to the GPU as it is; `None` if no kernel reads it.
    pub(super) fn weight(&self, raw: &RawTensor) -> Result<Option<Form>> {
        let is_read = format_number(raw.dtype).is_some() && raw.dtype.row_bytes(raw.shape[1]).is_some();
        if !is_read || !self.usable.products {
            return Ok(None);
        }
        let tensor = self.driver.weight(&raw.data, alignment(raw.dtype))?;
        Ok(Some(Form::Metal(Weight { tensor, dtype: raw.dtype, raw: raw.clone() })))
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
        args.extend((0..MATRICES).map(|at| Arg::Read(weights.get(at).map_or(x, |weight| &weight.tensor))));
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
        self.rows_of(&weight.tensor, weight.dtype, matrix.inputs, ids)
    }

    /// Rows of an activation.
    pub(super) fn rows_at(&self, x: &Tensor, rows: &[u32]) -> Result<Option<Tensor>> {
        if !self.usable.products {
            return Ok(None);
        }
        self.rows_of(x, Dtype::F32, x.dim(1)?, rows)
    }

    fn rows_of(&self, table: &Tensor, dtype: Dtype, width: usize, ids: &[u32]) -> Result<Option<Tensor>> {
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

    /// `x + delta`, and its norm.
    pub(super) fn sum_and_norm(
        &self,
        x: &Tensor,
        delta: &Tensor,
        weight: &Tensor,
        eps: f32,
    ) -> Result<(Tensor, Tensor)> {
        let (rows, width) = x.dims2()?;
        let shape = NormShape { width: width as u32, eps };
        let (sum, out) = (self.room(rows, width)?, self.room(rows, width)?);
        let args = [
            Arg::Read(x),
            Arg::Read(delta),
            Arg::Read(weight),
            Arg::Bytes(bytemuck::bytes_of(&shape)),
            Arg::Written(&sum),
            Arg::Written(&out),
        ];
        self.launch(&NormShape::launch(Norm::AddRms, rows), &args)?;
        Ok((sum, out))
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

    /// `kind(gate(x)) · up(x)` in one dispatch; `None` if the two differ in form.
    pub(super) fn gated_product(&self, x: &Tensor, layers: [Layer<'_>; 2], kind: Activation) -> Result<Option<Tensor>> {
        self.product(x, &layers, None, Use::Gated(Glu::Plain(kind)))
    }
}
