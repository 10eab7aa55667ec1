//! A router and its experts.

use candle_core::{
    Device, Tensor,
    quantized::{GgmlDType, QTensor},
};
use pensieve_kernels::{Activation, Glu};

use super::wave;
use crate::{
    Result,
    nn::backend::{Backend, ExpertTable, Form, Formulas, Layer, Matrix, Routing},
    weights::{Bytes, Dtype, RawTensor},
};

const EXPERTS: usize = 4;
const WIDTH: usize = 256;
const SILU: Glu = Glu::Plain(Activation::Silu);

const ROUTING: Routing<'static> =
    Routing { top_k: 2, is_sigmoid: false, renormalize: true, scale: 1.0, correction: None, groups: None };

/// Rows by which kernels compute each choice by itself, and choices in small tiles and large ones; with gates and without.
pub(in crate::nn) const MIXTURES: [(usize, Glu); 5] =
    [(2, SILU), (8, SILU), (40, SILU), (2, Glu::Square), (40, Glu::Square)];

/// The experts of a layer on a backend: gate, up and down of each, down in another format.
pub(in crate::nn) struct Mixture {
    table: ExpertTable,
    /// The same in f32, as `[inputs, outputs]` on the CPU.
    dense: Vec<Tensor>,
}

impl Mixture {
    pub(in crate::nn) fn new(backend: &dyn Backend) -> Result<Self> {
        let (mut matrices, mut dense) = (Vec::new(), Vec::new());
        for at in 0..3 * EXPERTS {
            let (ggml, dtype) = if at % 3 == 2 { (GgmlDType::Q8_0, Dtype::Q8_0) } else { (GgmlDType::Q4K, Dtype::Q4K) };
            let values = (wave(WIDTH, WIDTH, &Device::Cpu)? * (0.02 + 0.005 * at as f64))?;
            let (matrix, values) = quantized(backend, &values, ggml, dtype)?;
            matrices.push(matrix);
            dense.push(values.t()?);
        }
        let experts = matrices.as_chunks::<3>().0.iter();
        let layers: Vec<[Layer<'_>; 3]> = experts.map(|expert| expert.each_ref().map(|it| (it, None))).collect();
        Ok(Self { table: backend.expert_table(&layers)?, dense })
    }

    /// The experts' sum for rows that the backend routes; `None` if it has no kernels for that.
    pub(in crate::nn) fn compute(&self, backend: &dyn Backend, rows: usize, glu: Glu) -> Result<Option<Tensor>> {
        let device = backend.device();
        let Some(routed) = backend.route(&wave(rows, EXPERTS, device)?, &ROUTING)? else { return Ok(None) };
        backend.mixture(&wave(rows, WIDTH, device)?, &routed, &self.table, glu)
    }

    /// The same on the CPU: all experts for all rows.
    pub(in crate::nn) fn formula(&self, rows: usize, glu: Glu) -> Result<Tensor> {
        let (formulas, x) = (Formulas::plain(Device::Cpu), wave(rows, WIDTH, &Device::Cpu)?);
        let (shares, mut sum) = (shares(rows)?, x.zeros_like()?);
        for (expert, [gate, up, down]) in self.dense.as_chunks().0.iter().enumerate() {
            let up = x.matmul(up)?;
            let hidden = match glu {
                Glu::Square => up.relu()?.sqr()?,
                _ => (formulas.activate(&x.matmul(gate)?, Activation::Silu)? * up)?,
            };
            sum = (sum + hidden.matmul(down)?.broadcast_mul(&shares.narrow(1, expert, 1)?)?)?;
        }
        Ok(sum)
    }
}

/// The share of each expert in each row: a softmax over a row's best.
fn shares(rows: usize) -> Result<Tensor> {
    let mut values = wave(rows, EXPERTS, &Device::Cpu)?.flatten_all()?.to_vec1::<f32>()?;
    for row in values.chunks_mut(EXPERTS) {
        let mut sorted = row.to_vec();
        sorted.sort_by(|a, b| b.total_cmp(a));
        let (best, least) = (&sorted[..ROUTING.top_k], sorted[ROUTING.top_k - 1]);
        let total: f32 = best.iter().map(|logit| logit.exp()).sum();
        row.iter_mut().for_each(|logit| *logit = if *logit >= least { logit.exp() / total } else { 0.0 });
    }
    Ok(Tensor::from_vec(values, (rows, EXPERTS), &Device::Cpu)?)
}

/// A weight of these values in a format, and what it means, on the CPU.
fn quantized(backend: &dyn Backend, values: &Tensor, ggml: GgmlDType, dtype: Dtype) -> Result<(Matrix, Tensor)> {
    let (quantized, (outputs, inputs)) = (QTensor::quantize(values, ggml)?, values.dims2()?);
    let data = Bytes::copy_of(&quantized.data()?)?;
    let raw = RawTensor { name: "made up".into(), dtype, shape: vec![outputs, inputs], data };
    let form: Form = backend.matrix(&raw)?;
    Ok((Matrix { outputs, inputs, place: 0, form }, quantized.dequantize(&Device::Cpu)?))
}
