//! Measures a conversation for the planner, text by text. A text has the same length in every request, whatever follows it,
//! so that the same plan is made again.

use std::collections::HashMap;

use super::{
    CLEARED,
    plan::{Sizes, TurnKind, TurnSize, UseSize},
    text_of,
};
use crate::chat::{Conversation, Part, Role, ToolClearing, Turn};

/// Tokens that a template adds to a turn, a call or a result, roughly.
const FRAME_TOKENS: u32 = 4;
/// Tokens of the placeholder for a cleared result, roughly.
const CLEARED_TOKENS: u32 = CLEARED.len() as u32 / 4;

/// Sizes, and where the uses of tools are.
pub(super) struct Measured {
    pub sizes: Sizes,
    pub uses: Vec<UsePlace>,
}

/// A result, and its call.
pub(super) struct UsePlace {
    /// Turn and part.
    pub result: (usize, usize),
    pub call: Option<(usize, usize)>,
    /// Tokens that clearing it saves; `None` if it has to stay.
    pub saves: Option<u32>,
}

/// A call that has no result so far.
struct OpenCall<'a> {
    name: &'a str,
    place: (usize, usize),
    tokens: u32,
}

impl Measured {
    /// Number of the user's messages up to each turn.
    pub fn runs(&self) -> Vec<usize> {
        let mut run = 0;
        let count = |turn: &TurnSize| {
            run += usize::from(turn.kind == TurnKind::Question);
            run
        };
        self.sizes.turns.iter().map(count).collect()
    }
}

/// The texts to measure: the head's, and then one per part.
pub(super) fn texts(conversation: &Conversation) -> Vec<String> {
    let tools = conversation.tools.iter().map(|tool| format!("{} {} {}", tool.name, tool.description, tool.schema));
    let head = std::iter::once(conversation.system.clone()).chain(tools).collect::<Vec<_>>().join("\n");
    let parts = conversation.turns.iter().flat_map(|turn| &turn.parts).map(|part| match part {
        Part::Text(text) | Part::Thinking(text) | Part::ToolResult { text, .. } => text.clone(),
        Part::ToolCall { name, arguments, .. } => text_of(name, arguments),
        Part::Image(_) => String::new(),
    });
    std::iter::once(head).chain(parts).collect()
}

/// Adds the rows of images to the lengths of the parts that show them.
pub(super) fn with_images(conversation: &Conversation, lengths: &[u32], rows: impl Fn(u32) -> u32) -> Vec<u32> {
    let parts = conversation.turns.iter().flat_map(|turn| &turn.parts);
    let shown = parts.map(|part| part.items().fold(0_u32, |sum, item| sum.saturating_add(rows(item))));
    let shown = std::iter::once(0).chain(shown);
    lengths.iter().zip(shown).map(|(length, rows)| length.saturating_add(rows)).collect()
}

/// Adds up the lengths of a conversation's texts.
pub(super) fn measure(conversation: &Conversation, lengths: &[u32], clearing: Option<&ToolClearing>) -> Measured {
    let mut lengths = lengths.iter().copied();
    let mut next = || lengths.next().unwrap_or_default();
    let head = next().saturating_add(FRAME_TOKENS);
    let mut measured = Measured { sizes: Sizes { head, turns: Vec::new() }, uses: Vec::new() };
    let mut open = HashMap::new();
    for (at, turn) in conversation.turns.iter().enumerate() {
        let mut size = TurnSize { kind: kind(turn), tokens: FRAME_TOKENS, thoughts: 0, uses: Vec::new() };
        for (part, place) in turn.parts.iter().zip((0..).map(|index| (at, index))) {
            let tokens = next();
            match part {
                Part::Thinking(_) => size.thoughts = size.thoughts.saturating_add(tokens),
                Part::Text(_) | Part::Image(_) => size.tokens = size.tokens.saturating_add(tokens),
                Part::ToolCall { id, name, .. } => {
                    size.tokens = size.tokens.saturating_add(tokens).saturating_add(FRAME_TOKENS);
                    open.insert(id.as_str(), OpenCall { name, place, tokens });
                }
                Part::ToolResult { id, .. } => {
                    size.tokens = size.tokens.saturating_add(tokens).saturating_add(FRAME_TOKENS);
                    let call = open.remove(id.as_str());
                    let saves = clearing.and_then(|clearing| saved(clearing, call.as_ref(), tokens));
                    let cleared =
                        clearing.zip(call.as_ref()).map(|(clearing, call)| (call.place.0, input(clearing, call)));
                    size.uses.push(UseSize { saves, input: cleared });
                    measured.uses.push(UsePlace { result: place, call: call.map(|call| call.place), saves });
                }
            }
        }
        measured.sizes.turns.push(size);
    }
    measured
}

/// Tokens that clearing a use saves; `None` if its tool is excluded.
fn saved(clearing: &ToolClearing, call: Option<&OpenCall<'_>>, result: u32) -> Option<u32> {
    let name = call.map_or("", |call| call.name);
    if clearing.exclude.iter().any(|tool| tool == name) {
        return None;
    }
    let input = call.map_or(0, |call| input(clearing, call));
    Some(result.saturating_sub(CLEARED_TOKENS).saturating_add(input))
}

/// Tokens that clearing a call's input saves.
fn input(clearing: &ToolClearing, call: &OpenCall<'_>) -> u32 {
    if clearing.inputs.clears(call.name) { call.tokens } else { 0 }
}

fn kind(turn: &Turn) -> TurnKind {
    let has_results = turn.parts.iter().any(|part| matches!(part, Part::ToolResult { .. }));
    match turn.role {
        Role::System => TurnKind::System,
        Role::User if has_results => TurnKind::Results,
        Role::User => TurnKind::Question,
        Role::Assistant => TurnKind::Answer,
    }
}
