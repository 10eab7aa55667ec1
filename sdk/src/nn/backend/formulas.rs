//! The reference formulas: every computation in stock candle ops, on every device that candle supports.
//!
//! candle's backends do not agree on what they accept: several Metal kernels silently compute nonsense on views, ranks
//! or offsets that the CPU handles. The rules that avoid this are followed here:
//!
//! - activations are `f32`, contiguous, at offset 0 of their storage (`Ops::check`);
//! - matrix products have rank 2 or 3, with the right side dense or exactly transposed;
//! - `index_select` reads from contiguous tensors, with `u32` ids that were range-checked on the host;
//! - masks are added, never selected by.
//!
//! candle has fused kernels for some formulas. Those that [`Formulas::probed`] found to agree with the formula on this
//! device are used instead.

use candle_core::quantized::{GgmlDType, QMatMul, QStorage, QTensor};
use candle_core::{D, DType, Device, Module, Tensor};
use pensieve_kernels::Activation;
use std::{
    borrow::Cow,
    ops::Range,
    sync::{Arc, OnceLock},
};

use super::{
    Backend, Changed, Form, LowRank, LowRankForm, Matrix, StoreShape, foreign,
    formulas_packed::{self, PackedTables},
};
use crate::{
    Error, Result,
    nn::{
        memory::store::Store,
        spec::{KvType, Rotation},
    },
    weights::{Dtype, RawTensor, RopeStyle},
};

/// Values that are gathered at once to be summed: 64 MiB, and as much for their products.
const GATHERED_VALUES_MAX: usize = 1 << 24;

/// The formulas on a device.
#[derive(Clone)]
pub(in crate::nn) struct Formulas {
    pub(super) device: Device,
    fused: Fused,
    /// Unpacks weights to `f32`; candle's quantized products would round activations.
    unpacks: bool,
    /// Why our own kernels are not used, on a device that has some.
    declined: Option<String>,
    /// What packed keys and values are read by.
    packed: Arc<OnceLock<PackedTables>>,
}

/// candle's fused ops that agreed with their formula on this device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Fused {
    rms_norm: bool,
    layer_norm: bool,
    softmax: bool,
    rope: bool,
}

impl Backend for Formulas {
    fn formulas(&self) -> &Formulas {
        self
    }

    fn note(&self) -> String {
        if self.unpacks {
            return "generic kernels on weights in f32".into();
        }
        match self.fused == Fused::default() {
            true => "generic kernels".into(),
            false => {
                let why = self.declined.as_ref().map(|why| format!("; ours are not used: {why}"));
                format!("candle's kernels ({:?}{})", self.fused, why.unwrap_or_default())
            }
        }
    }
}

impl Formulas {
    /// Formulas only.
    pub(in crate::nn) fn plain(device: Device) -> Self {
        Self { device, fused: Fused::default(), unpacks: false, declined: None, packed: Arc::default() }
    }

    /// Formulas over weights in single precision, whatever their storage format.
    pub(in crate::nn) fn exact(device: Device) -> Self {
        Self { unpacks: true, ..Self::plain(device) }
    }

    /// Formulas, plus candle's fused ops that agree with them on this device. `declined` is the reason why our own
    /// kernels are not used.
    pub(in crate::nn) fn probed(device: Device, declined: Option<String>) -> Self {
        let plain = Self::plain(device);
        Self { fused: plain.probe(), declined, ..plain }
    }

    /// Waits for a device that computes behind the host, and returns its errors.
    pub(super) fn finish(&self) -> Result<()> {
        // On CUDA every read-back waits, and its launch queue bounds how far the host is ahead.
        if self.device.is_metal() {
            self.device.synchronize()?;
        }
        Ok(())
    }

    pub(super) fn matrix(&self, raw: &RawTensor) -> Result<Form> {
        // Unpack on CUDA: quantized weights are read by our own kernels there, and candle's are left out of the build.
        let rows = raw.shape.first().copied().unwrap_or(0);
        let has_kernel = |dtype: &GgmlDType| !self.device.is_metal() || stays_within_bounds(*dtype, rows);
        let dtype = ggml(raw.dtype).filter(|_| !self.unpacks && !self.device.is_cuda()).filter(has_kernel);
        let Some(dtype) = dtype else { return Ok(Form::Dense(self.dense(raw)?)) };
        let storage = QStorage::from_data(Cow::Borrowed(&*raw.data), &self.device, dtype)?;
        let weight = Arc::new(QTensor::new(storage, raw.shape.as_slice())?);
        Ok(Form::Quantized(weight.clone(), QMatMul::from_arc(weight)?))
    }

    /// The heads' matrices in `f32`, `[heads, inputs, outputs]`.
    pub(super) fn head_matrix(&self, raw: &RawTensor, heads: usize) -> Result<Form> {
        let &[outputs, inputs] = raw.shape.as_slice() else { return Err(foreign("a shape")) };
        let values =
            Tensor::from_vec(pensieve_kernels::dequantize(raw)?, (heads, outputs / heads, inputs), &Device::Cpu)?;
        Ok(Form::Dense(values.transpose(1, 2)?.contiguous()?.to_device(&self.device)?))
    }

    pub(super) fn head_linear(&self, x: &Tensor, weight: &Matrix, heads: usize) -> Result<Tensor> {
        let Form::Dense(matrices) = &weight.form else { return Err(foreign("a weight")) };
        let rows = x.dim(0)?;
        let x = x.reshape((rows, heads, weight.inputs))?.transpose(0, 1)?.contiguous()?;
        // Of a transposed view, candle would copy one number at a time when it is reshaped.
        let out = x.matmul(matrices)?.transpose(0, 1)?.contiguous()?;
        Ok(out.reshape((rows, weight.outputs))?)
    }

    /// A dense matrix: in its own type on a GPU, in `f32` on the CPU, whose half-precision products are slow. Quantized
    /// types that candle does not support become dense, on a GPU in half precision.
    fn dense(&self, raw: &RawTensor) -> Result<Tensor> {
        let values = Tensor::from_vec(pensieve_kernels::dequantize(raw)?, raw.shape.as_slice(), &Device::Cpu)?;
        let dtype = match raw.dtype {
            _ if self.unpacks || self.device.is_cpu() => DType::F32,
            Dtype::F32 => DType::F32,
            Dtype::BF16 => DType::BF16,
            _ => DType::F16,
        };
        Ok(values.to_dtype(dtype)?.to_device(&self.device)?)
    }

    pub(super) fn linear(&self, x: &Tensor, weight: &Matrix, bias: Option<&Tensor>) -> Result<Tensor> {
        let out = match &weight.form {
            Form::Dense(w) => x.to_dtype(w.dtype())?.matmul(&w.t()?)?.to_dtype(DType::F32)?,
            Form::Quantized(_, w) => w.forward(x)?,
            _ => return Err(foreign("a weight")),
        };
        Ok(match bias {
            Some(bias) => out.broadcast_add(bias)?,
            None => out,
        })
    }

    pub(super) fn embed(&self, weight: &Matrix, ids: &[u32]) -> Result<Tensor> {
        match &weight.form {
            Form::Dense(w) => Ok(w.index_select(&self.ids(ids)?, 0)?.to_dtype(DType::F32)?),
            Form::Quantized(w, _) => Ok(w.embedding(&self.ids(ids)?)?.to_dtype(DType::F32)?),
            _ => Err(foreign("an embedding")),
        }
    }

    pub(super) fn low_rank(&self, rank: usize, down: Vec<f32>, up: Vec<f32>) -> Result<LowRankForm> {
        let (down_len, outputs) = (down.len(), up.len() / rank.max(1));
        Ok(LowRankForm::Tensors {
            down: Tensor::from_vec(down, down_len, &self.device)?,
            up: Tensor::from_vec(up, (rank, outputs), &self.device)?,
        })
    }

    pub(super) fn combine(&self, outs: &Tensor, places: &[u32], weights: &[f32], top_k: usize) -> Result<Tensor> {
        let width = outs.dim(1)?;
        let of = |(places, weights): (&[u32], &[f32])| -> Result<Tensor> {
            let rows = places.len() / top_k;
            let chosen = outs.index_select(&self.ids(places)?, 0)?.reshape((rows, top_k, width))?;
            let weights = Tensor::from_slice(weights, (rows, top_k, 1), &self.device)?;
            Ok(chosen.broadcast_mul(&weights)?.sum(1)?)
        };
        let most = (GATHERED_VALUES_MAX / (top_k * width).max(1)).max(1) * top_k;
        if places.len() <= most {
            return of((places, weights));
        }
        let parts = places.chunks(most).zip(weights.chunks(most)).map(of).collect::<Result<Vec<_>>>()?;
        Ok(Tensor::cat(&parts, 0)?.force_contiguous()?)
    }

    pub(super) fn add_low_rank(&self, x: &Tensor, out: &Tensor, groups: &[Changed<'_>]) -> Result<Tensor> {
        let inputs = x.dim(1)?;
        self.add_changes(out, groups, |rows, change, down| {
            let down = down.reshape((change.rank, inputs))?;
            Ok(self.rows(x, rows.start, rows.len())?.matmul(&down.t()?)?)
        })
    }

    pub(super) fn add_low_rank_vectors(&self, tokens: &[u32], out: &Tensor, groups: &[Changed<'_>]) -> Result<Tensor> {
        self.add_changes(out, groups, |rows, change, down| {
            let down = down.reshape(((), change.rank))?;
            Ok(down.index_select(&self.ids(&tokens[rows])?, 0)?)
        })
    }

    /// Adds `scale · inner · up` to groups of rows.
    fn add_changes(
        &self,
        out: &Tensor,
        groups: &[Changed<'_>],
        inner: impl Fn(Range<usize>, &LowRank, &Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let rows = out.dim(0)?;
        let (mut parts, mut next) = (Vec::new(), 0);
        for (range, change, scale) in groups {
            let LowRankForm::Tensors { down, up } = &change.form else { return Err(foreign("a change")) };
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

    /// Copies indices to the device.
    pub(in crate::nn) fn ids(&self, ids: &[u32]) -> Result<Tensor> {
        Ok(Tensor::new(ids, &self.device)?)
    }

    /// The rows `start..start + len` of an activation as a new tensor. (`contiguous` would keep the offset.)
    pub(in crate::nn) fn rows(&self, x: &Tensor, start: usize, len: usize) -> Result<Tensor> {
        if (start, len) == (0, x.dim(0)?) {
            return Ok(x.clone());
        }
        Ok(x.narrow(0, start, len)?.force_contiguous()?)
    }

    pub(super) fn rms_norm(&self, x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor> {
        if self.fused.rms_norm {
            return Ok(candle_nn::ops::rms_norm(x, weight, eps)?);
        }
        let mean = x.sqr()?.mean_keepdim(D::Minus1)?;
        Ok(x.broadcast_div(&(mean + f64::from(eps))?.sqrt()?)?.broadcast_mul(weight)?)
    }

    pub(super) fn layer_norm(&self, x: &Tensor, weight: &Tensor, bias: &Tensor, eps: f32) -> Result<Tensor> {
        if self.fused.layer_norm {
            return Ok(candle_nn::ops::layer_norm(x, weight, bias, eps)?);
        }
        let centred = x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?;
        let variance = centred.sqr()?.mean_keepdim(D::Minus1)?;
        let normed = centred.broadcast_div(&(variance + f64::from(eps))?.sqrt()?)?;
        Ok(normed.broadcast_mul(weight)?.broadcast_add(bias)?)
    }

    /// Sines and cosines of positions, each with a factor. Computed in `f32`, as in training.
    pub(super) fn rotation(
        &self,
        frequencies: &[f32],
        positions: impl ExactSizeIterator<Item = (u32, f32)>,
        style: RopeStyle,
    ) -> Result<Rotation> {
        let shape = (positions.len(), frequencies.len());
        let [cos, sin] = Self::angles(frequencies, positions);
        let (cos, sin) = (Tensor::from_vec(cos, shape, &self.device)?, Tensor::from_vec(sin, shape, &self.device)?);
        Ok(Rotation { cos, sin, style })
    }

    /// Cosines and sines of positions, `[positions, frequencies]`.
    pub(super) fn angles(frequencies: &[f32], positions: impl ExactSizeIterator<Item = (u32, f32)>) -> [Vec<f32>; 2] {
        let count = positions.len() * frequencies.len();
        let (mut cos, mut sin) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for (position, amplitude) in positions {
            for frequency in frequencies {
                let (s, c) = (position as f32 * frequency).sin_cos();
                cos.push(c * amplitude);
                sin.push(s * amplitude);
            }
        }
        [cos, sin]
    }

    pub(super) fn rotate(&self, x: &Tensor, head_dim: usize, rotation: &Rotation) -> Result<Tensor> {
        let Rotation { cos, sin, style } = rotation;
        let (tokens, width) = x.dims2()?;
        let (heads, half) = (width / head_dim, cos.dim(1)?);
        let x = x.reshape((tokens, heads, head_dim))?;
        let rotated = x.narrow(2, 0, 2 * half)?.contiguous()?;
        let rotated = if self.fused.rope && *style == RopeStyle::NeoX {
            let rotated = rotated.reshape((1, tokens, heads, 2 * half))?;
            candle_nn::rotary_emb::rope_thd(&rotated, cos, sin)?.reshape((tokens, heads, 2 * half))?
        } else {
            rotate_by_formula(&rotated, rotation)?
        };
        let out = if 2 * half == head_dim {
            rotated
        } else {
            Tensor::cat(&[&rotated, &x.narrow(2, 2 * half, head_dim - 2 * half)?], 2)?
        };
        Ok(out.contiguous()?.reshape((tokens, width))?)
    }

    pub(super) fn activate(&self, x: &Tensor, kind: Activation) -> Result<Tensor> {
        Ok(match kind {
            Activation::Silu => x.silu()?,
            Activation::GeluErf => x.gelu_erf()?,
            Activation::GeluTanh => x.gelu()?,
            Activation::Sigmoid => (x.neg()?.exp()? + 1.0)?.recip()?,
            Activation::Softplus => (x.relu()? + (x.abs()?.neg()?.exp()? + 1.0)?.log()?)?,
        })
    }

    /// Softmax over the last dimension of rank-3 scores.
    pub(super) fn softmax(&self, scores: &Tensor) -> Result<Tensor> {
        if self.fused.softmax {
            return Ok(candle_nn::ops::softmax_last_dim(scores)?);
        }
        let weights = scores.broadcast_sub(&scores.max_keepdim(D::Minus1)?)?.exp()?;
        Ok(weights.broadcast_div(&weights.sum_keepdim(D::Minus1)?)?)
    }

    pub(super) fn best(&self, logits: &Tensor) -> Result<Tensor> {
        let (rows, width) = logits.dims2()?;
        let highest = logits.max_keepdim(1)?;
        // Token ids in single precision, which is exact for any existing vocabulary.
        let tokens = Tensor::arange(0u32, width as u32, &self.device)?.to_dtype(DType::F32)?;
        let tokens = tokens.reshape((1, width))?.broadcast_as((rows, width))?.contiguous()?;
        let leads = logits.broadcast_eq(&highest)?;
        let first = leads.where_cond(&tokens, &tokens.affine(0.0, width as f64)?)?.min_keepdim(1)?;
        let sum = logits.broadcast_sub(&highest)?.exp()?.sum_keepdim(1)?;
        let total = (&highest + sum.log()?)?;
        Ok(Tensor::cat(&[&first, &highest, &total], 1)?)
    }

    pub(super) fn store(&self, shape: StoreShape) -> Result<Store> {
        let StoreShape { kv_heads, slots, head_dim, kind } = shape;
        if self.device.is_cpu() {
            // candle would abort the process if it runs out of memory.
            let bytes = shape.bytes().ok_or_else(|| Error::out_of_memory("the size overflows"))?;
            Vec::<u8>::new().try_reserve_exact(bytes).map_err(|error| Error::out_of_memory(error.to_string()))?;
        }
        if self.device.is_metal() {
            kind.check_metal()?;
        }
        Ok(Store::Tensor(Tensor::zeros((kv_heads, slots, kind.row_elements(head_dim)), kind.dtype(), &self.device)?))
    }

    /// Rows of a cache, `[heads, rows, elements]`, as `f32`: `[heads, rows, dim]`.
    pub(super) fn widen(&self, rows: &Tensor, kind: KvType, dim: usize) -> Result<Tensor> {
        let Some(packing) = kind.packing() else { return Ok(rows.to_dtype(DType::F32)?) };
        let tables = match self.packed.get() {
            Some(tables) => tables,
            None => {
                let tables = PackedTables::new(&self.device)?;
                self.packed.get_or_init(|| tables)
            }
        };
        tables.widen(rows, packing, dim)
    }

    /// New rows, `[heads, rows, dim]`, as a cache holds them.
    pub(super) fn narrow(&self, rows: &Tensor, kind: KvType) -> Result<Tensor> {
        match kind.packing() {
            Some(packing) => formulas_packed::packed(rows, packing),
            None => Ok(rows.to_dtype(kind.dtype())?),
        }
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
            rms_norm: agrees(|it| it.rms_norm(&it.wave(5, 96)?, &it.wave(1, 96)?.squeeze(0)?, 1e-5)),
            layer_norm: agrees(|it| {
                let weight = it.wave(1, 96)?.squeeze(0)?;
                it.layer_norm(&it.wave(5, 96)?, &weight, &weight, 1e-5)
            }),
            softmax: agrees(|it| it.softmax(&it.wave(6, 70)?.reshape((2, 3, 70))?)),
            rope: agrees(|it| {
                let rotation = Rotation { cos: it.wave(5, 8)?, sin: it.wave(5, 8)?, style: RopeStyle::NeoX };
                it.rotate(&it.wave(5, 96)?, 32, &rotation)
            }),
        }
    }

    /// A tensor without regularities that could hide an indexing error.
    pub(super) fn wave(&self, rows: usize, columns: usize) -> Result<Tensor> {
        wave(rows, columns, &self.device)
    }
}

/// Values between -2 and 2 that repeat nowhere, the same on every device: no regularity hides an indexing error.
pub(in crate::nn) fn wave(rows: usize, columns: usize, device: &Device) -> Result<Tensor> {
    let values = (0..rows * columns).map(|i| (i as f32 * 1.7).sin() + (i as f32 * 0.31).cos());
    Ok(Tensor::from_iter(values, &Device::Cpu)?.reshape((rows, columns))?.to_device(device)?)
}

fn rotate_by_formula(x: &Tensor, rotation: &Rotation) -> Result<Tensor> {
    let (tokens, heads, width) = x.dims3()?;
    let half = width / 2;
    let (cos, sin) = (rotation.cos.reshape((tokens, 1, half))?, rotation.sin.reshape((tokens, 1, half))?);
    let pairs = match rotation.style {
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
    Ok(match rotation.style {
        RopeStyle::NeoX => Tensor::cat(&[first, second], 2)?,
        RopeStyle::Interleaved => {
            let shape = (tokens * heads, half, 1);
            Tensor::cat(&[first.reshape(shape)?, second.reshape(shape)?], 2)?.reshape((tokens, heads, width))?
        }
    })
}

/// candle's quantized type; `None` for dense types and unsupported ones.
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

/// Whether candle's Metal kernel for a product with one row computes no more outputs than the weight has rows. Those for
/// k-quants do not look: a threadgroup writes all of its rows, and for `Q2_K` there are twice as many threadgroups as rows.
fn stays_within_bounds(dtype: GgmlDType, rows: usize) -> bool {
    match dtype {
        GgmlDType::Q2K => false,
        GgmlDType::Q3K | GgmlDType::Q4K | GgmlDType::Q5K => rows.is_multiple_of(4),
        GgmlDType::Q6K => rows.is_multiple_of(2),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use pensieve_kernels::Level;

    use super::*;
    use crate::{nn::backend::cpu::CpuKernels, weights::Bytes};

    #[test]
    fn candle_s_metal_products_are_used_where_they_write_no_row_too_many() {
        for (dtype, rows, expect) in [
            (GgmlDType::Q4K, 4096, true),
            (GgmlDType::Q4K, 32_003, false),
            (GgmlDType::Q5K, 6, false),
            (GgmlDType::Q6K, 6, true),
            (GgmlDType::Q6K, 32_003, false),
            (GgmlDType::Q2K, 4096, false),
            (GgmlDType::Q8_0, 32_003, true),
        ] {
            assert_eq!(stays_within_bounds(dtype, rows), expect, "{dtype:?}, {rows} rows");
        }
    }

    #[test]
    fn heads_and_joined_columns_are_those_of_the_kernels() {
        let (heads, outputs, inputs, rows) = (3, 5, 4, 7);
        let values =
            wave(heads * outputs, inputs, &Device::Cpu).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let data = Bytes::copy_of(&data).unwrap();
        let raw = RawTensor { name: "up".into(), dtype: Dtype::F32, shape: vec![heads * outputs, inputs], data };
        let x = wave(rows, heads * inputs, &Device::Cpu).unwrap();
        let (kernels, formulas) = (CpuKernels::new(2, Level::best()), Formulas::plain(Device::Cpu));
        let matrix = |form: Form| Matrix { outputs: heads * outputs, inputs, place: 0, form };
        let found = kernels.head_linear(&x, &matrix(kernels.head_matrix(&raw, heads).unwrap()), heads).unwrap();
        let expected = formulas.head_linear(&x, &matrix(formulas.head_matrix(&raw, heads).unwrap()), heads).unwrap();
        assert_eq!((found.dims(), expected.dims()), ([rows, heads * outputs].as_slice(), found.dims()));
        let worst = (&found - &expected).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
        assert!(worst < 1e-5, "{worst}");
        let joined = kernels.join(&[&x, &found]).unwrap();
        let expected = Tensor::cat(&[&x, &found], 1).unwrap();
        assert_eq!(joined.to_vec2::<f32>().unwrap(), expected.to_vec2::<f32>().unwrap());
    }

    #[test]
    fn the_best_of_a_row_is_its_first_highest_and_a_total_tells_of_what_is_no_number() {
        let formulas = Formulas::plain(Device::Cpu);
        let rows: [[f32; 4]; 5] = [
            [0.0, 2.0, 1.0, 2.0],
            [-5.0, f32::NEG_INFINITY, -7.0, -6.0],
            [1.0, f32::NAN, 0.0, 0.0],
            [1.0, f32::INFINITY, 0.0, 0.0],
            [f32::NEG_INFINITY; 4],
        ];
        let best = formulas.best(&Tensor::new(&rows, &Device::Cpu).unwrap()).unwrap().to_vec2::<f32>().unwrap();
        let total = |row: &[f32; 4]| row.iter().map(|logit| logit.exp()).sum::<f32>().ln();
        for (place, id) in [(0, 1.0), (1, 0.0)] {
            let [found, highest, sum] = best[place][..] else { panic!("{best:?}") };
            assert_eq!((found, highest), (id, rows[place][id as usize]));
            assert!((sum - total(&rows[place])).abs() < 1e-5, "{best:?}");
        }
        assert!(best[2..].iter().all(|row| !row[2].is_finite()), "{best:?}");
        for (row, best) in rows.iter().zip(&best) {
            let [first, highest, sum] = crate::nn::backend::best_of_row(row);
            let is_same = (first, highest) == (best[0], best[1]) && (sum - best[2]).abs() < 1e-5;
            assert!(is_same || !(sum.is_finite() || best[2].is_finite()), "{best:?}");
        }
    }
}
