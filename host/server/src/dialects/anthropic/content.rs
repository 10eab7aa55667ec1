//! Blocks of a message's content.

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
/// Stands before every id of a call that leaves here, and is taken off when it comes back: templates that show ids show
/// what the model was given, and a conversation goes on from the very prompt that it began with.
pub(super) const CALL_PREFIX: &str = "toolu_";

/// The blocks of a content that is no string.
pub(super) fn blocks<'a>(content: &Field<'a>) -> Result<impl Iterator<Item = Field<'a>>, ApiError> {
    if !content.json()?.is_array() {
        return Err(content.should_be("a string or a list of blocks"));
    }
    content.items(BLOCKS_MAX)
}

/// A call that waits for its result.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) id: String,
    /// The block's place in the request.
    pub(super) path: String,
}

/// A block of a user's or the assistant's message. None for what is accepted and says nothing.
pub(super) fn part(role: Role, block: &Field<'_>) -> Result<Option<Part>, ApiError> {
    block.object()?;
    let kind = block.get("type").string()?;
    match (kind, role) {
        ("text", _) => Ok(Some(Part::Text(text(block)?.to_owned()))),
        ("thinking", Role::Assistant) => {
            block.get("signature").present().map(Field::string).transpose()?;
            Ok(Some(block.get("thinking").string()?)
                .filter(|text| !text.is_empty())
                .map(|text| Part::Thinking(text.into())))
        }
        ("redacted_thinking", Role::Assistant) => block.get("data").string().map(|_| None),
        ("tool_use", Role::Assistant) => {
            let id = id(&block.get("id"))?;
            let name = block.get("name").text(NAME_LEN_MAX)?.to_owned();
            let input = block.get("input");
            input.object()?;
            Ok(Some(Part::ToolCall { id, name, arguments: input.json()?.clone() }))
        }
        ("tool_result", Role::User) => {
            let is_error = block.get("is_error").present().map(Field::boolean).transpose()?.unwrap_or(false);
            let id = id(&block.get("tool_use_id"))?;
            Ok(Some(Part::ToolResult { id, text: result(&block.get("content"))?, is_error }))
        }
        ("thinking" | "redacted_thinking" | "tool_use", _) => Err(only_in(block, kind, "the assistant's")),
        ("tool_result", _) => Err(only_in(block, kind, "the user's")),
        _ => Err(unreadable(block, kind)),
    }
}

/// The text of a block that can be nothing else. It may be empty.
pub(super) fn only_text<'a>(block: &Field<'a>) -> Result<&'a str, ApiError> {
    block.object()?;
    match block.get("type").string()? {
        "text" => block.get("text").string(),
        kind => Err(unreadable(block, kind)),
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

/// What a tool said: nothing, a string, or blocks, a line break between two.
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
    block.problem(format_args!("a block of type '{kind}' belongs into {whose} messages only"))
}

fn unreadable(block: &Field<'_>, kind: &str) -> ApiError {
    match kind {
        "image" | "document" => {
            block.problem(format_args!("this model reads text only, so it cannot take this {kind}"))
        }
        _ => block.problem(format_args!("blocks of type '{}' are not known here; send text", Quote(kind))),
    }
}
