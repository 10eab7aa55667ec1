//! The backend for CUDA devices: our own kernels, cuBLAS for products of many rows, and a single launch for decode
//! steps.
//!
//! A step's tokens, positions and block tables are uploaded in one copy ([`inputs`]), and every kernel handles all
//! sequences of the batch at once. Cases that no kernel covers (formats, head sizes, adapters) are left to the
//! formulas, which run on the same device. At load a few kernels are compared with the formulas, and on a device where
//! they differ none of them is used.

mod attention;
mod capability;
mod experts;
mod graph;
mod inputs;
mod interconnect;
mod memory;
mod module;
mod products;
mod proofs;
mod recurrence;
mod texts;
mod weights;

use candle_core::{
    CudaDevice, DType, Device, Tensor,
    cuda_backend::cudarc::driver::{CudaContext, CudaSlice},
};
use pensieve_kernels::{Activation, Glu};
use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

pub(super) use experts::ExpertTable;
pub(in crate::nn) use interconnect::CudaInterconnect;
pub(in crate::nn) use weights::{Weight, loaded_bytes};

use self::{
    attention::COUNTERS,
    graph::{DeviceGroup, Graphs},
    inputs::Inputs,
    memory::failed,
    module::{Arg, Module},
    products::{FEW_ROWS_MAX, PreparedCache},
};
use super::{
    Backend, Columns, Compute, Form, Formulas, Layer, Matrix, PixelPatches, Routed, Routing, StoreShape, Taken,
    formulas_attention, formulas_recurrence, formulas_texts,
};
use crate::{
    Batch, Result,
    nn::{
        memory::{pass::Pass, store::Store},
        spec::{Attention, Inputs as Recurred, Recurrence, Rotation, ShortConv, TextAttention},
    },
    weights::{Dtype, RawTensor, RopeStyle},
};

/// Threads per block of elementwise kernels.
const THREADS: usize = 256;

/// Parts that one `columns` launch copies.
const PARTS: usize = 4;

/// Why some attention is left to formulas.
const NO_KERNEL: &str = "there is no kernel for heads of this size, or ours differs from its formula";

/// Threads that search one row of logits.
const BEST_THREADS: usize = 1024;

/// The kernels of a device, and the buffers of its steps.
pub(in crate::nn) struct CudaKernels {
    module: Module,
    formulas: Formulas,
    inputs: Mutex<Inputs>,
    graphs: Mutex<Graphs>,
    /// A step is being captured, or run as a trial before its capture.
    captures: AtomicBool,
    prepared: Mutex<PreparedCache>,
    /// Small tables such as frequencies, keyed by their bits.
    constants: Mutex<HashMap<Vec<u32>, CudaSlice<f32>>>,
    counters: CudaSlice<u32>,
    /// The kernel for the best logits agreed with its formula.
    finds_best: bool,
    /// The kernels that route and compute experts agreed with their formulas.
    mixes: bool,
    /// Why the kernels for whole texts are not used, if they disagreed with their formula.
    texts_differ: Option<String>,
    /// The same for tokens that see beyond themselves.
    seen_differ: Option<String>,
    /// The same for packed keys and values.
    packed_differ: Option<String>,
    /// Why the kernels of recurrent layers are not used, if they disagreed.
    recurrence_differs: Option<String>,
    /// The same for those whose states do not fade per head.
    decay_differs: Option<String>,
}

/// Opens a device with a separate stream, which can be captured.
pub(in crate::nn) fn open(ordinal: usize) -> candle_core::Result<Device> {
    let device = Device::new_cuda_with_stream(ordinal)?;
    // SAFETY: everything in this context is computed on this one stream, which keeps the order by itself. Events for
    // each tensor would cost as much as a launch, and a stream that waits for an earlier one cannot be captured.
    unsafe { device.as_cuda_device()?.disable_event_tracking() };
    Ok(device)
}

/// Number of devices reported by the driver.
pub(in crate::nn) fn count() -> usize {
    CudaContext::device_count().ok().and_then(|count| usize::try_from(count).ok()).unwrap_or_default()
}

/// Free memory of a device.
pub(in crate::nn) fn free_bytes(device: &CudaDevice) -> Option<u64> {
    let (free, _) = device.cuda_stream().context().mem_get_info().ok()?;
    u64::try_from(free).ok()
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Id of an activation function in the kernels.
fn activation_number(kind: Activation) -> i32 {
    match kind {
        Activation::Silu => 0,
        Activation::GeluErf => 1,
        Activation::GeluTanh => 2,
        // 3 is the clamped gate in `common.cuh`.
        Activation::Sigmoid => 4,
        Activation::Softplus => 5,
    }
}

impl CudaKernels {
    /// Loads the kernels, and fails unless they agree with the formulas on this device.
    pub(in crate::nn) fn proved(device: &Device) -> Result<Self> {
        let cuda: &CudaDevice = device.as_cuda_device()?;
        let module = Module::load(cuda)?;
        let inputs = Mutex::new(Inputs::new(&module)?);
        let counters = module.stream.alloc_zeros(COUNTERS).map_err(failed)?;
        let mut kernels = Self {
            finds_best: true,
            mixes: true,
            texts_differ: None,
            seen_differ: None,
            packed_differ: None,
            recurrence_differs: None,
            decay_differs: None,
            module,
            formulas: Formulas::plain(device.clone()),
            inputs,
            graphs: Mutex::default(),
            captures: AtomicBool::new(false),
            prepared: Mutex::default(),
            constants: Mutex::default(),
            counters,
        };
        kernels.prove()?;
        kernels.prove_products()?;
        kernels.finds_best = kernels.prove_best().is_ok();
        kernels.mixes = kernels.prove_mixture().is_ok();
        kernels.texts_differ = kernels.prove_texts().err().map(|error| error.message);
        kernels.packed_differ = kernels.prove_packed().err().map(|error| error.message);
        kernels.seen_differ = kernels.prove_seen().err().map(|error| error.message);
        kernels.recurrence_differs = kernels.prove_recurrence(true).err().map(|error| error.message);
        kernels.decay_differs = kernels.prove_recurrence(false).err().map(|error| error.message);
        Ok(kernels)
    }

    /// Uploads a batch. Returns true if the data that graphs read has not moved.
    fn begin_step(&self, batch: &Batch<'_>) -> Result<bool> {
        locked(&self.prepared).clear();
        locked(&self.inputs).set(&self.module, batch, 0)
    }

    /// Finds the best of each row of logits: three values per row.
    fn best_of(&self, logits: u64, rows: usize, width: usize) -> Result<CudaSlice<f32>> {
        let out = self.module.room::<f32>(3 * rows)?;
        let args = [logits.into(), width.into(), self.module.address(&out).into()];
        self.module.launch("best", (rows, 1, 1), BEST_THREADS, 0, &args)?;
        Ok(out)
    }

    /// Address of a small table on the device, which stays there.
    fn constant(&self, values: &[f32]) -> Result<u64> {
        let key = values.iter().map(|value| value.to_bits()).collect();
        let mut known = locked(&self.constants);
        let slice = match known.entry(key) {
            Entry::Occupied(found) => found.into_mut(),
            Entry::Vacant(place) => place.insert(self.module.stream.clone_htod(values).map_err(failed)?),
        };
        Ok(self.module.address(slice))
    }

    /// The address of a dense `f32` tensor.
    fn at(&self, tensor: &Tensor) -> Result<Arg> {
        Ok(Arg::Address(self.module.tensor::<f32>(tensor)?))
    }

    /// Attention by candle ops, which read the block tables on the host; `why` there is no kernel for it.
    fn attention_by_formulas(
        &self,
        spec: &Attention,
        q: &Tensor,
        new: Option<(&Tensor, Option<&Tensor>)>,
        pass: &mut Pass<'_>,
        why: &str,
    ) -> Result<Tensor> {
        if self.captures.load(Ordering::Relaxed) {
            return Err(graph::not_capturable(why));
        }
        if let Some((k, v)) = new {
            self.remember(spec.layer, k, v, pass)?;
        }
        formulas_attention::attention(&self.formulas, spec, q, None, pass)
    }

    /// Launches an elementwise kernel over one or two inputs.
    fn elementwise(&self, name: &str, inputs: &[&Tensor], kind: Option<Activation>) -> Result<Tensor> {
        let (count, shape) = (inputs[0].elem_count(), inputs[0].dims2()?);
        let out = self.module.room::<f32>(count)?;
        let mut args = inputs.iter().map(|input| self.at(input)).collect::<Result<Vec<_>>>()?;
        args.extend(kind.map(|kind| Arg::Int(activation_number(kind))));
        args.extend([Arg::Size(count), self.module.address(&out).into()]);
        self.module.launch(name, (count.div_ceil(THREADS), 1, 1), THREADS, 0, &args)?;
        Ok(self.module.wrap(out, shape))
    }
}

impl Backend for CudaKernels {
    fn formulas(&self) -> &Formulas {
        &self.formulas
    }

    fn note(&self) -> String {
        let differ = [
            ("texts", &self.texts_differ),
            ("whole images", &self.seen_differ),
            ("packed keys and values", &self.packed_differ),
        ];
        let without =
            differ.into_iter().filter_map(|(what, why)| Some(format!(", {what} by formulas ({})", why.as_ref()?)));
        format!("our CUDA kernels, {}{}", locked(&self.graphs).note(), without.collect::<String>())
    }

    fn begin(&self, batch: &Batch<'_>) -> Result<()> {
        if !self.begin_step(batch)? {
            locked(&self.graphs).clear();
        }
        Ok(())
    }

    fn warm_up(&self, groups: usize, run: Compute<'_>) -> Result<()> {
        graph::warm_up(&DeviceGroup::of(self), groups, run)
    }

    fn decode(&self, batch: &Batch<'_>, run: Compute<'_>, taken: &mut Taken<'_>) -> Result<bool> {
        graph::decode(&DeviceGroup::of(self), batch, run, taken)
    }

    fn matrix(&self, raw: &RawTensor) -> Result<Form> {
        let inputs = raw.shape.last().copied().unwrap_or_default();
        if matches!(raw.dtype, Dtype::F32 | Dtype::F16) || !inputs.is_multiple_of(32) {
            return self.formulas.matrix(raw);
        }
        Ok(Form::Cuda(Arc::new(Weight::upload(&self.module, raw, inputs)?)))
    }

    fn linear(&self, x: &Tensor, weight: &Matrix, bias: Option<&Tensor>) -> Result<Tensor> {
        match self.product(x, (weight, bias), None)? {
            Some(out) => Ok(out),
            None => self.formulas.linear(x, weight, bias),
        }
    }

    fn linears(&self, x: &Tensor, layers: &[Layer<'_>]) -> Result<Vec<Tensor>> {
        match self.products(x, layers)? {
            Some(outs) => Ok(outs),
            None => layers.iter().map(|(weight, bias)| self.linear(x, weight, *bias)).collect(),
        }
    }

    fn add_linear(&self, sum: &Tensor, x: &Tensor, weight: &Matrix, bias: Option<&Tensor>) -> Result<Tensor> {
        match self.product(x, (weight, bias), Some(sum))? {
            Some(out) => Ok(out),
            None => self.add(sum, &self.formulas.linear(x, weight, bias)?),
        }
    }

    fn linear_act(&self, x: &Tensor, weight: &Matrix, bias: Option<&Tensor>, kind: Activation) -> Result<Tensor> {
        // Of many rows a product by cuBLAS has its bias added afterwards: by the activation's launch.
        match bias.filter(|_| x.dim(0).is_ok_and(|rows| rows > FEW_ROWS_MAX)) {
            None => self.activate(&self.linear(x, weight, bias)?, kind),
            bias => self.bias_act_scale(&self.linear(x, weight, None)?, bias, Some(kind), None),
        }
    }

    fn gated(&self, x: &Tensor, [gate, up]: [Layer<'_>; 2], kind: Activation) -> Result<Tensor> {
        match self.gated_product(x, [gate, up], kind)? {
            Some(out) => Ok(out),
            None => self.gate(&self.linear(x, gate.0, gate.1)?, &self.linear(x, up.0, up.1)?, kind),
        }
    }

    fn add(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        self.elementwise("add", &[x, y], None)
    }

    fn combine(&self, x: &Tensor, indices: &[u32], weights: &[f32], terms: usize) -> Result<Tensor> {
        self.weighted_sums(x, indices, weights, terms)
    }

    fn pixels(&self, patches: &PixelPatches<'_>) -> Result<Tensor> {
        let (module, count) = (&self.module, patches.bytes.len());
        let bytes = module.stream.clone_htod(patches.bytes).map_err(failed)?;
        let out = module.room::<f32>(count)?;
        let args = [
            module.address(&bytes).into(),
            self.constant(patches.values)?.into(),
            patches.area.into(),
            Arg::Int(i32::from(patches.is_planar)),
            Arg::Size(count),
            module.address(&out).into(),
        ];
        module.launch("pixels", (count.div_ceil(THREADS), 1, 1), THREADS, 0, &args)?;
        Ok(module.wrap(out, patches.shape()))
    }

    fn route(&self, logits: &Tensor, routing: &Routing<'_>) -> Result<Option<Routed>> {
        if self.mixes { self.choose_experts(logits, routing) } else { Ok(None) }
    }

    fn expert_table(&self, experts: &[[Layer<'_>; 3]]) -> Result<super::ExpertTable> {
        Ok(self.table_of(experts)?.map_or(super::ExpertTable::None, super::ExpertTable::Cuda))
    }

    fn mixture(&self, x: &Tensor, routed: &Routed, table: &super::ExpertTable, glu: Glu) -> Result<Option<Tensor>> {
        match table {
            super::ExpertTable::Cuda(table) => self.mix(x, routed, table, glu),
            _ => Ok(None),
        }
    }

    fn embed(&self, weight: &Matrix, pass: &Pass<'_>) -> Result<Tensor> {
        let (module, width, tokens) = (&self.module, weight.inputs, pass.input().tokens.len());
        let (kernel, table) = match &weight.form {
            Form::Cuda(_) => return self.table_rows(weight, tokens),
            Form::Dense(table) if table.dtype() == DType::F32 => ("rows_f32", self.at(table)?),
            Form::Dense(table) if table.dtype() == DType::F16 => {
                ("rows_f16", module.tensor::<half::f16>(table)?.into())
            }
            _ => return self.formulas.embed(weight, pass.tokens()),
        };
        let out = module.room::<f32>(tokens * width)?;
        let ids = locked(&self.inputs).token_ids(module);
        let args = [table, ids.into(), width.into(), module.address(&out).into()];
        module.launch(kernel, (tokens, 1, 1), THREADS, 0, &args)?;
        Ok(module.wrap(out, (tokens, width)))
    }

    fn rms_norm(&self, x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor> {
        let (module, (rows, width)) = (&self.module, x.dims2()?);
        let out = module.room::<f32>(rows * width)?;
        let args = [self.at(x)?, self.at(weight)?, eps.into(), width.into(), module.address(&out).into()];
        module.launch("rms_norm", (rows, 1, 1), norm_threads(width), 0, &args)?;
        Ok(module.wrap(out, (rows, width)))
    }

    fn best(&self, logits: &Tensor) -> Result<Tensor> {
        let (rows, width) = logits.dims2()?;
        if !self.finds_best {
            return self.formulas.best(logits);
        }
        let best = self.best_of(self.module.tensor::<f32>(logits)?, rows, width)?;
        Ok(self.module.wrap(best, (rows, 3)))
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
        pass: &Pass<'_>,
    ) -> Result<Rotation> {
        if let Some(factors) = factors {
            let positions = pass.positions().iter().zip(factors).map(|(&at, factor)| (at, amplitude * factor));
            return self.formulas.rotation(frequencies, positions, style);
        }
        let (module, half, on_device) = (&self.module, frequencies.len(), self.constant(frequencies)?);
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
        module.launch("rotate", (tokens, width.div_ceil(THREADS), 1), THREADS, 0, &args)?;
        Ok(module.wrap(out, (tokens, width)))
    }

    fn activate(&self, x: &Tensor, kind: Activation) -> Result<Tensor> {
        self.elementwise("activate", &[x], Some(kind))
    }

    fn gate(&self, gate: &Tensor, up: &Tensor, kind: Activation) -> Result<Tensor> {
        self.elementwise("gate", &[gate, up], Some(kind))
    }

    fn bias_act_scale(
        &self,
        x: &Tensor,
        bias: Option<&Tensor>,
        kind: Option<Activation>,
        factor: Option<&Tensor>,
    ) -> Result<Tensor> {
        let (module, (rows, width)) = (&self.module, x.dims2()?);
        let out = module.room::<f32>(rows * width)?;
        let vector = |values: Option<&Tensor>| values.map_or(Ok(Arg::Address(0)), |values| self.at(values));
        let args = [
            self.at(x)?,
            vector(bias)?,
            Arg::Int(kind.map_or(-1, activation_number)),
            vector(factor)?,
            width.into(),
            Arg::Size(rows * width),
            module.address(&out).into(),
        ];
        module.launch("bias_act_scale", ((rows * width).div_ceil(THREADS), 1, 1), THREADS, 0, &args)?;
        Ok(module.wrap(out, (rows, width)))
    }

    fn columns(&self, x: &Tensor, parts: &[Columns]) -> Result<Vec<Tensor>> {
        let (module, (rows, width)) = (&self.module, x.dims2()?);
        let mut outs = Vec::with_capacity(parts.len());
        for parts in parts.chunks(PARTS) {
            let mut args = vec![self.at(x)?, width.into(), rows.into()];
            let values = rows * parts.iter().map(|(_, len)| len).max().copied().unwrap_or_default();
            let mut part = |&(start, len): &Columns| -> Result<Tensor> {
                let out = module.room::<f32>(rows * len)?;
                args.extend([start.into(), len.into(), Arg::Address(module.address(&out))]);
                Ok(module.wrap(out, (rows, len)))
            };
            let these = parts.iter().map(&mut part).collect::<Result<Vec<_>>>()?;
            args.resize_with(3 + 3 * PARTS, || Arg::Address(0));
            module.launch("columns", (values.div_ceil(THREADS), parts.len(), 1), THREADS, 0, &args)?;
            outs.extend(these);
        }
        Ok(outs)
    }

    fn store(&self, shape: StoreShape) -> Result<Store> {
        self.formulas.store(shape)
    }

    fn short_conv(&self, conv: &ShortConv, x: &Tensor, pass: &Pass<'_>) -> Result<Tensor> {
        if let Some(out) = self.convolve(conv, x, pass)? {
            return Ok(out);
        }
        self.may_use_formulas()?;
        formulas_recurrence::short_conv(&self.formulas, conv, x, pass)
    }

    fn recurrence(&self, spec: &Recurrence, x: &Recurred, pass: &Pass<'_>) -> Result<Tensor> {
        if let Some(out) = self.recur(spec, x, pass)? {
            return Ok(out);
        }
        self.may_use_formulas()?;
        formulas_recurrence::recurrence(spec, x, pass)
    }

    fn attention(&self, spec: &Attention, q: &Tensor, k: &Tensor, v: &Tensor, pass: &mut Pass<'_>) -> Result<Tensor> {
        match self.attend_step(spec, [q, k, v], None, pass)? {
            Some(out) => Ok(out),
            None => self.attention_by_formulas(spec, q, Some((k, Some(v))), pass, NO_KERNEL),
        }
    }

    fn attention_within(
        &self,
        spec: &TextAttention,
        qkv: [&Tensor; 3],
        biases: Option<&Tensor>,
        pass: &Pass<'_>,
    ) -> Result<Tensor> {
        let by_kernel = self.texts_differ.is_none();
        match if by_kernel { self.attend_texts(spec, qkv, biases, pass)? } else { None } {
            Some(out) => Ok(out),
            None => formulas_texts::attention(&self.formulas, spec, qkv, biases, pass),
        }
    }

    /// Of this only packed rows have a kernel that writes them.
    fn attention_over(
        &self,
        spec: &Attention,
        q: &Tensor,
        new: Option<(&Tensor, Option<&Tensor>)>,
        pass: &mut Pass<'_>,
    ) -> Result<Tensor> {
        let why = "there is no kernel for attention over latents, or over what another layer remembers";
        self.attention_by_formulas(spec, q, new, pass, why)
    }

    fn remember(&self, layer: usize, k: &Tensor, v: Option<&Tensor>, pass: &mut Pass<'_>) -> Result<()> {
        if self.store_packed(layer, [Some(k), v], pass)? {
            return Ok(());
        }
        formulas_attention::remember(&self.formulas, layer, [Some(k), v], pass)
    }

    fn rotated_attention(
        &self,
        spec: &Attention,
        [q, k, v]: [&Tensor; 3],
        rotation: &Rotation,
        pass: &mut Pass<'_>,
    ) -> Result<Tensor> {
        match self.attend_step(spec, [q, k, v], Some(rotation), pass)? {
            Some(out) => Ok(out),
            None => {
                let (q, k) = (self.rotate(q, spec.head_dim, rotation)?, self.rotate(k, spec.head_dim, rotation)?);
                self.attention_by_formulas(spec, &q, Some((&k, Some(v))), pass, NO_KERNEL)
            }
        }
    }
}

/// Threads for the norm of a row.
fn norm_threads(width: usize) -> usize {
    width.div_ceil(2).next_multiple_of(32).clamp(32, 1024)
}
