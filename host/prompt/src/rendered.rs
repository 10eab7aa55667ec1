//! A prompt as text: what a template makes, and what a tokenizer takes.

use std::ops::Range;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rendered {
    /// The text, as transformers would render it.
    pub text: String,
    /// Where a client's words look like special tokens and are not; in order, apart.
    pub plain: Vec<Range<usize>>,
}
