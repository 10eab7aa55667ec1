//! The traits in which templates differ.

use serde_json::{Value, json};

/// The features that a template supports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TemplateTraits {
    /// Renders a system message, at the same position however the conversation continues.
    pub takes_system: bool,
    /// Content must be a list of parts.
    pub content_parts: bool,
    /// Roles must alternate.
    pub alternates: bool,
    /// The first message must be the user's.
    pub user_first: bool,
    /// Renders tool definitions.
    pub takes_tools: bool,
    /// Form of calls and their results, if supported.
    pub calls: Option<Calls>,
}

impl TemplateTraits {
    /// Wraps a text in the form that the template expects.
    pub fn content(&self, text: &str) -> Value {
        if self.content_parts { json!([{ "type": "text", "text": text }]) } else { json!(text) }
    }
}

/// The form of calls that a template accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Calls {
    /// Ids must be nine letters and digits.
    pub short_ids: bool,
    /// Arguments are JSON text rather than an object.
    pub arguments_as_text: bool,
    /// Several calls in one answer.
    pub parallel: bool,
    /// Text before the calls.
    pub beside_text: bool,
    /// Text and reasoning before the calls, or either of them.
    pub beside_both: bool,
    /// A user message directly after the results.
    pub user_after_result: bool,
}
