//! The backend of Apple's GPUs: attention over block tables and the norm of a sum by kernels of our own, and everything else
//! by the formulas in candle's ops, whose matrix products, quantized ones too, are at home there.
//!
//! What is launched goes into candle's command buffer, in order with its ops; nothing waits between layers. At load the
//! kernels are held against the formulas, and none of them is used on a device where they differ.

use candle_core::{DType, Device, MetalDevice, MetalStorage, Storage, Tensor, op::BackpropOp};
use candle_metal_kernels::metal::{ComputeCommandEncoder, ComputePipeline};
use objc2_metal::MTLSize;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{
    attention::{Attend, Combine, Layer, StoreShape},
    inputs::Inputs,
    launch::Launch,
    libraries::LIBRARIES,
    norms::NormShape,
};
use crate::{
    Batch, Error, Output, Result, Span, Table, Want,
    nn::{
        backend::{Backend, Formulas, formulas_attention},
        memory::{kv::KvCache, pass::Pass},
        spec::{Attention, KvShape, KvType, Rotation},
    },
    weights::RopeStyle,
};

/// Cores for which contexts are divided: those of an M1 Pro's smaller GPU, as Metal does not say how many there are.
const CORES: usize = 14;

/// The kernels on a device, and what a step brings to it.
pub(in crate::nn) struct MetalKernels {
    device: MetalDevice,
    formulas: Formulas,
    pipelines: HashMap<&'static str, ComputePipeline>,
    /// By group of caches; none before the first step.
    inputs: Mutex<Vec<OnDevice>>,
}

/// A step's inputs on the device.
#[derive(Clone)]
struct OnDevice {
    slots: Tensor,
    tiles: Tensor,
    tables: Tensor,
    host: Arc<Inputs>,
}

/// An argument of a kernel.
enum Arg<'a> {
    Read(&'a Tensor),
    Written(&'a Tensor),
    Bytes(&'a [u8]),
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::new(crate::Code::Device, format!("Metal: {error}"))
}

impl MetalKernels {
    /// The kernels, if they compute what the formulas do on this device.
    pub(in crate::nn) fn proved(device: &Device) -> Result<Self> {
        let metal = device.as_metal_device()?.clone();
        let mut pipelines = HashMap::new();
        for library in LIBRARIES {
            let compiled = metal.metal_device().new_library_with_source(library.source, None);
            let compiled = compiled.map_err(|error| failed(format!("library '{}': {error}", library.name)))?;
            for name in library.kernels {
                let function = compiled.get_function(name, None).map_err(failed)?;
                let pipeline = metal.metal_device().new_compute_pipeline_state_with_function(&function);
                pipelines.insert(*name, pipeline.map_err(failed)?);
            }
        }
        let formulas = Formulas::probed(device.clone(), None);
        let kernels = Self { device: metal, formulas, pipelines, inputs: Mutex::default() };
        kernels.prove_norm()?;
        for (head_dim, kind) in [(64, KvType::F16), (80, KvType::F32)] {
            kernels.prove_attention(head_dim, kind)?;
        }
        kernels.inputs().clear();
        Ok(kernels)
    }

    fn inputs(&self) -> MutexGuard<'_, Vec<OnDevice>> {
        self.inputs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn prove_norm(&self) -> Result<()> {
        let (x, y) = (self.formulas.wave(5, 96)?, self.formulas.wave(5, 96)?);
        let weight = self.formulas.wave(1, 96)?.squeeze(0)?;
        let (sum, normed) = self.add_rms_norm(&x, &y, &weight, 1e-5)?;
        same("the sum", &sum, &(x + y)?, 1e-5)?;
        same("rms_norm", &normed, &self.formulas.rms_norm(&sum, &weight, 1e-5)?, 1e-4)
    }

    /// A chunk of a prompt and a decode, over a cache in any order.
    fn prove_attention(&self, head_dim: usize, kind: KvType) -> Result<()> {
        let (heads, kv_heads, formulas) = (4, 2, &self.formulas);
        let (long, short) = ([3, 1].as_slice(), [0].as_slice());
        let span = |start, len, past, blocks: &'static [u32]| Span {
            sequence: start as u64,
            start,
            len,
            past,
            want: Want::Last,
            output: Output::Logits,
            mask: &[],
            adapter: 0,
            adapter_scale: 0.0,
            caches: vec![Table::Blocks(blocks.into())],
        };
        let tokens = 10;
        let ids = vec![0; tokens];
        let spans = vec![span(0, 9, 11, long), span(9, 1, 0, short)];
        let batch = Batch { tokens: &ids, positions: &ids, spans, top: 0 };
        let [q, k, v] = [heads, kv_heads, kv_heads].map(|heads| formulas.wave(tokens, heads * head_dim));
        let (q, k, v) = (q?, k?, v?);
        let (cos, sin) = (formulas.wave(tokens, head_dim / 2)?, formulas.wave(tokens, head_dim / 2)?);
        let rotation = Rotation { cos, sin, style: RopeStyle::NeoX };
        let spec = Attention { window: Some(7), ..Attention::new(0, heads, kv_heads, head_dim)? };
        self.begin(&batch)?;
        let compute = |backend: &dyn Backend| -> Result<Tensor> {
            let shape = KvShape::uniform(1, kv_heads, head_dim);
            let mut cache = KvCache::new(&shape, kind, &[4], |_| 0, |_, shape, _| formulas.store(shape))?;
            let mut pass = Pass::new(&batch, &mut cache);
            backend.rotated_attention(&spec, [&q, &k, &v], &rotation, &mut pass)
        };
        same("attention", &compute(self)?, &compute(formulas)?, 1e-2)
    }

    /// A tensor that a kernel is about to fill.
    fn room(&self, rows: usize, columns: usize) -> Result<Tensor> {
        let buffer = self.device.new_buffer(rows * columns, DType::F32, "activation")?;
        let storage = MetalStorage::new(buffer, self.device.clone(), rows * columns, DType::F32);
        Ok(Tensor::from_storage(Storage::Metal(storage), (rows, columns), BackpropOp::none(), false))
    }

    /// Puts a kernel behind what candle has encoded so far.
    fn launch(&self, launch: &Launch, args: &[Arg<'_>]) -> Result<()> {
        let name = launch.kernel;
        let pipeline = self.pipelines.get(name).ok_or_else(|| failed(format!("there is no kernel '{name}'")))?;
        let guard = self.device.command_encoder()?;
        let encoder: &ComputeCommandEncoder = guard.as_ref();
        encoder.set_compute_pipeline_state(pipeline);
        for (index, arg) in args.iter().enumerate() {
            match arg {
                Arg::Bytes(bytes) => encoder.set_bytes_directly(index, bytes.len(), bytes.as_ptr().cast()),
                Arg::Read(tensor) | Arg::Written(tensor) => {
                    let (storage, layout) = tensor.storage_and_layout();
                    let Storage::Metal(storage) = &*storage else {
                        return Err(failed("a tensor lies on another device"));
                    };
                    if !layout.is_contiguous() {
                        let message = format!("a tensor of shape {:?} is not contiguous", tensor.dims());
                        return Err(Error::invalid(message));
                    }
                    let offset = layout.start_offset() * tensor.dtype().size_in_bytes();
                    match arg {
                        Arg::Written(_) => encoder.set_output_buffer(index, Some(storage.buffer()), offset),
                        _ => encoder.set_input_buffer(index, Some(storage.buffer()), offset),
                    }
                }
            }
        }
        let size = |[width, height, depth]: [usize; 3]| MTLSize { width, height, depth };
        if launch.shared_bytes > 0 {
            encoder.set_threadgroup_memory_length(0, launch.shared_bytes);
        }
        encoder.dispatch_thread_groups(size(launch.groups), size([launch.threads, 1, 1]));
        Ok(())
    }

    /// Writes the cache and attends, rotating first if there is a rotation. `None` if the step's inputs are not on the device.
    fn attend_step(
        &self,
        spec: &Attention,
        [q, k, v]: [&Tensor; 3],
        rotation: Option<&Rotation>,
        pass: &mut Pass<'_>,
    ) -> Result<Option<Tensor>> {
        let group = pass.kv.group(spec.layer)?;
        let Some(inputs) = self.inputs().get(group).cloned() else { return Ok(None) };
        let [keys, values] = pass.kv.layer(spec.layer)?;
        let (keys, values) = (keys.tensor()?, values.tensor()?);
        let kind = match keys.dtype() {
            DType::F16 => KvType::F16,
            DType::F32 => KvType::F32,
            _ => return Ok(None),
        };
        let (tokens, slots) = (q.dim(0)?, keys.dim(1)?);
        let narrow = |value: usize| u32::try_from(value).map_err(|_| failed(format!("{value} is too much")));
        let shape = StoreShape {
            heads: if rotation.is_some() { narrow(spec.heads)? } else { 0 },
            kv_heads: narrow(spec.kv_heads)?,
            head_dim: narrow(spec.head_dim)?,
            half_dim: rotation.map_or(Ok(0), |rotation| narrow(rotation.cos.dim(1)?))?,
            is_interleaved: u32::from(rotation.is_some_and(|rotation| rotation.style == RopeStyle::Interleaved)),
            rotates: u32::from(rotation.is_some()),
            tokens: narrow(tokens)?,
            slots: narrow(slots)?,
        };
        let layer = Layer {
            heads: spec.heads,
            kv_heads: spec.kv_heads,
            head_dim: spec.head_dim,
            slots,
            window: spec.window,
            has_sinks: spec.sinks.is_some(),
            scale: spec.scale,
            softcap: spec.softcap,
            kind,
        };
        let Some(dispatches) = layer.attend(&inputs.host, CORES) else { return Ok(None) };
        let rotated = if rotation.is_some() { self.room(tokens, q.dim(1)?)? } else { q.clone() };
        let (cos, sin) = rotation.map_or((q, q), |rotation| (&rotation.cos, &rotation.sin));
        self.launch(
            &shape.launch(kind),
            &[
                Arg::Read(q),
                Arg::Read(k),
                Arg::Read(v),
                Arg::Read(cos),
                Arg::Read(sin),
                Arg::Read(&inputs.slots),
                Arg::Bytes(bytemuck::bytes_of(&shape)),
                if rotation.is_some() { Arg::Written(&rotated) } else { Arg::Read(&rotated) },
                Arg::Written(keys),
                Arg::Written(values),
            ],
        )?;
        let out = self.room(tokens, q.dim(1)?)?;
        let sinks = spec.sinks.as_ref().unwrap_or(q);
        for Attend { launch, shape, combine } in dispatches {
            let parts = combine.map(|combine| self.room(1, combine.part_values)).transpose()?;
            self.launch(
                &launch,
                &[
                    Arg::Read(&rotated),
                    Arg::Read(keys),
                    Arg::Read(values),
                    Arg::Read(&inputs.tiles),
                    Arg::Read(&inputs.tables),
                    Arg::Read(sinks),
                    Arg::Bytes(shape.bytes()),
                    Arg::Written(parts.as_ref().unwrap_or(&out)),
                ],
            )?;
            if let Some((Combine { launch, shape, .. }, parts)) = combine.zip(parts) {
                let shape = Arg::Bytes(bytemuck::bytes_of(&shape));
                let args = [Arg::Read(&parts), Arg::Read(&inputs.tiles), Arg::Read(sinks), shape, Arg::Written(&out)];
                self.launch(&launch, &args)?;
            }
        }
        Ok(Some(out))
    }
}

impl Backend for MetalKernels {
    fn formulas(&self) -> &Formulas {
        &self.formulas
    }

    fn note(&self) -> String {
        format!("our Metal kernels for attention and norms, {}", self.formulas.note())
    }

    fn begin(&self, batch: &Batch<'_>) -> Result<()> {
        let on_device = |group: usize| {
            let inputs = Inputs::of(batch, group);
            Ok(OnDevice {
                slots: self.formulas.ids(&inputs.slots)?,
                tiles: self.formulas.ids(inputs.tiles.as_flattened())?,
                tables: self.formulas.ids(&inputs.tables)?,
                host: Arc::new(inputs),
            })
        };
        let groups = batch.spans.first().map_or(0, |span| span.caches.len());
        *self.inputs() = (0..groups).map(on_device).collect::<Result<_>>()?;
        Ok(())
    }

    fn add_rms_norm(&self, x: &Tensor, delta: &Tensor, weight: &Tensor, eps: f32) -> Result<(Tensor, Tensor)> {
        let (rows, width) = x.dims2()?;
        let shape = NormShape { width: width as u32, eps };
        let (sum, out) = (self.room(rows, width)?, self.room(rows, width)?);
        self.launch(
            &NormShape::launch(rows),
            &[
                Arg::Read(x),
                Arg::Read(delta),
                Arg::Read(weight),
                Arg::Bytes(bytemuck::bytes_of(&shape)),
                Arg::Written(&sum),
                Arg::Written(&out),
            ],
        )?;
        Ok((sum, out))
    }

    fn attention(&self, spec: &Attention, q: &Tensor, k: &Tensor, v: &Tensor, pass: &mut Pass<'_>) -> Result<Tensor> {
        match self.attend_step(spec, [q, k, v], None, pass)? {
            Some(out) => Ok(out),
            None => formulas_attention::attention(&self.formulas, spec, q, Some((k, Some(v))), pass),
        }
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
            None => self.formulas.rotated_attention(spec, [q, k, v], rotation, pass),
        }
    }
}

/// Checks that a kernel's output is its formula's, within `most`.
fn same(what: &str, ours: &Tensor, formula: &Tensor, most: f32) -> Result<()> {
    let difference = (ours - formula)?.abs()?.max_all()?.to_scalar::<f32>()?;
    if difference < most { Ok(()) } else { Err(failed(format!("{what} differs by {difference}"))) }
}
