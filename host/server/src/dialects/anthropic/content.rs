//! Content blocks of messages.

use std::borrow::Cow;

use serde_json::{Value, json};

use crate::{
    chat::{Part, Role},
    dialects::{
        ApiError,
        fields::{Field, Quote},
    },
};

const ID_LEN_MAX: usize = 256;
const NAME_LEN_MAX: usize = 256;
const BLOCKS_MAX: usize = 10_000;
/// Prefix of call ids in answers, stripped when they come back: templates may render ids, and the prompt must stay the
/// same as when the model generated the call.
pub(super) const CALL_PREFIX: &str = "toolu_";

/// The blocks of a content that is not a string.
pub(super) fn blocks<'a>(content: &Field<'a>) -> Result<impl Iterator<Item = Field<'a>>, ApiError> {
    if !content.json()?.is_array() {
        return Err(content.should_be("a string or a list of blocks"));
    }
    content.items(BLOCKS_MAX)
}

/// A tool call without a result.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) id: String,
    /// Path of the block in the request.
    pub(super) path: String,
}

/// Converts a block of a user or assistant message; `None` for blocks that are accepted and ignored.
pub(super) fn part(role: Role, block: &Field<'_>) -> Result<Option<Part>, ApiError> {
    block.object()?;
    let kind = block.get("type").string()?;
    match (kind, role) {
        ("text", _) => Ok(Some(Part::Text(text(block)?.to_owned()))),
        ("thinking", Role::Assistant) => {
            block.get("signature").optional(Field::string)?;
            Ok(Some(block.get("thinking").string()?)
                .filter(|text| !text.is_empty())
                .map(|text| Part::Thinking(text.into())))
        }
        ("redacted_thinking", Role::Assistant) => block.get("data").string().map(|_| None),
        ("tool_use", Role::Assistant) => {
            let id = id(&block.get("id"))?;
            let name = block.get("name").text(NAME_LEN_MAX)?.to_owned();
            let arguments = match block.get("input").json()? {
                Value::Object(arguments) => Value::Object(arguments.clone()),
                // The model wrote this and the client only echoes it, so it is no error; templates need an object.
                other => json!({ "malformed_arguments": other }),
            };
            Ok(Some(Part::ToolCall { id, name, arguments }))
        }
        ("tool_result", Role::User) => {
            let is_error = block.get("is_error").flag(false)?;
            let id = id(&block.get("tool_use_id"))?;
            Ok(Some(Part::ToolResult { id, text: result(&block.get("content"))?, is_error }))
        }
        ("thinking" | "redacted_thinking" | "tool_use", _) => Err(only_in(block, kind, "the assistant's")),
        ("tool_result", _) => Err(only_in(block, kind, "the user's")),
        _ => replaced(block, kind).map(|text| text.map(Part::Text)),
    }
}

/// The text of a block in a system prompt or tool result; may be empty.
pub(super) fn only_text<'a>(block: &Field<'a>) -> Result<Cow<'a, str>, ApiError> {
    block.object()?;
    match block.get("type").string()? {
        "text" => block.get("text").string().map(Cow::Borrowed),
        kind => Ok(Cow::Owned(replaced(block, kind)?.unwrap_or_default())),
    }
}

fn text<'a>(block: &Field<'a>) -> Result<&'a str, ApiError> {
    block.get("text").text(usize::MAX)
}

fn id(field: &Field<'_>) -> Result<String, ApiError> {
    let text = field.text(ID_LEN_MAX)?;
    let bare = text.strip_prefix(CALL_PREFIX).filter(|bare| !bare.is_empty());
    Ok(bare.unwrap_or(text).to_owned())
}

/// A tool's output: absent, a string, or blocks, which are joined by newlines.
fn result(content: &Field<'_>) -> Result<String, ApiError> {
    if content.is_absent() {
        return Ok(String::new());
    }
    if content.is_string() {
        return content.string().map(str::to_owned);
    }
    let texts = blocks(content)?.map(|block| only_text(&block)).collect::<Result<Vec<_>, _>>()?;
    Ok(texts.join("\n"))
}

fn only_in(block: &Field<'_>, kind: &str, whose: &str) -> ApiError {
    block.invalid(format_args!("a block of type '{kind}' is allowed in {whose} messages only"))
}

/// Replacement text for a block that a text-only model cannot read, or `None` for one that only Anthropic's servers
/// produce. An error would end the session, since the block stays in its history.
fn replaced(block: &Field<'_>, kind: &str) -> Result<Option<String>, ApiError> {
    match kind {
        "image" | "document" => block.attachment(kind).map(Some),
        "container_upload" => block.attachment("file").map(Some),
        "search_result" => {
            let title = block.get("title").string_or_empty()?;
            let content = block.get("content");
            let texts = blocks(&content)?.map(|block| only_text(&block).map(Cow::into_owned));
            Ok(Some(format!("{title}\n{}", texts.collect::<Result<Vec<_>, _>>()?.join("\n"))))
        }
        "tool_reference" | "server_tool_use" | "mcp_tool_use" | "mcp_tool_result" | "compaction" => {
            block.note(format_args!("blocks of type '{kind}' are not served here; it is left out"));
            Ok(None)
        }
        _ if kind.ends_with("_tool_result") => {
            block.note(format_args!("blocks of type '{}' are not served here; it is left out", Quote(kind)));
            Ok(None)
        }
        _ => Err(block.invalid(format_args!("unknown block type '{}'; send text", Quote(kind)))),
    }
}
