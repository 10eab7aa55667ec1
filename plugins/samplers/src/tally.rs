//! Token counts in a window over the history, and changes to the logits of only those tokens.
//!
//! Histories are long and vocabularies are wide, so neither is scanned for each member of the other. Counts follow the
//! window as it moves by one token per step; logits are found by position while the candidates are the whole vocabulary
//! in order, and otherwise by one scan.

use std::collections::HashMap;
use std::hash::BuildHasher;

use pensieve_sdk::sampler::Candidates;

/// Token counts in a window that moves with the history.
#[derive(Default)]
pub(crate) struct Tally {
    start: usize,
    window: Vec<u32>,
    counts: HashMap<u32, u32>,
}

impl Tally {
    /// Counts the tokens from `start` to the end. Cheap if they continue those of the last call; otherwise (after a
    /// rollback, or for another history) they are counted from scratch.
    pub(crate) fn update(&mut self, tokens: &[u32], start: usize) -> &HashMap<u32, u32> {
        let start = start.min(tokens.len());
        let end = self.start + self.window.len();
        let continues = start >= self.start && start <= end && tokens.get(self.start..end) == Some(&self.window);
        if !continues {
            *self = Self { start, ..Self::default() };
        }
        let end = self.start + self.window.len();
        for &token in &tokens[end..] {
            *self.counts.entry(token).or_default() += 1;
        }
        self.window.extend_from_slice(&tokens[end..]);
        for token in self.window.drain(..start - self.start) {
            if let Some(count) = self.counts.get_mut(&token) {
                *count -= 1;
                if *count == 0 {
                    self.counts.remove(&token);
                }
            }
        }
        self.start = start;
        &self.counts
    }
}

/// Replaces the logit of each marked candidate by `change(logit, mark)`.
pub(crate) fn reweigh<T>(
    candidates: &mut Candidates<'_>,
    marks: &HashMap<u32, T, impl BuildHasher>,
    change: impl Fn(f32, &T) -> f32,
) {
    let positions = find(candidates.ids(), marks);
    if positions.is_empty() {
        return;
    }
    let (_, logits) = candidates.parts_mut();
    for (index, mark) in positions {
        logits[index] = change(logits[index], mark);
    }
}

/// Returns the positions of the marked ids.
fn find<'m, T>(ids: &[u32], marks: &'m HashMap<u32, T, impl BuildHasher>) -> Vec<(usize, &'m T)> {
    let mut found = Vec::with_capacity(marks.len().min(ids.len()));
    if ids.len() <= marks.len() {
        found.extend(ids.iter().enumerate().filter_map(|(index, id)| Some((index, marks.get(id)?))));
        return found;
    }
    // One bit per value of the low 16 bits spares most candidates the hash lookup.
    let mut elsewhere = vec![0u64; 1024];
    let word = |id: u32| (id as usize >> 6) & 1023;
    let mut all_found = true;
    for (&id, mark) in marks {
        if ids.get(id as usize) == Some(&id) {
            found.push((id as usize, mark));
        } else {
            elsewhere[word(id)] |= 1 << (id & 63);
            all_found = false;
        }
    }
    if all_found {
        return found;
    }
    for (index, &id) in ids.iter().enumerate() {
        let maybe = elsewhere[word(id)] >> (id & 63) & 1 == 1;
        if maybe
            && index != id as usize
            && let Some(mark) = marks.get(&id)
        {
            found.push((index, mark));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(tokens: &[u32]) -> HashMap<u32, u32> {
        let mut counts = HashMap::new();
        for &token in tokens {
            *counts.entry(token).or_default() += 1;
        }
        counts
    }

    #[test]
    fn counts_as_the_history_grows_shrinks_and_changes() {
        let history: Vec<u32> = (0..500u32).map(|i| i * i % 37).collect();
        let other: Vec<u32> = (0..500u32).map(|i| i * i % 31).collect();
        let mut tally = Tally::default();
        let steps =
            [(0, 0), (0, 3), (0, 100), (60, 100), (61, 101), (400, 460), (390, 460), (400, 455), (455, 455), (0, 500)];
        for tokens in [&history, &other, &history] {
            for (start, end) in steps {
                assert_eq!(*tally.update(&tokens[..end], start), count(&tokens[start..end]), "{start}..{end}");
            }
        }
    }

    #[test]
    fn finds_marked_ids_wherever_they_stand() {
        let marks: HashMap<u32, u32> = (0..40).map(|i| (i * 1741, i)).collect();
        let in_order: Vec<u32> = (0..70_000).collect();
        let backwards: Vec<u32> = in_order.iter().rev().copied().collect();
        let swapped: Vec<u32> = in_order.iter().map(|id| id ^ 1).collect();
        let holes: Vec<u32> = in_order.iter().copied().filter(|id| id % 3 != 0).collect();
        let few = [1741, 5, 3482, 69_640];
        for ids in [&in_order[..], &backwards, &swapped, &holes, &few, &[]] {
            let mut found: Vec<(usize, u32)> = find(ids, &marks).into_iter().map(|(i, &mark)| (i, mark)).collect();
            found.sort_unstable();
            let expected: Vec<(usize, u32)> =
                ids.iter().enumerate().filter_map(|(i, id)| marks.get(id).map(|&mark| (i, mark))).collect();
            assert_eq!(found, expected);
        }
    }
}
