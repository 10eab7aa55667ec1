//! The definitions, as directly as they can be written: f64, full sorts, no shortcuts.

use std::collections::HashMap;

/// Candidates above −inf, the best first, ties by the lower id.
pub(crate) fn sorted(logits: &[f32]) -> Vec<(u32, f64)> {
    sort((0..).zip(logits).map(|(id, &logit)| (id, f64::from(logit))).filter(|&(_, x)| x > f64::NEG_INFINITY).collect())
}

pub(crate) fn sort(mut candidates: Vec<(u32, f64)>) -> Vec<(u32, f64)> {
    candidates.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
    candidates
}

pub(crate) fn probabilities(candidates: &[(u32, f64)]) -> Vec<f64> {
    let max = candidates.iter().map(|&(_, logit)| logit).fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = candidates.iter().map(|&(_, logit)| (logit - max).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / total).collect()
}

pub(crate) fn top_k(candidates: &[(u32, f64)], k: usize) -> Vec<(u32, f64)> {
    candidates[..k.min(candidates.len())].to_vec()
}

pub(crate) fn top_p(candidates: &[(u32, f64)], p: f64) -> Vec<(u32, f64)> {
    let kept = until_mass(&probabilities(candidates), p);
    candidates[..kept].to_vec()
}

pub(crate) fn min_p(candidates: &[(u32, f64)], p: f64) -> Vec<(u32, f64)> {
    let probabilities = probabilities(candidates);
    let kept = probabilities.iter().take_while(|&&probability| probability >= p * probabilities[0]).count();
    candidates[..kept].to_vec()
}

pub(crate) fn typical(candidates: &[(u32, f64)], p: f64) -> Vec<(u32, f64)> {
    let probabilities = probabilities(candidates);
    let entropy: f64 = probabilities.iter().filter(|&&p| p > 0.0).map(|p| -p * p.ln()).sum();
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    let distance = |index: usize| (-probabilities[index].ln() - entropy).abs();
    order.sort_by(|&a, &b| {
        let same = candidates[a].1 == candidates[b].1;
        let by_id = candidates[a].0.cmp(&candidates[b].0);
        if same { by_id } else { distance(a).partial_cmp(&distance(b)).unwrap() }
    });
    let mass: Vec<f64> = order.iter().map(|&index| probabilities[index]).collect();
    let kept = until_mass(&mass, p);
    sort(order[..kept].iter().map(|&index| candidates[index]).collect())
}

pub(crate) fn xtc(candidates: &[(u32, f64)], threshold: f64) -> Vec<(u32, f64)> {
    let likely = probabilities(candidates).iter().filter(|&&probability| probability >= threshold).count();
    candidates[likely.saturating_sub(1)..].to_vec()
}

pub(crate) fn temperature(candidates: &[(u32, f64)], temperature: f64) -> Vec<(u32, f64)> {
    candidates.iter().map(|&(id, logit)| (id, logit / temperature)).collect()
}

/// How many of these, in this order, sum to p or more; at least one.
fn until_mass(probabilities: &[f64], p: f64) -> usize {
    let mut sum = 0.0;
    for (index, probability) in probabilities.iter().enumerate() {
        sum += probability;
        if sum >= p {
            return index + 1;
        }
    }
    probabilities.len()
}

/// By token, how long the repetition is that it would continue: for every earlier place that ends like the history, count
/// backwards until the two differ or a breaker stands there.
pub(crate) fn repetitions(tokens: &[u32], breakers: &[u32]) -> HashMap<u32, usize> {
    let mut longest = HashMap::new();
    for next in 1..tokens.len() {
        let mut length = 0;
        while length < next {
            let (earlier, latest) = (tokens[next - 1 - length], tokens[tokens.len() - 1 - length]);
            if earlier != latest || breakers.contains(&latest) {
                break;
            }
            length += 1;
        }
        if !breakers.contains(&tokens[next]) {
            let entry = longest.entry(tokens[next]).or_insert(0);
            *entry = length.max(*entry);
        }
    }
    longest
}
