//! Why a grammar cannot be enforced, and who is at fault.

use std::fmt;

use pensieve_protocol::job::{Failure, FailureCode};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrammarError {
    Invalid(String),
    /// Valid, but not enforceable.
    Unsupported(String),
    /// Larger than a limit, or needs more work than a limit allows.
    TooLarge(String),
    /// Not compiled in time.
    Deadline {
        limit_ms: u64,
    },
    /// All helpers are stuck on grammars that overran.
    Busy,
    /// An error in this request field.
    At(String, Box<GrammarError>),
}

impl GrammarError {
    /// True if the grammar is at fault, so that a simpler one may work.
    pub fn is_of_the_grammar(&self) -> bool {
        !matches!(self, Self::Busy)
    }

    pub fn failure(&self) -> Failure {
        let code = match self {
            Self::At(field, error) => return error.failure().at(field),
            Self::Busy => FailureCode::Busy,
            Self::Unsupported(_) => FailureCode::Unsupported,
            Self::Invalid(_) | Self::TooLarge(_) | Self::Deadline { .. } => FailureCode::Invalid,
        };
        let failure = Failure::new(code, self.to_string());
        // The compiler's message quotes pieces of the grammar.
        if matches!(self, Self::Invalid(_) | Self::Unsupported(_)) { failure.private() } else { failure }
    }

    /// Attaches the request field, unless the error already has one.
    pub(crate) fn at(self, field: &str) -> Self {
        match self {
            Self::Busy | Self::At(..) => self,
            _ if field.is_empty() => self,
            error => Self::At(field.to_owned(), Box::new(error)),
        }
    }
}

impl fmt::Display for GrammarError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(message) | Self::Unsupported(message) | Self::TooLarge(message) => f.write_str(message),
            Self::Deadline { limit_ms } => write!(f, "the grammar was not compiled within {limit_ms} ms; simplify it"),
            Self::At(field, error) => write!(f, "{field}: {error}"),
            Self::Busy => f.write_str("the grammar cannot be compiled now, as others take too long; try again later"),
        }
    }
}

impl std::error::Error for GrammarError {}
