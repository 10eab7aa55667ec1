//! Refuses a prompt that is too long before it is rendered.
//!
//! Rendering and tokenizing take memory and time in proportion to the text's length, with a large factor. A text with
//! more bytes than a model's context can represent is therefore refused by its length alone.

use serde_json::Value;

use crate::chat::{Conversation, Input, Part, prompt_too_long};
use pensieve_protocol::{job::Failure, vocabulary::Vocabulary};

/// Refuses an input whose length in bytes proves that it exceeds `tokens_max`.
pub(super) fn check(input: &Input, vocabulary: &Vocabulary, tokens_max: u32) -> Result<(), Failure> {
    let bytes = match input {
        Input::Chat(conversation) => conversation_bytes(conversation),
        Input::Text(text) => text.len(),
        Input::Infill { prefix, suffix } => prefix.len() + suffix.len(),
        Input::Tokens(_) => return Ok(()),
    };
    let tokens = vocabulary.tokens_min(bytes);
    if tokens > tokens_max as usize {
        return Err(prompt_too_long(format_args!("at least {tokens}"), tokens_max));
    }
    Ok(())
}

/// Number of bytes that every template renders. Reasoning of earlier turns does not count, as many templates omit it.
fn conversation_bytes(conversation: &Conversation) -> usize {
    let turns = conversation.turns.iter().flat_map(|turn| &turn.parts).map(|part| match part {
        Part::Text(text) | Part::ToolResult { text, .. } => text.len(),
        Part::ToolCall { name, arguments, .. } => name.len() + value_bytes(arguments),
        Part::Thinking(_) | Part::Image(_) => 0,
    });
    let tools =
        conversation.tools.iter().map(|tool| tool.name.len() + tool.description.len() + value_bytes(&tool.schema));
    conversation.system.len() + turns.sum::<usize>() + tools.sum::<usize>()
}

/// Total length of all strings in a value, in bytes.
fn value_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(values) => values.iter().map(value_bytes).sum(),
        Value::Object(fields) => fields.iter().map(|(key, value)| key.len() + value_bytes(value)).sum(),
        _ => 0,
    }
}
