//! A prompt as text: the template's output and the tokenizer's input.

use std::ops::Range;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rendered {
    /// The text, as transformers would render it.
    pub text: String,
    /// Ranges in which a client's text looks like a special token but is not one; in order, disjoint.
    pub plain: Vec<Range<usize>>,
    /// The texts of items; in order, disjoint.
    pub items: Vec<RenderedItem>,
}

/// The text of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RenderedItem {
    /// Its index.
    pub item: u32,
    pub range: Range<usize>,
}
