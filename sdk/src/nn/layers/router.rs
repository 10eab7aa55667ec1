//! Routing: which experts compute each row, and how their outputs are weighed.
//!
//! A backend may route without the choices ever reaching the host; the host fetches them if adapters apply to any rows,
//! if the backend has no kernel for the experts, or if an author asks for them.

use candle_core::Tensor;
use pensieve_kernels::ExpertTerms;
use std::{borrow::Cow, cmp::Ordering, ops::Range};

use crate::{
    Error, Result,
    nn::{
        Linear, Loader, Ops, Step,
        backend::{Routed, Routing},
        step::Rows,
    },
};

/// Rows whose experts a thread chooses at a time.
const ROWS: usize = 16;

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
pub(super) struct Choices {
    /// `top_k` per row, best first.
    experts: Vec<usize>,
    /// Factor of each chosen expert's output.
    weights: Vec<f32>,
    top_k: usize,
}

/// The rows of a step sorted by the experts that compute them.
pub(super) struct ByExpert {
    /// The row of the step that each sorted row is a copy of.
    pub(super) sources: Vec<u32>,
    /// Each expert with its range of the sorted rows.
    pub(super) groups: Vec<(usize, Range<usize>)>,
    /// For each choice of each row the sorted row with its output.
    positions: Vec<u32>,
}

impl Choices {
    /// Sorts rows by expert. The sort is stable: the rows of one expert keep their order.
    pub(super) fn by_expert(&self) -> ByExpert {
        let mut order: Vec<usize> = (0..self.experts.len()).collect();
        order.sort_by_key(|&choice| self.experts[choice]);
        let sources = order.iter().map(|choice| (choice / self.top_k) as u32).collect();
        let mut start = 0;
        let groups = order.chunk_by(|a, b| self.experts[*a] == self.experts[*b]).map(|group| {
            let rows = start..start + group.len();
            start = rows.end;
            (self.experts[group[0]], rows)
        });
        let groups = groups.collect();
        let mut positions = vec![0; order.len()];
        for (position, choice) in order.into_iter().enumerate() {
            positions[choice] = position as u32;
        }
        ByExpert { sources, groups, positions }
    }

    /// The terms of each row's sum.
    pub(super) fn terms<'a>(&'a self, sorted: &'a ByExpert) -> ExpertTerms<'a> {
        let ByExpert { sources, positions, .. } = sorted;
        ExpertTerms { sources, places: positions, weights: &self.weights, top_k: self.top_k }
    }

    /// The weighted sum of the sorted outputs of each row's experts.
    pub(super) fn combine(&self, outs: &Tensor, sorted: &ByExpert, ops: &Ops) -> Result<Tensor> {
        ops.combine(outs, &sorted.positions, &self.weights, self.top_k)
    }

    /// Fails unless the choices are those of `rows` rows, of `count` experts.
    pub(super) fn check(&self, rows: usize, count: usize) -> Result<()> {
        let chosen = self.experts.len();
        if chosen != rows * self.top_k {
            let message = format!("{chosen} choices are not {} for each of {rows} rows", self.top_k);
            return Err(Error::invalid(message));
        }
        match self.experts.iter().find(|&&expert| expert >= count) {
            Some(expert) => Err(Error::invalid(format!("expert {expert} of {count} was chosen"))),
            None => Ok(()),
        }
    }
}

impl Routes {
    /// Routes of an author's own router: for each row `top_k` experts and their weights, in the order in which outputs
    /// are summed.
    pub fn new(experts: &[u32], weights: Vec<f32>, top_k: usize) -> Result<Self> {
        if top_k == 0 || !experts.len().is_multiple_of(top_k) || weights.len() != experts.len() {
            let (experts, weights) = (experts.len(), weights.len());
            return Err(Error::invalid(format!(
                "{experts} experts and {weights} weights are not {top_k} for each row"
            )));
        }
        let experts = experts.iter().map(|&expert| expert as usize).collect();
        Ok(Self(RoutesAt::Host(Choices { experts, weights, top_k })))
    }

    /// The experts of all rows, [`Self::top_k`] for each, and their weights, to be changed and passed to [`Self::new`].
    /// Waits for the device.
    pub fn choices(&self) -> Result<(Vec<u32>, Vec<f32>)> {
        let choices = self.fetch()?;
        Ok((choices.experts.iter().map(|&expert| expert as u32).collect(), choices.weights.clone()))
    }

    /// Experts per row.
    pub fn top_k(&self) -> Result<usize> {
        match &self.0 {
            RoutesAt::Host(choices) => Ok(choices.top_k),
            RoutesAt::Device(routed) => Ok(routed.experts.dim(1)?),
        }
    }

    /// Computes experts of the author's own: `expert` takes an expert's index, the rows of `x` that are routed to it,
    /// and what [`Linear::forward_rows`] needs to know of them, and returns as many rows. The outputs are weighed and summed.
    /// `x` may be another input than the router's.
    pub fn apply(
        &self,
        x: &Tensor,
        step: &Step<'_>,
        mut expert: impl FnMut(usize, &Tensor, &Rows) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let choices = self.fetch()?;
        choices.check(x.dim(0)?, usize::MAX)?;
        let sorted = choices.by_expert();
        let gathered = step.ops().select_rows(x, &sorted.sources)?;
        let mut outs = Vec::with_capacity(sorted.groups.len());
        for (index, rows) in &sorted.groups {
            let of = step.rows(&sorted.sources[rows.clone()]);
            let out = expert(*index, &step.ops().rows(&gathered, rows.start, rows.len())?, &of)?;
            if out.dim(0)? != rows.len() {
                let message = format!("expert {index} made {:?} of {} rows", out.dims(), rows.len());
                return Err(Error::invalid(message));
            }
            outs.push(out);
        }
        choices.combine(&Tensor::cat(&outs, 0)?, &sorted, step.ops())
    }

    /// The choices in host memory.
    pub(super) fn fetch(&self) -> Result<Cow<'_, Choices>> {
        match &self.0 {
            RoutesAt::Host(choices) => Ok(Cow::Borrowed(choices)),
            RoutesAt::Device(routed) => routed.fetch().map(Cow::Owned),
        }
    }

    /// The choices on the router's device, if they are there.
    pub(super) fn routed(&self) -> Option<&Routed> {
        if let RoutesAt::Device(routed) = &self.0 { Some(routed) } else { None }
    }
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
        let count = logits.dim(1)?;
        if self.top_k == 0 || self.top_k > count {
            return Err(Error::invalid(format!("a router chooses {} of {count} experts", self.top_k)));
        }
        if let Some(routing) = self.routing()
            && let Some(routed) = step.ops().route(&logits, &routing)?
        {
            return Ok(Routes(RoutesAt::Device(routed)));
        }
        let logits = logits.flatten_all()?.to_vec1::<f32>()?;
        let mut choices = vec![(0, 0.0); logits.len() / count * self.top_k];
        step.ops().run_pieces(&mut choices, ROWS * self.top_k, |index, choices| {
            let rows = logits[index * ROWS * count..].chunks_exact(count);
            rows.zip(choices.chunks_exact_mut(self.top_k)).for_each(|(row, choices)| self.choose(row, choices));
        });
        let (experts, weights) = choices.into_iter().unzip();
        Ok(Routes(RoutesAt::Host(Choices { experts, weights, top_k: self.top_k })))
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

    /// The experts of a row with these logits, best first, and the weights of their outputs.
    fn choose(&self, logits: &[f32], choices: &mut [(usize, f32)]) {
        match self.scoring {
            Scoring::SparseMixer { margin } => mix_sparsely(logits, margin, choices),
            Scoring::Softmax => self.choose_best(&softmax(logits), choices),
            Scoring::Sigmoid => {
                self.choose_best(&logits.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect::<Vec<_>>(), choices);
            }
        }
        let sum: f32 = if self.renormalize { choices.iter().map(|(_, weight)| weight).sum() } else { 1.0 };
        for (expert, weight) in choices {
            let own = self.expert_scale.as_ref().and_then(|scale| scale.get(*expert)).copied();
            *weight *= self.scale / sum * own.unwrap_or(1.0);
        }
    }

    fn choose_best(&self, scores: &[f32], choices: &mut [(usize, f32)]) {
        let mut ranks = scores.to_vec();
        if let Some(correction) = &self.correction {
            ranks.iter_mut().zip(correction).for_each(|(rank, correction)| *rank += correction);
        }
        if let Some(groups) = self.groups {
            mask_groups(&mut ranks, groups);
        }
        let best = best(&ranks, choices.len());
        choices.iter_mut().zip(best).for_each(|(choice, expert)| *choice = (expert, scores[expert]));
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

fn mix_sparsely(logits: &[f32], margin: f32, choices: &mut [(usize, f32)]) {
    let mut left = logits.to_vec();
    for choice in choices {
        let Some(&expert) = best(&left, 1).first() else { return };
        let max = left[expert];
        let is_near = |(left, logit): (&f32, &f32)| (max - logit) / logit.abs().max(max) <= margin && left.is_finite();
        let near = left.iter().zip(logits).map(|pair| if is_near(pair) { *pair.0 } else { f32::NEG_INFINITY });
        *choice = (expert, softmax(&near.collect::<Vec<_>>())[expert]);
        left[expert] = f32::NEG_INFINITY;
    }
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
        let mut choices = [(9, 9.0); 2];
        mix_sparsely(&[1.0, 0.99, -5.0], 0.02, &mut choices);
        let [(first, weight), second] = choices;
        assert_eq!((first, second), (0, (1, 1.0)));
        assert!((weight - 1.0 / (1.0 + (-0.01_f32).exp())).abs() < 1e-6);
    }
}
