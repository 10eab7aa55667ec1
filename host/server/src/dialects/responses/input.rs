//! Converts `input` to turns: a string, or items as this API returns and accepts them.
//!
//! Adjacent items of the assistant become one turn, as the model generated them. An instruction between a call and its
//! output moves after the output. Items that a text model cannot use are dropped with a note instead of an error, since
//! they stay in the client's history and are sent again with every request.

use std::collections::HashMap;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Map, Value, json};

use super::{
    summary::Summary,
    tools::{NAME_BYTES_MAX, flat},
};
use crate::{
    chat::{Part, Role, Turn},
    dialects::{
        ApiError, custom_tools, documents,
        fields::{Field, Quote},
        fresh_id,
        images::{self, Piece, Source},
        orphans,
    },
    requests::summary,
};

const ITEMS_MAX: usize = 100_000;
const PARTS_MAX: usize = 10_000;
pub(super) const ID_BYTES_MAX: usize = 256;
/// Prefix of call ids in answers, stripped when they come back.
pub(super) const CALL_PREFIX: &str = "call_";

/// The items of an input, with missing ids and types added; a string becomes a user message.
pub(super) fn items(field: &Field<'_>) -> Result<Vec<Value>, ApiError> {
    if field.is_string() {
        let content = json!([{ "type": "input_text", "text": field.string()? }]);
        let id = fresh_id("msg_");
        return Ok(vec![
            json!({ "id": id, "type": "message", "role": "user", "status": "completed", "content": content }),
        ]);
    }
    let item = |item: Field<'_>| {
        let mut value = item.object()?.clone();
        if item.get("type").is_absent() {
            value.insert("type".into(), "message".into());
        }
        if item.get("id").is_absent() {
            value.insert("id".into(), fresh_id("item_").into());
        }
        Ok(Value::Object(value))
    };
    field.items(ITEMS_MAX)?.map(item).collect()
}

/// The system prompt and the turns; `goes_on` if the items begin with a stored conversation.
pub(super) fn read(
    instructions: &Field<'_>,
    field: &Field<'_>,
    goes_on: bool,
) -> Result<(String, Vec<Turn>), ApiError> {
    let mut reader = Reader { goes_on, ..Reader::default() };
    if let Some(instructions) = instructions.present() {
        reader.system.push(instructions.string()?.to_owned());
    }
    for item in field.items(ITEMS_MAX)? {
        reader.item(&item)?;
    }
    reader.turns.append(&mut reader.deferred);
    if reader.turns.is_empty() && reader.system.is_empty() {
        return Err(field.invalid("should have at least one message"));
    }
    Ok((reader.system.join("\n\n"), reader.turns))
}

/// `encrypted_content` of a reasoning item.
pub(super) fn encrypted(reasoning: &str) -> String {
    STANDARD.encode(reasoning)
}

#[derive(Default)]
struct Reader {
    system: Vec<String>,
    turns: Vec<Turn>,
    /// Number of calls without output, by id.
    open: HashMap<String, usize>,
    /// Instructions deferred until all calls have outputs.
    deferred: Vec<Turn>,
    /// The whole conversation is known, so an output must have its call.
    goes_on: bool,
}

impl Reader {
    fn item(&mut self, item: &Field<'_>) -> Result<(), ApiError> {
        item.object()?;
        match item.get("type").string()? {
            "message" => self.message(item),
            "function_call" => {
                let arguments = item.get("arguments").string()?;
                self.call(item, arguments_of(arguments))
            }
            "custom_tool_call" => {
                let input = item.get("input").string()?;
                self.call(item, custom_tools::arguments(input))
            }
            "function_call_output" | "custom_tool_call_output" => self.output(item),
            "reasoning" => {
                let text = reasoning(item)?;
                if !text.is_empty() {
                    self.append(Role::Assistant, Part::Thinking(text));
                }
                Ok(())
            }
            "compaction" | "compaction_summary" => {
                match Summary::read(item)? {
                    Some(Summary { text, is_all }) => {
                        if is_all {
                            self.turns.clear();
                            self.open.clear();
                            self.deferred.clear();
                        }
                        self.turns.push(summary::turn(&text));
                    }
                    None => item.note("another server made this summary, which cannot be read here; it is left out"),
                }
                Ok(())
            }
            other => {
                item.note(format_args!("items of type '{}' are not served here; it is left out", Quote(other)));
                Ok(())
            }
        }
    }

    fn message(&mut self, item: &Field<'_>) -> Result<(), ApiError> {
        let role = item.get("role").choice(&["developer", "system", "user", "assistant"])?;
        if role == 2 {
            let parts = pieces(&item.get("content"), true)?.into_iter().map(Part::from).collect();
            self.turns.push(Turn { role: Role::User, parts });
            return Ok(());
        }
        let texts = texts(&item.get("content"))?;
        match role {
            0 | 1 if self.turns.is_empty() => self.system.push(texts.join("\n")),
            0 | 1 => {
                let turn = Turn { role: Role::System, parts: vec![Part::Text(texts.join("\n"))] };
                if self.open.is_empty() { self.turns.push(turn) } else { self.deferred.push(turn) }
            }
            _ => {
                for text in texts.into_iter().filter(|text| !text.is_empty()) {
                    self.append(Role::Assistant, Part::Text(text));
                }
            }
        }
        Ok(())
    }

    fn call(&mut self, item: &Field<'_>, arguments: Value) -> Result<(), ApiError> {
        let id = call_id(item)?;
        let namespace = item.get("namespace").optional(|name| name.text(NAME_BYTES_MAX))?;
        let name = flat(namespace, item.get("name").text(NAME_BYTES_MAX)?);
        *self.open.entry(id.clone()).or_default() += 1;
        self.append(Role::Assistant, Part::ToolCall { id, name, arguments });
        Ok(())
    }

    fn output(&mut self, item: &Field<'_>) -> Result<(), ApiError> {
        let id = call_id(item)?;
        let (text, images) = images::joined(pieces(&item.get("output"), true)?, "\n");
        let Some(calls) = self.open.get_mut(&id) else {
            if self.goes_on {
                return Err(item.get("call_id").invalid("is the id of no call that waits for its output"));
            }
            self.turns.push(Turn { role: Role::User, parts: orphans::parts(item, &text, &images) });
            return Ok(());
        };
        *calls -= 1;
        if *calls == 0 {
            self.open.remove(&id);
        }
        let part = Part::ToolResult { id, text, images, is_error: false };
        match self.turns.last_mut() {
            Some(turn) if matches!(turn.parts.as_slice(), [Part::ToolResult { .. }, ..]) => turn.parts.push(part),
            _ => self.turns.push(Turn { role: Role::User, parts: vec![part] }),
        }
        if self.open.is_empty() {
            self.turns.append(&mut self.deferred);
        }
        Ok(())
    }

    fn append(&mut self, role: Role, part: Part) {
        match self.turns.last_mut() {
            Some(turn) if turn.role == role => turn.parts.push(part),
            _ => self.turns.push(Turn { role, parts: vec![part] }),
        }
    }
}

/// Parses arguments. Text from the model that is not a JSON object is wrapped in one, as templates need objects.
fn arguments_of(text: &str) -> Value {
    match serde_json::from_str(text) {
        Ok(Value::Object(arguments)) => Value::Object(arguments),
        _ if text.trim().is_empty() => Value::Object(Map::new()),
        _ => json!({ "malformed_arguments": text }),
    }
}

fn call_id(item: &Field<'_>) -> Result<String, ApiError> {
    let id = item.get("call_id").text(ID_BYTES_MAX)?;
    Ok(id.strip_prefix(CALL_PREFIX).filter(|bare| !bare.is_empty()).unwrap_or(id).to_owned())
}

/// Texts of a string or a list of parts, with notes for images.
fn texts(field: &Field<'_>) -> Result<Vec<String>, ApiError> {
    let texts = pieces(field, false)?.into_iter().filter_map(|piece| match piece {
        Piece::Text(text) => Some(text),
        Piece::Image(_) => None,
    });
    Ok(texts.collect())
}

/// Pieces of a string or a list of parts. `shows` where images may be shown.
fn pieces(field: &Field<'_>, shows: bool) -> Result<Vec<Piece>, ApiError> {
    if field.is_string() {
        return Ok(vec![Piece::Text(field.string()?.to_owned())]);
    }
    let mut pieces = Vec::new();
    for part in field.items(PARTS_MAX)? {
        part.object()?;
        let kind = part.get("type").string()?;
        if shows && matches!(kind, "input_image" | "image" | "computer_screenshot") {
            pieces.push(image(&part)?);
            continue;
        }
        let text = match kind {
            "input_text" | "output_text" | "text" | "summary_text" | "reasoning_text" => {
                part.get("text").string()?.to_owned()
            }
            "refusal" => part.get("refusal").string()?.to_owned(),
            "input_image" | "image" | "computer_screenshot" => images::out_of_place(&part)?,
            "input_file" | "file" => match part.get("file_data").present() {
                Some(data) => {
                    let title = part.get("filename").string_or_empty()?;
                    documents::part(&part, &documents::Content::DataUrl(data.string()?), title)?
                }
                None => part.elsewhere(documents::NOT_FETCHED)?,
            },
            "input_audio" => part.attachment("audio clip")?,
            other => {
                part.note(format_args!("parts of type '{}' are not served here; it is left out", Quote(other)));
                continue;
            }
        };
        pieces.push(Piece::Text(text));
    }
    Ok(pieces)
}

/// An image by its address, data URL, or the id of a file.
fn image(part: &Field<'_>) -> Result<Piece, ApiError> {
    images::read(part, || {
        let (url, id) = (part.get("image_url"), part.get("file_id"));
        match url.present() {
            Some(url) if url.is_string() => url.string().map(Source::Url),
            Some(url) => url.get("url").string().map(Source::Url),
            None if id.is_absent() => Err(part.invalid("should have 'image_url', the image as a data URL")),
            None => Err(images::unknown_file(&id)),
        }
    })
}

/// The reasoning of an item: plain, or else decoded if this server encoded it. What another server encrypted is
/// dropped.
fn reasoning(item: &Field<'_>) -> Result<String, ApiError> {
    let content = item.get("content");
    if content.present().is_some() {
        let text = texts(&content)?.join("\n");
        if !text.is_empty() {
            return Ok(text);
        }
    }
    if let Some(encrypted) = item.get("encrypted_content").present() {
        let text = STANDARD.decode(encrypted.string()?).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        return Ok(text.unwrap_or_default());
    }
    let summary = item.get("summary");
    if summary.is_absent() { Ok(String::new()) } else { Ok(texts(&summary)?.join("\n")) }
}
