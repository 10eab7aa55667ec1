//! Why a sequence cannot continue under its grammar, and whether the grammar is at fault.

use std::fmt;

use super::{
    error::GrammarError,
    source::{NO_TEXT, explain},
};

/// A sequence that cannot continue under its grammar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConstraintError {
    pub(crate) message: String,
    /// Request field that the active grammar came from.
    pub(crate) field: String,
}

impl ConstraintError {
    pub(crate) fn new(message: &str) -> Self {
        Self { message: message.to_owned(), field: String::new() }
    }

    /// Returns the grammar's own error if that is the cause: some only show during generation.
    pub fn fault(&self) -> Option<GrammarError> {
        let fault = explain(&self.message);
        let is_known = matches!(fault, GrammarError::TooLarge(_)) || self.message.starts_with(NO_TEXT);
        is_known.then(|| fault.at(&self.field))
    }

    pub(crate) fn failed(error: &impl fmt::Display) -> Self {
        let error = error.to_string();
        Self::new(error.split("\n<").next().unwrap_or_default())
    }
}

impl fmt::Display for ConstraintError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the grammar cannot go on: {}", self.message)
    }
}

impl std::error::Error for ConstraintError {}
