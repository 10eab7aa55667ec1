//! The candidates for one token, and the total order that all stages use.
//!
//! A vocabulary has 128k entries and a stage has a fraction of a millisecond, so nothing here sorts more than it keeps:
//! the maximum of every block of 64 logits, which vectorizes, rules out most blocks without a look at their members.
//! Ties always go to the lower id, so that a chain gives the same tokens on every machine; [`rank`] is that order as an
//! integer.

use crate::{Error, Result};

/// Logits that share one maximum.
const BLOCK: usize = 64;

/// Logits compared at a time: a few vector registers.
const LANES: usize = 16;

/// The tokens that may still be picked, with their logits. Ids are unique.
#[derive(Debug)]
pub struct Candidates<'a> {
    ids: &'a mut [u32],
    logits: &'a mut [f32],
    len: usize,
    sorted: bool,
}

impl<'a> Candidates<'a> {
    /// Candidates over two slices of equal length. `sorted` asserts that their [`rank`]s descend.
    pub fn new(ids: &'a mut [u32], logits: &'a mut [f32], sorted: bool) -> Result<Self> {
        if ids.len() != logits.len() {
            return Err(Error::invalid(format!("{} candidate ids for {} logits", ids.len(), logits.len())));
        }
        let len = ids.len();
        Ok(Self { ids, logits, len, sorted })
    }

    /// Number of remaining candidates.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if no candidates remain.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The remaining ids.
    pub fn ids(&self) -> &[u32] {
        &self.ids[..self.len]
    }

    /// The remaining logits, in the order of [`Self::ids`].
    pub fn logits(&self) -> &[f32] {
        &self.logits[..self.len]
    }

    /// True if the candidates are in order of [`rank`]: highest logit first, ties by the lower id.
    pub fn is_sorted(&self) -> bool {
        self.sorted
    }

    /// Ids and logits, mutable; they count as unsorted until [`Self::set_sorted`] is called.
    pub fn parts_mut(&mut self) -> (&mut [u32], &mut [f32]) {
        self.sorted = false;
        (&mut self.ids[..self.len], &mut self.logits[..self.len])
    }

    /// Asserts that [`rank`]s descend.
    pub fn set_sorted(&mut self) {
        self.sorted = true;
    }

    /// The highest logit; −inf if there is none above.
    pub fn maximum(&self) -> f32 {
        self.logits().chunks(BLOCK).map(maximum).fold(f32::NEG_INFINITY, f32::max)
    }

    /// Index of the best candidate; `None` if no logit is above −inf.
    pub fn best(&self) -> Option<usize> {
        let top = self.maximum();
        if top == f32::NEG_INFINITY {
            return None;
        }
        let mut best = None;
        for (index, (&id, &logit)) in self.ids().iter().zip(self.logits()).enumerate() {
            if logit == top && best.is_none_or(|(lowest, _)| id < lowest) {
                best = Some((id, index));
            }
        }
        best.map(|(_, index)| index)
    }

    /// Keeps the first `len` candidates; no effect if fewer remain.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Keeps the candidates for which `keep` returns true, in order.
    #[inline(always)]
    pub fn retain(&mut self, mut keep: impl FnMut(u32, f32) -> bool) {
        let mut kept = 0;
        for start in (0..self.len).step_by(BLOCK) {
            let block = start..self.len.min(start + BLOCK);
            let mut wanted = [0; BLOCK];
            let members = self.ids[block.clone()].iter().zip(&self.logits[block.clone()]);
            // The comparison vectorizes; its results for eight candidates, one byte each, are then read as one integer.
            wanted.iter_mut().zip(members).for_each(|(wanted, (&id, &logit))| *wanted = u8::from(keep(id, logit)));
            for (&wanted, start) in wanted.as_chunks().0.iter().zip(block.step_by(8)) {
                let mut wanted = u64::from_le_bytes(wanted);
                if wanted == u64::from_le_bytes([1; 8]) {
                    self.ids.copy_within(start..start + 8, kept);
                    self.logits.copy_within(start..start + 8, kept);
                    kept += 8;
                    continue;
                }
                while wanted != 0 {
                    let index = start + wanted.trailing_zeros() as usize / 8;
                    self.ids[kept] = self.ids[index];
                    self.logits[kept] = self.logits[index];
                    kept += 1;
                    wanted &= wanted - 1;
                }
            }
        }
        self.len = kept;
    }

    /// Keeps the candidates with at least this [`rank`], in order.
    pub fn keep_ranked(&mut self, lowest: u64) {
        if self.sorted {
            let ranks = self.ids().iter().zip(self.logits()).map(|(&id, &logit)| rank(id, logit));
            self.len = ranks.take_while(|&rank| rank >= lowest).count();
            return;
        }
        let (last, floor) = unrank(lowest);
        if floor > f32::NEG_INFINITY {
            self.retain(|id, logit| (logit > floor) | ((logit == floor) & (id <= last)));
        } else {
            self.retain(|id, logit| rank(id, logit) >= lowest);
        }
    }

    /// Keeps the candidates whose logit is at least `floor`, in order.
    pub fn keep_from(&mut self, floor: f32) {
        self.keep_ranked(rank(u32::MAX, floor));
    }

    /// Keeps the `count` best candidates, best first.
    pub fn keep_best(&mut self, count: usize) {
        if !self.sorted {
            let ranks = self.best_ranks(count.min(self.len));
            self.set_ranks(ranks);
        }
        self.truncate(count);
    }

    /// Sorts the candidates, best first.
    pub fn sort(&mut self) {
        self.keep_best(self.len);
    }

    /// Returns the `count` highest ranks in any order; `count` must not exceed the length.
    fn best_ranks(&self, count: usize) -> Vec<u64> {
        if count == 0 {
            return Vec::new();
        }
        let mut ranks = self
            .ranks_of_promising_blocks(count)
            .unwrap_or_else(|| self.ids().iter().zip(self.logits()).map(|(&id, &logit)| rank(id, logit)).collect());
        if ranks.len() > count {
            ranks.select_nth_unstable_by(count - 1, |a, b| b.cmp(a));
            ranks.truncate(count);
        }
        ranks
    }

    /// Returns ranks that include the `count` highest, skipping blocks that cannot contain any of them: at least
    /// `count` logits reach the `count`-th highest block maximum, so nothing below it is needed. `None` if that would
    /// not exclude much.
    fn ranks_of_promising_blocks(&self, count: usize) -> Option<Vec<u64>> {
        if count > self.len / BLOCK / 2 {
            return None;
        }
        let maxima: Vec<f32> = self.logits().chunks(BLOCK).map(maximum).collect();
        let (_, &mut floor, _) = maxima.clone().select_nth_unstable_by(count - 1, |a, b| b.total_cmp(a));
        if floor == f32::NEG_INFINITY {
            return None;
        }
        let mut ranks = Vec::with_capacity(count * 2);
        let blocks = self.ids().chunks(BLOCK).zip(self.logits().chunks(BLOCK));
        for ((ids, logits), _) in blocks.zip(&maxima).filter(|&(_, &maximum)| maximum >= floor) {
            let members = ids.iter().zip(logits).filter(|&(_, &logit)| logit >= floor);
            ranks.extend(members.map(|(&id, &logit)| rank(id, logit)));
        }
        Some(ranks)
    }

    /// Replaces the candidates by these, highest first.
    fn set_ranks(&mut self, mut ranks: Vec<u64>) {
        ranks.sort_unstable_by(|a, b| b.cmp(a));
        self.len = ranks.len();
        for (index, rank) in ranks.into_iter().enumerate() {
            (self.ids[index], self.logits[index]) = unrank(rank);
        }
        self.sorted = true;
    }
}

/// A candidate's rank as one integer, higher is better: by logit, then by the lower id. NaN counts as −inf, and both
/// zeros are equal.
pub fn rank(id: u32, logit: f32) -> u64 {
    let number = if logit.is_nan() { f32::NEG_INFINITY } else { logit + 0.0 };
    let bits = number.to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    u64::from(ascending) << 32 | u64::from(!id)
}

/// Returns the id and logit of a [`rank`].
pub fn unrank(rank: u64) -> (u32, f32) {
    let ascending = (rank >> 32) as u32;
    let bits = if ascending >> 31 == 1 { ascending & !(1 << 31) } else { !ascending };
    (!(rank as u32), f32::from_bits(bits))
}

/// Highest of a few logits, ignoring NaN. Independent lanes let the compiler vectorize.
fn maximum(logits: &[f32]) -> f32 {
    let higher = |a: f32, b: f32| if a > b { a } else { b };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = logits.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &logit) in lanes.iter_mut().zip(chunk) {
            *lane = higher(logit, *lane);
        }
    }
    rest.iter().chain(&lanes).fold(f32::NEG_INFINITY, |top, &logit| higher(logit, top))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ODD: [f32; 7] = [f32::NAN, f32::NEG_INFINITY, f32::INFINITY, 0.0, -0.0, f32::MIN, f32::MAX];

    /// Reproducible logits with many ties and every odd value.
    fn logits(count: usize, seed: u64) -> Vec<f32> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as u32
        };
        let one = |bits: u32| {
            if bits.is_multiple_of(50) { ODD[bits as usize / 50 % 7] } else { (bits % 997) as f32 / 10.0 - 30.0 }
        };
        (0..count).map(|_| one(next())).collect()
    }

    fn with<T>(logits: &[f32], change: impl FnOnce(&mut Candidates<'_>) -> T) -> (Vec<u32>, Vec<f32>, bool, T) {
        let mut ids: Vec<u32> = (0..logits.len() as u32).map(|id| id ^ 5).collect();
        let mut logits = logits.to_vec();
        let len = ids.len();
        let mut candidates = Candidates { ids: &mut ids, logits: &mut logits, len, sorted: false };
        let result = change(&mut candidates);
        (candidates.ids().to_vec(), candidates.logits().to_vec(), candidates.is_sorted(), result)
    }

    /// Ids in the expected order, by a comparison that does not use ranks.
    fn expected_order(logits: &[f32]) -> Vec<u32> {
        let value = |logit: f32| if logit.is_nan() { f32::NEG_INFINITY } else { logit };
        let mut order: Vec<(u32, f32)> =
            logits.iter().enumerate().map(|(i, &logit)| (i as u32 ^ 5, value(logit))).collect();
        order.sort_by(|a, b| if a.1 == b.1 { a.0.cmp(&b.0) } else { b.1.total_cmp(&a.1) });
        order.into_iter().map(|(id, _)| id).collect()
    }

    #[test]
    fn refuses_slices_of_different_lengths() {
        assert!(Candidates::new(&mut [1, 2], &mut [0.5], false).is_err());
    }

    #[test]
    fn a_rank_gives_its_candidate_back() {
        for logit in [1.5, -1.5, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, f32::MIN_POSITIVE, 0.0] {
            for id in [0, 7, u32::MAX] {
                assert_eq!(unrank(rank(id, logit)), (id, logit));
            }
        }
        assert_eq!(rank(3, f32::NAN), rank(3, f32::NEG_INFINITY));
        assert_eq!(rank(3, -f32::NAN), rank(3, f32::NEG_INFINITY));
        assert_eq!(rank(3, -0.0), rank(3, 0.0));
    }

    #[test]
    fn keeps_the_best_in_order_whatever_their_number() {
        for (count, seed) in [(8, 1), (64, 2), (1000, 3), (20_000, 4), (20_001, 5)] {
            let logits = logits(count, seed);
            let order = expected_order(&logits);
            for kept in [0, 1, 2, 7, 40, 150, 160, 999, count, count + 1] {
                let (ids, _, sorted, ()) = with(&logits, |candidates| candidates.keep_best(kept));
                assert!(sorted);
                assert_eq!(ids, order[..kept.min(count)], "{kept} of {count}");
            }
        }
    }

    #[test]
    fn keeps_by_rank_what_sorting_would_keep_and_leaves_the_order() {
        let logits = logits(5000, 9);
        let order = expected_order(&logits);
        for kept in [1, 10, 2500, 5000] {
            let last = order[kept - 1];
            let lowest = rank(last, logits[(last ^ 5) as usize]);
            let (ids, ..) = with(&logits, |candidates| candidates.keep_ranked(lowest));
            let mut wanted = order[..kept].to_vec();
            wanted.sort_unstable_by_key(|&id| id ^ 5);
            assert_eq!(ids, wanted);
            let (ids, _, sorted, ()) = with(&logits, |candidates| {
                candidates.sort();
                candidates.keep_ranked(lowest);
            });
            assert!(sorted);
            assert_eq!(ids, order[..kept]);
        }
    }

    #[test]
    fn the_best_is_the_first_in_order_and_absent_without_a_number() {
        for seed in 0..20 {
            let logits = logits(300, seed);
            let (ids, _, _, best) = with(&logits, |candidates| candidates.best());
            assert_eq!(best.map(|index| ids[index]), Some(expected_order(&logits)[0]));
        }
        assert_eq!(with(&[f32::NAN, f32::NEG_INFINITY], |candidates| candidates.best()).3, None);
        assert_eq!(with(&[], |candidates| candidates.best()).3, None);
    }
}
