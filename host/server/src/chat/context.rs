//! Edits of conversations that have grown long, as clients ask for them.

/// An edit that is applied once a conversation has grown beyond the edit's trigger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContextEdit {
    /// Leaves out the reasoning of all but this many of the latest turns that have some.
    ClearThinking {
        keep: u32,
    },
    ClearToolUses(ToolClearing),
    Compact(Compaction),
    /// Leaves out the oldest turns of a conversation that fills the context.
    Truncate,
}

/// Replaces the oldest results of tools with a placeholder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolClearing {
    pub trigger: ClearTrigger,
    /// Number of the latest uses that stay.
    pub keep: u32,
    /// Minimum of tokens that are worth it; `None` leaves it to the planner.
    pub at_least: Option<u32>,
    /// Tools whose uses stay.
    pub exclude: Vec<String>,
    pub inputs: ClearedInputs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClearTrigger {
    InputTokens(u32),
    ToolUses(u32),
}

/// The calls whose arguments are cleared with their results.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ClearedInputs {
    #[default]
    None,
    All,
    Of(Vec<String>),
}

/// Replaces the whole conversation with a summary by the model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compaction {
    /// Tokens of the prompt; `None` for when the context is nearly full.
    pub trigger: Option<u32>,
    /// The answer ends after the summary.
    pub pause: bool,
    /// The client's words in place of the question for a summary.
    pub instructions: Option<String>,
}

/// An edit that was applied, and the tokens that it saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppliedEdit {
    ClearedThinking { turns: u32, tokens: u32 },
    ClearedToolUses { uses: u32, tokens: u32 },
    Truncated { turns: u32, tokens: u32 },
}
