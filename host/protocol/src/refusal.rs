//! Why something was not taken: one word for programs, one sentence for people, and what to do about it.
//!
//! Refusals come from the server's own checks and, as JSON, out of the children that look at plugins and checkpoints in its
//! place, so this is plain data. A child that ran foreign code is not believed blindly: what it says is cut to a length
//! and freed of control characters before it is shown.

use serde::{Deserialize, Serialize};
use std::fmt;

use crate::outside::Outside;

const TEXT_LEN_MAX: usize = 1000;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// One word: `truncated`, `timed-out`.
    pub kind: String,
    pub reason: String,
    /// What to do about it; may be empty.
    pub help: String,
}

impl Refusal {
    pub fn new(kind: &str, reason: impl Into<String>, help: impl Into<String>) -> Self {
        Self { kind: kind.to_owned(), reason: reason.into(), help: help.into() }
    }

    /// Bounded and free of control characters, since a plugin may have written it.
    #[must_use]
    pub fn cleaned(self) -> Self {
        Self { kind: clean(&self.kind), reason: clean(&self.reason), help: clean(&self.help) }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)?;
        if !self.help.is_empty() {
            write!(f, "; {}", self.help)?;
        }
        Ok(())
    }
}

impl std::error::Error for Refusal {}

/// Text from outside on one line, of a bounded length.
pub fn clean(text: &str) -> String {
    Outside::new(text).at_most(TEXT_LEN_MAX).to_string()
}
