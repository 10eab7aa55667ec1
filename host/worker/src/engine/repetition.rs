//! Detects answers that loop: small models repeat a line, or a tool call, until their context is full. A table or a
//! drawing may legitimately repeat, so what counts as a loop is long.

/// Watches the tokens of one answer.
#[derive(Debug)]
pub struct RepetitionDetector {
    /// The last tokens, up to the longest period.
    recent: Vec<u32>,
    /// Position of the next token.
    next: usize,
    /// For each period, from 1 up, the number of consecutive tokens equal to the token one period earlier.
    runs: Vec<u32>,
    /// Number of tokens in a loop.
    tokens: usize,
}

impl RepetitionDetector {
    /// Detects a loop when the last `tokens` tokens are one sequence repeated at least `rounds` times; `None` if
    /// `tokens` is too small for that.
    pub fn new(tokens: u32, rounds: usize) -> Option<Self> {
        let tokens = tokens as usize;
        let longest = tokens / rounds;
        (longest > 0).then(|| Self { recent: Vec::with_capacity(longest), next: 0, runs: vec![0; longest], tokens })
    }

    /// Forgets all tokens.
    pub fn clear(&mut self) {
        self.recent.clear();
        self.next = 0;
        self.runs.fill(0);
    }

    /// Adds a token. Returns true if the answer loops.
    pub fn push(&mut self, token: u32) -> bool {
        let (count, longest) = (self.recent.len(), self.runs.len());
        let mut loops = false;
        for (period, run) in (1..=count).zip(&mut self.runs) {
            let before = self.recent[(self.next + longest - period) % longest];
            *run = if before == token { run.saturating_add(1) } else { 0 };
            loops |= *run as usize + period >= self.tokens;
        }
        if count < longest {
            self.recent.push(token);
        } else {
            self.recent[self.next] = token;
        }
        self.next = (self.next + 1) % longest;
        loops
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Number of tokens after which an answer is ended; `None` if it never is.
    fn ends(limit: u32, tokens: impl IntoIterator<Item = u32>) -> Option<usize> {
        let mut detector = RepetitionDetector::new(limit, 4).unwrap();
        tokens.into_iter().position(|token| detector.push(token)).map(|place| place + 1)
    }

    fn cycle(period: u32) -> impl Iterator<Item = u32> {
        (0..period).cycle().take(500)
    }

    #[test]
    fn a_loop_ends_when_it_is_long_enough_and_has_gone_round_four_times() {
        for (limit, period, expect) in [
            (16, 1, Some(16)),
            (16, 3, Some(16)),
            (16, 4, Some(16)),
            (16, 5, None),
            (17, 4, Some(17)),
            (4, 1, Some(4)),
            (256, 64, Some(256)),
            (256, 65, None),
        ] {
            assert_eq!(ends(limit, cycle(period)), expect, "{limit} tokens, a period of {period}");
        }
    }

    #[test]
    fn what_came_before_the_loop_does_not_count() {
        assert_eq!(ends(8, (100..150).chain([7; 20])), Some(58));
        assert_eq!(ends(8, (100..103).chain([7, 8].into_iter().cycle().take(20))), Some(11));
        // One different token restarts the count.
        let broken = [1, 1, 1, 1, 1, 1, 1, 2].into_iter().cycle().take(7 + 8 * 40);
        assert_eq!(ends(16, broken), None);
        assert_eq!(ends(8, (0..10_000).map(|place| place / 7)), None, "seven of a kind are no loop of eight");
    }

    #[test]
    fn a_cleared_detector_begins_anew() {
        let mut detector = RepetitionDetector::new(16, 4).unwrap();
        assert!((0..15).all(|_| !detector.push(7)));
        detector.clear();
        assert_eq!((0..20).position(|_| detector.push(7)), Some(15));
    }

    #[test]
    fn too_few_tokens_mean_that_nothing_is_watched() {
        assert!((0..4).all(|tokens| RepetitionDetector::new(tokens, 4).is_none()));
    }
}
