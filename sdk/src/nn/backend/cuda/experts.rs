//! Mixture of experts whose choices stay on the device (`experts.cu`).

use candle_core::{Tensor, cuda_backend::cudarc::driver::CudaSlice};
use pensieve_kernels::Glu;

use super::{
    CudaKernels, THREADS, activation_number,
    memory::failed,
    module::Arg,
    products::{OUTPUTS, OneRow, PART, WARPS_MAX},
    weights::Format,
};
use crate::{
    Error, Result,
    nn::backend::{Form, Layer, Routed, Routing},
};

/// Maximum number of experts that the kernels support.
const COUNT_MAX: usize = 1024;

/// Threads for routing a row, sorting choices, and preparing a slot.
const ROUTE_THREADS: usize = 128;
const SORT_THREADS: usize = 1024;
const PREPARE_THREADS: usize = 256;

/// Choices per row assumed to run concurrently when choosing a block size.
const CHOICES_MANY: usize = 4;

/// Id of the gpt-oss gate in the kernels.
const CLAMPED: i32 = 3;

/// A layer's experts, in the form that the kernels take.
#[derive(Debug)]
pub(in crate::nn) struct ExpertTable {
    /// One [`Entry`] for the gated half of each expert.
    gated: CudaSlice<u64>,
    /// One [`Entry`] for the down projection of each expert.
    down: CudaSlice<u64>,
    formats: [Format; 2],
    count: usize,
    width: usize,
    inner: usize,
}

/// Data, scales and biases of up to two matrices, as `Expert` in `experts.cu`.
type Entry = [u64; 6];

/// Choices sorted into tiles of slots.
struct Tiles {
    list: CudaSlice<u32>,
    count: usize,
    /// Slots per tile, in units of eight.
    eights: usize,
    choice_of: CudaSlice<i32>,
    slot_of: CudaSlice<i32>,
}

/// An activation that experts read.
#[derive(Clone, Copy)]
struct Read {
    x: u64,
    width: usize,
    /// Number of choices that share a row; 0 if each slot has its own.
    sharing: usize,
}

/// The slots' activations, in the form that products read.
struct Slots {
    high: CudaSlice<u16>,
    low: CudaSlice<u16>,
    sums: CudaSlice<f32>,
    row_scales: CudaSlice<f32>,
}

impl Slots {
    fn addresses(&self, kernels: &CudaKernels) -> [Arg; 4] {
        let module = &kernels.module;
        let halves = [module.address(&self.high), module.address(&self.low)];
        let [high, low] = halves.map(Arg::Address);
        [high, low, module.address(&self.sums).into(), module.address(&self.row_scales).into()]
    }
}

/// One half of all experts.
struct Half<'a> {
    what: &'static str,
    entries: &'a CudaSlice<u64>,
    format: Format,
    outputs: usize,
    gate: Gate,
}

/// The activation between the halves in the kernels' form: its id, and the parameters of a clamped gate.
#[derive(Clone, Copy)]
struct Gate {
    kind: i32,
    alpha: f32,
    limit: f32,
}

impl Gate {
    /// `None` for experts without a gate, which no kernel supports.
    fn of(glu: Glu) -> Option<Self> {
        match glu {
            Glu::Plain(activation) => Some(Self { kind: activation_number(activation), alpha: 0.0, limit: 0.0 }),
            Glu::Clamped { alpha, limit } => Some(Self { kind: CLAMPED, alpha: alpha as f32, limit: limit as f32 }),
            Glu::Square => None,
        }
    }
}

impl Half<'_> {
    /// The trailing kernel arguments.
    fn ends(&self, out: u64, inputs: usize) -> [Arg; 6] {
        let Gate { kind, alpha, limit } = self.gate;
        [out.into(), self.outputs.into(), inputs.into(), Arg::Int(kind), alpha.into(), limit.into()]
    }
}

impl CudaKernels {
    /// Returns a router's choices; `None` if it has too many experts for the kernel.
    pub(super) fn choose_experts(&self, logits: &Tensor, routing: &Routing<'_>) -> Result<Option<Routed>> {
        let (module, (rows, count)) = (&self.module, logits.dims2()?);
        let [groups, kept, compared] = routing.groups.unwrap_or_default();
        let fits = count <= COUNT_MAX && routing.top_k <= count && kept <= groups && groups <= count && compared <= 2;
        if !fits || routing.correction.is_some_and(|correction| correction.len() != count) {
            return Ok(None);
        }
        let correction = routing.correction.map(|values| self.constant(values)).transpose()?.unwrap_or_default();
        let experts = module.room::<u32>(rows * routing.top_k)?;
        let weights = module.room::<f32>(rows * routing.top_k)?;
        let args = [
            self.at(logits)?,
            correction.into(),
            count.into(),
            routing.top_k.into(),
            Arg::Int(i32::from(routing.is_sigmoid)),
            Arg::Int(i32::from(routing.renormalize)),
            routing.scale.into(),
            groups.into(),
            kept.into(),
            compared.into(),
            module.address(&experts).into(),
            module.address(&weights).into(),
        ];
        module.launch("route", (rows, 1, 1), ROUTE_THREADS, 0, &args)?;
        let shape = (rows, routing.top_k);
        Ok(Some(Routed { experts: module.wrap(experts, shape), weights: module.wrap(weights, shape) }))
    }

    /// Builds the table of a layer's experts, if each half has a single supported format across all experts.
    pub(super) fn table_of(&self, experts: &[[Layer<'_>; 3]]) -> Result<Option<ExpertTable>> {
        let Some([gate, _, down]) = experts.first() else { return Ok(None) };
        let (width, inner) = (gate.0.inputs, gate.0.outputs);
        let (Form::Cuda(gate), Form::Cuda(down)) = (&gate.0.form, &down.0.form) else { return Ok(None) };
        let formats = [gate.format, down.format];
        let shapes = [(formats[0], inner, width), (formats[0], inner, width), (formats[1], width, inner)];
        let (mut gated, mut back) = (Vec::new(), Vec::new());
        for layers in experts {
            let mut addresses = [[0; 3]; 3];
            for (((weight, bias), shape), address) in layers.iter().zip(shapes).zip(&mut addresses) {
                let Form::Cuda(ours) = &weight.form else { return Ok(None) };
                if (ours.format, weight.outputs, weight.inputs) != shape {
                    return Ok(None);
                }
                let bias = bias.map(|bias| self.module.tensor::<f32>(bias)).transpose()?.unwrap_or_default();
                *address = [self.module.address(&ours.data), self.module.address(&ours.scales), bias];
            }
            let [gate, up, down] = addresses;
            let entry: Entry = [gate[0], up[0], gate[1], up[1], gate[2], up[2]];
            gated.extend(entry);
            let entry: Entry = [down[0], 0, down[1], 0, down[2], 0];
            back.extend(entry);
        }
        let send = |entries: &[u64]| self.module.stream.clone_htod(entries).map_err(failed);
        Ok(Some(ExpertTable { gated: send(&gated)?, down: send(&back)?, formats, count: experts.len(), width, inner }))
    }

    /// Returns the weighted sum of each row's expert outputs; `None` for experts without a gate.
    pub(super) fn mix(&self, x: &Tensor, routed: &Routed, table: &ExpertTable, glu: Glu) -> Result<Option<Tensor>> {
        let Some(gate) = Gate::of(glu) else { return Ok(None) };
        let (module, (rows, width), top_k) = (&self.module, x.dims2()?, routed.experts.dim(1)?);
        if width != table.width || routed.experts.dim(0)? != rows {
            let (experts, dims) = (table.width, x.dims());
            return Err(Error::invalid(format!("experts of width {experts} were given rows of {dims:?}")));
        }
        let gated = Half { what: "gated", entries: &table.gated, format: table.formats[0], outputs: table.inner, gate };
        let back = Half { what: "product", entries: &table.down, format: table.formats[1], outputs: width, gate };
        let x = Read { x: module.tensor::<f32>(x)?, width, sharing: top_k };
        let choices = rows * top_k;
        if let Some(plans) = self.one_by_one(&gated, &back, choices, table.count) {
            let experts = module.tensor::<u32>(&routed.experts)?;
            let hidden = self.half_of_choices(&gated, &plans[0], (experts, choices), x)?;
            let read = Read { x: module.tensor::<f32>(&hidden)?, width: table.inner, sharing: 1 };
            let made = self.half_of_choices(&back, &plans[1], (experts, choices), read)?;
            let weights = (self.module.tensor::<f32>(&routed.weights)?, top_k);
            return self.sum_rows(&made, None, weights, (rows, width)).map(Some);
        }
        let tiles = self.sort_choices(routed, table.count)?;
        let hidden = self.half_of_tiles(&gated, &tiles, x)?;
        let read = Read { x: module.tensor::<f32>(&hidden)?, width: table.inner, sharing: 0 };
        let made = self.half_of_tiles(&back, &tiles, read)?;
        let weights = (self.module.tensor::<f32>(&routed.weights)?, top_k);
        let out = self.sum_rows(&made, Some(&tiles.slot_of), weights, (rows, width))?;
        module.memory.keep(tiles);
        Ok(Some(out))
    }

    /// Plans the launches that compute each choice separately, if there are so few choices that most experts have a row
    /// or two.
    fn one_by_one(&self, gated: &Half<'_>, back: &Half<'_>, choices: usize, experts: usize) -> Option<[OneRow; 2]> {
        let plan = |half: &Half<'_>, inputs: usize, matrices: usize| {
            OneRow::plan(half.format, [1, inputs], half.outputs.div_ceil(OUTPUTS) * CHOICES_MANY, matrices)
        };
        let plans = [plan(gated, back.outputs, 2), plan(back, gated.outputs, 1)];
        let fits = plans.iter().all(|plan| plan.shared <= self.module.shared_max());
        // Reading bf16 weights costs twice as much as computing with them: tiles read them only once.
        let most = if gated.format == Format::Bf16 { experts / 4 } else { 2 * experts };
        (choices <= most && fits).then_some(plans)
    }

    /// Sorts choices into tiles.
    fn sort_choices(&self, routed: &Routed, experts: usize) -> Result<Tiles> {
        let (module, choices) = (&self.module, routed.experts.elem_count());
        // If each expert has many rows, a block takes more of them at a time.
        let eights = if choices > 16 * experts { 4 } else { 1 };
        let count = choices.min(choices / (8 * eights) + experts);
        let tiles = Tiles {
            list: module.room(2 * count)?,
            count,
            eights,
            choice_of: module.room(8 * eights * count)?,
            slot_of: module.room(choices)?,
        };
        let args = [
            module.tensor::<u32>(&routed.experts)?.into(),
            choices.into(),
            experts.into(),
            (8 * eights).into(),
            count.into(),
            module.address(&tiles.list).into(),
            module.address(&tiles.choice_of).into(),
            module.address(&tiles.slot_of).into(),
        ];
        module.launch("sort_choices", (1, 1, 1), SORT_THREADS, 0, &args)?;
        Ok(tiles)
    }

    /// Computes one half of the experts over tiles; returns a row per slot.
    fn half_of_tiles(&self, half: &Half<'_>, tiles: &Tiles, read: Read) -> Result<Tensor> {
        let (module, inputs, slots) = (&self.module, read.width, 8 * tiles.eights * tiles.count);
        let out = module.room::<f32>(slots * half.outputs)?;
        let parts = inputs.div_ceil(PART);
        let warps = if half.what == "gated" { 2 * parts.min(WARPS_MAX / 2) } else { parts.min(WARPS_MAX) };
        let prepared = self.prepare_slots(read, &tiles.choice_of, slots, half.format == Format::Bf16)?;
        let mut args = vec![module.address(half.entries).into(), module.address(&tiles.list).into()];
        args.extend(prepared.addresses(self));
        args.extend(half.ends(module.address(&out), inputs));
        let name = format!("experts_{}_{}_{}", half.what, half.format.name(), tiles.eights);
        let grid = (half.outputs.div_ceil(OUTPUTS), tiles.count, 1);
        module.launch(&name, grid, 32 * warps, 4 * warps * tiles.eights * OUTPUTS * 9, &args)?;
        module.memory.keep(prepared);
        Ok(module.wrap(out, (slots, half.outputs)))
    }

    /// Computes one half of the experts choice by choice; returns a row per choice.
    fn half_of_choices(
        &self,
        half: &Half<'_>,
        plan: &OneRow,
        (experts, choices): (u64, usize),
        read: Read,
    ) -> Result<Tensor> {
        let module = &self.module;
        let out = module.room::<f32>(choices * half.outputs)?;
        let mut args = vec![module.address(half.entries).into(), experts.into(), read.sharing.into(), read.x.into()];
        args.extend(half.ends(module.address(&out), read.width));
        let name = format!("experts_{}_{}_one", half.what, half.format.name());
        let grid = (half.outputs.div_ceil(OUTPUTS), choices, 1);
        module.launch(&name, grid, 32 * plan.warps, plan.shared, &args)?;
        Ok(module.wrap(out, (choices, half.outputs)))
    }

    /// Converts the slots' activations to the form that products read.
    fn prepare_slots(&self, read: Read, choice_of: &CudaSlice<i32>, slots: usize, halves: bool) -> Result<Slots> {
        let (module, width) = (&self.module, read.width);
        let prepared = Slots {
            high: module.room(slots * width)?,
            low: module.room(if halves { slots * width } else { 1 })?,
            sums: module.room(slots.div_ceil(8) * (width / 16 * 12))?,
            row_scales: module.room(slots)?,
        };
        let mut args = vec![
            read.x.into(),
            module.address(choice_of).into(),
            read.sharing.into(),
            width.into(),
            Arg::Int(i32::from(halves)),
        ];
        args.extend(prepared.addresses(self));
        module.launch("prepare_slots", (slots, 1, 1), PREPARE_THREADS, 0, &args)?;
        Ok(prepared)
    }

    /// Weighted sums of rows that the host has chosen.
    pub(super) fn weighted_sums(&self, x: &Tensor, indices: &[u32], weights: &[f32], terms: usize) -> Result<Tensor> {
        let (module, width) = (&self.module, x.dim(1)?);
        let indices: Vec<i32> = indices.iter().map(|&index| index.cast_signed()).collect();
        let slots = module.stream.clone_htod(&indices).map_err(failed)?;
        let weights = module.stream.clone_htod(weights).map_err(failed)?;
        self.sum_rows(x, Some(&slots), (module.address(&weights), terms), (indices.len() / terms, width))
    }

    /// Weighted sums of rows, in the order of the weights; `slot_of` says where a weight's row is, if not in that order.
    fn sum_rows(
        &self,
        made: &Tensor,
        slot_of: Option<&CudaSlice<i32>>,
        (weights, terms): (u64, usize),
        (rows, width): (usize, usize),
    ) -> Result<Tensor> {
        let module = &self.module;
        let out = module.room::<f32>(rows * width)?;
        let args = [
            self.at(made)?,
            slot_of.map_or(0, |slots| module.address(slots)).into(),
            weights.into(),
            terms.into(),
            width.into(),
            module.address(&out).into(),
        ];
        module.launch("combine", (rows, width.div_ceil(THREADS), 1), THREADS, 0, &args)?;
        Ok(module.wrap(out, (rows, width)))
    }
}
