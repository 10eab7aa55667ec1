//! Content blocks of messages.

use std::borrow::Cow;

use serde_json::{Value, json};

use super::deferred::Deferred;
use crate::{
    chat::{Part, Role},
    dialects::{
        ApiError, documents,
        fields::{Field, Quote},
        images::{self, Piece},
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

/// The summary in a block that stands for all before it: `None` in other blocks, and in one whose summary failed.
pub(super) fn compaction<'a>(block: &Field<'a>) -> Result<Option<&'a str>, ApiError> {
    block.object()?;
    if block.get("type").string()? != "compaction" {
        return Ok(None);
    }
    block.get("content").optional(|content| content.text(usize::MAX))
}

/// Converts a block of a user or assistant message; `None` for blocks that are accepted and ignored.
pub(super) fn part(role: Role, block: &Field<'_>, deferred: &mut Deferred) -> Result<Option<Part>, ApiError> {
    block.object()?;
    let kind = block.get("type").string()?;
    match (kind, role) {
        ("text", _) => Ok(Some(Part::Text(text(block)?.to_owned()))),
        ("compaction", _) => Ok(None),
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
            let (text, images) = images::joined(result(&block.get("content"), deferred)?, "\n");
            Ok(Some(Part::ToolResult { id, text, images, is_error }))
        }
        ("thinking" | "redacted_thinking" | "tool_use", _) => Err(only_in(block, kind, "the assistant's")),
        ("tool_result", _) => Err(only_in(block, kind, "the user's")),
        ("image", Role::User) => image(block).map(|piece| Some(piece.into())),
        _ => replaced(block, kind, deferred).map(|text| text.map(Part::Text)),
    }
}

fn image(block: &Field<'_>) -> Result<Piece, ApiError> {
    images::read(block, || images::source_object(&block.get("source")))
}

/// The text of a block in a system prompt; may be empty.
pub(super) fn only_text<'a>(block: &Field<'a>, deferred: &mut Deferred) -> Result<Cow<'a, str>, ApiError> {
    block.object()?;
    match block.get("type").string()? {
        "text" => block.get("text").string().map(Cow::Borrowed),
        kind => Ok(Cow::Owned(replaced(block, kind, deferred)?.unwrap_or_default())),
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

/// A tool's output: absent, a string, or blocks.
fn result(content: &Field<'_>, deferred: &mut Deferred) -> Result<Vec<Piece>, ApiError> {
    if content.is_absent() {
        return Ok(Vec::new());
    }
    if content.is_string() {
        return content.string().map(|text| vec![Piece::Text(text.to_owned())]);
    }
    let piece = |block: Field<'_>| {
        block.object()?;
        match block.get("type").string()? {
            "image" => image(&block),
            _ => only_text(&block, deferred).map(|text| Piece::Text(text.into_owned())),
        }
    };
    blocks(content)?.map(piece).collect()
}

/// The text of a document's blocks.
fn document_text(content: &Field<'_>, deferred: &mut Deferred) -> Result<String, ApiError> {
    if content.is_absent() {
        return Ok(String::new());
    }
    if content.is_string() {
        return content.string().map(str::to_owned);
    }
    let texts = blocks(content)?.map(|block| only_text(&block, deferred)).collect::<Result<Vec<_>, _>>()?;
    Ok(texts.join("\n"))
}

/// A document: its text if it has one, else a note.
fn document(block: &Field<'_>, deferred: &mut Deferred) -> Result<String, ApiError> {
    let (title, context) = (block.get("title").string_or_empty()?, block.get("context").string_or_empty()?);
    let source = block.get("source");
    let kind = source.get("type");
    source.object()?;
    match kind.string()? {
        "text" => Ok(documents::titled(title, context, source.get("data").string()?)),
        "content" => Ok(documents::titled(title, context, &document_text(&source.get("content"), deferred)?)),
        "base64" => {
            let media_type = source.get("media_type").string_or_empty()?;
            let content = documents::Content::Base64 { media_type, data: source.get("data").string()? };
            documents::part(block, &content, title)
        }
        "url" | "file" => block.elsewhere(documents::NOT_FETCHED),
        _ => kind.choice(&["text", "content", "base64", "url", "file"]).and_then(|_| block.attachment("document")),
    }
}

fn only_in(block: &Field<'_>, kind: &str, whose: &str) -> ApiError {
    block.invalid(format_args!("a block of type '{kind}' is allowed in {whose} messages only"))
}

/// Replacement text for a block that a text-only model cannot read, or `None` for one that only Anthropic's servers
/// produce. An error would end the session, since the block stays in its history.
fn replaced(block: &Field<'_>, kind: &str, deferred: &mut Deferred) -> Result<Option<String>, ApiError> {
    match kind {
        "image" => images::out_of_place(block).map(Some),
        "document" => document(block, deferred).map(Some),
        "container_upload" => block.attachment("file").map(Some),
        "search_result" => {
            let title = block.get("title").string_or_empty()?;
            let content = block.get("content");
            let texts = blocks(&content)?.map(|block| only_text(&block, deferred).map(Cow::into_owned));
            Ok(Some(format!("{title}\n{}", texts.collect::<Result<Vec<_>, _>>()?.join("\n"))))
        }
        "tool_reference" => deferred.reference(block).map(Some),
        "tool_search_tool_result" => {
            deferred.search_result(block).map(|text| Some(text).filter(|text| !text.is_empty()))
        }
        "server_tool_use" | "mcp_tool_use" | "mcp_tool_result" => {
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
