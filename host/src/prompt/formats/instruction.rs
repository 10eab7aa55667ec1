//! Tools for models whose template knows none, or knows them in a way that is not known here: the system's text tells of
//! them and of how to call them, and earlier calls and results stand in the turns as text.
//!
//! Such models write Hermes' convention, for want of one of their own.

use super::{Format, known};
use crate::chat::{Conversation, Part, Turn};

/// The convention that is taught.
pub fn format(reasoning: Option<super::Reasoning>) -> Format {
    Format { calls: known::hermes(), reasoning }
}

/// Puts tools, calls and results into words.
pub fn put_into_words(conversation: &mut Conversation) {
    for turn in &mut conversation.turns {
        turn.parts = std::mem::take(&mut turn.parts).into_iter().map(in_words).collect();
    }
    let tools = std::mem::take(&mut conversation.tools);
    if tools.is_empty() {
        return;
    }
    let mut text =
        String::from("You can call these tools. Each line describes one, with the JSON schema of its arguments:\n");
    for tool in &tools {
        let line = serde_json::json!({
            "name": tool.name, "description": tool.description, "arguments": tool.schema,
        });
        text.push_str(&line.to_string());
        text.push('\n');
    }
    text.push_str(
        "To call a tool, write a JSON object with its name and arguments between these tags, and nothing after:\n\
         <tool_call>\n{\"name\": \"TOOL\", \"arguments\": {}}\n</tool_call>\n\
         The result comes back between <tool_response> tags.",
    );
    if !conversation.system.is_empty() {
        conversation.system.push_str("\n\n");
    }
    conversation.system.push_str(&text);
}

fn in_words(part: Part) -> Part {
    match part {
        Part::ToolCall { name, arguments, .. } => {
            let call = serde_json::json!({ "name": name, "arguments": arguments });
            Part::Text(format!("<tool_call>\n{call}\n</tool_call>"))
        }
        Part::ToolResult { text, is_error, .. } => {
            let label = if is_error { "error: " } else { "" };
            Part::Text(format!("<tool_response>\n{label}{text}\n</tool_response>"))
        }
        other => other,
    }
}

/// Whether a conversation speaks of tools.
pub fn is_needed(conversation: &Conversation) -> bool {
    let calls =
        |turn: &Turn| turn.parts.iter().any(|part| matches!(part, Part::ToolCall { .. } | Part::ToolResult { .. }));
    !conversation.tools.is_empty() || conversation.turns.iter().any(calls)
}
