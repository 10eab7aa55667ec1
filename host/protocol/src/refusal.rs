//! Why a plugin, checkpoint or address was refused: a word for programs, a sentence for people, and what to do about it.
//!
//! Refusals come from the server's own checks and, as JSON, from the children that inspect plugins and checkpoints. A child
//! that ran plugin code is not trusted: its text is bounded and escaped before it is shown.

use serde::{Deserialize, Serialize};
use std::fmt;

use crate::outside::Outside;

const TEXT_LEN_MAX: usize = 1000;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// A stable identifier: `truncated`, `timed-out`.
    pub kind: String,
    pub reason: String,
    /// May be empty.
    pub help: String,
}

impl Refusal {
    pub fn new(kind: &str, reason: impl Into<String>, help: impl Into<String>) -> Self {
        Self { kind: kind.to_owned(), reason: reason.into(), help: help.into() }
    }

    /// Bounds and escapes all strings, which a plugin may have written.
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

/// Escapes untrusted text on one line of bounded length.
pub fn clean(text: &str) -> String {
    Outside::new(text).at_most(TEXT_LEN_MAX).to_string()
}
