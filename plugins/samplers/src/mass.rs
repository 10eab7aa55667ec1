//! The cut of a nucleus: the best candidates, by whatever makes one better, that together have a given mass.
//!
//! Sorting finds it, and takes milliseconds on a vocabulary. On real logits a few hundred candidates are the whole matter, but a
//! high temperature spreads the mass over all of them, and a stage may not become slow just then. So the cut is bracketed
//! by passes that only compare and add, and only what is in the bracket is put in order.

use std::cmp::Reverse;
use std::ops::RangeInclusive;

use pensieve_sdk::sampler::rank;

/// How many keys a bracket may hold that is sorted.
const FEW: usize = 1024;

/// How often a bracket is halved at most: more cannot tell ties apart.
const ROUNDS: usize = 20;

/// How many sums run next to each other, a few vector registers, and how many weights each adds up in f32 before f64
/// takes over.
const LANES: usize = 16;
const SUMMANDS: usize = 16;

/// The lowest rank, of key and id, in the smallest set of highest keys that weighs `mass`. The set is known to lie in
/// `range`; if rounding makes all of that weigh less, it is the set.
///
/// A bracket around the cut is halved by key, each time with one pass that sums weights and vectorises, until so few
/// keys are in it that their order costs next to nothing.
pub(crate) fn lowest_of_mass(ids: &[u32], keys: &[f32], weights: &[f32], mass: f64, range: RangeInclusive<f32>) -> u64 {
    // Even no mass at all takes one candidate.
    let mass = mass.max(f64::MIN_POSITIVE);
    let (mut low, top) = range.into_inner();
    let mut high = None;
    let (mut above, mut count_above) = (0.0, 0);
    let (_, mut count) = weigh_from(keys, weights, low);
    for _ in 0..ROUNDS {
        let middle = low / 2.0 + high.unwrap_or(top) / 2.0;
        if count - count_above <= FEW || middle <= low {
            break;
        }
        let (upper, upper_count) = weigh_from(keys, weights, middle);
        if upper >= mass {
            (low, count) = (middle, upper_count);
        } else {
            (high, above, count_above) = (Some(middle), upper, upper_count);
        }
    }
    let (open, high) = (high.is_none(), high.unwrap_or(top));
    let within = |key: f32| (key >= low) & (open | (key < high));
    let mut bracket = Vec::with_capacity(count - count_above);
    for start in (0..keys.len()).step_by(LANES) {
        let end = keys.len().min(start + LANES);
        // Without a branch per key this is one comparison of vectors, and most chunks end here.
        if !keys[start..end].iter().fold(false, |any, &key| any | within(key)) {
            continue;
        }
        let members = (start..end).filter(|&index| within(keys[index]));
        bracket.extend(members.map(|index| (rank(ids[index], keys[index]), weights[index])));
    }
    bracket.sort_unstable_by_key(|&(rank, _)| Reverse(rank));
    let mut sum = above;
    for &(rank, weight) in &bracket {
        sum += f64::from(weight);
        if sum >= mass {
            return rank;
        }
    }
    bracket.last().map_or(0, |&(rank, _)| rank)
}

/// How much the keys from `low` on weigh, and how many they are.
fn weigh_from(keys: &[f32], weights: &[f32], low: f32) -> (f64, usize) {
    let (key_lanes, key_rest) = keys.as_chunks::<LANES>();
    let (weight_lanes, weight_rest) = weights.as_chunks::<LANES>();
    let (mut mass, mut count) = (0.0, 0);
    for (keys, weights) in key_lanes.chunks(SUMMANDS).zip(weight_lanes.chunks(SUMMANDS)) {
        let (mut masses, mut counts) = ([0.0f32; LANES], [0u32; LANES]);
        for (keys, weights) in keys.iter().zip(weights) {
            for lane in 0..LANES {
                // A mask instead of a condition, so that no branch is made of it.
                let within = u32::from(keys[lane] >= low);
                masses[lane] += f32::from_bits(weights[lane].to_bits() & within.wrapping_neg());
                counts[lane] += within;
            }
        }
        mass += f64::from(masses.iter().sum::<f32>());
        count += counts.iter().sum::<u32>() as usize;
    }
    for (_, &weight) in key_rest.iter().zip(weight_rest).filter(|&(&key, _)| key >= low) {
        mass += f64::from(weight);
        count += 1;
    }
    (mass, count)
}
