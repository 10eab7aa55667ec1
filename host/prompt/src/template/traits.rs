//! What templates differ in, as data.

/// What a template takes as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TemplateTraits {
    /// A system message, which it shows in the same place however the conversation goes on.
    pub takes_system: bool,
    /// It wants texts as lists of parts.
    pub content_parts: bool,
    /// It wants users and assistants to take turns.
    pub alternates: bool,
    /// It wants the user to begin.
    pub user_first: bool,
    /// It tells the model of tools.
    pub takes_tools: bool,
    /// How it takes calls and their results; none if it does not.
    pub calls: Option<Calls>,
}

/// How a template takes calls.
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
    /// With text and thoughts before them, or one of the two.
    pub beside_both: bool,
    /// With words of the user right after the results.
    pub user_after_result: bool,
}
