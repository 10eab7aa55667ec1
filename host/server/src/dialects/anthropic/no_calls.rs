//! Requests that say in words that no tool may be called.
//!
//! Claude Code asks for the summary of a conversation (`/compact`) with all tools still in the request, so that the prompt
//! stays cached, and discards an answer that calls one: "summarization produced empty response". Small models call tools
//! nevertheless. The words come first in the text, and enforcing them costs nothing of the cache.

use crate::chat::{Part, Role, Turn};

const WORDS: &str = "do not call any tools";
/// The words begin within this many bytes of the text.
const START_BYTES: usize = 120;

/// True if a text of the last user turn begins by forbidding calls.
pub(super) fn are_asked_for(turns: &[Turn]) -> bool {
    let Some(Turn { role: Role::User, parts }) = turns.last() else { return false };
    parts.iter().any(|part| matches!(part, Part::Text(text) if forbids_calls(text)))
}

fn forbids_calls(text: &str) -> bool {
    let start = &text[..text.floor_char_boundary(START_BYTES)];
    start.to_ascii_lowercase().contains(WORDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_words_at_the_start_of_the_last_turn_count() {
        let turn = |role, texts: &[&str]| Turn {
            role,
            parts: texts.iter().map(|text| Part::Text((*text).to_owned())).collect(),
        };
        let asked = "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.\n\nSummarize.";
        let later = format!("{} do not call any tools", "é".repeat(START_BYTES));
        assert!(are_asked_for(&[turn(Role::User, &["More.", asked])]));
        assert!(!are_asked_for(&[turn(Role::User, &[asked]), turn(Role::Assistant, &["Yes."])]));
        assert!(!are_asked_for(&[turn(Role::User, &[asked]), turn(Role::User, &["Go on."])]));
        assert!(!are_asked_for(&[turn(Role::User, &[&later])]));
        assert!(!are_asked_for(&[]));
    }
}
