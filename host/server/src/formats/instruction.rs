//! Tool descriptions in the system prompt, for models whose template does not support tools or writes them in an
//! unknown format. Such models are taught the Hermes format, and calls and results of earlier turns appear in the
//! prompt in the same format.

use super::{OutputFormat, Reasoning, known};
use crate::chat::Tool;

/// The format that models are taught.
pub fn format(reasoning: Option<Reasoning>) -> OutputFormat {
    OutputFormat { calls: Some(known::hermes()), reasoning, channels: None }
}

/// Returns the description of tools for the system prompt. It does not depend on the tool choice, so that the prompt
/// stays the same from turn to turn.
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

/// The definition of a tool in the middle of a conversation, for models of any template.
pub fn definition(tool: &Tool) -> String {
    let definition = serde_json::json!({
        "name": tool.name, "description": tool.description, "parameters": tool.schema,
    });
    format!("<function>{definition}</function>")
}
