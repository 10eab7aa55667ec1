//! Mixture of experts (arXiv 1701.06538): a router that chooses a few feed-forward blocks for each row, and those
//! blocks.
//!
//! Rows are sorted by expert, so that each expert's weights are read once for all rows routed to it, however many
//! sequences they belong to. A row's expert outputs are summed in the router's ranking order, so the result does not
//! depend on the rest of the batch. Checkpoints store experts separately or stacked in one tensor; either way each
//! becomes separate layers, whose names adapters use.
//!
//! A backend may route and compute without the choices ever reaching the host, so that a step with such layers can
//! still be a single launch. The host fetches the choices if adapters apply to any rows, if the backend has no kernel
//! for the weights or the gate, or if the experts stay in host memory because the device's is too small.

use candle_core::Tensor;
use pensieve_kernels::ExpertTerms;
use std::{
    ops::Range,
    sync::{Arc, OnceLock},
};

use super::{
    gate::GateFn,
    router::{Choices, Routes},
};
use crate::{
    Result,
    nn::{
        Linear, Loader, Ops, Step,
        backend::{ExpertRows, ExpertTable},
    },
    weights::RawTensor,
};

/// The checkpoint's names for an expert's layers.
#[derive(Clone, Copy, Debug)]
pub struct ExpertNames {
    /// Layer whose output goes through the activation.
    pub gate: &'static str,
    /// Layer whose output is gated.
    pub up: &'static str,
    /// Gate and up stacked as rows of one tensor, the gate first.
    pub gate_up: &'static str,
    /// Layer back to the hidden size.
    pub down: &'static str,
}

impl Default for ExpertNames {
    fn default() -> Self {
        Self { gate: "gate_proj", up: "up_proj", gate_up: "gate_up_proj", down: "down_proj" }
    }
}

/// The three layers of one expert.
#[derive(Clone, Debug)]
pub struct Expert {
    /// The gate. Unused with [`Glu::Square`](crate::nn::Glu::Square) and [`GateFn::ungated`], but must have the gate's shape.
    pub gate: Linear,
    /// Layer whose output is gated.
    pub up: Linear,
    /// Layer back to the hidden size.
    pub down: Linear,
}

/// The weights of all experts in one tensor.
struct Stack {
    raw: RawTensor,
    /// Stored as `[inputs, outputs]` rather than `[outputs, inputs]`.
    is_transposed: bool,
}

/// Name, rows and columns of a layer that every expert has.
type ExpertLayer = (&'static str, usize, usize);

impl Stack {
    /// Loads the stacks of these layers that the checkpoint has. Either all or none of them are transposed; the shape
    /// of a non-square one shows which, so square ones are loaded last. If all are square, they are assumed not to be
    /// transposed.
    fn load_all<const N: usize>(
        loader: &Loader<'_>,
        count: usize,
        layers: [ExpertLayer; N],
    ) -> Result<[Option<Self>; N]> {
        let mut stacks: [Option<Self>; N] = std::array::from_fn(|_| None);
        let mut known = None;
        for is_square in [false, true] {
            for (stack, (name, rows, columns)) in stacks.iter_mut().zip(layers) {
                let weight = format!("{name}.weight");
                let found = [weight.as_str(), name].into_iter().find(|name| loader.has(name));
                let Some(found) = found.filter(|_| (rows == columns) == is_square) else { continue };
                let of = |is_transposed: bool| -> Result<Self> {
                    let shape = if is_transposed { [count, columns, rows] } else { [count, rows, columns] };
                    Ok(Self { raw: loader.raw(found, &shape)?, is_transposed })
                };
                let loaded = match known {
                    Some(is_transposed) => of(is_transposed)?,
                    None if is_square => of(false)?,
                    None => of(false).or_else(|error| of(true).map_err(|_| error))?,
                };
                known = Some(loaded.is_transposed);
                *stack = Some(loaded);
            }
        }
        Ok(stacks)
    }

    fn part(&self, index: usize) -> Result<RawTensor> {
        let part = self.raw.part(index)?;
        if self.is_transposed { part.transposed() } else { Ok(part) }
    }
}

/// The feed-forward blocks of a mixture.
#[derive(Clone, Debug)]
pub struct Experts {
    experts: Vec<Expert>,
    shared: Arc<Compute>,
}

/// Shared by the clones of a layer.
#[derive(Debug)]
struct Compute {
    gate: GateFn,
    /// Computes experts that stay in host memory; `None` if the model's own backend does.
    host: Option<Ops>,
    /// The backend's view of the weights, built on first use.
    table: OnceLock<ExpertTable>,
}

impl Experts {
    /// Loads `count` experts of inner width `inner`: `0.gate_proj.weight` and so on, or stacked as `gate_proj.weight`
    /// or `gate_up_proj`, whose first dimension is the expert. Transposed stacks, as in Qwen3-VL's checkpoints, are
    /// recognized by the shape of the non-square ones.
    pub fn load(
        loader: &Loader<'_>,
        names: ExpertNames,
        (count, width, inner): (usize, usize, usize),
        gate: impl Into<GateFn>,
    ) -> Result<Self> {
        let gate_fn = gate.into();
        let (loader, host) = loader.for_experts();
        let biases = |name: &str, rows: usize| -> Result<Option<RawTensor>> {
            let name = format!("{name}.bias");
            if loader.has(&name) { loader.raw(&name, &[count, rows]).map(Some) } else { Ok(None) }
        };
        let layers = [(names.gate, inner, width), (names.up, inner, width), (names.down, width, inner)];
        let [gate, up, down] = layers;
        let [fused, of_gate, of_up, of_down] =
            Stack::load_all(&loader, count, [(names.gate_up, 2 * inner, width), gate, up, down])?;
        let of = |stack: Option<Stack>, (name, rows, _): ExpertLayer| -> Result<_> { Ok((stack, biases(name, rows)?)) };
        let stacks = [of(of_gate, gate)?, of(of_up, up)?, of(of_down, down)?];
        let expert = |index: usize| -> Result<Expert> {
            let here = loader.at(index);
            let fused = fused.as_ref().map(|fused| fused.part(index)).transpose()?;
            let layer = |layer: usize| -> Result<Linear> {
                let ((name, rows, columns), (weights, biases)) = (layers[layer], &stacks[layer]);
                let linear = match (&fused, weights) {
                    (Some(fused), _) if layer < 2 => {
                        here.linear_of(name, &fused.rows(layer * inner..(layer + 1) * inner)?)?
                    }
                    (_, Some(weights)) => here.linear_of(name, &weights.part(index)?)?,
                    _ => here.linear(name, columns, rows)?,
                };
                match biases {
                    Some(biases) => Ok(linear.with_bias(Some(here.vector_of(&biases.part(index)?)?))),
                    None => Ok(linear),
                }
            };
            let up = layer(1)?;
            let gate = if gate_fn.has_gate() { layer(0)? } else { up.clone() };
            Ok(Expert { gate, up, down: layer(2)? })
        };
        Ok(Self::new((0..count).map(expert).collect::<Result<_>>()?, gate_fn).computed_by(host))
    }

    /// Experts whose layers were loaded by the model file.
    pub fn new(experts: Vec<Expert>, gate: impl Into<GateFn>) -> Self {
        let (gate, host, table) = (gate.into(), None, OnceLock::new());
        Self { experts, shared: Arc::new(Compute { gate, host, table }) }
    }

    /// Lets `host`, the second value of [`Loader::for_experts`], compute experts whose weights came from the first.
    #[must_use]
    pub fn computed_by(self, host: Option<Ops>) -> Self {
        let (gate, table) = (self.shared.gate.clone(), OnceLock::new());
        Self { shared: Arc::new(Compute { gate, host, table }), ..self }
    }

    /// Returns the weighted sum of each row's expert outputs. `x` may be another input than the router's.
    pub fn forward(&self, x: &Tensor, routes: &Routes, step: &Step<'_>) -> Result<Tensor> {
        if let (Some(routed), Some(glu)) = (routes.routed(), self.shared.gate.known())
            && self.shared.host.is_none()
            && !step.is_adapted()
            && let Some(out) = step.ops().mixture(x, routed, self.table(step.ops())?, glu)?
        {
            return Ok(out);
        }
        self.forward_chosen(x, &*routes.fetch()?, step)
    }

    fn table(&self, ops: &Ops) -> Result<&ExpertTable> {
        if let Some(table) = self.shared.table.get() {
            return Ok(table);
        }
        let layers = self.experts.iter().map(|expert| [expert.gate.parts(), expert.up.parts(), expert.down.parts()]);
        let table = ops.expert_table(&layers.collect::<Vec<_>>())?;
        Ok(self.shared.table.get_or_init(|| table))
    }

    /// Sorts rows by expert on the host and computes each expert on its rows.
    fn forward_chosen(&self, x: &Tensor, choices: &Choices, step: &Step<'_>) -> Result<Tensor> {
        choices.check(x.dim(0)?, self.experts.len())?;
        let sorted = choices.by_expert();
        let groups = sorted.groups.iter().map(|(expert, rows)| (&self.experts[*expert], rows.clone()));
        let groups: Vec<Group<'_>> = groups.collect();
        if let Some(out) = self.forward_together(x, choices.terms(&sorted), &groups, step)? {
            return Ok(out);
        }
        let outs = self.forward_one_by_one(x, &sorted.sources, &groups, step)?;
        choices.combine(&outs, &sorted, step.ops())
    }

    /// All experts in one call, if the backend has a kernel for them and no adapter applies.
    fn forward_together(
        &self,
        x: &Tensor,
        terms: ExpertTerms<'_>,
        groups: &[Group<'_>],
        step: &Step<'_>,
    ) -> Result<Option<Tensor>> {
        let Some(glu) = self.shared.gate.known().filter(|_| !step.is_adapted()) else { return Ok(None) };
        let rows = groups.iter().map(|(expert, rows)| {
            let layers = [expert.gate.parts(), expert.up.parts(), expert.down.parts()];
            let stretches = step.rows(&terms.sources[rows.clone()]).stretches();
            ExpertRows { layers, rows: rows.clone(), stretches }
        });
        let rows = rows.collect::<Vec<_>>();
        let Some(host) = &self.shared.host else { return step.ops().experts(x, &rows, glu, terms) };
        let out = host.experts(&x.to_device(host.device())?, &rows, glu, terms)?;
        Ok(out.map(|out| out.to_device(x.device())).transpose()?)
    }

    /// Computes expert by expert, including adapters.
    fn forward_one_by_one(&self, x: &Tensor, sources: &[u32], groups: &[Group<'_>], step: &Step<'_>) -> Result<Tensor> {
        let ops = self.shared.host.as_ref();
        let gathered = step.ops().select_rows(x, sources)?;
        let forward = |(expert, rows): &Group<'_>| {
            let (x, of) = (step.ops().rows(&gathered, rows.start, rows.len())?, step.rows(&sources[rows.clone()]));
            let up = expert.up.forward_rows_by(ops, &x, &of, step)?;
            let gate = match self.shared.gate.has_gate() {
                true => expert.gate.forward_rows_by(ops, &x, &of, step)?,
                false => up.clone(),
            };
            expert.down.forward_rows_by(ops, &self.shared.gate.forward(&gate, &up, step.ops())?, &of, step)
        };
        Ok(Tensor::cat(&groups.iter().map(forward).collect::<Result<Vec<_>>>()?, 0)?)
    }
}

/// An expert and its range of the gathered rows.
type Group<'a> = (&'a Expert, Range<usize>);

/// Multiplies each row of `x` by the sigmoid of its value in `gate`, of shape `[rows, 1]`, as for a gated shared
/// expert.
pub fn weighed(x: &Tensor, gate: &Tensor) -> Result<Tensor> {
    Ok(x.broadcast_mul(&(gate.neg()?.exp()? + 1.0)?.recip()?)?)
}
