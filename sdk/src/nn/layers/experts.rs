//! Mixtures of experts (arXiv 1701.06538): a router that chooses a few feed-forward blocks for each row, and those blocks.
//!
//! Rows are sorted by expert, so that each expert's weights pass once over all rows that want it, however many sequences they
//! belong to. What the experts make of a row is summed in the order of its own choice, so a row's result does not depend on its
//! company. Checkpoints keep experts apart or stacked in one tensor; either way each is a layer of its own, with a name by
//! which adapters find it.
//!
//! A backend may choose and compute without the host ever knowing which experts it were, so that a step of such layers, too,
//! can be one launch. The choices come to the host where adapters change rows, where the backend has no kernel for the weights,
//! and where these stay in the host's memory because the device's does not hold them.

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

/// What makes scores of a router's logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scoring {
    /// Softmax over all experts.
    Softmax,
    /// Each logit's own sigmoid.
    Sigmoid,
    /// Phi-MoE's (arXiv 2409.12136): a softmax for each choice, over those logits that come within this share of the largest.
    SparseMixer {
        /// Twice the noise that training added.
        margin: f32,
    },
}

/// Experts in groups, of which only the best count (arXiv 2405.04434, 2412.19437).
#[derive(Clone, Copy, Debug)]
pub struct Groups {
    /// How many there are.
    pub count: usize,
    /// How many count.
    pub kept: usize,
    /// How many of a group's scores are summed to compare it: 1 or 2.
    pub compared: usize,
}

/// Chooses experts for rows.
#[derive(Clone, Debug)]
pub struct Router {
    /// Makes a logit for each expert.
    pub gate: Linear,
    /// How many experts a row has.
    pub top_k: usize,
    /// What makes scores of logits.
    pub scoring: Scoring,
    /// Whether the weights of a row's experts are made to add up to one.
    pub renormalize: bool,
    /// What the weights are multiplied by.
    pub scale: f32,
    /// What the weights of each expert are multiplied by besides.
    pub expert_scale: Option<Box<[f32]>>,
    /// What is added to scores for the choice, and to nothing else.
    pub correction: Option<Vec<f32>>,
    /// Experts in groups.
    pub groups: Option<Groups>,
}

/// The experts of some rows.
#[derive(Clone, Debug)]
pub struct Routes(Place);

/// Where choices lie.
#[derive(Clone, Debug)]
enum Place {
    Host(Choices),
    Device(Routed),
}

/// Choices that the host knows.
#[derive(Clone, Debug)]
struct Choices {
    /// For each row its experts, the best first.
    experts: Vec<usize>,
    /// What each is multiplied by.
    weights: Vec<f32>,
    top_k: usize,
}

impl Router {
    /// The router whose logits are those of the layer `name`, which chooses `top_k` of `count` experts by softmax.
    pub fn load(loader: &Loader<'_>, name: &str, width: usize, count: usize, top_k: usize) -> Result<Self> {
        if top_k == 0 || top_k > count {
            return Err(Error::corrupt(format!("the configuration asks for {top_k} of {count} experts")));
        }
        let gate = loader.linear(name, width, count)?;
        let (scoring, renormalize, scale) = (Scoring::Softmax, false, 1.0);
        Ok(Self { gate, top_k, scoring, renormalize, scale, expert_scale: None, correction: None, groups: None })
    }

    /// The same with the correction of its `count` experts, which has the first of these names that the checkpoint knows.
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

    /// Chooses for each row of `x`.
    pub fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Routes> {
        let logits = self.gate.forward(x, step)?;
        if let Some(routing) = self.routing()
            && let Some(routed) = step.ops().route(&logits, &routing)?
        {
            return Ok(Routes(Place::Device(routed)));
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
        Ok(Routes(Place::Host(routes)))
    }

    /// How it chooses, as kernels are told; none where they could not do it.
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
            leave_out(&mut ranks, groups);
        }
        let best = best(&ranks, self.top_k);
        routes.weights.extend(best.iter().map(|&expert| scores[expert]));
        routes.experts.extend(best);
    }
}

impl Routed {
    /// The choices as the host knows them.
    fn fetch(&self) -> Result<Choices> {
        let experts = self.experts.flatten_all()?.to_vec1::<u32>()?.into_iter().map(|expert| expert as usize).collect();
        Ok(Choices { experts, weights: self.weights.flatten_all()?.to_vec1()?, top_k: self.experts.dim(1)? })
    }
}

/// The indices of the `count` largest values, the largest first and of equals the first.
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

/// Makes the experts of all but the best groups impossible.
fn leave_out(ranks: &mut [f32], groups: Groups) {
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

/// The names of an expert's layers in a checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct ExpertNames {
    /// Of the gate.
    pub gate: &'static str,
    /// Of the layer that is gated.
    pub up: &'static str,
    /// Of the two, where they are stacked one above the other.
    pub gate_up: &'static str,
    /// Of the layer back to the width.
    pub down: &'static str,
}

impl Default for ExpertNames {
    fn default() -> Self {
        Self { gate: "gate_proj", up: "up_proj", gate_up: "gate_up_proj", down: "down_proj" }
    }
}

/// One expert's layers.
#[derive(Clone, Debug)]
pub struct Expert {
    /// The gate; where there is none, anything of its size.
    pub gate: Linear,
    /// What is gated.
    pub up: Linear,
    /// Back to the width.
    pub down: Linear,
}

/// The weights of all experts in one tensor.
struct Stack {
    raw: RawTensor,
    /// Whether they have rows for columns.
    is_turned: bool,
}

/// A layer that all experts have: its name, rows and columns.
type ExpertLayer = (&'static str, usize, usize);

impl Stack {
    /// The stacks of these layers, where the checkpoint has them: all are turned, or none is. The shape of one that is not square
    /// tells which, so the square ones come last. Where all are square, none is turned.
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
                let of = |is_turned: bool| -> Result<Self> {
                    let shape = if is_turned { [count, columns, rows] } else { [count, rows, columns] };
                    Ok(Self { raw: loader.raw(found, &shape)?, is_turned })
                };
                let loaded = match known {
                    Some(is_turned) => of(is_turned)?,
                    None if is_square => of(false)?,
                    None => of(false).or_else(|error| of(true).map_err(|_| error))?,
                };
                known = Some(loaded.is_turned);
                *stack = Some(loaded);
            }
        }
        Ok(stacks)
    }

    fn part(&self, index: usize) -> Result<RawTensor> {
        let part = self.raw.part(index)?;
        if self.is_turned { part.transposed() } else { Ok(part) }
    }
}

/// Feed-forward blocks of which each row uses a few.
#[derive(Clone, Debug)]
pub struct Experts {
    experts: Vec<Expert>,
    means: Arc<Means>,
}

/// How experts are computed.
#[derive(Debug)]
struct Means {
    glu: Glu,
    /// What computes them, where that is not what computes the model.
    host: Option<Ops>,
    /// What the backend found out about them when they were first used.
    table: OnceLock<ExpertTable>,
}

impl Experts {
    /// Loads `count` experts of inner width `inner`: `0.gate_proj.weight` and so on, or stacked as `gate_proj.weight` or
    /// `gate_up_proj`, whose first dimension is the expert. Stacks of weights that multiply from the other side, as in
    /// Qwen3-VL's checkpoints, are told by the shape of those that are not square.
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

    /// The experts that an author has loaded in another way.
    pub fn new(experts: Vec<Expert>, glu: Glu) -> Self {
        let (host, table) = (None, OnceLock::new());
        Self { experts, means: Arc::new(Means { glu, host, table }) }
    }

    /// The same where their weights came from [`Loader::for_experts`], computed by what that gave besides.
    #[must_use]
    pub fn computed_by(self, host: Option<Ops>) -> Self {
        let (glu, table) = (self.means.glu, OnceLock::new());
        Self { means: Arc::new(Means { glu, host, table }), ..self }
    }

    /// What each row's experts make of it, summed by their weights.
    pub fn forward(&self, x: &Tensor, routes: &Routes, step: &Step<'_>) -> Result<Tensor> {
        let fetched;
        let choices = match &routes.0 {
            Place::Host(choices) => choices,
            Place::Device(routed) => {
                if self.means.host.is_none()
                    && !step.is_adapted()
                    && let Some(out) = step.ops().mixture(x, routed, self.table(step.ops())?, self.means.glu)?
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
        if let Some(table) = self.means.table.get() {
            return Ok(table);
        }
        let layers = self.experts.iter().map(|expert| [expert.gate.parts(), expert.up.parts(), expert.down.parts()]);
        let table = ops.expert_table(&layers.collect::<Vec<_>>())?;
        Ok(self.means.table.get_or_init(|| table))
    }

    /// What experts make of their rows, sorted by the host.
    fn forward_chosen(&self, x: &Tensor, routes: &Choices, step: &Step<'_>) -> Result<Tensor> {
        let (ops, top_k) = (step.ops(), routes.top_k);
        // The choices sorted by expert; those of one expert stay in the order of their rows.
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
        let mut places = vec![0; order.len()];
        for (place, choice) in order.into_iter().enumerate() {
            places[choice] = place as u32;
        }
        ops.combine(&outs, &places, &routes.weights, top_k)
    }

    /// All experts in one go, where there is a kernel for that and no adapter changes them.
    fn forward_together(&self, x: &Tensor, groups: &[Group<'_>], step: &Step<'_>) -> Result<Option<Tensor>> {
        if step.is_adapted() {
            return Ok(None);
        }
        let rows = groups.iter().map(|(expert, rows)| {
            let layers = [expert.gate.parts(), expert.up.parts(), expert.down.parts()];
            ExpertRows { layers, rows: rows.clone() }
        });
        let (rows, glu) = (rows.collect::<Vec<_>>(), self.means.glu);
        let Some(host) = &self.means.host else { return step.ops().experts(x, &rows, glu) };
        let outs = host.experts(&x.to_device(host.device())?, &rows, glu)?;
        Ok(outs.map(|outs| outs.to_device(x.device())).transpose()?)
    }

    /// Expert by expert, with what adapters change.
    fn forward_one_by_one(&self, x: &Tensor, sources: &[u32], groups: &[Group<'_>], step: &Step<'_>) -> Result<Tensor> {
        let ops = self.means.host.as_ref();
        let forward = |(expert, rows): &Group<'_>| {
            let (x, of) = (step.ops().rows(x, rows.start, rows.len())?, step.rows(&sources[rows.clone()]));
            let up = expert.up.forward_rows_by(ops, &x, &of, step)?;
            let gate = match self.means.glu {
                Glu::Square => up.clone(),
                _ => expert.gate.forward_rows_by(ops, &x, &of, step)?,
            };
            expert.down.forward_rows_by(ops, &activated(self.means.glu, &gate, &up, step)?, &of, step)
        };
        Ok(Tensor::cat(&groups.iter().map(forward).collect::<Result<Vec<_>>>()?, 0)?)
    }
}

/// An expert, and the rows that want it among those that were gathered.
type Group<'a> = (&'a Expert, Range<usize>);

/// What stands between an expert's first layers and its last.
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

/// `x` with each row multiplied by the sigmoid of its value in `gate`, of shape `[rows, 1]`: how a shared expert is weighed.
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
        leave_out(&mut ranks, Groups { count: 3, kept: 2, compared: 2 });
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
