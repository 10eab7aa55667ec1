//! Tools for models whose template knows none, or knows them in a way that is not known here: the system's text tells of
//! them and of how to call them. Such models write Hermes' convention, for want of one of their own; calls and results of
//! earlier turns stand in the prompt likewise.

use super::{OutputFormat, Reasoning, known};
use crate::chat::Tool;

/// The convention that is taught.
pub fn format(reasoning: Option<Reasoning>) -> OutputFormat {
    OutputFormat { calls: Some(known::hermes()), reasoning, channels: None }
}

/// What the system's text tells of tools. It does not depend on whether one must be called, so that the prompt stays the
/// same from turn to turn.
pub fn words(tools: &[Tool]) -> String {
    let mut text =
        String::from("You can call these tools. Each line has one, with the JSON schema of its arguments:\n");
    for tool in tools {
        let line = serde_json::json!({
            "name": tool.name, "description": tool.description, "arguments": tool.schema,
        });
        text.push_str(&line.to_string());
        text.push('\n');
    }
    text.push_str(
        "To call a tool, write a JSON object with its name and its arguments between these tags:\n\
         <tool_call>\n{\"name\": \"TOOL\", \"arguments\": {}}\n</tool_call>\n\
         What comes of it is told between <tool_response> tags.",
    );
    text
}
