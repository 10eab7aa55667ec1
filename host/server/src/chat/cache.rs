//! Where the tokens of a prompt came from, and why some had to be computed, as data for every API.

use std::{fmt, time::Duration};

/// Known before the first token is computed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheReport {
    /// Tokens found in the prefix cache in memory.
    pub memory_tokens: u32,
    /// Tokens read from the prefix cache on disk.
    pub disk_tokens: u32,
    pub computed_tokens: u32,
    /// Why the computed ones were not cached; `None` if nothing was lost.
    pub miss: Option<CacheMiss>,
}

/// Why a prompt was not found in the prefix cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheMiss {
    pub kind: MissKind,
    /// Tokens before the place from which the prompt has to be computed.
    pub at_token: u32,
    /// Index of the turn that differs from the earlier prompt's, if one does.
    pub message: Option<u32>,
    /// The changed line, in short; empty if it is not a matter of a line.
    pub text: String,
    /// Details of [`MissKind::Evicted`], as far as they are known.
    pub eviction: Option<Eviction>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissKind {
    /// No earlier prompt goes on like this one.
    FirstTime,
    ChangedSystem,
    ChangedTools,
    RewrittenHistory,
    /// The client sent the same turns again, and the model's template wrote them differently.
    RewrittenByTemplate,
    /// The template's variables differ.
    ChangedTemplate,
    /// An earlier prompt was computed with another adapter or strength.
    OtherAdapter,
    /// The model was loaded again with a context of another length.
    OtherContext,
    /// An earlier prompt's blocks are no longer cached.
    Evicted,
}

/// The loss of cached blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    pub ago: Duration,
    pub by: EvictedBy,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvictedBy {
    /// The same client's request of this id needed the memory.
    OwnRequest(String),
    OtherClient,
    /// The model's worker went, for this reason.
    Unload(&'static str),
}

/// `12 s ago by req_…`, for the log.
impl fmt::Display for Eviction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} s ago by ", self.ago.as_secs())?;
        match &self.by {
            EvictedBy::OwnRequest(request) => f.write_str(request),
            EvictedBy::OtherClient => f.write_str("another client"),
            EvictedBy::Unload(reason) => write!(f, "an unload ({reason})"),
        }
    }
}

impl MissKind {
    pub fn name(self) -> &'static str {
        match self {
            Self::FirstTime => "first_time",
            Self::ChangedSystem => "changed_system",
            Self::ChangedTools => "changed_tools",
            Self::RewrittenHistory => "rewritten_history",
            Self::RewrittenByTemplate => "rewritten_by_template",
            Self::ChangedTemplate => "changed_template",
            Self::OtherAdapter => "other_adapter",
            Self::OtherContext => "other_context",
            Self::Evicted => "evicted",
        }
    }
}

/// How a request differs from an earlier one of the same client, for clients that name that one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Divergence {
    pub kind: DivergenceKind,
    /// Tokens of the earlier prompt behind the first that differs.
    pub missed_tokens: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DivergenceKind {
    Model,
    System,
    Tools,
    Messages,
    /// Parameters that change the prompt, or the template itself.
    Other,
    /// There is no record of the earlier request.
    Unknown,
}
