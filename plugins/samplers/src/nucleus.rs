//! Finds a nucleus cutoff: the best candidates, by any key, that together have a given mass.
//!
//! Sorting would find it, but takes milliseconds on a vocabulary. Instead, one pass sums the candidates' weights in
//! narrow classes by their distance from the best; the cutoff is in the class where the cumulative mass reaches the
//! given one. A second pass collects that class's few members, and only they are sorted, and only as far as needed.
//! Weights are computed twice rather than stored, as memory traffic for a vocabulary costs more than the arithmetic.

use std::cmp::Reverse;

use pensieve_sdk::sampler::{Candidates, rank};

use crate::softmax::{BLOCK, blocks, weigh};
use crate::wide::widest;

/// Number of classes; see [`classify`].
const CLASSES: usize = 256;

/// Sums per class, so that neighbours in one class need not wait for each other's addition.
const SUMS: usize = 8;

/// Returns the lowest rank, by key and id, in the smallest set of highest keys that has the fraction `p` of the mass.
/// No `key` is above `best`, and no logit above `max`. Candidates without weight are never in the set; `None` if all
/// are without.
pub(crate) fn lowest_of_mass(
    candidates: &Candidates<'_>,
    max: f32,
    p: f64,
    best: f32,
    key: impl Fn(f32) -> f32,
) -> Option<u64> {
    if max == f32::NEG_INFINITY {
        return None;
    }
    let classes = widest(
        #[inline(always)]
        || weigh_classes(candidates.logits(), max, best, &key),
    );
    let total: f64 = classes.iter().sum();
    // A mass of zero still keeps one candidate.
    let mut missing = (p * total).max(f64::MIN_POSITIVE);
    let mut class = 0;
    while class + 1 < CLASSES && classes[class] < missing {
        missing -= classes[class];
        class += 1;
    }
    let mut members = widest(
        #[inline(always)]
        || collect(candidates, max, best, &key, class as u8),
    );
    let mut members = &mut members[..];
    while members.len() > 1 {
        let middle = members.len() / 2;
        members.select_nth_unstable_by_key(middle, |&(rank, _)| Reverse(rank));
        let (upper, lower) = members.split_at_mut(middle);
        let mass: f64 = upper.iter().map(|&(_, weight)| f64::from(weight)).sum();
        if mass >= missing {
            members = upper;
        } else {
            missing -= mass;
            members = lower;
        }
    }
    members.first().map(|&(rank, _)| rank)
}

/// The mass of each class.
#[inline(always)]
pub(crate) fn weigh_classes(logits: &[f32], max: f32, best: f32, key: impl Fn(f32) -> f32) -> [f64; CLASSES] {
    // The padding keeps the sums of one class from having the same offset in every page.
    let mut sums = [[0.0; CLASSES + 8]; SUMS];
    for block in blocks(logits) {
        let (mut weights, mut classes) = ([0.0; BLOCK], [0; BLOCK]);
        for index in 0..BLOCK {
            weights[index] = weigh(block[index], max);
            classes[index] = classify(best, key(block[index]));
        }
        let weights = weights.map(f64::from);
        for (weights, classes) in weights.as_chunks::<SUMS>().0.iter().zip(classes.as_chunks::<SUMS>().0) {
            for lane in 0..SUMS {
                sums[lane][usize::from(classes[lane])] += weights[lane];
            }
        }
    }
    std::array::from_fn(|class| sums.iter().map(|sums| sums[class]).sum())
}

/// Collects rank and weight of a class's members.
#[inline(always)]
fn collect(candidates: &Candidates<'_>, max: f32, best: f32, key: impl Fn(f32) -> f32, class: u8) -> Vec<(u64, f32)> {
    let mut positions = Vec::new();
    for (block, start) in blocks(candidates.logits()).zip((0..).step_by(BLOCK)) {
        let mut within = [0; BLOCK];
        for index in 0..BLOCK {
            within[index] = u8::from(classify(best, key(block[index])) == class);
        }
        // Usually all eight bytes are zero, which takes one comparison.
        for (&within, start) in within.as_chunks().0.iter().zip((start..).step_by(8)) {
            let mut within = u64::from_le_bytes(within);
            while within != 0 {
                positions.push(start + within.trailing_zeros() as usize / 8);
                within &= within - 1;
            }
        }
    }
    // The last block may be longer than the candidates.
    let members = positions.into_iter().filter_map(|index: usize| {
        let (&id, &logit) = candidates.ids().get(index).zip(candidates.logits().get(index))?;
        Some((rank(id, key(logit)), weigh(logit, max)))
    });
    members.filter(|&(_, weight)| weight > 0.0).collect()
}

/// The class of a key: the lower the key, the higher the class. Taken from a float's upper bits, classes are 1/32 wide
/// next to the best and wider further down, where precision matters less; the last class has everything 30 or more
/// below, and NaN.
#[inline(always)]
fn classify(best: f32, key: f32) -> u8 {
    let place = 2.0 + (best - key);
    let limited = if place < 31.9 { place } else { 31.9 };
    // For 2 to 32, that is two bits of the exponent, which are zero for 2, and six of the mantissa.
    (limited.to_bits() >> 17) as u8
}
