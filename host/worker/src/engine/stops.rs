//! Where a generation ends: the client's stop strings, and the tokens that end a turn.
//!
//! Strings are matched on bytes, because a stop string begins and ends anywhere within tokens, and a token may end
//! within a character. No byte of a stop string is ever shown, so the trailing bytes are held back while they may still
//! become one; everything before them is emitted at once. The string that completes first wins, and of several that
//! complete with the same byte, the one that began first.

use std::{fmt, sync::Arc};

use pensieve_protocol::job::STOP_BYTES_MAX;

use pensieve_grammar::patterns::{Patterns, ROOT, StateId};

pub const STOPS_MAX: usize = 64;

/// Stop conditions of one sequence, and the matcher's state.
#[derive(Clone, Debug)]
pub struct Stops {
    patterns: Arc<Patterns>,
    tokens: Arc<[u32]>,
    at: StateId,
    held: Vec<u8>,
    stopped: Option<usize>,
}

/// The result of pushing a token's bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Emit {
    /// Bytes that may be shown now.
    pub text: Vec<u8>,
    /// Index of the completed stop string. Text after it is dropped.
    pub stopped: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopsError {
    TooMany {
        count: usize,
    },
    Empty {
        /// Its index in the request.
        index: usize,
    },
    TooLong {
        /// Its index in the request.
        index: usize,
        bytes: usize,
    },
}

impl Stops {
    /// Prepares stop strings and the tokens that end a turn.
    pub fn new<S: AsRef<[u8]>>(strings: &[S], tokens: &[u32]) -> Result<Self, StopsError> {
        if strings.len() > STOPS_MAX {
            return Err(StopsError::TooMany { count: strings.len() });
        }
        for (index, string) in strings.iter().enumerate() {
            match string.as_ref().len() {
                0 => return Err(StopsError::Empty { index }),
                bytes if bytes > STOP_BYTES_MAX => return Err(StopsError::TooLong { index, bytes }),
                _ => {}
            }
        }
        let patterns = Arc::new(Patterns::new(strings));
        Ok(Self { patterns, tokens: tokens.into(), at: ROOT, held: Vec::new(), stopped: None })
    }

    /// True if a token ends the turn, whatever its bytes.
    pub fn ends(&self, token: u32) -> bool {
        self.tokens.contains(&token)
    }

    /// Pushes a token's bytes. Nothing is emitted after a stop.
    pub fn push(&mut self, bytes: &[u8]) -> Emit {
        if self.stopped.is_some() {
            return Emit { text: Vec::new(), stopped: self.stopped };
        }
        for byte in bytes {
            self.held.push(*byte);
            self.at = self.patterns.step(self.at, *byte);
            if let Some(found) = self.patterns.found(self.at) {
                self.stopped = Some(found);
                let text = self.release(self.patterns.length(found));
                self.held.clear();
                return Emit { text, stopped: self.stopped };
            }
        }
        Emit { text: self.release(self.patterns.depth(self.at)), stopped: None }
    }

    /// Returns the bytes held back, at the end of the answer.
    pub fn finish(&mut self) -> Vec<u8> {
        self.at = ROOT;
        std::mem::take(&mut self.held)
    }

    fn release(&mut self, kept: usize) -> Vec<u8> {
        let shown = self.held.len().saturating_sub(kept);
        self.held.drain(..shown).collect()
    }
}

impl fmt::Display for StopsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany { count } => {
                write!(f, "{count} stop strings are more than the {STOPS_MAX} that a request may have")
            }
            Self::Empty { index } => write!(f, "stop string {index} is empty"),
            Self::TooLong { index, bytes } => {
                write!(f, "stop string {index} has {bytes} bytes, more than the {STOP_BYTES_MAX} that one may have")
            }
        }
    }
}

impl std::error::Error for StopsError {}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition, taken literally: the first byte that completes a stop string, and the longest string that it
    /// completes.
    fn reference(stops: &[Vec<u8>], text: &[u8]) -> (Vec<u8>, Option<usize>) {
        for end in 1..=text.len() {
            let complete = (0..stops.len()).filter(|index| text[..end].ends_with(&stops[*index]));
            if let Some(index) = complete.max_by_key(|index| (stops[*index].len(), stops.len() - index)) {
                return (text[..end - stops[index].len()].to_vec(), Some(index));
            }
        }
        (text.to_vec(), None)
    }

    fn could_begin_a_stop(stops: &[Vec<u8>], tail: &[u8]) -> bool {
        stops.iter().any(|stop| stop.len() > tail.len() && stop.starts_with(tail))
    }

    #[test]
    fn agrees_with_the_definition_on_random_texts_and_splits() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut stopped = 0;
        for _ in 0..20_000 {
            let letters = random.u8(1..4);
            let mut bytes = |max: usize| -> Vec<u8> {
                let length = random.usize(1..=max);
                (0..length).map(|_| b'a' + random.u8(0..letters)).collect()
            };
            let stops: Vec<Vec<u8>> = (0..4).map(|_| bytes(6)).collect();
            let text = bytes(40);
            let (wanted, wanted_stop) = reference(&stops, &text);

            let mut matcher = Stops::new(&stops, &[]).unwrap();
            let (mut shown, mut at, mut stop) = (Vec::new(), 0, None);
            while at < text.len() && stop.is_none() {
                let end = (at + random.usize(1..6)).min(text.len());
                let emit = matcher.push(&text[at..end]);
                shown.extend(emit.text);
                (at, stop) = (end, emit.stopped);
                let held = &text[shown.len()..end];
                assert!(
                    stop.is_some() || held.is_empty() || could_begin_a_stop(&stops, held),
                    "held {held:?} for nothing"
                );
                assert!(wanted.starts_with(&shown), "showed a part of a stop string");
            }
            if stop.is_none() {
                shown.extend(matcher.finish());
            }
            assert_eq!((shown, stop), (wanted, wanted_stop), "{stops:?} in {text:?}");
            stopped += usize::from(stop.is_some());
        }
        assert!((2_000..20_000).contains(&stopped), "{stopped} texts hold a stop string: the test has lost its point");
    }

    #[test]
    fn drops_what_follows_the_stop_within_its_token() {
        let mut stops = Stops::new(&["</end>"], &[]).unwrap();
        assert_eq!(stops.push(b"so</e"), Emit { text: b"so".to_vec(), stopped: None });
        assert_eq!(stops.push(b"nd> and more"), Emit { text: Vec::new(), stopped: Some(0) });
        assert_eq!(stops.push(b"more"), Emit { text: Vec::new(), stopped: Some(0) });
        assert!(stops.finish().is_empty());
    }

    #[test]
    fn matches_within_characters_that_are_cut_by_tokens() {
        let mut stops = Stops::new(&["é"], &[]).unwrap();
        assert_eq!(stops.push(b"caf\xc3"), Emit { text: b"caf".to_vec(), stopped: None });
        assert_eq!(stops.push(b"\xa9"), Emit { text: Vec::new(), stopped: Some(0) });
    }

    #[test]
    fn knows_the_tokens_that_end_a_turn() {
        let stops = Stops::new::<&str>(&[], &[2, 9]).unwrap();
        assert!(stops.ends(9) && !stops.ends(3));
    }

    #[test]
    fn names_the_stop_string_that_cannot_be_used() {
        let long = "x".repeat(STOP_BYTES_MAX + 1);
        assert_eq!(Stops::new(&["a", ""], &[]).unwrap_err(), StopsError::Empty { index: 1 });
        let error = Stops::new(&["a", &long], &[]).unwrap_err();
        assert_eq!(error.to_string(), "stop string 1 has 1025 bytes, more than the 1024 that one may have");
        assert_eq!(Stops::new(&vec!["a"; 65], &[]).unwrap_err(), StopsError::TooMany { count: 65 });
        assert!(Stops::new(&vec![&long[1..]; 64], &[]).is_ok());
    }
}
