//! Every computation of a model, each once: on the CPU through our own kernels, elsewhere through stock candle ops.
//!
//! candle's backends do not agree on what they accept: several Metal kernels silently compute nonsense on views, on
//! ranks or with offsets that the CPU handles. So no other file of this folder calls a candle kernel that has such a trap,
//! and the rules are checked here, on every device, so that a breach shows on the machine where it is written:
//!
//! - activations are `f32`, contiguous, at offset 0 of their storage ([`Ops::check`]);
//! - a matrix product is of rank 2 or 3, its right side dense or exactly transposed;
//! - `index_select` reads from contiguous tensors, by `u32` ids that were compared with the size on the host;
//! - a mask is added, never selected by.
//!
//! For each fused op there is the plain formula beside it. On a GPU the two are compared once when a model loads, and an op that
//! differs is dropped; `PENSIEVE_KERNELS=generic` uses formulas only, on every device, so that every machine
//! tests them.

use candle_core::quantized::{GgmlDType, QMatMul, QStorage, QTensor};
use candle_core::{D, DType, Device, Module, Tensor};
use std::{borrow::Cow, env, ops::Range, sync::Arc};

use super::{
    cpu::{self, Activation, Pool},
    device::Chosen,
    view::{tensor, view},
};
use crate::{
    Error, Result,
    weights::{Dtype, RawTensor, RopeStyle},
};

/// Values up to here are kept in half precision without harm.
const HALF_MAX: f32 = 32_768.0;

/// A weight `[outputs, inputs]` in the form that its device computes with.
#[derive(Clone, Debug)]
pub(super) struct Matrix {
    outputs: usize,
    inputs: usize,
    form: Form,
}

#[derive(Clone, Debug)]
enum Form {
    /// As it lies in the checkpoint's map; the CPU kernels read it there.
    InPlace(RawTensor),
    /// In the weight's own float type.
    Dense(Tensor),
    /// candle's copy in the checkpoint's block format.
    Quantized(Arc<QTensor>, QMatMul),
}

/// The factors of a low-rank change in the form that its device computes with.
#[derive(Clone, Debug)]
pub(super) struct LowRank {
    rank: usize,
    form: LowRankForm,
}

#[derive(Clone, Debug)]
enum LowRankForm {
    /// For the CPU kernels: row after row, in a float type.
    Rows { dtype: Dtype, down: Vec<u8>, up: Vec<u8> },
    /// One after the other, as a linear layer or an embedding will shape them, and `[rank, outputs]`.
    Tensors { down: Tensor, up: Tensor },
}

impl LowRank {
    /// Bytes of the factors.
    pub(super) fn bytes(&self) -> u64 {
        match &self.form {
            LowRankForm::Rows { down, up, .. } => (down.len() + up.len()) as u64,
            LowRankForm::Tensors { down, up } => 4 * (down.elem_count() + up.elem_count()) as u64,
        }
    }
}

/// An expert's layers (gate, up and down) with their biases, and the rows that want it.
pub(super) struct ExpertRows<'a> {
    pub(super) layers: [(&'a Matrix, Option<&'a Tensor>); 3],
    pub(super) rows: Range<usize>,
}

/// Rows of an activation, what changes them, and how much.
type Changed<'a> = (Range<usize>, &'a LowRank, f32);

impl Matrix {
    /// Whether it holds numbers of single precision.
    pub(super) fn is_f32(&self) -> bool {
        match &self.form {
            Form::InPlace(raw) => raw.dtype == Dtype::F32,
            Form::Dense(tensor) => tensor.dtype() == DType::F32,
            Form::Quantized(..) => false,
        }
    }

    /// Rows of the weight.
    pub(super) fn outputs(&self) -> usize {
        self.outputs
    }

    /// Columns of the weight.
    pub(super) fn inputs(&self) -> usize {
        self.inputs
    }
}

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
            _ => Err(Error::invalid(format!("{place} is '{name}'")).help("it is 'auto' or 'generic'")),
        }
    }
}

/// The computations of one model on its device.
#[derive(Clone)]
pub struct Ops {
    device: Device,
    /// The CPU kernels, unless formulas were asked for.
    pool: Option<Arc<Pool>>,
    fused: Fused,
}

/// Which of candle's fused ops may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Fused {
    rms_norm: bool,
    layer_norm: bool,
    softmax: bool,
    rope: bool,
}

impl Ops {
    /// The computations for a device, on `threads` CPU threads (0: all cores).
    pub(super) fn new(chosen: &Chosen, threads: usize, kernels: Kernels) -> Self {
        let generic = Self { device: chosen.device.clone(), pool: None, fused: Fused::default() };
        match kernels {
            Kernels::Generic => generic,
            Kernels::Auto if generic.device.is_cpu() => Self { pool: Some(Arc::new(Pool::new(threads))), ..generic },
            Kernels::Auto => Self { fused: generic.probe(), ..generic },
        }
    }

    /// Where tensors live.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The threads of the CPU kernels; none where candle computes.
    pub(super) fn pool(&self) -> Option<&Pool> {
        self.pool.as_deref()
    }

    /// Which kernels run, for a person.
    pub fn note(&self) -> String {
        match &self.pool {
            Some(pool) => format!("{} kernels on {} threads", pool.level().name(), pool.threads()),
            None if self.fused == Fused::default() => "generic kernels".into(),
            None => format!("candle's kernels ({:?})", self.fused),
        }
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
        .help("take parts of activations by Step::columns, or call .force_contiguous(): .contiguous() keeps a one-row view as it is"))
    }

    /// Takes in a weight matrix.
    pub(super) fn matrix(&self, raw: &RawTensor) -> Result<Matrix> {
        let &[outputs, inputs] = raw.shape.as_slice() else {
            return Err(Error::corrupt(format!("tensor '{}' has shape {:?}, not two dimensions", raw.name, raw.shape)));
        };
        let form = if self.pool.is_some() {
            Form::InPlace(raw.clone())
        } else if let Some(dtype) = ggml(raw.dtype) {
            let storage = QStorage::from_data(Cow::Borrowed(&*raw.data), &self.device, dtype)?;
            let weight = Arc::new(QTensor::new(storage, (outputs, inputs))?);
            Form::Quantized(weight.clone(), QMatMul::from_arc(weight)?)
        } else {
            Form::Dense(self.dense(raw)?)
        };
        Ok(Matrix { outputs, inputs, form })
    }

    /// Takes in a small dense tensor, such as a norm's weight or a bias, as `f32`.
    pub(super) fn vector(&self, raw: &RawTensor) -> Result<Tensor> {
        Ok(Tensor::from_vec(raw.to_f32()?, raw.shape.as_slice(), &self.device)?)
    }

    /// A dense matrix: in its own type on a GPU, in `f32` on the CPU, whose half-precision products are slow. Quantized ones
    /// that candle does not know become dense, on a GPU in half precision.
    fn dense(&self, raw: &RawTensor) -> Result<Tensor> {
        let values = Tensor::from_vec(cpu::dequantize(raw)?, raw.shape.as_slice(), &Device::Cpu)?;
        let dtype = match raw.dtype {
            _ if self.device.is_cpu() => DType::F32,
            Dtype::F32 => DType::F32,
            Dtype::BF16 => DType::BF16,
            _ => DType::F16,
        };
        Ok(values.to_dtype(dtype)?.to_device(&self.device)?)
    }

    /// `x · Wᵀ`, for `x` of shape `[rows, inputs]`.
    pub(super) fn linear(&self, x: &Tensor, weight: &Matrix) -> Result<Tensor> {
        self.check(x, 2)?;
        let (rows, inputs) = x.dims2()?;
        if inputs != weight.inputs {
            return Err(Error::invalid(format!("a linear layer of {} inputs was given {inputs}", weight.inputs)));
        }
        match &weight.form {
            Form::InPlace(raw) => {
                let mut out = vec![0.0; rows * weight.outputs];
                let matrix = cpu_matrix(raw, weight);
                cpu::matmul(self.cpu()?, &matrix, &view(x)?, rows, &mut out);
                tensor(out, (rows, weight.outputs))
            }
            Form::Dense(w) => Ok(x.to_dtype(w.dtype())?.matmul(&w.t()?)?.to_dtype(DType::F32)?),
            Form::Quantized(_, w) => Ok(w.forward(x)?),
        }
    }

    /// What experts make of their rows, which tile `x`, where there is a kernel for it.
    pub(super) fn experts(&self, x: &Tensor, experts: &[ExpertRows<'_>], glu: cpu::Glu) -> Result<Option<Tensor>> {
        self.check(x, 2)?;
        let (Some(pool), Some(first)) = (&self.pool, experts.first()) else { return Ok(None) };
        let (rows, outputs) = (x.dim(0)?, first.layers[2].0.outputs);
        let views = experts.iter().flat_map(|expert| &expert.layers).map(|(_, bias)| bias.map(view).transpose());
        let views = views.collect::<Result<Vec<_>>>()?;
        let mut found = Vec::with_capacity(experts.len());
        for (expert, views) in experts.iter().zip(views.chunks_exact(3)) {
            let mut layers = Vec::with_capacity(3);
            for ((weight, _), bias) in expert.layers.iter().zip(views) {
                let Form::InPlace(raw) = &weight.form else {
                    return Err(Error::invalid("an expert was loaded for other kernels"));
                };
                layers.push(cpu::Layer { weight: cpu_matrix(raw, weight), bias: bias.as_deref() });
            }
            let rows = expert.rows.clone();
            if let [gate, up, down] = layers[..] {
                found.push(cpu::Expert { gate, up, down, rows });
            }
        }
        let mut out = vec![0.0; rows * outputs];
        cpu::experts(pool, &found, glu, &view(x)?, &mut out);
        tensor(out, (rows, outputs)).map(Some)
    }

    /// The rows `ids` of a weight. The ids are below its outputs, as the batch was checked against the vocabulary.
    pub(super) fn embed(&self, weight: &Matrix, ids: &[u32]) -> Result<Tensor> {
        if let Some(id) = ids.iter().find(|&&id| id as usize >= weight.outputs) {
            return Err(Error::invalid(format!("row {id} of an embedding of {}", weight.outputs)));
        }
        match &weight.form {
            Form::InPlace(raw) => {
                let mut out = vec![0.0; ids.len() * weight.inputs];
                let row_bytes = raw.data.len() / weight.outputs;
                for (id, row) in ids.iter().zip(out.chunks_exact_mut(weight.inputs)) {
                    let start = *id as usize * row_bytes;
                    cpu::dequantize_row(raw.dtype, &raw.data[start..start + row_bytes], row);
                }
                tensor(out, (ids.len(), weight.inputs))
            }
            Form::Dense(w) => Ok(w.index_select(&self.ids(ids)?, 0)?.to_dtype(DType::F32)?),
            Form::Quantized(w, _) => Ok(w.embedding(&self.ids(ids)?)?.to_dtype(DType::F32)?),
        }
    }

    /// Takes in the factors of a change: `down` of `rank` rows, or of an embedding with `rank` columns, and `up` of `rank`
    /// rows. Beside weights of less than single precision, the CPU keeps them in half.
    pub(super) fn low_rank(&self, rank: usize, down: Vec<f32>, up: Vec<f32>, single: bool) -> Result<LowRank> {
        let form = if self.pool.is_some() {
            let is_half = !single && down.iter().chain(&up).all(|value| value.abs() < HALF_MAX);
            let pack = |values: Vec<f32>| -> Vec<u8> {
                if is_half {
                    values.iter().flat_map(|value| half::f16::from_f32(*value).to_le_bytes()).collect()
                } else {
                    values.iter().flat_map(|value| value.to_le_bytes()).collect()
                }
            };
            LowRankForm::Rows { dtype: if is_half { Dtype::F16 } else { Dtype::F32 }, down: pack(down), up: pack(up) }
        } else {
            let outputs = up.len() / rank.max(1);
            let (down_len, device) = (down.len(), &self.device);
            LowRankForm::Tensors {
                down: Tensor::from_vec(down, down_len, device)?,
                up: Tensor::from_vec(up, (rank, outputs), device)?,
            }
        };
        Ok(LowRank { rank, form })
    }

    /// Adds low-rank changes to rows of a linear layer's output; the groups of rows do not overlap.
    pub(super) fn add_low_rank(&self, x: &Tensor, out: Tensor, groups: &[Changed<'_>]) -> Result<Tensor> {
        self.check(x, 2)?;
        let inputs = x.dim(1)?;
        let values = if self.pool.is_some() { Some(view(x)?) } else { None };
        let row = |row: usize| match &values {
            Some(values) => Ok(cpu::Input::Values(&values[row * inputs..(row + 1) * inputs])),
            None => Err(Error::invalid("a change was loaded for other kernels")),
        };
        self.add_changes(out, groups, row, |rows, change, down| {
            let down = down.reshape((change.rank, inputs))?;
            Ok(self.rows(x, rows.start, rows.len())?.matmul(&down.t()?)?)
        })
    }

    /// Adds low-rank changes to the vectors of tokens.
    pub(super) fn add_low_rank_vectors(&self, tokens: &[u32], out: Tensor, groups: &[Changed<'_>]) -> Result<Tensor> {
        let row = |row: usize| Ok(cpu::Input::Token(tokens[row] as usize));
        self.add_changes(out, groups, row, |rows, change, down| {
            let down = down.reshape(((), change.rank))?;
            Ok(down.index_select(&self.ids(&tokens[rows])?, 0)?)
        })
    }

    /// Adds `scale · inner · up` to groups of rows.
    fn add_changes<'a>(
        &self,
        out: Tensor,
        groups: &'a [Changed<'_>],
        input: impl Fn(usize) -> Result<cpu::Input<'a>>,
        inner: impl Fn(Range<usize>, &LowRank, &Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        if groups.is_empty() {
            return Ok(out);
        }
        let (rows, outputs) = out.dims2()?;
        if let Some(pool) = &self.pool {
            let mut changes = Vec::new();
            for (range, change, scale) in groups {
                let LowRankForm::Rows { dtype, down, up } = &change.form else {
                    return Err(Error::invalid("a change was loaded for other kernels"));
                };
                let factors = cpu::Factors { dtype: *dtype, rank: change.rank, down, up };
                for row in range.clone() {
                    changes.push(cpu::Change { row, factors, scale: *scale, input: input(row)? });
                }
            }
            let mut values = view(&out)?.to_vec();
            cpu::low_rank(pool, &changes, outputs, &mut values);
            return tensor(values, (rows, outputs));
        }
        let (mut parts, mut next) = (Vec::new(), 0);
        for (range, change, scale) in groups {
            let LowRankForm::Tensors { down, up } = &change.form else {
                return Err(Error::invalid("a change was loaded for other kernels"));
            };
            if range.start > next {
                parts.push(out.narrow(0, next, range.start - next)?);
            }
            let change = (inner(range.clone(), change, down)?.matmul(up)? * f64::from(*scale))?;
            parts.push((out.narrow(0, range.start, range.len())? + change)?);
            next = range.end;
        }
        if next < rows {
            parts.push(out.narrow(0, next, rows - next)?);
        }
        Ok(Tensor::cat(&parts, 0)?)
    }

    /// Indices on the device.
    pub(super) fn ids(&self, ids: &[u32]) -> Result<Tensor> {
        Ok(Tensor::new(ids, &self.device)?)
    }

    /// The rows `rows` of an activation; they are below its first dimension.
    pub(super) fn select_rows(&self, x: &Tensor, rows: &[u32]) -> Result<Tensor> {
        self.check(x, 2)?;
        Ok(x.index_select(&self.ids(rows)?, 0)?)
    }

    /// The rows `start..start + len` of an activation as a tensor of their own. (`contiguous` would keep the offset.)
    pub(super) fn rows(&self, x: &Tensor, start: usize, len: usize) -> Result<Tensor> {
        if (start, len) == (0, x.dim(0)?) {
            return Ok(x.clone());
        }
        Ok(x.narrow(0, start, len)?.force_contiguous()?)
    }

    /// Root-mean-square norm over the last dimension.
    pub fn rms_norm(&self, x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor> {
        self.check(x, 2)?;
        if let Some(pool) = &self.pool {
            let (rows, width) = x.dims2()?;
            let mut out = vec![0.0; rows * width];
            cpu::rms_norm(pool, &view(x)?, rows, width, &view(weight)?, eps, &mut out);
            return tensor(out, (rows, width));
        }
        if self.fused.rms_norm {
            return Ok(candle_nn::ops::rms_norm(x, weight, eps)?);
        }
        let mean = x.sqr()?.mean_keepdim(D::Minus1)?;
        Ok(x.broadcast_div(&(mean + f64::from(eps))?.sqrt()?)?.broadcast_mul(weight)?)
    }

    /// Layer norm over the last dimension.
    pub fn layer_norm(&self, x: &Tensor, weight: &Tensor, bias: &Tensor, eps: f32) -> Result<Tensor> {
        self.check(x, 2)?;
        if let Some(pool) = &self.pool {
            let (rows, width) = x.dims2()?;
            let mut out = vec![0.0; rows * width];
            cpu::layer_norm(pool, &view(x)?, rows, width, &view(weight)?, Some(&view(bias)?), eps, &mut out);
            return tensor(out, (rows, width));
        }
        if self.fused.layer_norm {
            return Ok(candle_nn::ops::layer_norm(x, weight, bias, eps)?);
        }
        let centred = x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?;
        let variance = centred.sqr()?.mean_keepdim(D::Minus1)?;
        let normed = centred.broadcast_div(&(variance + f64::from(eps))?.sqrt()?)?;
        Ok(normed.broadcast_mul(weight)?.broadcast_add(bias)?)
    }

    /// Rotates the first `2 · cos.width` values of each head of `x`, of shape `[tokens, heads · head_dim]`.
    pub fn rotate(&self, x: &Tensor, head_dim: usize, cos: &Tensor, sin: &Tensor, style: RopeStyle) -> Result<Tensor> {
        self.check(x, 2)?;
        let (tokens, width) = x.dims2()?;
        let (heads, half) = (width / head_dim, cos.dim(1)?);
        if let Some(pool) = &self.pool {
            let mut out = view(x)?.to_vec();
            cpu::rope(pool, &mut out, tokens, heads, head_dim, 2 * half, style, &view(cos)?, &view(sin)?);
            return tensor(out, (tokens, width));
        }
        let x = x.reshape((tokens, heads, head_dim))?;
        let rotated = x.narrow(2, 0, 2 * half)?.contiguous()?;
        let rotated = if self.fused.rope && style == RopeStyle::NeoX {
            let rotated = rotated.reshape((1, tokens, heads, 2 * half))?;
            candle_nn::rotary_emb::rope_thd(&rotated, cos, sin)?.reshape((tokens, heads, 2 * half))?
        } else {
            rotate_by_formula(&rotated, cos, sin, style)?
        };
        let out = if 2 * half == head_dim {
            rotated
        } else {
            Tensor::cat(&[&rotated, &x.narrow(2, 2 * half, head_dim - 2 * half)?], 2)?
        };
        Ok(out.contiguous()?.reshape((tokens, width))?)
    }

    /// An activation function.
    pub fn activate(&self, x: &Tensor, kind: Activation) -> Result<Tensor> {
        self.check(x, 2)?;
        if let Some(pool) = &self.pool {
            let mut out = view(x)?.to_vec();
            cpu::activate(pool, kind, &mut out);
            return tensor(out, x.dims2()?);
        }
        Ok(match kind {
            Activation::Silu => x.silu()?,
            Activation::GeluErf => x.gelu_erf()?,
            Activation::GeluTanh => x.gelu()?,
        })
    }

    /// `kind(gate) · up`, the middle of a gated MLP.
    pub fn gate(&self, gate: &Tensor, up: &Tensor, kind: Activation) -> Result<Tensor> {
        self.check(gate, 2)?;
        self.check(up, 2)?;
        if let Some(pool) = &self.pool {
            let mut out = vec![0.0; gate.elem_count()];
            cpu::activate_mul(pool, kind, &view(gate)?, &view(up)?, &mut out);
            return tensor(out, gate.dims2()?);
        }
        Ok((self.activate(gate, kind)? * up)?)
    }

    /// Softmax over the last dimension of scores of rank 3.
    pub fn softmax(&self, scores: &Tensor) -> Result<Tensor> {
        self.check(scores, 3)?;
        if self.fused.softmax {
            return Ok(candle_nn::ops::softmax_last_dim(scores)?);
        }
        let weights = scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?)?.exp()?;
        Ok(weights.broadcast_div(&weights.sum_keepdim(D::Minus1)?)?)
    }

    /// The batched product of two tensors of rank 3, both dense.
    pub fn matmul(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        self.check(a, 3)?;
        self.check(b, 3)?;
        Ok(a.matmul(b)?)
    }

    /// The batched product of `a` and the transposed `b`, both dense and of rank 3.
    pub fn matmul_transposed(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        self.check(a, 3)?;
        self.check(b, 3)?;
        Ok(a.matmul(&b.transpose(1, 2)?)?)
    }

    fn cpu(&self) -> Result<&Pool> {
        self.pool().ok_or_else(|| Error::invalid("a weight was loaded for other kernels"))
    }

    /// Compares each fused op with its formula on this device.
    fn probe(&self) -> Fused {
        let all = Fused { rms_norm: true, layer_norm: true, softmax: true, rope: true };
        let fused = Self { fused: all, ..self.clone() };
        let agrees = |compute: fn(&Self) -> Result<Tensor>| {
            let (Ok(ours), Ok(formula)) = (compute(&fused), compute(self)) else { return false };
            let difference = (ours - formula).and_then(|d| d.abs()?.max_all()?.to_scalar::<f32>());
            difference.is_ok_and(|difference| difference < 1e-4)
        };
        Fused {
            rms_norm: agrees(|ops| ops.rms_norm(&ops.wave(5, 96)?, &ops.wave(1, 96)?.squeeze(0)?, 1e-5)),
            layer_norm: agrees(|ops| {
                let weight = ops.wave(1, 96)?.squeeze(0)?;
                ops.layer_norm(&ops.wave(5, 96)?, &weight, &weight, 1e-5)
            }),
            softmax: agrees(|ops| ops.softmax(&ops.wave(6, 70)?.reshape((2, 3, 70))?)),
            rope: agrees(|ops| ops.rotate(&ops.wave(5, 96)?, 32, &ops.wave(5, 8)?, &ops.wave(5, 8)?, RopeStyle::NeoX)),
        }
    }

    /// A tensor without regularities that an indexing error could hide behind.
    fn wave(&self, rows: usize, columns: usize) -> Result<Tensor> {
        let values = (0..rows * columns).map(|i| (i as f32 * 1.7).sin() + (i as f32 * 0.31).cos());
        Ok(Tensor::from_iter(values, &self.device)?.reshape((rows, columns))?)
    }
}

fn rotate_by_formula(x: &Tensor, cos: &Tensor, sin: &Tensor, style: RopeStyle) -> Result<Tensor> {
    let (tokens, heads, width) = x.dims3()?;
    let half = width / 2;
    let (cos, sin) = (cos.reshape((tokens, 1, half))?, sin.reshape((tokens, 1, half))?);
    let pairs = match style {
        RopeStyle::NeoX => (x.narrow(2, 0, half)?, x.narrow(2, half, half)?),
        RopeStyle::Interleaved => {
            let x = x.reshape((tokens * heads, half, 2))?;
            let column = |i| x.narrow(2, i, 1)?.contiguous()?.reshape((tokens, heads, half));
            (column(0)?, column(1)?)
        }
    };
    let (a, b) = (pairs.0.contiguous()?, pairs.1.contiguous()?);
    let first = (a.broadcast_mul(&cos)? - b.broadcast_mul(&sin)?)?;
    let second = (a.broadcast_mul(&sin)? + b.broadcast_mul(&cos)?)?;
    Ok(match style {
        RopeStyle::NeoX => Tensor::cat(&[first, second], 2)?,
        RopeStyle::Interleaved => {
            let shape = (tokens * heads, half, 1);
            Tensor::cat(&[first.reshape(shape)?, second.reshape(shape)?], 2)?.reshape((tokens, heads, width))?
        }
    })
}

fn cpu_matrix<'a>(raw: &'a RawTensor, weight: &Matrix) -> cpu::Matrix<'a> {
    cpu::Matrix { dtype: raw.dtype, data: &raw.data, rows: weight.outputs, cols: weight.inputs }
}

/// candle's name of a quantized type; none for the dense ones, and for those that it does not have.
fn ggml(dtype: Dtype) -> Option<GgmlDType> {
    match dtype {
        Dtype::Q4_0 => Some(GgmlDType::Q4_0),
        Dtype::Q4_1 => Some(GgmlDType::Q4_1),
        Dtype::Q5_0 => Some(GgmlDType::Q5_0),
        Dtype::Q5_1 => Some(GgmlDType::Q5_1),
        Dtype::Q8_0 => Some(GgmlDType::Q8_0),
        Dtype::Q2K => Some(GgmlDType::Q2K),
        Dtype::Q3K => Some(GgmlDType::Q3K),
        Dtype::Q4K => Some(GgmlDType::Q4K),
        Dtype::Q5K => Some(GgmlDType::Q5K),
        Dtype::Q6K => Some(GgmlDType::Q6K),
        _ => None,
    }
}
