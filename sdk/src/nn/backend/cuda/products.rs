//! Products with weight matrices: by our kernels for few rows, by cuBLAS with unpacked weights for many.

use candle_core::{DType, Tensor, TensorId, cuda_backend::cudarc::driver::CudaSlice};
use half::{bf16, f16};
use pensieve_kernels::Activation;
use std::sync::Arc;

use super::{
    CudaKernels, THREADS, Weight, activation_number, locked,
    memory::failed,
    module::{Arg, Numbers, Segment, Segments},
    weights::Format,
};
pub(super) use crate::nn::backend::repack::PART;
use crate::{
    Result,
    nn::backend::{Form, Layer, Matrix, foreign},
};

/// Maximum number of rows for which a product reads quantized weights directly; with more, weights are unpacked first.
pub(super) const FEW_ROWS_MAX: usize = 32;

/// Maximum number of rows for which a product prepares its own activation.
const FRESH_ROWS_MAX: usize = 2;

/// Matrices that can share an activation in one launch.
const SEGMENTS_MAX: usize = 3;

/// Outputs per block.
pub(super) const OUTPUTS: usize = 16;

/// Maximum number of warps per block.
pub(super) const WARPS_MAX: usize = 16;

/// Blocks of a one-row product, of 16 warps each, that a device computes at once, and the shared memory up to which
/// several smaller blocks share a multiprocessor.
const WIDE_BLOCKS: usize = 132;
const WIDE_BYTES_MAX: usize = 100 << 10;

/// Prepared activations of this step, by tensor and reader.
pub(super) type PreparedCache = Vec<(TensorId, Reader, Arc<Prepared>)>;

/// An activation in the form that products read.
pub(super) struct Prepared {
    high: CudaSlice<u16>,
    /// Only for products of few rows.
    few: Option<Few>,
}

struct Few {
    low: CudaSlice<u16>,
    sums: CudaSlice<f32>,
    row_scales: CudaSlice<f32>,
}

/// The kind of product that an activation is prepared for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reader {
    /// Few rows with quantized weights.
    Quantized,
    /// Few rows with bf16 weights.
    Halves,
    /// Many rows with quantized or f16 weights, by cuBLAS.
    ManyQuantized,
    /// Many rows with bf16 weights, by cuBLAS.
    ManyHalves,
}

/// A layer whose weight is in our form.
#[derive(Clone, Copy)]
struct Ours<'a> {
    weight: &'a Weight,
    shape: &'a Matrix,
    bias: Option<&'a Tensor>,
}

fn ours<'a>(layer: &Layer<'a>) -> Option<Ours<'a>> {
    match &layer.0.form {
        Form::Cuda(weight) => Some(Ours { weight, shape: layer.0, bias: layer.1 }),
        _ => None,
    }
}

impl CudaKernels {
    /// `(added +) x · Wᵀ + b`.
    pub(super) fn product(&self, x: &Tensor, layer: Layer<'_>, added: Option<&Tensor>) -> Result<Option<Tensor>> {
        let Some(layer) = ours(&layer) else { return self.product_of_halves(x, layer, added) };
        if x.dim(0)? > FEW_ROWS_MAX {
            return self.product_of_many(x, layer, added).map(Some);
        }
        Ok(self.launch_product(x, &[layer], "product", added, 0)?.pop())
    }

    /// Products of one activation with several weights, if all of them are in our form.
    pub(super) fn products(&self, x: &Tensor, layers: &[Layer<'_>]) -> Result<Option<Vec<Tensor>>> {
        let Some(layers) = layers.iter().map(ours).collect::<Option<Vec<_>>>() else { return Ok(None) };
        if x.dim(0)? > FEW_ROWS_MAX {
            return layers
                .into_iter()
                .map(|layer| self.product_of_many(x, layer, None))
                .collect::<Result<_>>()
                .map(Some);
        }
        let is_bf16 = |layer: &Ours<'_>| layer.weight.format == Format::Bf16;
        if layers.iter().any(is_bf16) && !layers.iter().all(is_bf16) {
            let each = layers.iter().map(|layer| self.launch_product(x, &[*layer], "product", None, 0));
            return Ok(Some(each.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect()));
        }
        let groups = layers.chunks(SEGMENTS_MAX).map(|group| self.launch_product(x, group, "product", None, 0));
        Ok(Some(groups.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect()))
    }

    /// `kind(x · Gᵀ) · (x · Uᵀ)`, if one launch can compute it.
    pub(super) fn gated_product(
        &self,
        x: &Tensor,
        [gate, up]: [Layer<'_>; 2],
        kind: Activation,
    ) -> Result<Option<Tensor>> {
        let (Some(gate), Some(up)) = (ours(&gate), ours(&up)) else { return Ok(None) };
        let is_one = gate.weight.format == up.weight.format && gate.shape.outputs == up.shape.outputs;
        if !is_one || x.dim(0)? > FEW_ROWS_MAX {
            return Ok(None);
        }
        Ok(self.launch_product(x, &[gate, up], "gated", None, activation_number(kind))?.pop())
    }

    /// Launches a product of few rows with up to three matrices; a gated product has one result.
    fn launch_product(
        &self,
        x: &Tensor,
        layers: &[Ours<'_>],
        what: &str,
        added: Option<&Tensor>,
        kind: i32,
    ) -> Result<Vec<Tensor>> {
        let (module, (rows, inputs)) = (&self.module, x.dims2()?);
        let address_of = |tensor: &Tensor| module.tensor::<f32>(tensor);
        let added = added.map(address_of).transpose()?.unwrap_or_default();
        let is_gated = what == "gated";
        let format = layers[0].weight.format;
        let (mut segments, mut outs, mut blocks) = (Segments::default(), Vec::new(), 0);
        for (place, (layer, segment)) in layers.iter().zip(&mut segments.of).enumerate() {
            let outputs = layer.shape.outputs;
            let out = if is_gated && place > 0 {
                0
            } else {
                let out = module.room::<f32>(rows * outputs)?;
                let at = module.address(&out);
                outs.push(module.wrap(out, (rows, outputs)));
                blocks += outputs.div_ceil(OUTPUTS);
                at
            };
            *segment = Segment {
                data: module.address(&layer.weight.data),
                scales: module.address(&layer.weight.scales),
                bias: layer.bias.map(address_of).transpose()?.unwrap_or_default(),
                added,
                out,
                outputs: outputs as i32,
                last_block: blocks as i32,
                format: layer.weight.format.number(),
                unused: 0,
            };
        }
        let is_mixed = layers.iter().any(|layer| layer.weight.format != format);
        let name = if is_mixed { "mixed" } else { format.name() };
        let matrices = if is_gated { 2 } else { 1 };
        if rows <= FRESH_ROWS_MAX {
            let formats = layers.iter().map(|layer| layer.weight.format);
            let plans = formats.map(|format| OneRow::plan(format, [rows, inputs], blocks, matrices));
            if let Some(plan) = plans.max_by_key(|plan| plan.shared).filter(|plan| plan.shared <= module.shared_max()) {
                let OneRow { warps, shared, suffix } = plan;
                let mut args = vec![Arg::Segments(segments), address_of(x)?.into()];
                if format == Format::Bf16 {
                    args.extend([Arg::Address(0); 4]);
                    args.push(rows.into());
                }
                args.extend([inputs.into(), Arg::Int(kind)]);
                module.launch(&format!("{what}_{name}_{suffix}"), (blocks, 1, 1), 32 * warps, shared, &args)?;
                return Ok(outs);
            }
        }
        let warps = (matrices * warps(blocks, inputs)).min(WARPS_MAX);
        let tiles = rows.div_ceil(8).next_power_of_two();
        let reader = if format == Format::Bf16 { Reader::Halves } else { Reader::Quantized };
        let prepared = self.prepare(x, reader)?;
        let Some(few) = &prepared.few else { return Err(failed("an activation was prepared for other products")) };
        let args = [
            Arg::Segments(segments),
            Arg::Address(0),
            module.address(&prepared.high).into(),
            module.address(&few.low).into(),
            module.address(&few.sums).into(),
            module.address(&few.row_scales).into(),
            rows.into(),
            inputs.into(),
            Arg::Int(kind),
        ];
        let shared = 4 * warps * tiles * OUTPUTS * 9;
        module.launch(&format!("{what}_{name}_{tiles}"), (blocks, 1, 1), 32 * warps, shared, &args)?;
        Ok(outs)
    }

    /// Converts `x` to the form that products read. Layers with the same input share the result.
    fn prepare(&self, x: &Tensor, reader: Reader) -> Result<Arc<Prepared>> {
        let mut cache = locked(&self.prepared);
        if let Some((_, _, prepared)) = cache.iter().find(|(id, of, _)| *id == x.id() && *of == reader) {
            return Ok(prepared.clone());
        }
        let (module, (rows, width)) = (&self.module, x.dims2()?);
        let high = module.room::<u16>(rows * width)?;
        let (x_at, high_at) = (module.tensor::<f32>(x)?.into(), module.address(&high).into());
        let by_cublas = match reader {
            Reader::ManyQuantized => Some("to_f16"),
            Reader::ManyHalves => Some("to_bf16"),
            Reader::Quantized | Reader::Halves => None,
        };
        let few = if let Some(kernel) = by_cublas {
            let count = rows * width;
            let blocks = (count / 4).div_ceil(THREADS);
            module.launch(kernel, (blocks, 1, 1), THREADS, 0, &[x_at, Arg::Size(count), high_at])?;
            None
        } else {
            let few = Few {
                low: module.room(if reader == Reader::Halves { rows * width } else { 1 })?,
                sums: module.room(rows.div_ceil(8) * (width / 16 * 12))?,
                row_scales: module.room(rows)?,
            };
            let args = [
                x_at,
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
        module.memory.keep(prepared.clone());
        if cache.len() == 2 {
            cache.remove(0);
        }
        cache.push((x.id(), reader, prepared.clone()));
        Ok(prepared)
    }

    /// A product of many rows with unpacked weights, by cuBLAS.
    fn product_of_many(&self, x: &Tensor, layer: Ours<'_>, added: Option<&Tensor>) -> Result<Tensor> {
        let (module, weight) = (&self.module, layer.weight);
        let (outputs, inputs) = (layer.shape.outputs, layer.shape.inputs);
        let (data, scales) = (module.address(&weight.data), module.address(&weight.scales));
        if weight.format == Format::Bf16 {
            return self.product_by_cublas(x, (Numbers::Bf16, data), (layer.shape, layer.bias), added);
        }
        let unpacked = module.room::<f16>(outputs * inputs)?;
        let (at, pieces) = (module.address(&unpacked), (inputs / 4).div_ceil(THREADS));
        let args = [data.into(), scales.into(), inputs.into(), at.into()];
        let kernel = format!("unpack_{}", weight.format.name());
        module.launch(&kernel, (outputs, pieces, 1), THREADS, 0, &args)?;
        self.product_by_cublas(x, (Numbers::EighthsInF16, at), (layer.shape, layer.bias), added)
    }

    /// A product of many rows with a weight in half precision that is not in our form, such as one with rows that are no
    /// whole number of blocks. The formula would round its output to half precision, too.
    fn product_of_halves(&self, x: &Tensor, layer: Layer<'_>, added: Option<&Tensor>) -> Result<Option<Tensor>> {
        let (module, (rows, width)) = (&self.module, x.dims2()?);
        // Four numbers are converted at once.
        let Form::Dense(weight) = &layer.0.form else { return Ok(None) };
        if rows <= FEW_ROWS_MAX || !width.is_multiple_of(4) {
            return Ok(None);
        }
        let numbers = match weight.dtype() {
            DType::BF16 => (Numbers::Bf16, module.tensor::<bf16>(weight)?),
            DType::F16 => (Numbers::EighthsInF16, module.tensor::<f16>(weight)?),
            _ => return Ok(None),
        };
        self.product_by_cublas(x, numbers, layer, added).map(Some)
    }

    /// `(added +) x · Wᵀ + b` for a weight in half precision at an address; sums are in `f32`.
    fn product_by_cublas(
        &self,
        x: &Tensor,
        (numbers, weight): (Numbers, u64),
        (shape, bias): Layer<'_>,
        added: Option<&Tensor>,
    ) -> Result<Tensor> {
        let (module, rows, outputs) = (&self.module, x.dim(0)?, shape.outputs);
        let reader = match numbers {
            Numbers::Bf16 => Reader::ManyHalves,
            Numbers::EighthsInF16 => Reader::ManyQuantized,
        };
        let prepared = self.prepare(x, reader)?;
        let count = rows * outputs;
        let out = module.room::<f32>(count)?;
        let out_at = module.address(&out);
        // The bias goes along with the addend, which is copied anyway.
        match (added, bias) {
            (Some(added), Some(bias)) => {
                let (added, bias) = (module.tensor::<f32>(added)?, module.tensor::<f32>(bias)?);
                let nothing = [Arg::Int(-1), Arg::Address(0)];
                let sizes = [outputs.into(), Arg::Size(count), out_at.into()];
                let args = [&[added.into(), bias.into()][..], &nothing, &sizes].concat();
                module.launch("bias_act_scale", (count.div_ceil(THREADS), 1, 1), THREADS, 0, &args)?;
            }
            (Some(added), None) => module.copy(module.tensor::<f32>(added)?, out_at, 4 * count)?,
            (None, _) => {}
        }
        let addresses = [module.address(&prepared.high), weight, out_at];
        module.gemm(numbers, addresses, [rows, outputs, shape.inputs], added.is_some())?;
        if let (None, Some(bias)) = (added, bias) {
            let args = [module.tensor::<f32>(bias)?.into(), outputs.into(), Arg::Size(count), out_at.into()];
            module.launch("add_bias", (count.div_ceil(THREADS), 1, 1), THREADS, 0, &args)?;
        }
        Ok(module.wrap(out, (rows, outputs)))
    }

    /// Looks up table rows by the step's tokens.
    pub(super) fn table_rows(&self, weight: &Matrix, tokens: usize) -> Result<Tensor> {
        let Form::Cuda(ours) = &weight.form else { return Err(foreign("an embedding")) };
        let (module, width) = (&self.module, weight.inputs);
        let out = module.room::<f32>(tokens * width)?;
        let mut args = vec![module.address(&ours.data).into()];
        if ours.format != Format::Bf16 {
            args.push(module.address(&ours.scales).into());
        }
        let ids = locked(&self.inputs).token_ids(module);
        args.extend([Arg::Address(ids), width.into(), module.address(&out).into()]);
        module.launch(&format!("rows_{}", ours.format.name()), (tokens, 1, 1), THREADS, 0, &args)?;
        Ok(module.wrap(out, (tokens, width)))
    }
}

/// Warps per block of a product, which divide the columns of W: fewer if W has many rows. Depends on W alone, so that a
/// row's result does not depend on the batch.
fn warps(blocks: usize, inputs: usize) -> usize {
    if blocks >= 400 && inputs <= 4096 { 4 } else { WARPS_MAX }
}

/// Launch parameters of a product of a row or two, which prepares its own activation.
pub(super) struct OneRow {
    pub(super) warps: usize,
    /// Shared memory in bytes.
    pub(super) shared: usize,
    /// Suffix of the kernel's name.
    pub(super) suffix: &'static str,
}

impl OneRow {
    /// Plans a launch for this many blocks of outputs, of one matrix or of two gated ones.
    pub(super) fn plan(format: Format, [rows, inputs]: [usize; 2], blocks: usize, matrices: usize) -> Self {
        if format == Format::Bf16 {
            let warps = (matrices * warps(blocks, inputs)).min(WARPS_MAX);
            // Laid out as in `prepare_here`, after the warps' sums.
            let shared = 4 * warps * OUTPUTS * 9 + 32 + 4 * rows * inputs;
            return Self { warps, shared, suffix: "0" };
        }
        // Laid out as in `one_row`: the rows of W, then the activation's bytes, scales and sums.
        let (row_bytes, row_scales) = format.row_of(inputs);
        let stride = row_bytes + (128 + format.bank_offset() - row_bytes % 128) % 128;
        let tile = matrices * OUTPUTS * (stride + 2 * row_scales);
        let activation = rows * (inputs / 32 * 8 + inputs / 16 * 4 + 2 * inputs) + PART;
        let most = if blocks > WIDE_BLOCKS && tile <= WIDE_BYTES_MAX { WARPS_MAX / 2 } else { WARPS_MAX };
        let warps = (matrices * inputs.div_ceil(PART)).min(most);
        let shared = tile + 4 * warps * rows * OUTPUTS + activation;
        Self { warps, shared, suffix: if rows == 1 { "rows1" } else { "rows2" } }
    }
}
