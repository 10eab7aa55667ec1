//! Watches the reasoning of one answer and tells when it has to be concluded: at its budget, or when it runs in
//! circles. A pure state machine over the generated tokens.
//!
//! Markers are found in the bytes, with special tokens by name, as the server's parser finds them. A conclusion is a
//! sequence of tokens that the job takes instead of the model's own: a short line, the template's closing marker, and
//! whatever begins the answer. It counts towards the budget, so that it begins a little earlier.

use super::repetition::RepetitionDetector;
use pensieve_protocol::job::Thinking;

/// Rounds that make a loop of reasoning.
const ROUNDS: usize = 4;

#[derive(Debug)]
pub struct ThoughtWatch {
    thinking: Thinking,
    state: ThoughtState,
    /// The latest bytes: enough to find a marker that spans tokens.
    tail: Vec<u8>,
    /// Tokens of reasoning so far.
    spent: u32,
    is_concluded: bool,
    loops: Option<RepetitionDetector>,
    loop_tokens: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ThoughtState {
    /// Nothing but white space so far, or a part of the opener.
    Opening,
    Inside,
    Outside,
}

impl ThoughtWatch {
    /// Reasoning that repeats itself for `loop_tokens` tokens is concluded as well; 0 turns that off.
    pub fn new(thinking: &Thinking, loop_tokens: u32) -> Self {
        let state = match (thinking.begun, thinking.anywhere) {
            (true, _) => ThoughtState::Inside,
            (false, true) => ThoughtState::Outside,
            (false, false) => ThoughtState::Opening,
        };
        let thinking = thinking.clone();
        let loops = RepetitionDetector::new(loop_tokens, ROUNDS);
        Self { thinking, state, tail: Vec::new(), spent: 0, is_concluded: false, loops, loop_tokens }
    }

    /// True while the generated tokens are reasoning.
    pub fn is_inside(&self) -> bool {
        self.state == ThoughtState::Inside
    }

    /// Adds a token with its text. Returns the tokens that must follow if the reasoning has to end.
    pub fn push(&mut self, token: u32, bytes: &[u8]) -> Option<Vec<u32>> {
        let is_inside = self.is_inside();
        self.spent += u32::from(is_inside);
        let loops = is_inside && self.loops.as_mut().is_some_and(|loops| loops.push(token));
        self.read(bytes);
        if loops && self.is_inside() { self.conclude() } else { self.due() }
    }

    /// Returns the tokens that must follow if the budget is used up.
    pub fn due(&mut self) -> Option<Vec<u32>> {
        let reserved = u32::try_from(self.thinking.conclusion.len()).unwrap_or(u32::MAX);
        let is_spent = self.thinking.budget.is_some_and(|budget| self.spent.saturating_add(reserved) >= budget);
        if self.is_inside() && (is_spent || self.is_concluded) { self.conclude() } else { None }
    }

    fn conclude(&mut self) -> Option<Vec<u32>> {
        if ends_within_character(&self.tail) {
            return None;
        }
        let first = !std::mem::replace(&mut self.is_concluded, true);
        let tokens = if first { &self.thinking.conclusion } else { &self.thinking.again };
        (!tokens.is_empty()).then(|| tokens.clone())
    }

    fn read(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(bytes);
        loop {
            let (open, close) = (self.thinking.open.as_bytes(), self.thinking.close.as_bytes());
            let (marker, next) = match self.state {
                ThoughtState::Opening => {
                    let text = self.tail.trim_ascii_start();
                    if text.starts_with(open) && !open.is_empty() {
                        (open, ThoughtState::Inside)
                    } else {
                        if !open.starts_with(text) {
                            self.state = ThoughtState::Outside;
                        }
                        return;
                    }
                }
                ThoughtState::Inside => (close, ThoughtState::Outside),
                ThoughtState::Outside if self.thinking.anywhere => (open, ThoughtState::Inside),
                ThoughtState::Outside => return self.tail.clear(),
            };
            let Some(at) = self.tail.windows(marker.len().max(1)).position(|window| window == marker) else {
                let kept = marker.len().max(4).min(self.tail.len());
                self.tail.drain(..self.tail.len() - kept);
                return;
            };
            self.tail.drain(..at + marker.len());
            self.state = next;
            self.loops = RepetitionDetector::new(self.loop_tokens, ROUNDS);
        }
    }
}

/// True if the text ends in the middle of a character, which a conclusion would break.
fn ends_within_character(text: &[u8]) -> bool {
    let tail = &text[text.len().saturating_sub(3)..];
    let lead = tail.iter().rposition(|byte| *byte >= 0xc0);
    lead.is_some_and(|lead| {
        std::str::from_utf8(&tail[lead..]).is_err_and(|error| error.error_len().is_none() && error.valid_up_to() == 0)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const CONCLUSION: [u32; 3] = [901, 902, 903];
    const AGAIN: [u32; 1] = [911];

    fn thinking(begun: bool, anywhere: bool, budget: Option<u32>) -> Thinking {
        let (open, close) = ("<think>".to_owned(), "</think>".to_owned());
        Thinking { open, close, begun, anywhere, budget, conclusion: CONCLUSION.to_vec(), again: AGAIN.to_vec() }
    }

    /// The number of pieces after which the reasoning is concluded, and with which tokens.
    fn concluded(thinking: &Thinking, pieces: &[&str]) -> Option<(usize, Vec<u32>)> {
        let mut watch = ThoughtWatch::new(thinking, 0);
        let mut pieces = pieces.iter().zip(1u32..);
        watch
            .due()
            .map(|tokens| (0, tokens))
            .or_else(|| pieces.find_map(|(piece, count)| Some((count as usize, watch.push(count, piece.as_bytes())?))))
    }

    #[test]
    fn reasoning_is_concluded_when_its_budget_has_room_only_for_that() {
        let conclusion = CONCLUSION.to_vec();
        let words = ["a"; 20];
        for (budget, expect) in [(0, 0), (3, 0), (4, 1), (10, 7), (23, 20)] {
            let begun = concluded(&thinking(true, false, Some(budget)), &words);
            assert_eq!(begun, Some((expect, conclusion.clone())), "a budget of {budget}");
        }
        assert_eq!(concluded(&thinking(true, false, Some(24)), &words), None);
        assert_eq!(concluded(&thinking(true, false, None), &words), None);
    }

    #[test]
    fn only_reasoning_counts() {
        let conclusion = CONCLUSION.to_vec();
        for (pieces, expect) in [
            (vec!["<th", "ink>", "a", "b", "c"], Some(4)),
            (vec![" \n", "<think>", "a", "b", "c"], Some(4)),
            (vec!["so <think>", "a", "b", "c"], None),
            (vec!["<think>", "a</th", "ink>so", "b", "c", "d"], None),
            (vec!["<think>", "a", "</think>"], None),
            // A conclusion waits for the end of a character.
            (vec!["<think>", "a", "b", "c"], Some(3)),
        ] {
            let expect = expect.map(|count| (count, conclusion.clone()));
            assert_eq!(concluded(&thinking(false, false, Some(5)), &pieces), expect, "{pieces:?}");
        }
        let mut watch = ThoughtWatch::new(&thinking(true, false, Some(4)), 0);
        assert_eq!(watch.push(1, b"\xc3"), None);
        assert_eq!(watch.push(2, b"\xa9"), Some(conclusion));
    }

    #[test]
    fn reasoning_that_is_opened_again_after_its_conclusion_ends_at_once() {
        let mut watch = ThoughtWatch::new(&thinking(false, true, Some(5)), 0);
        let mut push = |text: &str| watch.push(0, text.as_bytes());
        assert_eq!((push("a"), push("<think>"), push("a")), (None, None, None));
        assert_eq!(push("b"), Some(CONCLUSION.to_vec()));
        assert_eq!((push("</think>"), push("so")), (None, None));
        assert_eq!(push("<think>"), Some(AGAIN.to_vec()));
    }

    #[test]
    fn reasoning_in_circles_is_concluded_without_a_budget() {
        let mut watch = ThoughtWatch::new(&thinking(true, false, None), 16);
        let ended = (0..100u32).position(|count| watch.push(count % 3, b"a ").is_some());
        assert_eq!(ended, Some(15));
        let mut watch = ThoughtWatch::new(&thinking(false, false, None), 16);
        assert!((0..100u32).all(|count| watch.push(count % 3, b"a ").is_none()), "an answer is not reasoning");
    }
}
