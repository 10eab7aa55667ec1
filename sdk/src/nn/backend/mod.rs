//! The interface between layers and devices.
//!
//! A layer calls [`Ops`](super::Ops), which checks its arguments and passes them to the [`Backend`] of the model's
//! device. Each method of the trait defaults to its formula in stock candle ops, from `formulas`. So a backend
//! implements only what it does better, a new op works everywhere as soon as it has a formula, and every backend can be
//! tested against a reference. [`Formulas`] overrides nothing, [`CpuKernels`] nearly everything.
//!
//! A backend's own representations of weights, adapters and the KV cache are variants of [`Form`], [`LowRankForm`] and
//! [`Store`].

pub(in crate::nn) mod cases;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod formulas;
mod formulas_attention;
mod formulas_chosen;
mod formulas_elementwise;
mod formulas_packed;
mod formulas_recurrence;
mod formulas_texts;
mod interconnect;
#[cfg(any(test, target_os = "macos"))]
mod metal;
pub(in crate::nn) mod noise;
mod pixels;
#[cfg(any(test, feature = "cuda"))]
mod repack;
mod stand_ins;

use candle_core::{
    Device, Tensor,
    quantized::{QMatMul, QTensor},
};
use pensieve_kernels::{Activation, ExpertTerms, Glu, Pool};
use std::{ops::Range, sync::Arc};

pub(super) use cpu::CpuKernels;
#[cfg(feature = "cuda")]
pub(super) use cuda::{
    CudaInterconnect, CudaKernels, count as cuda_count, free_bytes as cuda_free_bytes,
    loaded_bytes as cuda_loaded_bytes, open as cuda_device,
};
pub(super) use formulas::Formulas;
pub(super) use interconnect::Interconnect;
#[cfg(test)]
pub(super) use metal::{Double, kernels_beside_attention};
#[cfg(target_os = "macos")]
pub(super) use metal::{free_bytes as metal_free_bytes, proved as metal_kernels, report as metal_report};
pub(in crate::nn) use pixels::PixelPatches;
pub(super) use stand_ins::StandIns;

use super::{
    memory::{
        pass::Pass,
        store::{Store, StoreShape, foreign},
        view::copy_to,
    },
    spec::{Attention, Formula, Inputs, Positions, Recurrence, Rotation, ShortConv, TextAttention},
};
use crate::{
    Batch, CandidateRows, Result,
    weights::{Dtype, RawTensor, RopeStyle},
};

/// A weight `[outputs, inputs]` in the representation that its device computes with.
#[derive(Clone, Debug)]
pub(in crate::nn) struct Matrix {
    pub(super) outputs: usize,
    pub(super) inputs: usize,
    /// Index of its device in the model.
    pub(super) place: usize,
    pub(super) form: Form,
}

#[derive(Clone, Debug)]
pub(in crate::nn) enum Form {
    /// In the mapped checkpoint, read in place by the CPU kernels.
    InPlace(RawTensor),
    /// In the weight's own float type.
    Dense(Tensor),
    /// candle's copy, in the checkpoint's block format.
    Quantized(Arc<QTensor>, QMatMul),
    /// In its own format, for our Metal kernels.
    #[cfg(any(test, target_os = "macos"))]
    Metal(metal::Weight),
    /// In the block format that our CUDA kernels read.
    #[cfg(feature = "cuda")]
    Cuda(Arc<cuda::Weight>),
}

impl Matrix {
    /// True if the weight is stored in `f32`.
    pub(in crate::nn) fn is_f32(&self) -> bool {
        match &self.form {
            Form::InPlace(raw) => raw.dtype == Dtype::F32,
            Form::Dense(tensor) => tensor.dtype() == candle_core::DType::F32,
            Form::Quantized(..) => false,
            #[cfg(any(test, target_os = "macos"))]
            Form::Metal(weight) => weight.is_f32(),
            #[cfg(feature = "cuda")]
            Form::Cuda(_) => false,
        }
    }

    /// Rows of the weight.
    pub(in crate::nn) fn outputs(&self) -> usize {
        self.outputs
    }

    /// Columns of the weight.
    pub(in crate::nn) fn inputs(&self) -> usize {
        self.inputs
    }
}

/// The factors of a low-rank adapter in the representation that its device computes with.
#[derive(Clone, Debug)]
pub(in crate::nn) struct LowRank {
    pub(super) rank: usize,
    /// Index of their device in the model.
    pub(super) place: usize,
    pub(super) form: LowRankForm,
}

#[derive(Clone, Debug)]
pub(in crate::nn) enum LowRankForm {
    /// For the CPU kernels: rows in a float type.
    Rows { dtype: Dtype, down: Vec<u8>, up: Vec<u8> },
    /// `down` is flat, as linear layers and embeddings shape it differently; `up` is `[rank, outputs]`.
    Tensors { down: Tensor, up: Tensor },
    /// For the Metal kernels: as `Tensors`, but `up` is `[outputs, rank]`.
    #[cfg_attr(not(any(test, target_os = "macos")), allow(dead_code))]
    Metal { down: Tensor, up: Tensor },
}

impl LowRank {
    /// Bytes of the factors.
    pub(in crate::nn) fn bytes(&self) -> u64 {
        match &self.form {
            LowRankForm::Rows { down, up, .. } => (down.len() + up.len()) as u64,
            LowRankForm::Tensors { down, up } | LowRankForm::Metal { down, up } => {
                4 * (down.elem_count() + up.elem_count()) as u64
            }
        }
    }
}

/// An expert's layers (gate, up and down) with their biases, and the rows routed to it.
pub(in crate::nn) struct ExpertRows<'a> {
    pub(in crate::nn) layers: [(&'a Matrix, Option<&'a Tensor>); 3],
    /// Its part of the sorted rows.
    pub(in crate::nn) rows: Range<usize>,
    /// How many of them belong to each sequence.
    pub(in crate::nn) stretches: Vec<usize>,
}

/// A router's settings for kernels, which do not support [`Scoring::SparseMixer`](super::Scoring::SparseMixer).
#[cfg_attr(not(any(test, target_os = "macos", feature = "cuda")), allow(dead_code))]
pub(in crate::nn) struct Routing<'a> {
    pub(in crate::nn) top_k: usize,
    /// Scores are sigmoids rather than a softmax.
    pub(in crate::nn) is_sigmoid: bool,
    pub(in crate::nn) renormalize: bool,
    pub(in crate::nn) scale: f32,
    pub(in crate::nn) correction: Option<&'a [f32]>,
    /// As in [`Groups`](super::Groups): `count`, `kept` and `compared`.
    pub(in crate::nn) groups: Option<[usize; 3]>,
}

/// A router's choices on the device: each row's experts (`u32`) and their weights, `[rows, top_k]` each.
#[derive(Clone, Debug)]
pub(in crate::nn) struct Routed {
    pub(in crate::nn) experts: Tensor,
    pub(in crate::nn) weights: Tensor,
}

/// A backend's table of a layer's experts, built once, for computing with experts chosen on the device.
#[derive(Debug)]
pub(in crate::nn) enum ExpertTable {
    /// The backend has no kernel for them.
    None,
    #[cfg(any(test, target_os = "macos"))]
    Metal(metal::ExpertTable),
    #[cfg(feature = "cuda")]
    Cuda(cuda::ExpertTable),
}

/// The first column of a range, and the number of columns.
pub(in crate::nn) type Columns = (usize, usize);

/// A linear layer's weight and bias.
pub(in crate::nn) type Layer<'a> = (&'a Matrix, Option<&'a Tensor>);

/// The layers of a feed-forward block: `down(act(gate(x)) · up(x))`, or `down(act(up(x)))` without a gate.
#[derive(Clone, Copy)]
pub(in crate::nn) struct FeedForward<'a> {
    pub(in crate::nn) gate: Option<Layer<'a>>,
    pub(in crate::nn) up: Layer<'a>,
    pub(in crate::nn) down: Layer<'a>,
    pub(in crate::nn) act: Activation,
}

/// Computes the step of a batch, which may have padding or placeholder values.
pub(in crate::nn) type Compute<'a> = &'a mut dyn FnMut(&Batch<'_>) -> Result<Computed>;

/// A range of rows, the low-rank adapter that applies to them, and its scale.
pub(in crate::nn) type Changed<'a> = (Range<usize>, &'a LowRank, f32);

/// The requested output of a step's logits.
pub(in crate::nn) enum Taken<'a> {
    /// All of them.
    Logits(&'a mut [f32]),
    /// For each row the id of the first token with the highest logit, that logit, and the log-sum-exp of the row, which
    /// is NaN if any logit is.
    Best(&'a mut [[f32; 3]]),
    /// For each row the `top` tokens with the highest logits that its mask allows; no masks allow all.
    Candidates { top: usize, masks: Vec<u32>, rows: CandidateRows<'a> },
}

/// [`Taken::Best`] for one row.
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
fn best_of_row(logits: &[f32]) -> [f32; 3] {
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let first = logits.iter().position(|logit| *logit == highest).unwrap_or(logits.len());
    let sum: f32 = logits.iter().map(|logit| (logit - highest).exp()).sum();
    [first as f32, highest, highest + sum.ln()]
}

/// The result of a step; used only by backends that replay steps.
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
pub(in crate::nn) struct Computed {
    /// Logits of all its rows.
    pub(in crate::nn) rows: Tensor,
    /// The model read the batch on the host, so another batch may need other launches.
    pub(in crate::nn) was_read: bool,
}

/// The operations of a model on one kind of device. Activations are dense `f32` tensors at offset 0, which `Ops::check`
/// guarantees.
pub(in crate::nn) trait Backend: Send + Sync {
    /// Formulas on this backend's device, for ops without a kernel.
    fn formulas(&self) -> &Formulas;

    /// The kernels in use, for the log.
    fn note(&self) -> String;

    /// The threads whose timeline can be recorded, if it has some.
    fn threads(&self) -> Option<&Pool> {
        None
    }

    /// The device of its tensors.
    fn device(&self) -> &Device {
        &self.formulas().device
    }

    /// Copies a batch's index data to the device, ahead of its step.
    fn begin(&self, _batch: &Batch<'_>) -> Result<()> {
        Ok(())
    }

    /// Says how many of the next operations' rows belong to each item or sequence, where their number decides how they are
    /// computed.
    fn group_rows(&self, _lens: &[usize]) {}

    /// Prepares for the steps of a newly loaded model. Steps computed here by `run` leave the caches unchanged.
    fn warm_up(&self, _groups: usize, _run: Compute<'_>) -> Result<()> {
        Ok(())
    }

    /// Waits until everything that was launched has been computed, and returns the device's errors, where launches run behind.
    fn finish(&self) -> Result<()> {
        self.formulas().finish()
    }

    /// Finding the best token of a row where the logits are is cheaper than reading the row.
    fn finds_best(&self) -> bool {
        !self.device().is_cpu()
    }

    /// Finding so many candidates of a row where the logits are is cheaper than copying the row to the host.
    fn finds_candidates(&self, _top: usize) -> bool {
        false
    }

    /// [`Taken::Candidates`] for rows of logits; `false` without a kernel.
    fn candidates(&self, _logits: &Tensor, _masks: &[u32], _top: usize, _rows: &mut CandidateRows<'_>) -> Result<bool> {
        Ok(false)
    }

    /// Copies a dense `f32` tensor to the host, once the step has been computed.
    fn read(&self, tensor: &Tensor, out: &mut [f32]) -> Result<()> {
        self.finish()?;
        copy_to(&tensor.flatten_all()?, out)
    }

    /// Computes a decode-only step as a single launch, if the backend can; it may call `run` once, several times or
    /// never. Returns `false` to have the caller compute the step normally.
    fn decode(&self, _batch: &Batch<'_>, _run: Compute<'_>, _taken: &mut Taken<'_>) -> Result<bool> {
        Ok(false)
    }

    /// Moves a weight matrix to the device.
    fn matrix(&self, raw: &RawTensor) -> Result<Form> {
        self.formulas().matrix(raw)
    }

    /// `x · Wᵀ + b`, for `x` of shape `[rows, inputs]`.
    fn linear(&self, x: &Tensor, weight: &Matrix, bias: Option<&Tensor>) -> Result<Tensor> {
        self.formulas().linear(x, weight, bias)
    }

    /// The same for rows gathered from the step's, of which each sequence has so many.
    fn linear_of(&self, x: &Tensor, weight: &Matrix, bias: Option<&Tensor>, _stretches: &[usize]) -> Result<Tensor> {
        self.linear(x, weight, bias)
    }

    /// Moves the heads' matrices to the device, stacked by rows.
    fn head_matrix(&self, raw: &RawTensor, heads: usize) -> Result<Form> {
        self.formulas().head_matrix(raw, heads)
    }

    /// `x · Wᵀ` for each head's part of `x`, `[rows, heads · inputs]`, with its own matrix.
    fn head_linear(&self, x: &Tensor, weight: &Matrix, heads: usize) -> Result<Tensor> {
        self.formulas().head_linear(x, weight, heads)
    }

    /// Several linear layers with the same input.
    fn linears(&self, x: &Tensor, layers: &[Layer<'_>]) -> Result<Vec<Tensor>> {
        layers.iter().map(|(weight, bias)| self.linear(x, weight, *bias)).collect()
    }

    /// `residual + x · Wᵀ + b`.
    fn add_linear(&self, residual: &Tensor, x: &Tensor, weight: &Matrix, bias: Option<&Tensor>) -> Result<Tensor> {
        self.add(residual, &self.linear(x, weight, bias)?)
    }

    /// `kind(x · Wᵀ + b)`.
    fn linear_act(&self, x: &Tensor, weight: &Matrix, bias: Option<&Tensor>, kind: Activation) -> Result<Tensor> {
        self.activate(&self.linear(x, weight, bias)?, kind)
    }

    /// `kind(gate(x)) · up(x)`, the first half of a gated MLP.
    fn gated(&self, x: &Tensor, [gate, up]: [Layer<'_>; 2], kind: Activation) -> Result<Tensor> {
        self.gate(&self.linear(x, gate.0, gate.1)?, &self.linear(x, up.0, up.1)?, kind)
    }

    /// A feed-forward block, added to `residual` if there is one.
    fn feed_forward(&self, residual: Option<&Tensor>, x: &Tensor, block: &FeedForward<'_>) -> Result<Tensor> {
        let FeedForward { gate, up, down: (down, bias), act } = *block;
        let inner = match gate {
            Some(gate) => self.gated(x, [gate, up], act)?,
            None => self.linear_act(x, up.0, up.1, act)?,
        };
        residual.map_or_else(|| self.linear(&inner, down, bias), |x| self.add_linear(x, &inner, down, bias))
    }

    /// `x + y`.
    fn add(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        Ok((x + y)?)
    }

    /// Each row's weighted sum of its experts' outputs; `None` without a kernel.
    fn experts(
        &self,
        _x: &Tensor,
        _experts: &[ExpertRows<'_>],
        _glu: Glu,
        _terms: ExpertTerms<'_>,
    ) -> Result<Option<Tensor>> {
        Ok(None)
    }

    /// Weighted sums of `terms` rows of `x` each; `indices` are the rows, all in bounds.
    fn combine(&self, x: &Tensor, indices: &[u32], weights: &[f32], terms: usize) -> Result<Tensor> {
        self.formulas().combine(x, indices, weights, terms)
    }

    /// Turns patches of pixels into rows of values.
    fn pixels(&self, patches: &PixelPatches<'_>) -> Result<Tensor> {
        let mut values = vec![0.0; patches.bytes.len()];
        let rows = values.chunks_exact_mut(patches.width()).enumerate();
        rows.for_each(|(index, row)| patches.write_row(index, row));
        Ok(Tensor::from_vec(values, patches.shape(), self.device())?)
    }

    /// A router's choices for these logits; `None` without a kernel.
    fn route(&self, _logits: &Tensor, _routing: &Routing<'_>) -> Result<Option<Routed>> {
        Ok(None)
    }

    /// Builds the table of a layer's experts (gate, up and down) for [`Backend::mixture`].
    fn expert_table(&self, _experts: &[[Layer<'_>; 3]]) -> Result<ExpertTable> {
        Ok(ExpertTable::None)
    }

    /// The weighted sum of the outputs of each row's experts; `None` without a kernel.
    fn mixture(&self, _x: &Tensor, _routed: &Routed, _table: &ExpertTable, _glu: Glu) -> Result<Option<Tensor>> {
        Ok(None)
    }

    /// Gathers rows of an activation; `rows` are below its first dimension.
    fn select_rows(&self, x: &Tensor, rows: &[u32]) -> Result<Tensor> {
        Ok(x.index_select(&self.formulas().ids(rows)?, 0)?)
    }

    /// Looks up the embeddings of the step's tokens, whose ids are in bounds.
    fn embed(&self, weight: &Matrix, pass: &Pass<'_>) -> Result<Tensor> {
        self.formulas().embed(weight, pass.tokens())
    }

    /// Moves the factors of a low-rank pair to the device; `single` keeps them in `f32`.
    fn low_rank(&self, rank: usize, down: Vec<f32>, up: Vec<f32>, single: bool) -> Result<LowRankForm> {
        let _ = single;
        self.formulas().low_rank(rank, down, up)
    }

    /// Adds low-rank terms to groups of rows of a linear layer's output; groups do not overlap.
    fn add_low_rank(&self, x: &Tensor, out: Tensor, groups: &[Changed<'_>]) -> Result<Tensor> {
        self.formulas().add_low_rank(x, &out, groups)
    }

    /// Adds low-rank terms to the embeddings of `tokens`.
    fn add_low_rank_vectors(&self, tokens: &[u32], out: Tensor, groups: &[Changed<'_>]) -> Result<Tensor> {
        self.formulas().add_low_rank_vectors(tokens, &out, groups)
    }

    /// Root-mean-square norm over the last dimension.
    fn rms_norm(&self, x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor> {
        self.formulas().rms_norm(x, weight, eps)
    }

    /// Root-mean-square norms of each head of queries and keys, whose weights are as wide as a head.
    fn norm_heads(
        &self,
        [q, k]: [&Tensor; 2],
        [q_weight, k_weight]: [&Tensor; 2],
        eps: f32,
    ) -> Result<(Tensor, Tensor)> {
        let normed = |x: &Tensor, weight: &Tensor| -> Result<Tensor> {
            let heads = x.reshape(((), weight.dim(0)?))?;
            Ok(self.rms_norm(&heads, weight, eps)?.reshape(x.dims())?)
        };
        Ok((normed(q, q_weight)?, normed(k, k_weight)?))
    }

    /// Layer norm over the last dimension.
    fn layer_norm(&self, x: &Tensor, weight: &Tensor, bias: &Tensor, eps: f32) -> Result<Tensor> {
        self.formulas().layer_norm(x, weight, bias, eps)
    }

    /// Sines and cosines of a step's positions, times `amplitude` and, if given, a factor for each token.
    fn rotation(
        &self,
        frequencies: &[f32],
        amplitude: f32,
        factors: Option<&[f32]>,
        style: RopeStyle,
        pass: &Pass<'_>,
    ) -> Result<Rotation> {
        let factor = |token: usize| amplitude * factors.map_or(1.0, |factors| factors[token]);
        let positions = pass.positions().iter().enumerate().map(|(token, &position)| (position, factor(token)));
        self.formulas().rotation(frequencies, positions, style)
    }

    /// Rotates the first `2 · cos.width` values of each head of `x`, of shape `[tokens, heads · head_dim]`.
    fn rotate(&self, x: &Tensor, head_dim: usize, rotation: &Rotation) -> Result<Tensor> {
        self.formulas().rotate(x, head_dim, rotation)
    }

    /// Applies an activation function to each value.
    fn activate(&self, x: &Tensor, kind: Activation) -> Result<Tensor> {
        self.formulas().activate(x, kind)
    }

    /// `factor · kind(x + bias)`; bias and factor have one value per column, and all three are optional.
    fn bias_act_scale(
        &self,
        x: &Tensor,
        bias: Option<&Tensor>,
        kind: Option<Activation>,
        factor: Option<&Tensor>,
    ) -> Result<Tensor> {
        let x = bias.map_or_else(|| Ok(x.clone()), |bias| x.broadcast_add(bias))?;
        let x = kind.map_or_else(|| Ok(x.clone()), |kind| self.activate(&x, kind))?;
        Ok(factor.map_or_else(|| Ok(x.clone()), |factor| x.broadcast_mul(factor))?)
    }

    /// Computes an element-wise formula over `inputs`, `[rows, width]`; `columns` are its values per column, here. The
    /// caller has checked the shapes.
    fn elementwise(&self, formula: &Formula, columns: &[Tensor], inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        formulas_elementwise::elementwise(formula, columns, inputs, |x, kind| self.activate(x, kind))
    }

    /// Copies ranges of columns of `x`.
    fn columns(&self, x: &Tensor, parts: &[Columns]) -> Result<Vec<Tensor>> {
        parts.iter().map(|&(start, len)| Ok(x.narrow(1, start, len)?.force_contiguous()?)).collect()
    }

    /// Joins the columns of dense matrices.
    fn join(&self, parts: &[&Tensor]) -> Result<Tensor> {
        Ok(Tensor::cat(parts, 1)?)
    }

    /// `kind(gate) · up`, the middle of a gated MLP.
    fn gate(&self, gate: &Tensor, up: &Tensor, kind: Activation) -> Result<Tensor> {
        Ok((self.activate(gate, kind)? * up)?)
    }

    /// [`Taken::Best`] for rows of logits, `[rows, 3]`.
    fn best(&self, logits: &Tensor) -> Result<Tensor> {
        self.formulas().best(logits)
    }

    /// Allocates zeroed memory for one layer's keys or values.
    fn store(&self, shape: StoreShape) -> Result<Store> {
        self.formulas().store(shape)
    }

    /// Allocates memory for one part of the states of a layer, all zero, that formulas can use.
    fn state_store(&self, shape: StoreShape) -> Result<Store> {
        self.formulas().store(shape)
    }

    /// Writes the new tokens' `k` and `v` to the layer's cache, and makes each token of `q` attend to its sequence so
    /// far. The caller has checked the shapes.
    fn attention(&self, spec: &Attention, q: &Tensor, k: &Tensor, v: &Tensor, pass: &mut Pass<'_>) -> Result<Tensor> {
        formulas_attention::attention(self.formulas(), spec, q, Some((k, Some(v))), pass)
    }

    /// [`Self::attention`] for all other cases: keys and values of different sizes, values that are a view of the keys,
    /// and layers that read another layer's cache.
    fn attention_over(
        &self,
        spec: &Attention,
        q: &Tensor,
        new: Option<(&Tensor, Option<&Tensor>)>,
        pass: &mut Pass<'_>,
    ) -> Result<Tensor> {
        formulas_attention::attention(self.formulas(), spec, q, new, pass)
    }

    /// Makes each token attend to its whole text, or to as much of it as `spec` reaches. `biases` are added to scores by
    /// distance, `[heads, 2 · far + 1]`. Spans are whole texts; the caller has checked the shapes.
    fn attention_within(
        &self,
        spec: &TextAttention,
        qkv: [&Tensor; 3],
        biases: Option<&Tensor>,
        pass: &Pass<'_>,
    ) -> Result<Tensor> {
        formulas_texts::attention(self.formulas(), spec, qkv, biases, pass)
    }

    /// Writes the new tokens' keys and values to a layer's cache. The caller has checked the shapes.
    fn remember(&self, layer: usize, k: &Tensor, v: Option<&Tensor>, pass: &mut Pass<'_>) -> Result<()> {
        formulas_attention::remember(self.formulas(), layer, [Some(k), v], pass)
    }

    /// All cached keys (`part` 0) or values (1) of a sequence, `[tokens, kv_heads · dim]`.
    fn cached(&self, layer: usize, part: usize, span: usize, pass: &mut Pass<'_>) -> Result<Tensor> {
        formulas_chosen::cached(self.formulas(), layer, part, span, pass)
    }

    /// Makes each token attend to its chosen positions, which are in the cache. The caller has checked shapes and
    /// positions.
    fn attention_chosen(
        &self,
        spec: &Attention,
        q: &Tensor,
        chosen: &Positions,
        pass: &mut Pass<'_>,
    ) -> Result<Tensor> {
        formulas_chosen::attention(self.formulas(), spec, q, chosen, pass)
    }

    /// Convolves each sequence's new tokens with the ones before them. The caller has checked the shapes.
    fn short_conv(&self, conv: &ShortConv, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        formulas_recurrence::short_conv(self.formulas(), conv, x, pass)
    }

    /// Advances a recurrent layer over each sequence's new tokens and returns its output. The caller has checked the
    /// shapes.
    fn recurrence(&self, spec: &Recurrence, x: &Inputs, pass: &Pass<'_>) -> Result<Tensor> {
        formulas_recurrence::recurrence(spec, x, pass)
    }

    /// [`Self::attention`] with queries and keys rotated first.
    fn rotated_attention(
        &self,
        spec: &Attention,
        [q, k, v]: [&Tensor; 3],
        rotation: &Rotation,
        pass: &mut Pass<'_>,
    ) -> Result<Tensor> {
        let (q, k) = (self.rotate(q, spec.head_dim, rotation)?, self.rotate(k, spec.head_dim, rotation)?);
        self.attention(spec, &q, &k, v, pass)
    }
}
