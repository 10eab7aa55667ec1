//! A choice of the positions that each token attends to, as a learned indexer makes it.

use crate::{Error, Result, Span};

/// For each token of a step the positions of its own sequence that it attends to, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Positions {
    /// Ascending; the last is at most the token's own.
    rows: Vec<Vec<u32>>,
}

impl Positions {
    /// Takes the positions of each token of a step with these spans. Positions are counted from the start of the
    /// token's sequence; duplicates count once, and positions behind the token not at all.
    pub fn new(spans: &[Span<'_>], rows: Vec<Vec<u32>>) -> Result<Self> {
        let own = own_positions(spans);
        if own.len() != rows.len() {
            return Err(Error::invalid(format!("positions were chosen for {} of {} tokens", rows.len(), own.len())));
        }
        let row = |(mut row, own): (Vec<u32>, u32)| {
            row.retain(|&position| position <= own);
            row.sort_unstable();
            row.dedup();
            if row.is_empty() { Err(Error::invalid("a token attends to no position")) } else { Ok(row) }
        };
        Ok(Self { rows: rows.into_iter().zip(own).map(row).collect::<Result<_>>()? })
    }

    /// Takes whole blocks of `block` positions: for each token the indices of its blocks.
    pub fn of_blocks(spans: &[Span<'_>], rows: Vec<Vec<u32>>, block: u32) -> Result<Self> {
        let own = own_positions(spans).into_iter().map(Some).chain(std::iter::repeat(None));
        let expand = |(row, own): (Vec<u32>, Option<u32>)| {
            let end = own.map_or(0, |own| own.saturating_add(1));
            let of = |index: u32| index.saturating_mul(block)..index.saturating_add(1).saturating_mul(block).min(end);
            row.into_iter().flat_map(of).collect()
        };
        Self::new(spans, rows.into_iter().zip(own).map(expand).collect())
    }

    /// Takes the `count` positions with the highest scores for each token, lower positions first if equal, or all if
    /// there are no more. `scores` takes the index of a span and returns a row of scores for each of its tokens, one
    /// score for each token of the sequence so far; those behind the token are ignored.
    pub fn best(spans: &[Span<'_>], count: usize, mut scores: impl FnMut(usize) -> Result<Vec<f32>>) -> Result<Self> {
        let mut rows = Vec::new();
        for (index, span) in spans.iter().enumerate() {
            let seen = span.past + span.len;
            if seen <= count {
                rows.extend((0..span.len).map(|row| (0..=(span.past + row) as u32).collect()));
                continue;
            }
            let scores = scores(index)?;
            if scores.len() != span.len * seen {
                let message = format!("{} scores are not {seen} for each of {} tokens", scores.len(), span.len);
                return Err(Error::invalid(message));
            }
            let chosen = scores.chunks_exact(seen).enumerate();
            rows.extend(chosen.map(|(row, scores)| highest(&scores[..=span.past + row], count)));
        }
        Self::new(spans, rows)
    }

    pub(in crate::nn) fn rows(&self) -> &[Vec<u32>] {
        &self.rows
    }

    /// True if every token attends to all positions up to its own.
    pub(in crate::nn) fn are_all(&self, spans: &[Span<'_>]) -> bool {
        self.rows.iter().zip(own_positions(spans)).all(|(row, own)| row.len() == own as usize + 1)
    }

    /// Fails unless these are positions for the step's tokens, within the window of their cache.
    pub(in crate::nn) fn check(&self, spans: &[Span<'_>], window: Option<usize>) -> Result<()> {
        let own = own_positions(spans);
        let fits = |(row, own): (&Vec<u32>, &u32)| {
            let first = window.map_or(0, |window| (*own as usize + 1).saturating_sub(window));
            row.first().is_some_and(|&position| position as usize >= first)
                && row.last().is_some_and(|position| position <= own)
        };
        if own.len() == self.rows.len() && self.rows.iter().zip(&own).all(fits) {
            return Ok(());
        }
        Err(Error::invalid("the chosen positions are of another step, or outside the window that the cache keeps"))
    }
}

/// The position of each token of a step in its sequence's cache.
fn own_positions(spans: &[Span<'_>]) -> Vec<u32> {
    spans.iter().flat_map(|span| (0..span.len).map(|row| (span.past + row) as u32)).collect()
}

fn highest(scores: &[f32], count: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..scores.len() as u32).collect();
    let higher = |a: &u32, b: &u32| scores[*b as usize].total_cmp(&scores[*a as usize]).then(a.cmp(b));
    if count < order.len() && count > 0 {
        order.select_nth_unstable_by(count - 1, higher);
        order.truncate(count);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Output, Want};

    fn span(start: usize, len: usize, past: usize) -> Span<'static> {
        let (sequence, want, output, mask, caches) = (0, Want::All, Output::Logits, &[][..], Vec::new());
        Span { sequence, start, len, past, want, output, mask, adapter: 0, adapter_scale: 1.0, caches }
    }

    #[test]
    fn the_best_are_the_highest_that_a_token_may_see() {
        let spans = [span(0, 2, 1), span(2, 1, 4)];
        let scores = |index: usize| {
            Ok(if index == 0 { vec![0.5, 0.9, 9.0, 0.1, 0.7, 0.7] } else { vec![3.0, 1.0, 3.0, 2.0, 3.0] })
        };
        let chosen = Positions::best(&spans, 2, scores).unwrap();
        assert_eq!(chosen.rows(), [vec![0, 1], vec![1, 2], vec![0, 2]]);
        assert!(!chosen.are_all(&spans) && chosen.check(&spans, None).is_ok());
        let all = Positions::best(&spans, 5, |_| panic!("nothing is to be chosen")).unwrap();
        assert!(all.are_all(&spans));
    }

    #[test]
    fn blocks_end_at_the_token_itself() {
        let spans = [span(0, 1, 5)];
        assert_eq!(Positions::of_blocks(&spans, vec![vec![1, 0, 1]], 4).unwrap().rows(), [vec![0, 1, 2, 3, 4, 5]]);
        assert!(Positions::of_blocks(&spans, vec![vec![2]], 4).is_err(), "behind the token");
        assert!(Positions::of_blocks(&spans, vec![vec![u32::MAX]], u32::MAX).is_err(), "overflow");
    }

    #[test]
    fn positions_of_another_step_or_before_a_window_are_refused() {
        let spans = [span(0, 1, 5)];
        assert!(Positions::new(&spans, vec![vec![0], vec![1]]).is_err());
        let chosen = Positions::new(&spans, vec![vec![2, 5]]).unwrap();
        assert!(chosen.check(&spans, Some(4)).is_ok() && chosen.check(&spans, Some(3)).is_err());
        assert!(chosen.check(&[span(0, 1, 4)], None).is_err());
    }
}
