//! What layers compute with: every call is checked here and answered by the [`Backend`] of the model's device.
//!
//! candle's backends do not agree on what they accept, and several Metal kernels silently compute nonsense on views. So
//! the rules that every activation keeps are checked here, on every device, so that a breach shows on the machine where it
//! is written. `PENSIEVE_KERNELS=generic` uses formulas only, on every device, so that every machine tests them.

use candle_core::{DType, Device, Tensor};
use std::{env, fmt, sync::Arc};

use super::{
    attention::Attention,
    backend::{
        Backend, Changed, Columns, Compute, CpuKernels, ExpertRows, ExpertTable, Formulas, Layer, LowRank, Matrix,
        Rotation, Routed, Routing, Spread, StandIns, Taken,
    },
    conv::ShortConv,
    cpu::{Activation, Glu},
    device::Chosen,
    kv::KvCache,
    kv_shape::{KvShape, KvType},
    pass::Pass,
    recurrence::{Inputs, Recurrence},
    store::{Store, StoreShape},
    view::copy_to,
};
use crate::{
    Batch, Error, Result,
    weights::{RawTensor, RopeStyle},
};

/// The activation that a config calls `name` in its `hidden_act`.
pub fn activation(name: &str) -> Result<Activation> {
    match name {
        "silu" | "swish" => Ok(Activation::Silu),
        "gelu" => Ok(Activation::GeluErf),
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Ok(Activation::GeluTanh),
        _ => Err(Error::unsupported(format!("activation '{name}' is unknown"))
            .help("known are silu, gelu, gelu_new and gelu_pytorch_tanh")),
    }
}

/// Which implementation computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kernels {
    /// The fastest that gives right results.
    Auto,
    /// Plain formulas of stock candle ops.
    Generic,
    /// The same over weights that are unpacked to single precision, so that nothing is rounded on the way.
    Exact,
}

impl Kernels {
    /// What the environment's `PENSIEVE_KERNELS` forces, or else what was asked for.
    pub(super) fn choose(asked: Option<&str>) -> Result<Self> {
        let forced = env::var("PENSIEVE_KERNELS").ok().filter(|name| !name.is_empty());
        let (name, place) = match (&forced, asked) {
            (Some(name), _) => (name.as_str(), "PENSIEVE_KERNELS"),
            (None, asked) => (asked.unwrap_or("auto"), "option kernels"),
        };
        match name {
            "auto" => Ok(Self::Auto),
            "generic" => Ok(Self::Generic),
            "exact" => Ok(Self::Exact),
            _ => Err(Error::invalid(format!("{place} is '{name}'")).help("it is 'auto', 'generic' or 'exact'")),
        }
    }
}

/// The computations of one model on its device.
#[derive(Clone)]
pub struct Ops {
    backend: Arc<dyn Backend>,
    /// Which of the model's devices it is, and what computes on all of them.
    part_of: Option<(usize, Arc<dyn Backend>)>,
}

impl fmt::Debug for Ops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ops").field(&self.note()).finish()
    }
}

impl Ops {
    /// The computations for a device, on `threads` CPU threads (0: all cores).
    pub(super) fn new(chosen: &Chosen, threads: usize, kernels: Kernels) -> Result<Self> {
        let backend = match chosen.beside.is_empty() {
            true => backend(chosen.device.clone(), threads, kernels),
            false => spread(chosen, threads, kernels)?,
        };
        Ok(Self { backend, part_of: None })
    }

    /// The computations of each device that a model is spread over; none where it lies on one.
    pub(super) fn parts(&self) -> Vec<Self> {
        let parts = self.backend.parts().iter().enumerate();
        let of = |place| Some((place, self.backend.clone()));
        parts.map(|(place, backend)| Self { backend: backend.clone(), part_of: of(place) }).collect()
    }

    /// The computations of one of the model's devices.
    fn part(&self, place: usize) -> &dyn Backend {
        self.backend.parts().get(place).map_or(&*self.backend, |part| &**part)
    }

    /// Where tensors live.
    pub fn device(&self) -> &Device {
        self.backend.device()
    }

    /// Which kernels run, for a person.
    pub fn note(&self) -> String {
        self.backend.note()
    }

    /// The rules that every activation keeps.
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

    /// Brings what a batch says to the device, ahead of its step.
    pub(super) fn begin(&self, batch: &Batch<'_>) -> Result<()> {
        self.backend.begin(batch)
    }

    /// Prepares for the steps of a model that has just been loaded.
    pub(super) fn warm_up(&self, groups: usize, run: Compute<'_>) -> Result<()> {
        self.backend.warm_up(groups, run)
    }

    /// Computes a step that only decodes as one launch, where the backend can. `false` where it cannot.
    pub(super) fn decode(&self, batch: &Batch<'_>, run: Compute<'_>, taken: &mut Taken<'_>) -> Result<bool> {
        self.backend.decode(batch, run, taken)
    }

    /// Takes what is wanted of rows of logits.
    pub(super) fn take(&self, logits: &Tensor, taken: &mut Taken<'_>) -> Result<()> {
        let logits = logits.to_dtype(DType::F32)?;
        match taken {
            Taken::Logits(out) => copy_to(&logits.flatten_all()?, out),
            Taken::Best(out) => copy_to(&self.backend.best(&logits)?.flatten_all()?, out.as_flattened_mut()),
        }
    }

    /// Takes in a weight matrix.
    pub(super) fn matrix(&self, raw: &RawTensor) -> Result<Matrix> {
        let &[outputs, inputs] = raw.shape.as_slice() else {
            return Err(Error::corrupt(format!("tensor '{}' has shape {:?}, not two dimensions", raw.name, raw.shape)));
        };
        let place = self.part_of.as_ref().map_or(0, |(place, _)| *place);
        Ok(Matrix { outputs, inputs, place, form: self.backend.matrix(raw)? })
    }

    /// Takes in a small dense tensor, such as a norm's weight or a bias, as `f32`.
    pub(super) fn vector(&self, raw: &RawTensor) -> Result<Tensor> {
        self.dense(raw.to_f32()?, &raw.shape)
    }

    /// Takes in the values of a tensor of single precision.
    pub(super) fn dense(&self, values: Vec<f32>, shape: &[usize]) -> Result<Tensor> {
        let tensor = Tensor::from_vec(values, shape, self.device())?;
        match &self.part_of {
            Some((place, all)) => all.keeps(tensor, *place),
            None => Ok(tensor),
        }
    }

    /// `x · Wᵀ + b`, for `x` of shape `[rows, inputs]`.
    pub(super) fn linear(&self, x: &Tensor, (weight, bias): Layer<'_>) -> Result<Tensor> {
        self.check_input(x, weight)?;
        self.backend.linear(x, weight, bias)
    }

    /// What several layers make of one input.
    pub(super) fn linears(&self, x: &Tensor, layers: &[Layer<'_>]) -> Result<Vec<Tensor>> {
        layers.iter().try_for_each(|(weight, _)| self.check_input(x, weight))?;
        self.backend.linears(x, layers)
    }

    /// `sum + x · Wᵀ + b`.
    pub(super) fn add_linear(&self, sum: &Tensor, x: &Tensor, (weight, bias): Layer<'_>) -> Result<Tensor> {
        self.check_input(x, weight)?;
        self.check(sum, 2)?;
        if sum.dims2()? != (x.dim(0)?, weight.outputs) {
            let message = format!("a linear layer of {} outputs cannot be added to {:?}", weight.outputs, sum.dims());
            return Err(Error::invalid(message));
        }
        self.backend.add_linear(sum, x, weight, bias)
    }

    /// `kind(gate(x)) · up(x)`, the first half of a gated MLP.
    pub(super) fn gated(&self, x: &Tensor, layers: [Layer<'_>; 2], kind: Activation) -> Result<Tensor> {
        layers.iter().try_for_each(|(weight, _)| self.check_input(x, weight))?;
        self.backend.gated(x, layers, kind)
    }

    fn check_input(&self, x: &Tensor, weight: &Matrix) -> Result<()> {
        self.check(x, 2)?;
        let inputs = x.dim(1)?;
        if inputs == weight.inputs {
            return Ok(());
        }
        Err(Error::invalid(format!("a linear layer of {} inputs was given {inputs}", weight.inputs)))
    }

    /// `x + y`, of one shape.
    pub fn add(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        self.check(x, 2)?;
        self.check(y, 2)?;
        if x.dims() != y.dims() {
            return Err(Error::invalid(format!("{:?} and {:?} cannot be added", x.dims(), y.dims())));
        }
        self.backend.add(x, y)
    }

    /// What experts make of their rows, which tile `x`, where there is a kernel for it.
    pub(super) fn experts(&self, x: &Tensor, experts: &[ExpertRows<'_>], glu: Glu) -> Result<Option<Tensor>> {
        self.check(x, 2)?;
        self.backend.experts(x, experts, glu)
    }

    /// Weighted sums of `top_k` rows of `outs`: those that `places` names, which are below its first dimension, each times its
    /// weight.
    pub(super) fn combine(&self, outs: &Tensor, places: &[u32], weights: &[f32], top_k: usize) -> Result<Tensor> {
        self.check(outs, 2)?;
        let rows = outs.dim(0)?;
        let is_wrong = top_k == 0 || !places.len().is_multiple_of(top_k) || weights.len() != places.len();
        if is_wrong || places.iter().any(|&place| place as usize >= rows) {
            let (places, weights) = (places.len(), weights.len());
            let message = format!("{places} places and {weights} weights of {rows} rows make no sums of {top_k}");
            return Err(Error::invalid(message));
        }
        self.backend.combine(outs, places, weights, top_k)
    }

    /// What a router chooses by these logits, where a kernel leaves it on the device.
    pub(super) fn route(&self, logits: &Tensor, routing: &Routing<'_>) -> Result<Option<Routed>> {
        self.check(logits, 2)?;
        self.backend.route(logits, routing)
    }

    /// What [`Ops::mixture`] has to know of a layer's experts.
    pub(super) fn expert_table(&self, experts: &[[Layer<'_>; 3]]) -> Result<ExpertTable> {
        self.backend.expert_table(experts)
    }

    /// What experts that were chosen on the device make of each row, where there is a kernel for it.
    pub(super) fn mixture(&self, x: &Tensor, routed: &Routed, table: &ExpertTable, glu: Glu) -> Result<Option<Tensor>> {
        self.check(x, 2)?;
        self.backend.mixture(x, routed, table, glu)
    }

    /// The rows of a weight that the step's tokens name. They are below its outputs, as the batch was checked against the
    /// vocabulary.
    pub(super) fn embed(&self, weight: &Matrix, pass: &Pass<'_>) -> Result<Tensor> {
        if let Some(id) = pass.input().tokens.iter().find(|&&id| id as usize >= weight.outputs) {
            return Err(Error::invalid(format!("row {id} of an embedding of {}", weight.outputs)));
        }
        self.backend.embed(weight, pass)
    }

    /// Takes in the factors of a change: `down` of `rank` rows, or of an embedding with `rank` columns, and `up` of `rank`
    /// rows. `single` where the weight it changes has single precision; `place` is the device that the layer is computed on.
    pub(super) fn low_rank(
        &self,
        (rank, place): (usize, usize),
        down: Vec<f32>,
        up: Vec<f32>,
        single: bool,
    ) -> Result<LowRank> {
        Ok(LowRank { rank, place, form: self.part(place).low_rank(rank, down, up, single)? })
    }

    /// Adds low-rank changes to rows of a linear layer's output; the groups of rows do not overlap.
    pub(super) fn add_low_rank(&self, x: &Tensor, out: Tensor, groups: &[Changed<'_>]) -> Result<Tensor> {
        self.check(x, 2)?;
        if groups.is_empty() { Ok(out) } else { self.backend.add_low_rank(x, out, groups) }
    }

    /// Adds low-rank changes to the vectors of tokens.
    pub(super) fn add_low_rank_vectors(&self, tokens: &[u32], out: Tensor, groups: &[Changed<'_>]) -> Result<Tensor> {
        if groups.is_empty() { Ok(out) } else { self.backend.add_low_rank_vectors(tokens, out, groups) }
    }

    /// On which of the model's devices an activation lies.
    pub(super) fn place_of(&self, x: &Tensor) -> Result<usize> {
        self.backend.place_of(x)
    }

    /// An activation on one of the model's devices, to which it moves if it lies on another.
    pub(super) fn bring(&self, x: &Tensor, place: usize) -> Result<Tensor> {
        self.backend.bring(x, place)
    }

    /// An activation on the device that another lies on.
    pub(super) fn beside(&self, x: &Tensor, other: &Tensor) -> Result<Tensor> {
        self.bring(x, self.place_of(other)?)
    }

    /// Indices as a tensor on the device that `beside` lies on.
    pub(super) fn ids(&self, ids: &[u32], beside: &Tensor) -> Result<Tensor> {
        self.part(self.place_of(beside)?).formulas().ids(ids)
    }

    /// The rows `rows` of an activation; they are below its first dimension.
    pub(super) fn select_rows(&self, x: &Tensor, rows: &[u32]) -> Result<Tensor> {
        self.check(x, 2)?;
        Ok(x.index_select(&self.ids(rows, x)?, 0)?)
    }

    /// The rows `start..start + len` of an activation as a tensor of their own.
    pub(super) fn rows(&self, x: &Tensor, start: usize, len: usize) -> Result<Tensor> {
        self.backend.formulas().rows(&self.beside(x, x)?, start, len)
    }

    /// Root-mean-square norm over the last dimension.
    pub fn rms_norm(&self, x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor> {
        self.check(x, 2)?;
        self.backend.rms_norm(x, weight, eps)
    }

    /// `x + delta`, and its root-mean-square norm.
    pub fn add_rms_norm(&self, x: &Tensor, delta: &Tensor, weight: &Tensor, eps: f32) -> Result<(Tensor, Tensor)> {
        self.check(x, 2)?;
        self.check(delta, 2)?;
        self.backend.add_rms_norm(x, delta, weight, eps)
    }

    /// Layer norm over the last dimension.
    pub fn layer_norm(&self, x: &Tensor, weight: &Tensor, bias: &Tensor, eps: f32) -> Result<Tensor> {
        self.check(x, 2)?;
        self.backend.layer_norm(x, weight, bias, eps)
    }

    /// The sines and cosines of a step's positions, times `amplitude` and, where there are any, a factor for each token.
    pub(super) fn rotation(
        &self,
        frequencies: &[f32],
        amplitude: f32,
        factors: Option<&[f32]>,
        style: RopeStyle,
        pass: &Pass<'_>,
    ) -> Result<Rotation> {
        self.backend.rotation(frequencies, amplitude, factors, style, pass)
    }

    /// Rotates the first values of each head of `x`, of shape `[tokens, heads · head_dim]`.
    pub(super) fn rotate(&self, x: &Tensor, head_dim: usize, rotation: &Rotation) -> Result<Tensor> {
        self.check(x, 2)?;
        self.backend.rotate(x, head_dim, rotation)
    }

    /// An activation function.
    pub fn activate(&self, x: &Tensor, kind: Activation) -> Result<Tensor> {
        self.check(x, 2)?;
        self.backend.activate(x, kind)
    }

    /// `factor · kind(x + bias)`, with a bias and a factor for each column where there are any.
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
        self.backend.bias_act_scale(x, bias, kind, factor)
    }

    /// Columns of an activation as tensors of their own, each from where it starts and as many as it has.
    pub(super) fn columns(&self, x: &Tensor, parts: &[Columns]) -> Result<Vec<Tensor>> {
        self.check(x, 2)?;
        let width = x.dim(1)?;
        let is_beyond = |&&(start, len): &&Columns| start.checked_add(len).is_none_or(|end| end > width);
        if let Some((start, len)) = parts.iter().find(is_beyond) {
            return Err(Error::invalid(format!("{width} columns have no {len} from {start} on")));
        }
        self.backend.columns(x, parts)
    }

    /// `kind(gate) · up`, the middle of a gated MLP.
    pub fn gate(&self, gate: &Tensor, up: &Tensor, kind: Activation) -> Result<Tensor> {
        self.check(gate, 2)?;
        self.check(up, 2)?;
        self.backend.gate(gate, up, kind)
    }

    /// Memory for so many blocks and slots of each group of a model's caches, all zero, each on the device that `places` says.
    pub(super) fn kv_cache(
        &self,
        shape: &KvShape,
        kind: KvType,
        counts: &[usize],
        places: impl Fn(usize) -> usize,
    ) -> Result<KvCache> {
        KvCache::new(
            shape,
            kind,
            counts,
            places,
            |place: usize, shape: StoreShape, by_kernels: bool| -> Result<Store> {
                let part = self.part(place);
                match if by_kernels { part.store(shape)? } else { part.formulas().store(shape)? } {
                    Store::Tensor(tensor) => Ok(Store::Tensor(self.backend.keeps(tensor, place)?)),
                    store => Ok(store),
                }
            },
        )
    }

    /// Remembers `k` and `v`, and has each token of `q` attend to its sequence so far.
    pub(super) fn attention(
        &self,
        spec: &Attention,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        pass: &mut Pass<'_>,
    ) -> Result<Tensor> {
        for x in [q, k, v] {
            self.check(x, 2)?;
        }
        self.backend.attention(spec, q, k, v, pass)
    }

    /// Remembers what is new, if there is anything, and has each token of `q` attend to its sequence so far; heads may be of
    /// any size, and the values a view of the keys.
    pub(super) fn attention_over(
        &self,
        spec: &Attention,
        q: &Tensor,
        new: Option<(&Tensor, Option<&Tensor>)>,
        pass: &mut Pass<'_>,
    ) -> Result<Tensor> {
        self.check(q, 2)?;
        for x in new.into_iter().flat_map(|(k, v)| [Some(k), v]).flatten() {
            self.check(x, 2)?;
        }
        self.backend.attention_over(spec, q, new, pass)
    }

    /// Convolves the step's tokens with those before them.
    pub(super) fn short_conv(&self, conv: &ShortConv, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        self.check(x, 2)?;
        self.backend.short_conv(conv, x, pass)
    }

    /// Takes a recurrence through the step's tokens.
    pub(super) fn recurrence(&self, spec: &Recurrence, x: Inputs<'_>, pass: &Pass<'_>) -> Result<Tensor> {
        for x in [x.q, x.k, x.v, x.decay, x.beta] {
            self.check(x, 2)?;
        }
        self.backend.recurrence(spec, x, pass)
    }

    /// The same of queries and keys that are rotated first.
    pub(super) fn rotated_attention(
        &self,
        spec: &Attention,
        [q, k, v]: [&Tensor; 3],
        rotation: &Rotation,
        pass: &mut Pass<'_>,
    ) -> Result<Tensor> {
        for x in [q, k, v] {
            self.check(x, 2)?;
        }
        self.backend.rotated_attention(spec, [q, k, v], rotation, pass)
    }
}

/// What computes on a device.
fn backend(device: Device, threads: usize, kernels: Kernels) -> Arc<dyn Backend> {
    match kernels {
        Kernels::Generic => Arc::new(Formulas::plain(device)),
        Kernels::Exact => Arc::new(Formulas::exact(device)),
        Kernels::Auto if device.is_cpu() => Arc::new(CpuKernels::new(threads)),
        Kernels::Auto => best(device),
    }
}

/// What computes on several devices.
fn spread(chosen: &Chosen, threads: usize, kernels: Kernels) -> Result<Arc<dyn Backend>> {
    let devices: Vec<Device> = std::iter::once(&chosen.device).chain(&chosen.beside).cloned().collect();
    #[cfg(feature = "cuda")]
    if devices.iter().all(Device::is_cuda) {
        let ours = match kernels {
            Kernels::Auto => devices.iter().map(super::backend::CudaKernels::proved).collect::<Result<Vec<_>>>().ok(),
            Kernels::Generic | Kernels::Exact => None,
        };
        let ours = ours.map(|ours| ours.into_iter().map(Arc::new).collect::<Vec<_>>());
        let interconnect = Arc::new(super::backend::CudaInterconnect::new(&devices, ours.clone())?);
        let parts = match ours {
            Some(ours) => ours.into_iter().map(|part| part as Arc<dyn Backend>).collect(),
            None => devices.into_iter().map(|device| backend(device, threads, kernels)).collect(),
        };
        return Ok(Arc::new(Spread::new(parts, interconnect)));
    }
    if !devices.iter().all(Device::is_cpu) {
        return Err(Error::unsupported(format!("layers cannot be spread over {}", chosen.name)));
    }
    let parts: Vec<_> = devices.into_iter().map(|device| backend(device, threads, kernels)).collect();
    Ok(Arc::new(Spread::new(parts, Arc::new(StandIns::default()))))
}

/// Our kernels for a device that has some which prove right on it, or else the formulas.
fn best(device: Device) -> Arc<dyn Backend> {
    #[allow(unused_mut, reason = "without such a device nothing declines")]
    let mut declined = None;
    #[cfg(feature = "cuda")]
    if device.is_cuda() {
        match super::backend::CudaKernels::proved(&device) {
            Ok(kernels) => return Arc::new(kernels),
            Err(error) => declined = Some(error.message),
        }
    }
    #[cfg(any(feature = "metal", target_os = "macos"))]
    if device.is_metal() {
        match super::backend::MetalKernels::proved(&device) {
            Ok(kernels) => return Arc::new(kernels),
            Err(error) => declined = Some(error.message),
        }
    }
    Arc::new(Formulas::probed(device, declined))
}
