//! Refuses a prompt that is too long before it is rendered.
//!
//! Rendering and tokenizing take memory and time in proportion to the text's length, with a large factor. A text with
//! more bytes than a model's context can represent is therefore refused by its length alone.

use std::fmt::Display;

use serde_json::Value;

use crate::chat::{Conversation, Input, Part};
use pensieve_protocol::{
    job::{Failure, FailureCode},
    vocabulary::Vocabulary,
};

/// The refusal of a prompt without room for an answer. Clients recognize it by its words, and compact or say what to do:
/// Claude Code, opencode, Qwen Code and LangChain by the first half, LiteLLM, aider and pydantic-ai by the second.
pub(super) fn too_long(tokens: impl Display, tokens_max: u32) -> Failure {
    let context = tokens_max.saturating_add(1);
    let first = format!("prompt is too long: {tokens} tokens > {tokens_max} maximum");
    let message = format!("{first}; this model's maximum context length is {context} tokens");
    Failure::new(FailureCode::TooLong, message)
}

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
        return Err(too_long(format_args!("at least {tokens}"), tokens_max));
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
