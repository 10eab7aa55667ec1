//! The backend of CUDA devices: our own kernels, cuBLAS for products of many rows, and one launch for a step that decodes.
//!
//! A step's tokens, positions and block tables go to the device in one copy ([`inputs`]), and every kernel takes all
//! sequences of the batch at once. What a kernel does not cover (formats, head sizes, adapters) is left to the formulas,
//! which run on the same device. At load a few kernels are held against the formulas, and none of them is used on a device
//! where they differ.

mod graph;
mod inputs;
mod module;
mod weights;

use candle_core::{CudaDevice, DType, Device, Tensor, TensorId, cuda_backend::cudarc::driver::CudaSlice};
use half::bf16;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

pub(in crate::nn) use weights::Weight;

use self::{
    graph::Graphs,
    inputs::Inputs,
    module::{Arg, Module, Segment, Segments, failed, kv_suffix},
    weights::Format,
};
use super::{Backend, Computed, Form, Formulas, Matrix, Rotation, StoreShape};
use crate::{
    Batch, Error, Result,
    nn::{Attention, Step, cpu::Activation, kv::Store},
    weights::{Dtype, RawTensor, RopeStyle},
};

/// Rows up to which a product reads quantized weights as they are; more are multiplied as unpacked matrices.
const FEW_ROWS_MAX: usize = 32;

/// Threads of elementwise kernels.
const THREADS: usize = 256;

/// Parts that a context is divided into at most, and the keys of the smallest part, as `attention.cu` has them.
const SPLITS_MAX: usize = 32;
const SPLIT_KEYS: usize = 64;

/// Values in a head that `attend` can take.
const HEAD_DIM_MAX: usize = 256;

/// Counters of blocks that have finished their part of a context.
const COUNTERS: usize = 1 << 16;

/// The kernels on a device, and what a step needs of it.
pub(in crate::nn) struct CudaKernels {
    module: Module,
    formulas: Formulas,
    inputs: Mutex<Inputs>,
    graphs: Mutex<Graphs>,
    prepared: Mutex<Vec<(TensorId, Reader, Arc<Prepared>)>>,
    /// By the bits of the frequencies.
    frequencies: Mutex<HashMap<Vec<u32>, CudaSlice<f32>>>,
    counters: CudaSlice<u32>,
}

/// An activation as products read it.
struct Prepared {
    high: CudaSlice<u16>,
    /// What products of few rows read besides.
    few: Option<Few>,
}

struct Few {
    low: CudaSlice<u16>,
    sums: CudaSlice<f32>,
    row_scales: CudaSlice<f32>,
}

/// What an activation is prepared for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reader {
    /// Few rows with quantized weights.
    Quantized,
    /// Few rows with bf16 weights.
    Halves,
    /// Many rows, by cuBLAS.
    Many,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CudaKernels {
    /// The kernels, if they compute what the formulas do on this device.
    pub(in crate::nn) fn proved(device: &Device) -> Result<Self> {
        let cuda: &CudaDevice = device.as_cuda_device()?;
        let module = Module::load(cuda)?;
        let inputs = Mutex::new(Inputs::new(&module)?);
        let counters = module.stream.alloc_zeros(COUNTERS).map_err(failed)?;
        let kernels = Self {
            module,
            formulas: Formulas::plain(device.clone()),
            inputs,
            graphs: Mutex::default(),
            prepared: Mutex::default(),
            frequencies: Mutex::default(),
            counters,
        };
        kernels.prove()?;
        Ok(kernels)
    }

    /// Compares kernels with their formulas.
    fn prove(&self) -> Result<()> {
        let wave = |rows, columns| self.formulas.wave(rows, columns);
        let same = |what: &str, ours: Result<Tensor>, formula: Result<Tensor>| -> Result<()> {
            let difference = (ours? - formula?)?.abs()?.max_all()?.to_scalar::<f32>()?;
            if difference < 1e-4 { Ok(()) } else { Err(failed(format!("{what} differs by {difference}"))) }
        };
        let (x, y, weight) = (wave(5, 96)?, wave(5, 96)?, wave(1, 96)?.squeeze(0)?);
        same("rms_norm", self.rms_norm(&x, &weight, 1e-5), self.formulas.rms_norm(&x, &weight, 1e-5))?;
        same(
            "layer_norm",
            self.layer_norm(&x, &weight, &weight, 1e-5),
            self.formulas.layer_norm(&x, &weight, &weight, 1e-5),
        )?;
        for kind in [Activation::Silu, Activation::GeluErf, Activation::GeluTanh] {
            same("gate", self.gate(&x, &y, kind), self.formulas.gate(&x, &y, kind))?;
        }
        for style in [RopeStyle::NeoX, RopeStyle::Interleaved] {
            let rotation = Rotation { cos: wave(5, 8)?, sin: wave(5, 8)?, style };
            same("rotate", self.rotate(&x, 32, &rotation), self.formulas.rotate(&x, 32, &rotation))?;
        }
        Ok(())
    }

    /// The address of a dense `f32` tensor.
    fn at(&self, tensor: &Tensor) -> Result<Arg> {
        Ok(Arg::Address(self.module.tensor::<f32>(tensor)?))
    }

    /// The form of `x` that products read. Layers that share an input share it.
    fn prepare(&self, x: &Tensor, reader: Reader) -> Result<Arc<Prepared>> {
        let mut cache = locked(&self.prepared);
        if let Some((_, _, prepared)) = cache.iter().find(|(id, of, _)| *id == x.id() && *of == reader) {
            return Ok(prepared.clone());
        }
        let (module, (rows, width)) = (&self.module, x.dims2()?);
        let high = module.room::<u16>(rows * width)?;
        let high_at = module.address(&high).into();
        let few = if reader == Reader::Many {
            let count = rows * width;
            let args = [self.at(x)?, Arg::Size(count), high_at];
            module.launch("to_bf16", ((count / 4).div_ceil(THREADS), 1, 1), THREADS, 0, &args)?;
            None
        } else {
            let few = Few {
                low: module.room(if reader == Reader::Halves { rows * width } else { 1 })?,
                sums: module.room(rows.div_ceil(8) * (width / 16 * 12))?,
                row_scales: module.room(rows)?,
            };
            let args = [
                self.at(x)?,
                width.into(),
                Arg::Int(i32::from(reader == Reader::Halves)),
                high_at,
                module.address(&few.low).into(),
                module.address(&few.sums).into(),
                module.address(&few.row_scales).into(),
            ];
            module.launch("prepare", (rows, 1, 1), 512, 0, &args)?;
            Some(few)
        };
        let prepared = Arc::new(Prepared { high, few });
        if cache.len() == 2 {
            cache.remove(0);
        }
        cache.push((x.id(), reader, prepared.clone()));
        Ok(prepared)
    }

    /// Products of one activation with up to three weights of one format.
    fn products(&self, x: &Tensor, weights: &[(&Weight, &Matrix, Option<&Tensor>)]) -> Result<Vec<Tensor>> {
        let (module, (rows, inputs)) = (&self.module, x.dims2()?);
        let format = weights[0].0.format;
        let bias_of = |bias: &Option<&Tensor>| bias.map(|bias| module.tensor::<f32>(bias)).transpose();
        if rows > FEW_ROWS_MAX {
            let each =
                weights.iter().map(|(weight, shape, bias)| self.product_of_many(x, weight, shape, bias_of(bias)?));
            return each.collect();
        }
        let prepared = self.prepare(x, if format == Format::Bf16 { Reader::Halves } else { Reader::Quantized })?;
        let Some(few) = &prepared.few else { return Err(failed("an activation was prepared for other products")) };
        let mut segments = Segments::default();
        let (mut outs, mut blocks) = (Vec::new(), 0);
        for ((weight, shape, bias), segment) in weights.iter().zip(&mut segments.0) {
            let out = module.room::<f32>(rows * shape.outputs)?;
            blocks += shape.outputs.div_ceil(16);
            *segment = Segment {
                data: module.address(&weight.data),
                scales: module.address(&weight.scales),
                bias: bias_of(bias)?.unwrap_or_default(),
                out: module.address(&out),
                outputs: shape.outputs as i32,
                last_block: blocks as i32,
            };
            outs.push(module.wrap(out, (rows, shape.outputs)));
        }
        let tiles = rows.div_ceil(8).next_power_of_two();
        module.launch(
            &format!("product_{}_{tiles}", format.name()),
            (blocks, 1, 1),
            product_threads(blocks, inputs),
            0,
            &[
                Arg::Segments(segments),
                module.address(&prepared.high).into(),
                module.address(&few.low).into(),
                module.address(&few.sums).into(),
                module.address(&few.row_scales).into(),
                rows.into(),
                inputs.into(),
            ],
        )?;
        Ok(outs)
    }

    /// A product of many rows: of unpacked weights, by cuBLAS.
    fn product_of_many(&self, x: &Tensor, weight: &Weight, shape: &Matrix, bias: Option<u64>) -> Result<Tensor> {
        let (module, rows) = (&self.module, x.dim(0)?);
        let (outputs, inputs) = (shape.outputs, shape.inputs);
        let prepared = self.prepare(x, Reader::Many)?;
        let out = module.room::<f32>(rows * outputs)?;
        let (data, scales) = (module.address(&weight.data), module.address(&weight.scales));
        let (high, dims) = (module.address(&prepared.high), [rows, outputs, inputs]);
        if weight.format == Format::Bf16 {
            module.gemm_bf16(high, data, module.address(&out), dims)?;
        } else {
            let unpacked = module.room::<bf16>(outputs * inputs)?;
            let (at, count) = (module.address(&unpacked), outputs * inputs);
            module.launch(
                &format!("unpack_{}", weight.format.name()),
                ((count / 4).div_ceil(THREADS), 1, 1),
                THREADS,
                0,
                &[data.into(), scales.into(), Arg::Size(count), at.into()],
            )?;
            module.gemm_bf16(high, at, module.address(&out), dims)?;
        }
        if let Some(bias) = bias {
            let count = rows * outputs;
            let args = [bias.into(), outputs.into(), Arg::Size(count), module.address(&out).into()];
            module.launch("add_bias", (count.div_ceil(THREADS), 1, 1), THREADS, 0, &args)?;
        }
        Ok(module.wrap(out, (rows, outputs)))
    }

    /// An elementwise kernel over one or two inputs.
    fn elementwise(&self, name: &str, inputs: &[&Tensor], kind: Activation) -> Result<Tensor> {
        let (count, shape) = (inputs[0].elem_count(), inputs[0].dims2()?);
        let out = self.module.room::<f32>(count)?;
        let kind = match kind {
            Activation::Silu => 0,
            Activation::GeluErf => 1,
            Activation::GeluTanh => 2,
        };
        let mut args = inputs.iter().map(|input| self.at(input)).collect::<Result<Vec<_>>>()?;
        args.extend([Arg::Int(kind), Arg::Size(count), self.module.address(&out).into()]);
        self.module.launch(name, (count.div_ceil(THREADS), 1, 1), THREADS, 0, &args)?;
        Ok(self.module.wrap(out, shape))
    }

    /// Attention of tokens one by one: all of a step's, or those that its inputs single out.
    fn attend(&self, spec: &Attention, q: &Tensor, cache: &Cache, all: bool, out: u64) -> Result<()> {
        let (module, inputs) = (&self.module, locked(&self.inputs));
        let shared = spec.heads / spec.kv_heads;
        let grouped = [1, 2, 4, 8].into_iter().find(|&group| group >= shared).unwrap_or(8);
        let groups = spec.kv_heads * shared.div_ceil(grouped);
        let (count, longest) =
            if all { (inputs.tokens, inputs.longest_of_all) } else { (inputs.single, inputs.longest) };
        let splits = splits(longest);
        let at_once = (COUNTERS / groups).min(512);
        let partials = if splits > 1 { count.min(at_once) * spec.heads * splits * (spec.head_dim + 2) } else { 1 };
        let partials = module.room::<f32>(partials)?;
        let subsets = 128 / (spec.head_dim / 2);
        let shared_bytes = 4 * grouped * spec.head_dim * (1 + subsets);
        for first in (0..count).step_by(at_once) {
            module.launch(
                &format!("attend_{}_{grouped}", cache.suffix),
                (splits, groups, at_once.min(count - first)),
                128,
                shared_bytes,
                &[
                    self.at(q)?,
                    cache.keys.into(),
                    cache.values.into(),
                    if all { Arg::Address(0) } else { inputs.singles(module).into() },
                    first.into(),
                    inputs.lens(module).into(),
                    inputs.table_starts(module, cache.group).into(),
                    inputs.tables(module).into(),
                    spec.scale.into(),
                    spec.softcap.unwrap_or(0.0).into(),
                    spec.window.unwrap_or(0).into(),
                    spec.heads.into(),
                    spec.kv_heads.into(),
                    spec.head_dim.into(),
                    Arg::Size(cache.slots),
                    module.address(&partials).into(),
                    module.address(&self.counters).into(),
                    out.into(),
                ],
            )?;
        }
        Ok(())
    }

    /// Attention of the step's prompt tiles.
    fn attend_tiles(&self, spec: &Attention, q: &Tensor, cache: &Cache, out: u64) -> Result<()> {
        let (module, inputs) = (&self.module, locked(&self.inputs));
        module.launch(
            &format!("attend_tiles_{}", spec.head_dim),
            (inputs.tiles, spec.heads, 1),
            128,
            2 * 64 * (spec.head_dim + 8) * 2,
            &[
                self.at(q)?,
                cache.keys.into(),
                cache.values.into(),
                inputs.tiles(module, cache.group).into(),
                inputs.tables(module).into(),
                spec.scale.into(),
                spec.softcap.unwrap_or(0.0).into(),
                spec.window.unwrap_or(0).into(),
                spec.heads.into(),
                spec.kv_heads.into(),
                Arg::Size(cache.slots),
                out.into(),
            ],
        )
    }
}

/// Threads of a block of a product: as many warps as divide the columns of W among them, fewer where there are many rows of
/// it. It depends on W alone, so that a row's result does not depend on the batch.
fn product_threads(blocks: usize, inputs: usize) -> usize {
    if blocks >= 400 && inputs <= 4096 { 128 } else { 512 }
}

/// Parts that the longest context is divided into, as a power of two, so that few graphs serve all lengths.
fn splits(longest: usize) -> usize {
    longest.div_ceil(SPLIT_KEYS).next_power_of_two().clamp(1, SPLITS_MAX)
}

/// A layer's keys and values.
struct Cache {
    keys: u64,
    values: u64,
    slots: usize,
    suffix: &'static str,
    /// The group of caches whose tables say where tokens lie.
    group: usize,
}

impl Backend for CudaKernels {
    fn formulas(&self) -> &Formulas {
        &self.formulas
    }

    fn note(&self) -> String {
        "our CUDA kernels".into()
    }

    fn begin(&self, batch: &Batch<'_>) -> Result<()> {
        locked(&self.prepared).clear();
        if !locked(&self.inputs).set(&self.module, batch, 0)? {
            locked(&self.graphs).clear();
        }
        Ok(())
    }

    fn decode(
        &self,
        batch: &Batch<'_>,
        run: &mut dyn FnMut(&Batch<'_>) -> Result<Computed>,
        logits: &mut [f32],
    ) -> Result<bool> {
        graph::decode(self, batch, run, logits)
    }

    fn matrix(&self, raw: &RawTensor) -> Result<Form> {
        let inputs = raw.shape.last().copied().unwrap_or_default();
        let weight = match Format::of(raw.dtype, inputs) {
            Some(format) => Weight::upload(&self.module, raw, format)?,
            None if matches!(raw.dtype, Dtype::F32 | Dtype::F16) || !inputs.is_multiple_of(32) => {
                return self.formulas.matrix(raw);
            }
            None => Weight::unpacked(&self.module, raw)?,
        };
        Ok(Form::Cuda(Arc::new(weight)))
    }

    fn linear(&self, x: &Tensor, weight: &Matrix, bias: Option<&Tensor>) -> Result<Tensor> {
        match &weight.form {
            Form::Cuda(ours) => {
                let mut outs = self.products(x, &[(ours, weight, bias)])?;
                outs.pop().ok_or_else(|| failed("a product has no result"))
            }
            _ => self.formulas.linear(x, weight, bias),
        }
    }

    fn embed(&self, weight: &Matrix, step: &Step<'_>) -> Result<Tensor> {
        let (module, width, tokens) = (&self.module, weight.inputs, step.input().tokens.len());
        let (kernel, mut args) = match &weight.form {
            Form::Cuda(ours) if ours.format == Format::Bf16 => {
                ("rows_bf16".to_owned(), vec![Arg::Address(module.address(&ours.data))])
            }
            Form::Cuda(ours) => {
                let args = vec![module.address(&ours.data).into(), module.address(&ours.scales).into()];
                (format!("rows_{}", ours.format.name()), args)
            }
            Form::Dense(table) if table.dtype() == DType::F32 => ("rows_f32".to_owned(), vec![self.at(table)?]),
            Form::Dense(table) if table.dtype() == DType::F16 => {
                ("rows_f16".to_owned(), vec![Arg::Address(module.tensor::<half::f16>(table)?)])
            }
            _ => return self.formulas.embed(weight, step.tokens()),
        };
        let out = module.room::<f32>(tokens * width)?;
        let ids = locked(&self.inputs).token_ids(module);
        args.extend([Arg::Address(ids), width.into(), module.address(&out).into()]);
        module.launch(&kernel, (tokens, 1, 1), THREADS, 0, &args)?;
        Ok(module.wrap(out, (tokens, width)))
    }

    fn rms_norm(&self, x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor> {
        let (module, (rows, width)) = (&self.module, x.dims2()?);
        let out = module.room::<f32>(rows * width)?;
        let none = Arg::Address(0);
        let args = [self.at(x)?, none, self.at(weight)?, eps.into(), width.into(), none, module.address(&out).into()];
        module.launch("rms_norm", (rows, 1, 1), norm_threads(width), 0, &args)?;
        Ok(module.wrap(out, (rows, width)))
    }

    fn add_rms_norm(&self, x: &Tensor, delta: &Tensor, weight: &Tensor, eps: f32) -> Result<(Tensor, Tensor)> {
        let (module, (rows, width)) = (&self.module, x.dims2()?);
        let (sum, out) = (module.room::<f32>(rows * width)?, module.room::<f32>(rows * width)?);
        let (sum_at, out_at) = (module.address(&sum), module.address(&out));
        let args =
            [self.at(x)?, self.at(delta)?, self.at(weight)?, eps.into(), width.into(), sum_at.into(), out_at.into()];
        module.launch("rms_norm", (rows, 1, 1), norm_threads(width), 0, &args)?;
        Ok((module.wrap(sum, (rows, width)), module.wrap(out, (rows, width))))
    }

    fn layer_norm(&self, x: &Tensor, weight: &Tensor, bias: &Tensor, eps: f32) -> Result<Tensor> {
        let (module, (rows, width)) = (&self.module, x.dims2()?);
        let out = module.room::<f32>(rows * width)?;
        let out_at = module.address(&out);
        let args = [self.at(x)?, self.at(weight)?, self.at(bias)?, eps.into(), width.into(), out_at.into()];
        module.launch("layer_norm", (rows, 1, 1), norm_threads(width), 0, &args)?;
        Ok(module.wrap(out, (rows, width)))
    }

    fn rotation(
        &self,
        frequencies: &[f32],
        amplitude: f32,
        factors: Option<&[f32]>,
        style: RopeStyle,
        step: &Step<'_>,
    ) -> Result<Rotation> {
        if let Some(factors) = factors {
            let positions = step.positions().iter().zip(factors).map(|(&at, factor)| (at, amplitude * factor));
            return self.formulas.rotation(frequencies, positions, style);
        }
        let (module, half) = (&self.module, frequencies.len());
        let mut cache = locked(&self.frequencies);
        let key: Vec<u32> = frequencies.iter().map(|value| value.to_bits()).collect();
        let on_device = match cache.entry(key) {
            std::collections::hash_map::Entry::Occupied(found) => module.address(found.into_mut()),
            std::collections::hash_map::Entry::Vacant(place) => {
                module.address(place.insert(module.stream.clone_htod(frequencies).map_err(failed)?))
            }
        };
        let inputs = locked(&self.inputs);
        let (tokens, count) = (inputs.tokens, inputs.tokens * half);
        let (cos, sin) = (module.room::<f32>(count)?, module.room::<f32>(count)?);
        let args = [
            inputs.positions(module).into(),
            on_device.into(),
            amplitude.into(),
            tokens.into(),
            half.into(),
            module.address(&cos).into(),
            module.address(&sin).into(),
        ];
        module.launch("angles", (count.div_ceil(THREADS), 1, 1), THREADS, 0, &args)?;
        let (cos, sin) = (module.wrap(cos, (tokens, half)), module.wrap(sin, (tokens, half)));
        Ok(Rotation { cos, sin, style })
    }

    fn rotate(&self, x: &Tensor, head_dim: usize, rotation: &Rotation) -> Result<Tensor> {
        let (module, (tokens, width)) = (&self.module, x.dims2()?);
        let out = module.room::<f32>(tokens * width)?;
        let args = [
            self.at(x)?,
            self.at(&rotation.cos)?,
            self.at(&rotation.sin)?,
            (width / head_dim).into(),
            head_dim.into(),
            rotation.cos.dim(1)?.into(),
            Arg::Int(i32::from(rotation.style == RopeStyle::Interleaved)),
            module.address(&out).into(),
        ];
        module.launch("rotate", (tokens, 1, 1), THREADS, 0, &args)?;
        Ok(module.wrap(out, (tokens, width)))
    }

    fn activate(&self, x: &Tensor, kind: Activation) -> Result<Tensor> {
        self.elementwise("activate", &[x], kind)
    }

    fn gate(&self, gate: &Tensor, up: &Tensor, kind: Activation) -> Result<Tensor> {
        self.elementwise("gate", &[gate, up], kind)
    }

    fn store(&self, shape: StoreShape) -> Result<Store> {
        self.formulas.store(shape)
    }

    fn attention(&self, spec: &Attention, q: &Tensor, k: &Tensor, v: &Tensor, step: &mut Step<'_>) -> Result<Tensor> {
        let (module, tokens) = (&self.module, step.input().tokens.len());
        let [keys, values] = step.kv.layer(spec.layer)?;
        let (keys, values) = (keys.tensor()?.clone(), values.tensor()?.clone());
        let suffix = kv_suffix(keys.dtype());
        let fits = spec.head_dim.is_multiple_of(8) && spec.head_dim <= HEAD_DIM_MAX && spec.sinks.is_none();
        let Some(suffix) = suffix.filter(|_| fits) else {
            step.tokens();
            return super::formulas_attention::attention(&self.formulas, spec, q, Some((k, Some(v))), step);
        };
        let address = |tensor: &Tensor| match tensor.dtype() {
            DType::F32 => module.tensor::<f32>(tensor),
            _ => module.tensor::<half::f16>(tensor),
        };
        let group = step.kv.group(spec.layer)?;
        let cache = Cache { keys: address(&keys)?, values: address(&values)?, slots: keys.dim(1)?, suffix, group };
        let slots = locked(&self.inputs).slots(module, group);
        let args = [
            self.at(k)?,
            self.at(v)?,
            slots.into(),
            spec.kv_heads.into(),
            spec.head_dim.into(),
            Arg::Size(cache.slots),
            cache.keys.into(),
            cache.values.into(),
        ];
        module.launch(&format!("store_{suffix}"), (tokens, 1, 1), THREADS, 0, &args)?;
        let width = spec.heads * spec.head_dim;
        let out = module.room::<f32>(tokens * width)?;
        let out_at = module.address(&out);
        let (singles, tiles) = {
            let inputs = locked(&self.inputs);
            (inputs.single, inputs.tiles)
        };
        let is_tiled = suffix == "f16" && matches!(spec.head_dim, 64 | 80 | 96 | 128);
        if !is_tiled {
            self.attend(spec, q, &cache, true, out_at)?;
        } else {
            if tiles > 0 {
                self.attend_tiles(spec, q, &cache, out_at)?;
            }
            if singles > 0 {
                self.attend(spec, q, &cache, false, out_at)?;
            }
        }
        Ok(module.wrap(out, (tokens, width)))
    }
}

/// Threads of a row's norm.
fn norm_threads(width: usize) -> usize {
    width.div_ceil(2).next_multiple_of(32).clamp(32, 1024)
}

/// A step that this backend cannot capture.
fn not_capturable(why: &str) -> Error {
    Error::unsupported(format!("this step is not captured: {why}"))
}
