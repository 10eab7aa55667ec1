//! Why a plugin, checkpoint or address was refused: a word for programs, a sentence for people, and a remedy.
//!
//! Refusals come from the server's own checks and, as JSON, from the children that inspect plugins and checkpoints. A child
//! that ran plugin code is not trusted: its text is bounded and escaped before it is shown.

use serde::{Deserialize, Serialize};
use std::fmt;

use crate::outside::Outside;

const TEXT_LEN_MAX: usize = 1000;

macro_rules! kinds {
    ($($name:ident = $word:literal,)*) => {
        /// The reason in one word, for programs.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(from = "String", into = "String")]
        pub enum RefusalKind {
            $($name,)*
            /// A word that this server does not know, possibly written by untrusted code in a child.
            Other(String),
        }

        impl RefusalKind {
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$name => $word,)*
                    Self::Other(word) => word,
                }
            }
        }

        impl From<String> for RefusalKind {
            fn from(word: String) -> Self {
                match word.as_str() {
                    $($word => Self::$name,)*
                    _ => Self::Other(word),
                }
            }
        }
    };
}

kinds! {
    BadCard = "bad-card",
    BadManifest = "bad-manifest",
    Cache = "cache",
    Crashed = "crashed",
    Damaged = "damaged",
    Describe = "describe",
    Exited = "exited",
    FailedToStart = "failed-to-start",
    Garbled = "garbled",
    Invalid = "invalid",
    Keyless = "keyless",
    Listen = "listen",
    NoSpace = "no-space",
    NotAFolder = "not-a-folder",
    NotALibrary = "not-a-library",
    NotAPlugin = "not-a-plugin",
    NotAllowed = "not-allowed",
    NotFound = "not-found",
    NotInspected = "not-inspected",
    NotLocked = "not-locked",
    OtherAbi = "other-abi",
    OtherContract = "other-contract",
    OtherLayout = "other-layout",
    OtherPlatform = "other-platform",
    Quarantined = "quarantined",
    RefusedBySystem = "refused-by-system",
    Revoked = "revoked",
    Signal = "signal",
    Taken = "taken",
    TimedOut = "timed-out",
    TooLarge = "too-large",
    TooMany = "too-many",
    Truncated = "truncated",
    Unnamed = "unnamed",
    Unreadable = "unreadable",
    Untrusted = "untrusted",
}

impl From<RefusalKind> for String {
    fn from(kind: RefusalKind) -> Self {
        kind.as_str().to_owned()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    pub kind: RefusalKind,
    pub reason: String,
    /// May be empty.
    pub help: String,
}

impl Refusal {
    pub fn new(kind: RefusalKind, reason: impl Into<String>, help: impl Into<String>) -> Self {
        Self { kind, reason: reason.into(), help: help.into() }
    }

    /// Bounds and escapes all strings, which a plugin may have written.
    #[must_use]
    pub fn cleaned(self) -> Self {
        let kind = match self.kind {
            RefusalKind::Other(word) => RefusalKind::Other(clean(&word)),
            kind => kind,
        };
        Self { kind, reason: clean(&self.reason), help: clean(&self.help) }
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_one_word_in_json_and_an_unknown_one_is_cleaned() {
        let refusal = Refusal::new(RefusalKind::TimedOut, "it hangs", "");
        let json = serde_json::to_string(&refusal).unwrap();
        assert_eq!(json, r#"{"kind":"timed-out","reason":"it hangs","help":""}"#);
        assert_eq!(serde_json::from_str::<Refusal>(&json).unwrap(), refusal);
        let foreign = r#"{"kind":"a\u001b[31mb","reason":"","help":""}"#;
        let foreign = serde_json::from_str::<Refusal>(foreign).unwrap().cleaned();
        assert!(matches!(&foreign.kind, RefusalKind::Other(word) if !word.contains('\u{1b}')), "{foreign:?}");
    }
}
