//! How far a running request's prompt has been read, in numbers and in words.

use std::{fmt, time::Duration};

/// How far a prompt has been read.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Reading {
    pub(super) prompt: u32,
    /// Tokens that were found in the cache.
    pub(super) reused: u32,
    /// Tokens that are read, those from the cache among them.
    pub(super) computed: u32,
    /// Time since the first of them was computed.
    pub(super) took: Duration,
}

impl Reading {
    /// Until the prompt is read, at the speed so far.
    pub(super) fn seconds_left(&self) -> Option<u64> {
        let (done, took) = (f64::from(self.computed.saturating_sub(self.reused)), self.took.as_secs_f64());
        let left = f64::from(self.prompt.saturating_sub(self.computed));
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive number of seconds")]
        (done > 0.0 && took > 0.0).then(|| (left * took / done).ceil() as u64)
    }
}

/// `reading 12k of 18k tokens, 5k from cache, about 20 s left`.
impl fmt::Display for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "reading {} of {} tokens", Thousands(self.computed), Thousands(self.prompt))?;
        if self.reused > 0 {
            write!(f, ", {} from cache", Thousands(self.reused))?;
        }
        match self.seconds_left() {
            Some(seconds) if seconds >= 120 => write!(f, ", about {} min left", seconds.div_ceil(60)),
            Some(seconds) => write!(f, ", about {seconds} s left"),
            None => Ok(()),
        }
    }
}

/// A number of tokens, in thousands from ten thousand on.
struct Thousands(u32);

impl fmt::Display for Thousands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            tokens if tokens < 1000 => write!(f, "{tokens}"),
            tokens if tokens < 10_000 => write!(f, "{:.1}k", f64::from(tokens) / 1000.0),
            tokens => write!(f, "{}k", tokens / 1000),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_says_how_much_is_read_and_how_long_the_rest_takes() {
        let check = |(prompt, reused, computed, seconds), expected: &str| {
            let progress = Reading { prompt, reused, computed, took: Duration::from_secs(seconds) };
            assert_eq!(progress.to_string(), expected);
        };
        check((18_000, 5_000, 12_000, 23), "reading 12k of 18k tokens, 5.0k from cache, about 20 s left");
        check((18_000, 0, 1_000, 60), "reading 1.0k of 18k tokens, about 17 min left");
        check((900, 100, 100, 0), "reading 100 of 900 tokens, 100 from cache");
        check((900, 0, 900, 3), "reading 900 of 900 tokens, about 0 s left");
    }
}
