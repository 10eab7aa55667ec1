//! The operations that layers compute with. Every call is validated here and passed to the
//! [`Backend`](super::backend::Backend) of the device that holds the weight or cache. A new op takes a method here, a
//! method with its formula as default there, and an override in each backend that has a kernel for it.
//!
//! candle's backends do not agree on what they accept, and several Metal kernels silently compute nonsense on views. So
//! the rules for activations are checked here on every device, and a mistake shows on the machine where it is made.
//! `PENSIEVE_KERNELS=generic` uses only formulas, on every device, so that every machine tests them.

mod kernels;
mod memory;
mod outputs;
mod parts;
#[cfg(test)]
mod tests;
mod threads;

use candle_core::{DType, Device, Tensor};
use pensieve_kernels::{Activation, ExpertTerms, Glu};
use std::fmt;

pub(super) use self::kernels::{Kernels, best_of as backend_of};
use self::parts::Parts;
use super::{
    backend::{
        Changed, Columns, Compute, ExpertRows, ExpertTable, FeedForward, Layer, LowRank, Matrix, PixelPatches, Routed,
        Routing, Taken,
    },
    device::Chosen,
    memory::pass::Pass,
    spec::{Formula, Rotation},
};
use crate::{
    Batch, Error, Result,
    weights::{RawTensor, RopeStyle},
};

/// Returns the activation function for transformers' `hidden_act`.
pub fn activation(name: &str) -> Result<Activation> {
    match name {
        "silu" | "swish" => Ok(Activation::Silu),
        "gelu" => Ok(Activation::GeluErf),
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Ok(Activation::GeluTanh),
        _ => Err(Error::unsupported(format!("activation '{name}' is unknown"))
            .help("known are silu, gelu, gelu_new and gelu_pytorch_tanh")),
    }
}

/// The operations of one model on its devices.
#[derive(Clone)]
pub struct Ops {
    parts: Parts,
    /// Index of the device that weights are moved to.
    place: usize,
}

impl fmt::Debug for Ops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ops").field(&self.note()).finish()
    }
}

impl Ops {
    /// The operations on the chosen devices, with `threads` CPU threads (0: all cores).
    pub(super) fn new(chosen: &Chosen, threads: usize, kernels: Kernels) -> Result<Self> {
        Ok(Self { parts: kernels::parts(chosen, threads, kernels)?, place: 0 })
    }

    /// The operations of one backend.
    #[cfg(test)]
    pub(super) fn on(backend: std::sync::Arc<dyn super::backend::Backend>) -> Self {
        Self { parts: Parts::one(backend), place: 0 }
    }

    /// Returns the same operations once for each of the model's devices, bringing weights to that device.
    pub(super) fn by_place(&self) -> Vec<Self> {
        (0..self.parts.count()).map(|place| Self { parts: self.parts.clone(), place }).collect()
    }

    /// The device that weights are moved to.
    pub fn device(&self) -> &Device {
        self.parts.device(self.place)
    }

    /// The kernels in use, for the log.
    pub fn note(&self) -> String {
        self.parts.note()
    }

    /// Checks that `x` is a dense `f32` tensor of this rank at offset 0, which backends rely on.
    pub fn check(&self, x: &Tensor, rank: usize) -> Result<()> {
        let layout = x.layout();
        if x.dtype() == DType::F32 && x.rank() == rank && layout.is_contiguous() && layout.start_offset() == 0 {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "an activation of shape {:?} and type {:?} (strides {:?}, offset {}) is not a dense f32 tensor of rank {rank}",
            x.dims(),
            x.dtype(),
            layout.stride(),
            layout.start_offset()
        ))
        .help("take parts of activations by Step::columns, or of other tensors by .force_contiguous(): .contiguous() keeps a one-row view as it is"))
    }

    /// Copies a batch's index data to the devices, ahead of its step.
    pub(super) fn begin(&self, batch: &Batch<'_>) -> Result<()> {
        self.parts.begin(batch)
    }

    /// Says how many of the next operations' rows belong to each item, so that none depends on the others' number.
    pub(super) fn group_rows(&self, lens: &[usize]) {
        self.parts.group_rows(lens);
    }

    /// Lets backends run steps of a newly loaded model to prepare for it.
    pub(super) fn warm_up(&self, groups: usize, run: Compute<'_>) -> Result<()> {
        self.parts.warm_up(groups, run)
    }

    /// Computes a decode-only step as a single launch; returns `false` if the backend cannot.
    pub(super) fn decode(&self, batch: &Batch<'_>, run: Compute<'_>, taken: &mut Taken<'_>) -> Result<bool> {
        self.parts.decode(batch, run, taken)
    }

    /// Waits until a step without outputs has been computed, and returns its errors: steps must not pile up on the
    /// device, and the host measures how long each takes.
    pub fn finish(&self) -> Result<()> {
        (0..self.parts.count()).try_for_each(|at| self.parts.backend(at)?.finish())
    }

    /// Waits until everything that was launched has been computed, on CUDA as well.
    pub(in crate::nn) fn wait(&self) -> Result<()> {
        self.finish()?;
        (0..self.parts.count()).try_for_each(|at| Ok(self.parts.backend(at)?.device().synchronize()?))
    }

    /// Moves a weight matrix to the device.
    pub(super) fn matrix(&self, raw: &RawTensor) -> Result<Matrix> {
        let &[outputs, inputs] = raw.shape.as_slice() else {
            return Err(Error::corrupt(format!("tensor '{}' has shape {:?}, not two dimensions", raw.name, raw.shape)));
        };
        Ok(Matrix { outputs, inputs, place: self.place, form: self.parts.backend(self.place)?.matrix(raw)? })
    }

    /// Moves a small dense tensor, such as a norm's weight or a bias, to the device as `f32`.
    pub(super) fn vector(&self, raw: &RawTensor) -> Result<Tensor> {
        self.dense(raw.to_f32()?, &raw.shape)
    }

    /// Moves `f32` values to the device.
    pub(super) fn dense(&self, values: Vec<f32>, shape: &[usize]) -> Result<Tensor> {
        self.parts.keeps(Tensor::from_vec(values, shape, self.device())?, self.place)
    }

    /// Moves values that the host has computed to the model's first device, as an activation of this shape.
    pub fn activation_of(&self, values: Vec<f32>, (rows, width): (usize, usize)) -> Result<Tensor> {
        if rows.checked_mul(width) != Some(values.len()) {
            return Err(Error::invalid(format!("{} values are not {rows} rows of {width}", values.len())));
        }
        self.parts.at(0, [], |part, []| Ok(Tensor::from_vec(values, (rows, width), part.device())?))
    }

    /// `x · Wᵀ + b`, for `x` of shape `[rows, inputs]`.
    pub(super) fn linear(&self, x: &Tensor, (weight, bias): Layer<'_>) -> Result<Tensor> {
        self.check_input(x, weight)?;
        self.parts.at(weight.place, [x], |part, [x]| part.linear(x, weight, bias))
    }

    /// The same for rows gathered from the step's, of which each sequence has so many.
    pub(super) fn linear_of(&self, x: &Tensor, (weight, bias): Layer<'_>, stretches: &[usize]) -> Result<Tensor> {
        self.check_input(x, weight)?;
        self.parts.at(weight.place, [x], |part, [x]| part.linear_of(x, weight, bias, stretches))
    }

    /// Several linear layers with the same input.
    pub(super) fn linears(&self, x: &Tensor, layers: &[Layer<'_>]) -> Result<Vec<Tensor>> {
        layers.iter().try_for_each(|(weight, _)| self.check_input(x, weight))?;
        let place = layers.first().map_or(0, |(weight, _)| weight.place);
        if layers.iter().any(|(weight, _)| weight.place != place) {
            return layers.iter().map(|layer| self.linear(x, *layer)).collect();
        }
        self.parts.at(place, [x], |part, [x]| part.linears(x, layers))
    }

    /// `residual + x · Wᵀ + b`.
    pub(super) fn add_linear(&self, residual: &Tensor, x: &Tensor, (weight, bias): Layer<'_>) -> Result<Tensor> {
        self.check_input(x, weight)?;
        self.check_sum(residual, x, weight)?;
        self.parts.at(weight.place, [residual, x], |part, [residual, x]| part.add_linear(residual, x, weight, bias))
    }

    /// `block(x)`, added to `residual` if there is one.
    pub(super) fn feed_forward(
        &self,
        residual: Option<&Tensor>,
        x: &Tensor,
        block: &FeedForward<'_>,
    ) -> Result<Tensor> {
        let FeedForward { gate, up, down, act } = *block;
        let inner = down.0.inputs;
        for (weight, _) in gate.iter().chain([&up]) {
            self.check_input(x, weight)?;
            if weight.outputs != inner {
                return Err(Error::invalid(format!("gate or up has {} outputs, down takes {inner}", weight.outputs)));
            }
        }
        let place = up.0.place;
        if down.0.place == place && gate.is_none_or(|gate| gate.0.place == place) {
            if let Some(residual) = residual {
                self.check_sum(residual, x, down.0)?;
            }
            return match residual {
                Some(residual) => self
                    .parts
                    .at(place, [residual, x], |part, [residual, x]| part.feed_forward(Some(residual), x, block)),
                None => self.parts.at(place, [x], |part, [x]| part.feed_forward(None, x, block)),
            };
        }
        let inner = match gate {
            Some(gate) => self.gate(&self.linear(x, gate)?, &self.linear(x, up)?, act)?,
            None => self.activate(&self.linear(x, up)?, act)?,
        };
        match residual {
            Some(residual) => self.add_linear(residual, &inner, down),
            None => self.linear(&inner, down),
        }
    }

    /// Moves the matrices of heads to the device, `[heads, outputs, inputs]`.
    pub(super) fn head_matrix(&self, raw: &RawTensor) -> Result<Matrix> {
        let &[heads, outputs, inputs] = raw.shape.as_slice() else {
            return Err(Error::corrupt(format!("the shape {:?} does not have three dimensions", raw.shape)));
        };
        let outputs = heads.checked_mul(outputs).filter(|outputs| *outputs > 0 && inputs > 0);
        let outputs = outputs.ok_or_else(|| Error::corrupt(format!("the shape {:?} is empty", raw.shape)))?;
        let raw = RawTensor { shape: vec![outputs, inputs], ..raw.clone() };
        let form = self.parts.backend(self.place)?.head_matrix(&raw, heads)?;
        Ok(Matrix { outputs, inputs, place: self.place, form })
    }

    /// `x · Wᵀ` for each head's part of `x`.
    pub(super) fn head_linear(&self, x: &Tensor, weight: &Matrix, heads: usize) -> Result<Tensor> {
        self.check(x, 2)?;
        let (inputs, expected) = (x.dim(1)?, heads * weight.inputs);
        if inputs != expected {
            return Err(Error::invalid(format!("{heads} heads with {expected} inputs were given {inputs}")));
        }
        self.parts.at(weight.place, [x], |part, [x]| part.head_linear(x, weight, heads))
    }

    /// Checks that a layer's outputs for the rows of `x` can be added to `residual`.
    fn check_sum(&self, residual: &Tensor, x: &Tensor, weight: &Matrix) -> Result<()> {
        self.check(residual, 2)?;
        if residual.dims2()? == (x.dim(0)?, weight.outputs) {
            return Ok(());
        }
        let message = format!("a linear layer of {} outputs cannot be added to {:?}", weight.outputs, residual.dims());
        Err(Error::invalid(message))
    }

    fn check_input(&self, x: &Tensor, weight: &Matrix) -> Result<()> {
        self.check(x, 2)?;
        let inputs = x.dim(1)?;
        if inputs == weight.inputs {
            return Ok(());
        }
        Err(Error::invalid(format!("a linear layer of {} inputs was given {inputs}", weight.inputs)))
    }

    /// `x + y`, of equal shape.
    pub fn add(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        self.check(x, 2)?;
        self.check(y, 2)?;
        if x.dims() != y.dims() {
            return Err(Error::invalid(format!("{:?} and {:?} cannot be added", x.dims(), y.dims())));
        }
        self.parts.near([x, y], |part, [x, y]| part.add(x, y))
    }

    /// Each row's weighted sum of its experts' outputs; `None` if the backend has no kernel.
    pub(super) fn experts(
        &self,
        x: &Tensor,
        experts: &[ExpertRows<'_>],
        glu: Glu,
        terms: ExpertTerms<'_>,
    ) -> Result<Option<Tensor>> {
        self.check(x, 2)?;
        for [gate, up, _] in experts.iter().map(|expert| expert.layers) {
            self.check_input(x, gate.0)?;
            self.check_input(x, up.0)?;
        }
        let place = experts.first().map_or(0, |expert| expert.layers[2].0.place);
        self.parts.at(place, [x], |part, [x]| part.experts(x, experts, glu, terms))
    }

    /// Weighted sums of `terms` rows of `x` each, such as the outputs of a token's experts; `indices` are the rows.
    pub fn combine(&self, x: &Tensor, indices: &[u32], weights: &[f32], terms: usize) -> Result<Tensor> {
        self.check(x, 2)?;
        let rows = x.dim(0)?;
        let is_wrong =
            terms == 0 || indices.is_empty() || !indices.len().is_multiple_of(terms) || weights.len() != indices.len();
        if is_wrong || indices.iter().any(|&place| place as usize >= rows) {
            let (indices, weights) = (indices.len(), weights.len());
            let message = format!("{indices} indices and {weights} weights of {rows} rows make no sums of {terms}");
            return Err(Error::invalid(message));
        }
        self.parts.near([x], |part, [x]| part.combine(x, indices, weights, terms))
    }

    /// Turns patches of pixels into rows of values, on the model's first device.
    pub(super) fn pixels(&self, patches: &PixelPatches<'_>) -> Result<Tensor> {
        let PixelPatches { bytes, area, values, .. } = *patches;
        if area == 0 || bytes.is_empty() || !bytes.len().is_multiple_of(3 * area) || values.len() != 3 * 256 {
            let (bytes, values) = (bytes.len(), values.len());
            return Err(Error::invalid(format!("{bytes} bytes are no patches of {area} pixels with {values} values")));
        }
        self.parts.at(0, [], |part, []| part.pixels(patches))
    }

    /// A router's choices for these logits, on the device; `None` if the backend has no kernel.
    pub(super) fn route(&self, logits: &Tensor, routing: &Routing<'_>) -> Result<Option<Routed>> {
        self.check(logits, 2)?;
        self.parts.near([logits], |part, [logits]| part.route(logits, routing))
    }

    /// Builds the table of a layer's experts for [`Ops::mixture`].
    pub(super) fn expert_table(&self, experts: &[[Layer<'_>; 3]]) -> Result<ExpertTable> {
        self.parts.backend(experts.first().map_or(0, |[gate, ..]| gate.0.place))?.expert_table(experts)
    }

    /// The weighted outputs of experts chosen on the device; `None` if the backend has no kernel.
    pub(super) fn mixture(&self, x: &Tensor, routed: &Routed, table: &ExpertTable, glu: Glu) -> Result<Option<Tensor>> {
        self.check(x, 2)?;
        // The device that routed the rows has the experts.
        let place = self.parts.latest(&[&routed.experts])?;
        self.parts.at(place, [x], |part, [x]| part.mixture(x, routed, table, glu))
    }

    /// Looks up the embeddings of the step's tokens; fails if an id is beyond the table.
    pub(super) fn embed(&self, weight: &Matrix, pass: &Pass<'_>) -> Result<Tensor> {
        if let Some(id) = pass.input().tokens.iter().find(|&&id| id as usize >= weight.outputs) {
            return Err(Error::invalid(format!("row {id} of an embedding of {}", weight.outputs)));
        }
        self.parts.at(weight.place, [], |part, []| part.embed(weight, pass))
    }

    /// Moves the factors of a low-rank pair to `place`, the device of its layer: `down` has `rank` rows (for an
    /// embedding `rank` columns), `up` has `rank` rows. `single` keeps them in `f32`, as for weights in `f32`.
    pub(super) fn low_rank(
        &self,
        (rank, place): (usize, usize),
        down: Vec<f32>,
        up: Vec<f32>,
        single: bool,
    ) -> Result<LowRank> {
        Ok(LowRank { rank, place, form: self.parts.backend(place)?.low_rank(rank, down, up, single)? })
    }

    /// Adds low-rank terms to groups of rows of a linear layer's output; groups do not overlap.
    pub(super) fn add_low_rank(&self, x: &Tensor, out: Tensor, groups: &[Changed<'_>]) -> Result<Tensor> {
        self.check(x, 2)?;
        let Some((_, change, _)) = groups.first() else { return Ok(out) };
        self.parts.at(change.place, [x, &out], |part, [x, out]| part.add_low_rank(x, out.clone(), groups))
    }

    /// Adds low-rank terms to the embeddings of `tokens`.
    pub(super) fn add_low_rank_vectors(&self, tokens: &[u32], out: Tensor, groups: &[Changed<'_>]) -> Result<Tensor> {
        let Some((_, change, _)) = groups.first() else { return Ok(out) };
        self.parts.at(change.place, [&out], |part, [out]| part.add_low_rank_vectors(tokens, out.clone(), groups))
    }

    /// Index of the device that holds an activation.
    pub(super) fn place_of(&self, x: &Tensor) -> Result<usize> {
        self.parts.latest(&[x])
    }

    /// Moves an activation to one of the model's devices, unless it is there already.
    pub(super) fn bring(&self, x: &Tensor, place: usize) -> Result<Tensor> {
        self.parts.bring(x, place)
    }

    /// Moves `x` to the device of `other`.
    pub(super) fn beside(&self, x: &Tensor, other: &Tensor) -> Result<Tensor> {
        self.bring(x, self.place_of(other)?)
    }

    /// Gathers rows of an activation by index.
    pub fn select_rows(&self, x: &Tensor, rows: &[u32]) -> Result<Tensor> {
        self.check(x, 2)?;
        self.parts.near([x], |part, [x]| part.select_rows(x, rows))
    }

    /// Copies the rows `start..start + len` of an activation.
    pub(super) fn rows(&self, x: &Tensor, start: usize, len: usize) -> Result<Tensor> {
        self.parts.backend(0)?.formulas().rows(&self.beside(x, x)?, start, len)
    }

    /// Root-mean-square norm over the last dimension.
    pub fn rms_norm(&self, x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor> {
        self.check(x, 2)?;
        let place = self.parts.of_weight(weight, &[x])?;
        self.parts.at(place, [x], |part, [x]| part.rms_norm(x, weight, eps))
    }

    /// Root-mean-square norms of each head of queries and keys, whose weights are as wide as a head.
    pub(super) fn norm_heads(&self, [q, k]: [&Tensor; 2], weights: [&Tensor; 2], eps: f32) -> Result<(Tensor, Tensor)> {
        for (x, weight) in [q, k].into_iter().zip(weights) {
            self.check(x, 2)?;
            let (width, head_dim) = (x.dim(1)?, weight.dim(0)?);
            if head_dim == 0 || !width.is_multiple_of(head_dim) {
                return Err(Error::invalid(format!("{width} columns are no whole number of heads of {head_dim}")));
            }
        }
        let place = self.parts.of_weight(weights[0], &[q, k])?;
        self.parts.at(place, [q, k], |part, x| part.norm_heads(x, weights, eps))
    }

    /// Layer norm over the last dimension.
    pub fn layer_norm(&self, x: &Tensor, weight: &Tensor, bias: &Tensor, eps: f32) -> Result<Tensor> {
        self.check(x, 2)?;
        let place = self.parts.of_weight(weight, &[x])?;
        self.parts.at(place, [x], |part, [x]| part.layer_norm(x, weight, bias, eps))
    }

    /// Sines and cosines of a step's positions, times `amplitude` and, if given, a factor for each token.
    pub(super) fn rotation(
        &self,
        frequencies: &[f32],
        amplitude: f32,
        factors: Option<&[f32]>,
        style: RopeStyle,
        pass: &Pass<'_>,
    ) -> Result<Rotation> {
        // Computed once on the first device; it moves along with the residual stream.
        self.parts.at(0, [], |part, []| part.rotation(frequencies, amplitude, factors, style, pass))
    }

    /// Rotates the first values of each head of `x`, of shape `[tokens, heads · head_dim]`.
    pub(super) fn rotate(&self, x: &Tensor, head_dim: usize, rotation: &Rotation) -> Result<Tensor> {
        self.check(x, 2)?;
        let Rotation { cos, sin, style } = rotation;
        let place = self.parts.latest(&[x])?;
        self.parts.at(place, [x, cos, sin], |part, [x, cos, sin]| {
            part.rotate(x, head_dim, &Rotation { cos: cos.clone(), sin: sin.clone(), style: *style })
        })
    }

    /// Applies an activation function to each value.
    pub fn activate(&self, x: &Tensor, kind: Activation) -> Result<Tensor> {
        self.check(x, 2)?;
        self.parts.near([x], |part, [x]| part.activate(x, kind))
    }

    /// `factor · kind(x + bias)`; bias and factor have one value per column, and all three are optional.
    pub fn bias_act_scale(
        &self,
        x: &Tensor,
        bias: Option<&Tensor>,
        kind: Option<Activation>,
        factor: Option<&Tensor>,
    ) -> Result<Tensor> {
        self.check(x, 2)?;
        let width = x.dim(1)?;
        if let Some(values) = [bias, factor].into_iter().flatten().find(|values| values.dims() != [width]) {
            return Err(Error::invalid(format!("{width} columns cannot have {:?} values", values.dims())));
        }
        let place = self.parts.latest(&[x])?;
        let (bias, factor) = (self.parts.bring_some(bias, place)?, self.parts.bring_some(factor, place)?);
        self.parts.at(place, [x], |part, [x]| part.bias_act_scale(x, bias.as_ref(), kind, factor.as_ref()))
    }

    /// Computes an element-wise formula in one pass.
    pub(super) fn elementwise<const IN: usize>(&self, formula: &Formula, inputs: [&Tensor; IN]) -> Result<Vec<Tensor>> {
        let Some(first) = inputs.first() else { return Err(Error::invalid("a formula without inputs")) };
        let (_, width) = first.dims2()?;
        for x in inputs {
            self.check(x, 2)?;
            if x.dims() != first.dims() {
                return Err(Error::invalid(format!("a formula of {:?} and {:?}", first.dims(), x.dims())));
            }
        }
        formula.check(IN, width)?;
        let place = self.parts.latest(&inputs)?;
        let columns =
            formula.columns.iter().map(|values| self.parts.bring(values, place)).collect::<Result<Vec<_>>>()?;
        self.parts.at(place, inputs, |part, inputs| part.elementwise(formula, &columns, &inputs))
    }

    /// Copies ranges of columns of an activation.
    pub(super) fn columns(&self, x: &Tensor, parts: &[Columns]) -> Result<Vec<Tensor>> {
        self.check(x, 2)?;
        let width = x.dim(1)?;
        let is_beyond = |&&(start, len): &&Columns| start.checked_add(len).is_none_or(|end| end > width);
        if let Some((start, len)) = parts.iter().find(is_beyond) {
            return Err(Error::invalid(format!("{width} columns have no {len} from {start} on")));
        }
        self.parts.near([x], |part, [x]| part.columns(x, parts))
    }

    /// Joins the columns of activations with the same number of rows.
    pub(super) fn join<const N: usize>(&self, parts: [&Tensor; N]) -> Result<Tensor> {
        parts.iter().try_for_each(|part| self.check(part, 2))?;
        let rows = parts.iter().map(|part| Ok(part.dim(0)?)).collect::<Result<Vec<_>>>()?;
        if rows.is_empty() || rows.iter().any(|of| *of != rows[0]) {
            return Err(Error::invalid(format!("activations of {rows:?} rows cannot be joined")));
        }
        self.parts.near(parts, |part, parts| part.join(&parts))
    }

    /// `kind(gate) · up`, the middle of a gated MLP.
    pub fn gate(&self, gate: &Tensor, up: &Tensor, kind: Activation) -> Result<Tensor> {
        self.check(gate, 2)?;
        self.check(up, 2)?;
        self.parts.near([gate, up], |part, [gate, up]| part.gate(gate, up, kind))
    }
}
