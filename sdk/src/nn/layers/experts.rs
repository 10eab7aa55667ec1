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
//! for the weights, or if the experts stay in host memory because the device's is too small.

use candle_core::Tensor;
use std::{
    cmp::Ordering,
    ops::Range,
    sync::{Arc, OnceLock},
};

use crate::{
    Error, Result,
    nn::{
        Glu, Linear, Loader, Ops, Step,
        backend::{ExpertRows, ExpertTable, Routed, Routing},
    },
    weights::RawTensor,
};

/// Turns a router's logits into scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scoring {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each logit.
    Sigmoid,
    /// Phi-MoE's (arXiv 2409.12136): one softmax per choice, over the logits within a margin of the largest.
    SparseMixer {
        /// Relative to the larger of the logit and the maximum: twice the jitter noise in training.
        margin: f32,
    },
}

/// Group-limited routing: only experts of the best groups can be chosen (arXiv 2405.04434, 2412.19437).
#[derive(Clone, Copy, Debug)]
pub struct Groups {
    /// Number of groups, all of equal size.
    pub count: usize,
    /// Number of groups whose experts can be chosen.
    pub kept: usize,
    /// Number of best scores whose sum ranks a group: 1 or 2.
    pub compared: usize,
}

/// Chooses experts for each row.
#[derive(Clone, Debug)]
pub struct Router {
    /// Computes one logit per expert.
    pub gate: Linear,
    /// Experts per row.
    pub top_k: usize,
    /// Applied to the logits.
    pub scoring: Scoring,
    /// Divides the weights of a row's experts by their sum.
    pub renormalize: bool,
    /// Factor for all weights, after any renormalizing.
    pub scale: f32,
    /// Additional factor for each expert's weights.
    pub expert_scale: Option<Box<[f32]>>,
    /// Added to the scores for ranking only; the experts' weights do not include it (`e_score_correction_bias`).
    pub correction: Option<Vec<f32>>,
    /// Limits the choice to the best groups.
    pub groups: Option<Groups>,
}

/// The experts chosen for each row, and their weights.
#[derive(Clone, Debug)]
pub struct Routes(RoutesAt);

/// Choices, on the host or on the router's device.
#[derive(Clone, Debug)]
enum RoutesAt {
    Host(Choices),
    Device(Routed),
}

/// Choices in host memory.
#[derive(Clone, Debug)]
struct Choices {
    /// `top_k` per row, best first.
    experts: Vec<usize>,
    /// Factor of each chosen expert's output.
    weights: Vec<f32>,
    top_k: usize,
}

impl Router {
    /// Loads the layer `name` as the gate of a router that chooses `top_k` of `count` experts by softmax.
    pub fn load(loader: &Loader<'_>, name: &str, width: usize, count: usize, top_k: usize) -> Result<Self> {
        if top_k == 0 || top_k > count {
            return Err(Error::corrupt(format!("the configuration asks for {top_k} of {count} experts")));
        }
        let gate = loader.linear(name, width, count)?;
        let (scoring, renormalize, scale) = (Scoring::Softmax, false, 1.0);
        Ok(Self { gate, top_k, scoring, renormalize, scale, expert_scale: None, correction: None, groups: None })
    }

    /// Loads the correction for `count` experts from the first of these tensors that the checkpoint has, if any.
    pub fn with_correction(self, loader: &Loader<'_>, names: &[&str], count: usize) -> Result<Self> {
        let Some(name) = names.iter().find(|name| loader.has(name)) else { return Ok(self) };
        let correction = loader.values(name)?;
        let values = correction.as_ref().map_or(0, Vec::len);
        if values != count {
            let message = format!("tensor '{}.{name}' has {values} values for {count} experts", loader.path());
            return Err(Error::corrupt(message));
        }
        Ok(Self { correction, ..self })
    }

    /// Routes each row of `x`.
    pub fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Routes> {
        let logits = self.gate.forward(x, step)?;
        if let Some(routing) = self.routing()
            && let Some(routed) = step.ops().route(&logits, &routing)?
        {
            return Ok(Routes(RoutesAt::Device(routed)));
        }
        let count = logits.dim(1)?;
        let logits = logits.flatten_all()?.to_vec1::<f32>()?;
        let mut routes = Choices { experts: Vec::new(), weights: Vec::new(), top_k: self.top_k };
        for row in logits.chunks_exact(count) {
            let start = routes.weights.len();
            match self.scoring {
                Scoring::SparseMixer { margin } => mix_sparsely(row, self.top_k, margin, &mut routes),
                Scoring::Softmax => self.choose(&softmax(row), &mut routes),
                Scoring::Sigmoid => {
                    self.choose(&row.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect::<Vec<_>>(), &mut routes);
                }
            }
            let weights = &mut routes.weights[start..];
            let sum: f32 = if self.renormalize { weights.iter().sum() } else { 1.0 };
            weights.iter_mut().for_each(|weight| *weight *= self.scale / sum);
            if let Some(scale) = &self.expert_scale {
                let chosen = routes.experts[start..].iter().map(|&expert| scale.get(expert).copied().unwrap_or(1.0));
                weights.iter_mut().zip(chosen).for_each(|(weight, scale)| *weight *= scale);
            }
        }
        Ok(Routes(RoutesAt::Host(routes)))
    }

    /// The router's settings for a backend's kernel; `None` if kernels do not support them.
    fn routing(&self) -> Option<Routing<'_>> {
        if self.expert_scale.is_some() {
            return None;
        }
        let is_sigmoid = match self.scoring {
            Scoring::Softmax => false,
            Scoring::Sigmoid => true,
            Scoring::SparseMixer { .. } => return None,
        };
        Some(Routing {
            top_k: self.top_k,
            is_sigmoid,
            renormalize: self.renormalize,
            scale: self.scale,
            correction: self.correction.as_deref(),
            groups: self.groups.map(|groups| [groups.count, groups.kept, groups.compared]),
        })
    }

    fn choose(&self, scores: &[f32], routes: &mut Choices) {
        let mut ranks = scores.to_vec();
        if let Some(correction) = &self.correction {
            ranks.iter_mut().zip(correction).for_each(|(rank, correction)| *rank += correction);
        }
        if let Some(groups) = self.groups {
            mask_groups(&mut ranks, groups);
        }
        let best = best(&ranks, self.top_k);
        routes.weights.extend(best.iter().map(|&expert| scores[expert]));
        routes.experts.extend(best);
    }
}

impl Routed {
    /// Copies the choices to the host.
    fn fetch(&self) -> Result<Choices> {
        let experts = self.experts.flatten_all()?.to_vec1::<u32>()?.into_iter().map(|expert| expert as usize).collect();
        Ok(Choices { experts, weights: self.weights.flatten_all()?.to_vec1()?, top_k: self.experts.dim(1)? })
    }
}

/// Indices of the `count` largest values, in descending order; ties go to the lower index.
fn best(values: &[f32], count: usize) -> Vec<usize> {
    let mut indices: Vec<usize> = (0..values.len()).collect();
    let larger = |a: &usize, b: &usize| values[*b].partial_cmp(&values[*a]).unwrap_or(Ordering::Equal).then(a.cmp(b));
    if count < indices.len() {
        indices.select_nth_unstable_by(count, larger);
    }
    indices.truncate(count);
    indices.sort_unstable_by(larger);
    indices
}

/// Masks the experts outside the best groups.
fn mask_groups(ranks: &mut [f32], groups: Groups) {
    let size = ranks.len() / groups.count.max(1);
    let sum = |group: &[f32]| best(group, groups.compared).iter().map(|&expert| group[expert]).sum::<f32>();
    let sums: Vec<f32> = ranks.chunks(size.max(1)).map(sum).collect();
    let kept = best(&sums, groups.kept);
    for (index, group) in ranks.chunks_mut(size.max(1)).enumerate() {
        if !kept.contains(&index) {
            group.fill(f32::NEG_INFINITY);
        }
    }
}

fn softmax(logits: &[f32]) -> Vec<f32> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut weights: Vec<f32> = logits.iter().map(|logit| (logit - max).exp()).collect();
    let sum: f32 = weights.iter().sum();
    weights.iter_mut().for_each(|weight| *weight /= sum);
    weights
}

fn mix_sparsely(logits: &[f32], top_k: usize, margin: f32, routes: &mut Choices) {
    let mut left = logits.to_vec();
    for _ in 0..top_k {
        let Some(&expert) = best(&left, 1).first() else { return };
        let max = left[expert];
        let is_near = |(left, logit): (&f32, &f32)| (max - logit) / logit.abs().max(max) <= margin && left.is_finite();
        let near = left.iter().zip(logits).map(|pair| if is_near(pair) { *pair.0 } else { f32::NEG_INFINITY });
        routes.weights.push(softmax(&near.collect::<Vec<_>>())[expert]);
        routes.experts.push(expert);
        left[expert] = f32::NEG_INFINITY;
    }
}

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
    /// The gate. Unused with [`Glu::Square`], but must have the gate's shape.
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
    glu: Glu,
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
        glu: Glu,
    ) -> Result<Self> {
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
            let gate = if glu == Glu::Square { up.clone() } else { layer(0)? };
            Ok(Expert { gate, up, down: layer(2)? })
        };
        Ok(Self::new((0..count).map(expert).collect::<Result<_>>()?, glu).computed_by(host))
    }

    /// Experts whose layers were loaded by the model file.
    pub fn new(experts: Vec<Expert>, glu: Glu) -> Self {
        let (host, table) = (None, OnceLock::new());
        Self { experts, shared: Arc::new(Compute { glu, host, table }) }
    }

    /// Lets `host`, the second value of [`Loader::for_experts`], compute experts whose weights came from the first.
    #[must_use]
    pub fn computed_by(self, host: Option<Ops>) -> Self {
        let (glu, table) = (self.shared.glu, OnceLock::new());
        Self { shared: Arc::new(Compute { glu, host, table }), ..self }
    }

    /// Returns the weighted sum of each row's expert outputs.
    pub fn forward(&self, x: &Tensor, routes: &Routes, step: &Step<'_>) -> Result<Tensor> {
        let fetched;
        let choices = match &routes.0 {
            RoutesAt::Host(choices) => choices,
            RoutesAt::Device(routed) => {
                if self.shared.host.is_none()
                    && !step.is_adapted()
                    && let Some(out) = step.ops().mixture(x, routed, self.table(step.ops())?, self.shared.glu)?
                {
                    return Ok(out);
                }
                fetched = routed.fetch()?;
                &fetched
            }
        };
        self.forward_chosen(x, choices, step)
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
    fn forward_chosen(&self, x: &Tensor, routes: &Choices, step: &Step<'_>) -> Result<Tensor> {
        let (ops, top_k) = (step.ops(), routes.top_k);
        // Stable sort by expert: the rows of one expert keep their order.
        let mut order: Vec<usize> = (0..routes.experts.len()).collect();
        order.sort_by_key(|&choice| routes.experts[choice]);
        let sources: Vec<u32> = order.iter().map(|choice| (choice / top_k) as u32).collect();
        let mut start = 0;
        let groups: Vec<_> = order
            .chunk_by(|a, b| routes.experts[*a] == routes.experts[*b])
            .map(|group| {
                let rows = start..start + group.len();
                start = rows.end;
                (&self.experts[routes.experts[group[0]]], rows)
            })
            .collect();
        let gathered = ops.select_rows(x, &sources)?;
        let outs = match self.forward_together(&gathered, &groups, step)? {
            Some(outs) => outs,
            None => self.forward_one_by_one(&gathered, &sources, &groups, step)?,
        };
        let mut positions = vec![0; order.len()];
        for (position, choice) in order.into_iter().enumerate() {
            positions[choice] = position as u32;
        }
        ops.combine(&outs, &positions, &routes.weights, top_k)
    }

    /// All experts in one call, if the backend has a kernel for them and no adapter applies.
    fn forward_together(&self, x: &Tensor, groups: &[Group<'_>], step: &Step<'_>) -> Result<Option<Tensor>> {
        if step.is_adapted() {
            return Ok(None);
        }
        let rows = groups.iter().map(|(expert, rows)| {
            let layers = [expert.gate.parts(), expert.up.parts(), expert.down.parts()];
            ExpertRows { layers, rows: rows.clone() }
        });
        let (rows, glu) = (rows.collect::<Vec<_>>(), self.shared.glu);
        let Some(host) = &self.shared.host else { return step.ops().experts(x, &rows, glu) };
        let outs = host.experts(&x.to_device(host.device())?, &rows, glu)?;
        Ok(outs.map(|outs| outs.to_device(x.device())).transpose()?)
    }

    /// Computes expert by expert, including adapters.
    fn forward_one_by_one(&self, x: &Tensor, sources: &[u32], groups: &[Group<'_>], step: &Step<'_>) -> Result<Tensor> {
        let ops = self.shared.host.as_ref();
        let forward = |(expert, rows): &Group<'_>| {
            let (x, of) = (step.ops().rows(x, rows.start, rows.len())?, step.rows(&sources[rows.clone()]));
            let up = expert.up.forward_rows_by(ops, &x, &of, step)?;
            let gate = match self.shared.glu {
                Glu::Square => up.clone(),
                _ => expert.gate.forward_rows_by(ops, &x, &of, step)?,
            };
            expert.down.forward_rows_by(ops, &activated(self.shared.glu, &gate, &up, step)?, &of, step)
        };
        Ok(Tensor::cat(&groups.iter().map(forward).collect::<Result<Vec<_>>>()?, 0)?)
    }
}

/// An expert and its range of the gathered rows.
type Group<'a> = (&'a Expert, Range<usize>);

/// The input of an expert's down projection.
fn activated(glu: Glu, gate: &Tensor, up: &Tensor, step: &Step<'_>) -> Result<Tensor> {
    match glu {
        Glu::Plain(act) => step.ops().gate(gate, up, act),
        Glu::Clamped { alpha, limit } => {
            let gate = gate.minimum(limit)?;
            let swish = (&gate * ((&gate * -alpha)?.exp()? + 1.0)?.recip()?)?;
            Ok((swish * (up.clamp(-limit, limit)? + 1.0)?)?)
        }
        Glu::Square => Ok(up.relu()?.sqr()?),
    }
}

/// Multiplies each row of `x` by the sigmoid of its value in `gate`, of shape `[rows, 1]`, as for a gated shared
/// expert.
pub fn weighed(x: &Tensor, gate: &Tensor) -> Result<Tensor> {
    Ok(x.broadcast_mul(&(gate.neg()?.exp()? + 1.0)?.recip()?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_are_found_in_order_and_of_equals_the_first() {
        assert_eq!(best(&[0.1, 0.7, 0.3, 0.7, 0.2], 3), [1, 3, 2]);
        assert_eq!(best(&[0.1, 0.2], 2), [1, 0]);
        assert_eq!(best(&[f32::NAN, 0.2], 1).len(), 1);
    }

    #[test]
    fn all_but_the_best_groups_are_left_out() {
        let mut ranks = [0.5, 0.1, 0.4, 0.3, 0.0, 0.9];
        mask_groups(&mut ranks, Groups { count: 3, kept: 2, compared: 2 });
        assert_eq!(ranks[0..2], [f32::NEG_INFINITY; 2]);
        assert_eq!(ranks[2..], [0.4, 0.3, 0.0, 0.9]);
    }

    #[test]
    fn a_sparse_mixture_weighs_only_what_comes_near_the_best() {
        let mut routes = Choices { experts: vec![], weights: vec![], top_k: 2 };
        mix_sparsely(&[1.0, 0.99, -5.0], 2, 0.02, &mut routes);
        assert_eq!(routes.experts, [0, 1]);
        assert!((routes.weights[0] - 1.0 / (1.0 + (-0.01_f32).exp())).abs() < 1e-6);
        assert_eq!(routes.weights[1], 1.0);
    }
}
