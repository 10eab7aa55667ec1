//! The traits in which templates differ, as data.

/// The features that a template supports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TemplateTraits {
    /// A system message, which is rendered in the same position however the conversation goes on.
    pub takes_system: bool,
    /// Texts must be lists of parts.
    pub content_parts: bool,
    /// Roles must alternate.
    pub alternates: bool,
    /// The first message must be the user's.
    pub user_first: bool,
    /// Tools.
    pub takes_tools: bool,
    /// The form of calls and their results, if it supports them.
    pub calls: Option<Calls>,
}

/// The form of calls that a template supports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Calls {
    /// With ids of nine letters and digits.
    pub short_ids: bool,
    /// With arguments as JSON text rather than an object.
    pub arguments_as_text: bool,
    /// Several in one answer.
    pub parallel: bool,
    /// With text before them.
    pub beside_text: bool,
    /// With text and reasoning before them, or one of the two.
    pub beside_both: bool,
    /// With a message of the user right after the results.
    pub user_after_result: bool,
}
