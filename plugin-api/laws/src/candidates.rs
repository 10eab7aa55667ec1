//! The law about candidates, which a model picks from its own logits.

use crate::{
    report::{broken, skipped},
    rig::{Chosen, Draft, Feed, Finding, Known, Mask, REFUSED, Rig, Sequence},
};
use pensieve_plugin_api::{VACANT, Want};

pub(crate) fn best_of_the_logits(rig: &mut Rig<'_>) -> Finding {
    let most = rig.shape.candidates.min(rig.shape.vocabulary);
    if most == 0 {
        return Err(skipped("its card offers no candidates"));
    }
    // No mask; all tokens; every third token, shifted by row, so that words of the mask differ in their number of bits.
    let masks: [Mask; 3] = [|_, _| Vec::new(), |words, _| vec![u32::MAX; words], thirds];
    for top in [1, most.min(5), most.min(64)] {
        for mask in masks {
            check(rig, top, mask)?;
        }
    }
    Ok(rig.agreement())
}

fn thirds(words: usize, row: usize) -> Vec<u32> {
    let bits = |word: usize| (0..32).filter(move |bit| (32 * word + bit + row).is_multiple_of(3));
    (0..words).map(|word| bits(word).fold(0, |mask, bit| mask | 1 << bit)).collect()
}

/// Reads two texts, once for logits and once for candidates: prompts and a decode step.
fn check(rig: &mut Rig<'_>, top: u32, mask: Mask) -> Finding<()> {
    let width = rig.shape.vocabulary as usize;
    let mut start = || -> Finding<[Sequence; 2]> { Ok([rig.start(Known::Long)?, rig.start(Known::Short)?]) };
    let (mut by_logits, mut by_candidates) = (start()?, start()?);
    for wishes in [[(5, Want::LAST), (2, Want::ALL)], [(1, Want::LAST), (1, Want::LAST)]] {
        let refused = |error| broken(format!("{top} candidates: {REFUSED}: {error}"));
        let draft = drafted(rig, &mut by_logits, wishes);
        if draft.spans.is_empty() {
            break;
        }
        let logits = rig.forward(&draft).map_err(refused)?;
        let draft = drafted(rig, &mut by_candidates, wishes);
        let chosen = rig.candidates(&draft, top, mask).map_err(refused)?;
        for (row, logits) in logits.chunks_exact(width).enumerate() {
            compare(rig, logits, &chosen, (row, top as usize), &mask(width.div_ceil(32), row))?;
        }
    }
    by_logits.into_iter().chain(by_candidates).for_each(|sequence| rig.end(sequence));
    Ok(())
}

/// Drafts a step and advances the sequences past it.
fn drafted(rig: &Rig<'_>, sequences: &mut [Sequence; 2], wishes: [(usize, Want); 2]) -> Draft {
    let feeds = sequences.iter_mut().zip(wishes).map(|(sequence, (count, want))| sequence.feed(count, want));
    let feeds: Vec<Feed<'_>> = feeds.filter(|feed| feed.count > 0).collect();
    let draft = rig.draft(&feeds);
    for Feed { sequence, count, .. } in feeds {
        sequence.arrive(sequence.seen + count);
    }
    draft
}

fn compare(
    rig: &mut Rig<'_>,
    logits: &[f32],
    chosen: &Chosen,
    (row, top): (usize, usize),
    mask: &[u32],
) -> Finding<()> {
    let allowed = |token: usize| mask.is_empty() || mask[token / 32] >> (token % 32) & 1 == 1;
    let mut best: Vec<usize> = (0..logits.len()).filter(|&token| allowed(token)).collect();
    let totals = [log_sum_exp(logits.iter().copied()), log_sum_exp(best.iter().map(|&token| logits[token]))];
    best.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    let spread =
        logits.iter().fold(f32::MIN, |high, &x| high.max(x)) - logits.iter().fold(f32::MAX, |low, &x| low.min(x));
    let tolerance = rig.tolerance;
    let mut apart = |what: String, right: f32, found: f32| -> Finding<()> {
        let part = (right - found).abs() / spread.max(f32::MIN_POSITIVE);
        if part.is_nan() || part > tolerance.max(1e-5) {
            return Err(broken(format!("{what} is {found}, not {right}")));
        }
        rig.worst = rig.worst.max(part);
        Ok(())
    };
    let (ids, scores) = (&chosen.ids[row * top..][..top], &chosen.scores[row * top..][..top]);
    for (place, (&id, &score)) in ids.iter().zip(scores).enumerate() {
        let Some(&right) = best.get(place) else {
            if id != VACANT || score != f32::NEG_INFINITY {
                return Err(broken(format!("candidate {place} of {} is {id} with the logit {score}", best.len())));
            }
            continue;
        };
        let Some(&logit) = logits.get(id as usize).filter(|_| allowed(id as usize) && !ids[..place].contains(&id))
        else {
            return Err(broken(format!("candidate {place} is {id}, which may not be one")));
        };
        apart(format!("the logit of candidate {place}"), logits[right], logit)?;
        apart(format!("the score of candidate {place}"), logit, score)?;
    }
    for (what, right, found) in [("all tokens", totals[0], 2 * row), ("allowed tokens", totals[1], 2 * row + 1)] {
        let found = chosen.totals[found];
        // Sums may be computed in any order.
        let largest = tolerance.max(1e-4) * spread.max(1.0);
        if (right - found).abs() > largest || found.is_nan() {
            return Err(broken(format!("the total of {what} is {found}, not {right}")));
        }
    }
    Ok(())
}

fn log_sum_exp(values: impl Iterator<Item = f32> + Clone) -> f32 {
    let largest = values.clone().fold(f32::NEG_INFINITY, f32::max);
    largest + values.map(|value| f64::from(value - largest).exp()).sum::<f64>().ln() as f32
}
