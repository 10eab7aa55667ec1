//! A prompt as text: the template's output and the tokenizer's input.

use std::ops::Range;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rendered {
    /// The text, as transformers would render it.
    pub text: String,
    /// Ranges in which a client's text looks like a special token but is not one; in order, disjoint.
    pub plain: Vec<Range<usize>>,
}
