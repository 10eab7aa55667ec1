//! The backend of a model whose layers lie on several devices: each question goes to the device on which the weight or the
//! cache that it is about lies, and activations follow.
//!
//! Model files know nothing of this. They add a layer's output to the stream of the layer before, so the stream has to lie
//! where the output does: when a layer first reads an activation that lies on another device, it moves there with all who
//! hold it ([`Interconnect::bring`]).

use candle_core::Tensor;
use std::sync::Arc;

use super::{
    Backend, Changed, Columns, Compute, ExpertRows, ExpertTable, Form, Formulas, Layer, LowRankForm, Matrix, Rotation,
    Routed, Routing, StoreShape, Taken,
};
use crate::{
    Batch, Error, Result,
    nn::{
        attention::Attention,
        conv::ShortConv,
        cpu::{Activation, Glu},
        pass::Pass,
        recurrence::{Inputs, Recurrence},
        store::Store,
    },
    weights::{RawTensor, RopeStyle},
};

/// What knows where tensors lie and moves them.
pub(in crate::nn) trait Interconnect: Send + Sync {
    /// On which of the devices a tensor lies; none for one that may be read from all.
    fn place(&self, tensor: &Tensor) -> Result<Option<usize>>;

    /// The tensor as the device `to` reads it. If it lay elsewhere, it has moved: whoever holds it finds it on that device, too.
    fn bring(&self, tensor: &Tensor, to: usize) -> Result<Tensor>;

    /// Takes note that a device has computed this.
    fn made(&self, tensor: Tensor, _at: usize) -> Result<Tensor> {
        Ok(tensor)
    }

    /// Takes note that a device keeps this, as a weight or a cache.
    fn keeps(&self, tensor: Tensor, _at: usize) -> Result<Tensor> {
        Ok(tensor)
    }

    /// Forgets what was moved in the step before.
    fn clear(&self);

    /// Which kernels run, where they do not on each device by itself.
    fn note(&self) -> Option<String> {
        None
    }

    /// As [`Backend::begin`], where devices do not begin by themselves.
    fn begin(&self, _batch: &Batch<'_>) -> Result<bool> {
        Ok(false)
    }

    /// As [`Backend::warm_up`].
    fn warm_up(&self, _groups: usize, _run: Compute<'_>) -> Result<()> {
        Ok(())
    }

    /// As [`Backend::decode`].
    fn decode(&self, _batch: &Batch<'_>, _run: Compute<'_>, _taken: &mut Taken<'_>) -> Result<bool> {
        Ok(false)
    }
}

/// A backend for each device, and what connects them.
pub(in crate::nn) struct Spread {
    parts: Vec<Arc<dyn Backend>>,
    interconnect: Arc<dyn Interconnect>,
}

impl Spread {
    /// `parts` are two or more.
    pub(in crate::nn) fn new(parts: Vec<Arc<dyn Backend>>, interconnect: Arc<dyn Interconnect>) -> Self {
        Self { parts, interconnect }
    }

    fn part(&self, at: usize) -> Result<&dyn Backend> {
        self.parts.get(at).map(|part| &**part).ok_or_else(|| Error::invalid(format!("there is no device {at}")))
    }

    fn check(&self, tensor: &Tensor, at: usize) -> Result<()> {
        match self.interconnect.place(tensor)? {
            Some(place) if place != at => Err(Error::invalid(format!(
                "a tensor of shape {:?} lies on device {place} of a model, and device {at} reads it",
                tensor.dims()
            ))),
            _ => Ok(()),
        }
    }

    fn bring_all<const N: usize>(&self, tensors: [&Tensor; N], to: usize) -> Result<[Tensor; N]> {
        let brought = tensors.iter().map(|tensor| self.bring(tensor, to)).collect::<Result<Vec<_>>>()?;
        brought.try_into().map_err(|_| Error::invalid("a tensor has not arrived"))
    }

    /// Where a computation goes that is about these tensors and no weight: to the latest of the devices that they lie on, as
    /// layers follow each other in that order.
    fn latest(&self, tensors: &[&Tensor]) -> Result<usize> {
        let places = tensors.iter().map(|tensor| self.interconnect.place(tensor)).collect::<Result<Vec<_>>>()?;
        Ok(places.into_iter().flatten().max().unwrap_or(0))
    }

    fn rotation_at(&self, rotation: &Rotation, at: usize) -> Result<Rotation> {
        let [cos, sin] = self.bring_all([&rotation.cos, &rotation.sin], at)?;
        Ok(Rotation { cos, sin, style: rotation.style })
    }

    fn made(&self, tensor: Result<Tensor>, at: usize) -> Result<Tensor> {
        self.interconnect.made(tensor?, at)
    }
}

impl Backend for Spread {
    /// Those of the first device.
    fn formulas(&self) -> &Formulas {
        self.parts[0].formulas()
    }

    fn note(&self) -> String {
        let notes = || self.parts.iter().map(|part| part.note()).collect::<Vec<_>>().join(" and ");
        self.interconnect.note().unwrap_or_else(notes)
    }

    fn parts(&self) -> &[Arc<dyn Backend>] {
        &self.parts
    }

    fn place_of(&self, x: &Tensor) -> Result<usize> {
        self.latest(&[x])
    }

    fn bring(&self, x: &Tensor, place: usize) -> Result<Tensor> {
        let brought = self.interconnect.bring(x, place)?;
        self.check(&brought, place)?;
        Ok(brought)
    }

    fn keeps(&self, tensor: Tensor, place: usize) -> Result<Tensor> {
        self.interconnect.keeps(tensor, place)
    }

    fn begin(&self, batch: &Batch<'_>) -> Result<()> {
        self.interconnect.clear();
        if self.interconnect.begin(batch)? {
            return Ok(());
        }
        self.parts.iter().try_for_each(|part| part.begin(batch))
    }

    fn warm_up(&self, groups: usize, run: Compute<'_>) -> Result<()> {
        self.interconnect.warm_up(groups, run)
    }

    fn decode(&self, batch: &Batch<'_>, run: Compute<'_>, taken: &mut Taken<'_>) -> Result<bool> {
        self.interconnect.clear();
        self.interconnect.decode(batch, run, taken)
    }

    fn matrix(&self, _raw: &RawTensor) -> Result<Form> {
        Err(Error::invalid("a weight is taken in by one of a model's devices"))
    }

    fn linear(&self, x: &Tensor, weight: &Matrix, bias: Option<&Tensor>) -> Result<Tensor> {
        let at = weight.place;
        self.made(self.part(at)?.linear(&self.bring(x, at)?, weight, bias), at)
    }

    fn linears(&self, x: &Tensor, layers: &[Layer<'_>]) -> Result<Vec<Tensor>> {
        let at = layers.first().map_or(0, |(weight, _)| weight.place);
        if layers.iter().any(|(weight, _)| weight.place != at) {
            return layers.iter().map(|(weight, bias)| self.linear(x, weight, *bias)).collect();
        }
        let outs = self.part(at)?.linears(&self.bring(x, at)?, layers)?;
        outs.into_iter().map(|out| self.made(Ok(out), at)).collect()
    }

    fn add_linear(&self, sum: &Tensor, x: &Tensor, weight: &Matrix, bias: Option<&Tensor>) -> Result<Tensor> {
        let at = weight.place;
        let [sum, x] = self.bring_all([sum, x], at)?;
        self.made(self.part(at)?.add_linear(&sum, &x, weight, bias), at)
    }

    fn gated(&self, x: &Tensor, [gate, up]: [Layer<'_>; 2], kind: Activation) -> Result<Tensor> {
        let at = gate.0.place;
        if up.0.place != at {
            return self.gate(&self.linear(x, gate.0, gate.1)?, &self.linear(x, up.0, up.1)?, kind);
        }
        self.made(self.part(at)?.gated(&self.bring(x, at)?, [gate, up], kind), at)
    }

    fn add(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        let at = self.latest(&[x, y])?;
        let [x, y] = self.bring_all([x, y], at)?;
        self.made(self.part(at)?.add(&x, &y), at)
    }

    fn experts(&self, x: &Tensor, experts: &[ExpertRows<'_>], glu: Glu) -> Result<Option<Tensor>> {
        let Some(at) = experts.first().map(|expert| expert.layers[2].0.place) else { return Ok(None) };
        let out = self.part(at)?.experts(&self.bring(x, at)?, experts, glu)?;
        out.map(|out| self.made(Ok(out), at)).transpose()
    }

    fn combine(&self, outs: &Tensor, places: &[u32], weights: &[f32], top_k: usize) -> Result<Tensor> {
        let at = self.latest(&[outs])?;
        self.made(self.part(at)?.combine(&self.bring(outs, at)?, places, weights, top_k), at)
    }

    fn route(&self, logits: &Tensor, routing: &Routing<'_>) -> Result<Option<Routed>> {
        let at = self.latest(&[logits])?;
        self.part(at)?.route(&self.bring(logits, at)?, routing)
    }

    fn expert_table(&self, experts: &[[Layer<'_>; 3]]) -> Result<ExpertTable> {
        self.part(experts.first().map_or(0, |[gate, ..]| gate.0.place))?.expert_table(experts)
    }

    fn mixture(&self, x: &Tensor, routed: &Routed, table: &ExpertTable, glu: Glu) -> Result<Option<Tensor>> {
        // Who chose experts has them.
        let at = self.latest(&[&routed.experts])?;
        let out = self.part(at)?.mixture(&self.bring(x, at)?, routed, table, glu)?;
        out.map(|out| self.made(Ok(out), at)).transpose()
    }

    fn embed(&self, weight: &Matrix, pass: &Pass<'_>) -> Result<Tensor> {
        self.made(self.part(weight.place)?.embed(weight, pass), weight.place)
    }

    fn low_rank(&self, _rank: usize, _down: Vec<f32>, _up: Vec<f32>, _single: bool) -> Result<LowRankForm> {
        Err(Error::invalid("a change is taken in by one of a model's devices"))
    }

    fn add_low_rank(&self, x: &Tensor, out: Tensor, groups: &[Changed<'_>]) -> Result<Tensor> {
        let at = groups.first().map_or(0, |(_, change, _)| change.place);
        let [x, out] = self.bring_all([x, &out], at)?;
        self.made(self.part(at)?.add_low_rank(&x, out, groups), at)
    }

    fn add_low_rank_vectors(&self, tokens: &[u32], out: Tensor, groups: &[Changed<'_>]) -> Result<Tensor> {
        let at = groups.first().map_or(0, |(_, change, _)| change.place);
        let out = self.bring(&out, at)?;
        self.made(self.part(at)?.add_low_rank_vectors(tokens, out, groups), at)
    }

    fn rms_norm(&self, x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor> {
        let at = self.of_weight(weight, &[x])?;
        self.made(self.part(at)?.rms_norm(&self.bring(x, at)?, weight, eps), at)
    }

    fn add_rms_norm(&self, x: &Tensor, delta: &Tensor, weight: &Tensor, eps: f32) -> Result<(Tensor, Tensor)> {
        let at = self.of_weight(weight, &[x, delta])?;
        let [x, delta] = self.bring_all([x, delta], at)?;
        let (sum, normed) = self.part(at)?.add_rms_norm(&x, &delta, weight, eps)?;
        Ok((self.made(Ok(sum), at)?, self.made(Ok(normed), at)?))
    }

    fn layer_norm(&self, x: &Tensor, weight: &Tensor, bias: &Tensor, eps: f32) -> Result<Tensor> {
        let at = self.of_weight(weight, &[x])?;
        self.made(self.part(at)?.layer_norm(&self.bring(x, at)?, weight, bias, eps), at)
    }

    /// The first device computes what all layers rotate by; it moves along with the stream.
    fn rotation(
        &self,
        frequencies: &[f32],
        amplitude: f32,
        factors: Option<&[f32]>,
        style: RopeStyle,
        pass: &Pass<'_>,
    ) -> Result<Rotation> {
        let Rotation { cos, sin, style } = self.part(0)?.rotation(frequencies, amplitude, factors, style, pass)?;
        Ok(Rotation { cos: self.made(Ok(cos), 0)?, sin: self.made(Ok(sin), 0)?, style })
    }

    fn rotate(&self, x: &Tensor, head_dim: usize, rotation: &Rotation) -> Result<Tensor> {
        let at = self.latest(&[x])?;
        let rotation = self.rotation_at(rotation, at)?;
        self.made(self.part(at)?.rotate(&self.bring(x, at)?, head_dim, &rotation), at)
    }

    fn activate(&self, x: &Tensor, kind: Activation) -> Result<Tensor> {
        let at = self.latest(&[x])?;
        self.made(self.part(at)?.activate(&self.bring(x, at)?, kind), at)
    }

    fn bias_act_scale(
        &self,
        x: &Tensor,
        bias: Option<&Tensor>,
        kind: Option<Activation>,
        factor: Option<&Tensor>,
    ) -> Result<Tensor> {
        let at = self.latest(&[x])?;
        let [bias, factor] = [bias, factor].map(|values| values.map(|values| self.bring(values, at)).transpose());
        let (bias, factor) = (bias?, factor?);
        self.made(self.part(at)?.bias_act_scale(&self.bring(x, at)?, bias.as_ref(), kind, factor.as_ref()), at)
    }

    fn columns(&self, x: &Tensor, parts: &[Columns]) -> Result<Vec<Tensor>> {
        let at = self.latest(&[x])?;
        let outs = self.part(at)?.columns(&self.bring(x, at)?, parts)?;
        outs.into_iter().map(|out| self.made(Ok(out), at)).collect()
    }

    fn gate(&self, gate: &Tensor, up: &Tensor, kind: Activation) -> Result<Tensor> {
        let at = self.latest(&[gate, up])?;
        let [gate, up] = self.bring_all([gate, up], at)?;
        self.made(self.part(at)?.gate(&gate, &up, kind), at)
    }

    fn best(&self, logits: &Tensor) -> Result<Tensor> {
        let at = self.latest(&[logits])?;
        self.part(at)?.best(&self.bring(logits, at)?)
    }

    fn store(&self, _shape: StoreShape) -> Result<Store> {
        Err(Error::invalid("a cache is kept by one of a model's devices"))
    }

    fn attention(&self, spec: &Attention, q: &Tensor, k: &Tensor, v: &Tensor, pass: &mut Pass<'_>) -> Result<Tensor> {
        let (home, at) = (self.place_of(q)?, pass.kv.place(spec.layer)?);
        let [q, k, v] = self.bring_all([q, k, v], at)?;
        let out = self.made(self.part(at)?.attention(spec, &q, &k, &v, pass), at)?;
        self.bring(&out, home)
    }

    fn attention_over(
        &self,
        spec: &Attention,
        q: &Tensor,
        new: Option<(&Tensor, Option<&Tensor>)>,
        pass: &mut Pass<'_>,
    ) -> Result<Tensor> {
        let (home, at) = (self.place_of(q)?, pass.kv.place(spec.layer)?);
        let q = self.bring(q, at)?;
        let new = match new {
            Some((k, v)) => Some((self.bring(k, at)?, v.map(|v| self.bring(v, at)).transpose()?)),
            None => None,
        };
        let new = new.as_ref().map(|(k, v)| (k, v.as_ref()));
        let out = self.made(self.part(at)?.attention_over(spec, &q, new, pass), at)?;
        self.bring(&out, home)
    }

    fn short_conv(&self, conv: &ShortConv, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        let (home, at) = (self.place_of(x)?, pass.kv.place(conv.layer)?);
        let [x, taps] = self.bring_all([x, &conv.taps], at)?;
        let bias = conv.bias.as_ref().map(|bias| self.bring(bias, at)).transpose()?;
        let conv = ShortConv { taps, bias, ..conv.clone() };
        let out = self.made(self.part(at)?.short_conv(&conv, &x, pass), at)?;
        self.bring(&out, home)
    }

    fn recurrence(&self, spec: &Recurrence, x: Inputs<'_>, pass: &Pass<'_>) -> Result<Tensor> {
        let (home, at) = (self.place_of(x.q)?, pass.kv.place(spec.layer)?);
        let [q, k, v, decay, beta] = self.bring_all([x.q, x.k, x.v, x.decay, x.beta], at)?;
        let skip = x.skip.map(|skip| self.bring(skip, at)).transpose()?;
        let x = Inputs { q: &q, k: &k, v: &v, decay: &decay, beta: &beta, skip: skip.as_ref(), ..x };
        let out = self.made(self.part(at)?.recurrence(spec, x, pass), at)?;
        self.bring(&out, home)
    }

    fn rotated_attention(
        &self,
        spec: &Attention,
        [q, k, v]: [&Tensor; 3],
        rotation: &Rotation,
        pass: &mut Pass<'_>,
    ) -> Result<Tensor> {
        let (home, at) = (self.place_of(q)?, pass.kv.place(spec.layer)?);
        let [q, k, v] = self.bring_all([q, k, v], at)?;
        let rotation = self.rotation_at(rotation, at)?;
        let out = self.made(self.part(at)?.rotated_attention(spec, [&q, &k, &v], &rotation, pass), at)?;
        self.bring(&out, home)
    }
}

impl Spread {
    /// Where a norm is computed: where its weight lies, or else its input.
    fn of_weight(&self, weight: &Tensor, inputs: &[&Tensor]) -> Result<usize> {
        match self.interconnect.place(weight)? {
            Some(at) => Ok(at),
            None => self.latest(inputs),
        }
    }
}
