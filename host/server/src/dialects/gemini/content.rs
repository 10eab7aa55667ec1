//! Converts `systemInstruction` and `contents` to turns.
//!
//! A result belongs to the call with its id, or without one to the first open call of its name. The Gemini CLI puts the
//! function's name in front of ids (`NAME__ID`), which is undone: templates may render ids, and the prompt must stay the
//! same as when the model generated the call. After `--resume` it sends results of earlier turns twice.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
};

use serde_json::{Map, Value, json};

use super::{names::get, tools::NAME_BYTES_MAX};
use crate::{
    chat::{Part, Role, Turn},
    dialects::{
        ApiError, documents,
        fields::{Field, Quote},
        images::{self, Piece, Source},
        orphans,
    },
};

const CONTENTS_MAX: usize = 100_000;
const PARTS_MAX: usize = 10_000;
const ID_BYTES_MAX: usize = 512;

pub(super) fn read(body: &Field<'_>) -> Result<(String, Vec<Turn>), ApiError> {
    let system = system(&get(body, "systemInstruction"))?;
    let contents = body.get("contents");
    let items = contents.items(CONTENTS_MAX)?;
    let mut reader = Reader::default();
    for content in items {
        reader.content(&content)?;
    }
    if reader.turns.is_empty() {
        return Err(contents.invalid("should have at least one content with a part"));
    }
    Ok((system, reader.turns))
}

/// A content, or a string.
fn system(field: &Field<'_>) -> Result<String, ApiError> {
    if field.is_absent() {
        return Ok(String::new());
    }
    if field.is_string() {
        return field.string().map(str::to_owned);
    }
    field.object()?;
    let mut texts = Vec::new();
    for part in parts(&field.get("parts"))? {
        part.object()?;
        let text = match part.get("text").present() {
            Some(text) => text.string()?.to_owned(),
            None => match attached(&part, false)? {
                Some(Piece::Text(text)) => text,
                Some(Piece::Image(_)) | None => String::new(),
            },
        };
        texts.push(text);
    }
    texts.retain(|text| !text.is_empty());
    Ok(texts.join("\n\n"))
}

/// The parts of a content; a single one needs no list.
fn parts<'a>(field: &Field<'a>) -> Result<Vec<Field<'a>>, ApiError> {
    match field.present() {
        None => Ok(Vec::new()),
        Some(part) if part.json()?.is_object() => Ok(vec![part.clone()]),
        Some(list) => Ok(list.items(PARTS_MAX)?.collect()),
    }
}

#[derive(Default)]
struct Reader {
    turns: Vec<Turn>,
    /// Id and name of calls without a result.
    open: Vec<(String, String)>,
    /// Ids of the others, with digests of their results.
    answered: HashMap<String, u64>,
    calls: usize,
}

impl Reader {
    fn content(&mut self, content: &Field<'_>) -> Result<(), ApiError> {
        content.object()?;
        let role = content.get("role");
        let role = match role.optional(|role| role.choice(&["user", "model", "function", "tool", "system", ""]))? {
            Some(1) => Role::Assistant,
            Some(4) => Role::System,
            _ => Role::User,
        };
        let mut made = Vec::new();
        for part in parts(&content.get("parts"))? {
            part.object()?;
            made.extend(self.part(role, &part)?);
        }
        if made.is_empty() {
            return Ok(());
        }
        let is_result = |part: &Part| matches!(part, Part::ToolResult { .. });
        match self.turns.last_mut() {
            // Results of one turn's calls form one turn, wherever the client parts them.
            Some(turn) if role == Role::User && turn.parts.iter().all(is_result) && is_result(&made[0]) => {
                turn.parts.extend(made);
            }
            _ => self.turns.push(Turn { role, parts: made }),
        }
        Ok(())
    }

    fn part(&mut self, role: Role, part: &Field<'_>) -> Result<Vec<Part>, ApiError> {
        if let Some(text) = part.get("text").present() {
            let text = text.string()?.to_owned();
            let is_thought = part.get("thought").flag(false)?;
            return Ok(match role {
                _ if text.is_empty() => Vec::new(),
                Role::Assistant if is_thought => vec![Part::Thinking(text)],
                _ => vec![Part::Text(text)],
            });
        }
        let (call, result) = (get(part, "functionCall"), get(part, "functionResponse"));
        if let Some(call) = call.present() {
            return if role == Role::Assistant {
                self.call(call).map(|part| vec![part])
            } else {
                Err(call.invalid("is allowed in contents of the role 'model' only"))
            };
        }
        if let Some(result) = result.present() {
            return if role == Role::User {
                self.result(result)
            } else {
                Err(result.invalid("is allowed in contents of the role 'user' only"))
            };
        }
        Ok(attached(part, role == Role::User)?.map(Part::from).into_iter().collect())
    }

    fn call(&mut self, call: &Field<'_>) -> Result<Part, ApiError> {
        call.object()?;
        let name = call.get("name").text(NAME_BYTES_MAX)?.to_owned();
        let arguments = match call.get("args").optional(Field::json)? {
            None => Value::Object(Map::new()),
            Some(Value::Object(arguments)) => Value::Object(arguments.clone()),
            // The model wrote this and the client only echoes it, so it is no error; templates need an object.
            Some(other) => json!({ "malformed_arguments": other }),
        };
        let id = match id(call, &name)? {
            Some(id) => id,
            None => format!("{:09}", self.calls),
        };
        self.calls += 1;
        self.open.push((id.clone(), name.clone()));
        Ok(Part::ToolCall { id, name, arguments })
    }

    fn result(&mut self, result: &Field<'_>) -> Result<Vec<Part>, ApiError> {
        result.object()?;
        let name = result.get("name").string_or_empty()?;
        let (text, is_error) = output(&result.get("response"))?;
        let mut pieces = Vec::from_iter(Some(text).filter(|text| !text.is_empty()).map(Piece::Text));
        for part in parts(&result.get("parts"))? {
            part.object()?;
            pieces.extend(attached(&part, true)?);
        }
        let (text, images) = images::joined(pieces, "\n");
        let id = id(result, name)?;
        let digest = digest(&text);
        let by_id = id.as_ref().and_then(|id| self.open.iter().position(|(open, _)| open == id));
        if by_id.is_none() && id.is_some_and(|id| self.answered.get(&id) == Some(&digest)) {
            result.note("its call has this result already; the copy is left out");
            return Ok(Vec::new());
        }
        let index = by_id.or_else(|| self.open.iter().position(|(_, called)| called == name));
        let Some(index) = index else { return Ok(orphans::parts(result, &text, &images)) };
        let (id, _) = self.open.remove(index);
        self.answered.insert(id.clone(), digest);
        Ok(vec![Part::ToolResult { id, text, images, is_error }])
    }
}

fn digest(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

fn id(field: &Field<'_>, name: &str) -> Result<Option<String>, ApiError> {
    let id = field.get("id").string_or_empty()?;
    if id.len() > ID_BYTES_MAX {
        return Err(field.get("id").invalid(format_args!("has {} bytes, more than {ID_BYTES_MAX}", id.len())));
    }
    let mut bare = id;
    while let Some(rest) = bare.strip_prefix(name).and_then(|rest| rest.strip_prefix("__")).filter(|_| !name.is_empty())
    {
        bare = rest;
    }
    Ok(Some(bare).filter(|id| !id.is_empty()).map(str::to_owned))
}

/// A function's result, and whether it failed: `{"output": …}` and `{"error": …}` by convention, or any object.
fn output(response: &Field<'_>) -> Result<(String, bool), ApiError> {
    let Some(response) = response.present() else { return Ok((String::new(), false)) };
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let members = response.object()?;
    Ok(match members.iter().next() {
        Some((name, value)) if members.len() == 1 && (name == "output" || name == "result") => (text(value), false),
        Some((name, value)) if members.len() == 1 && name == "error" => (text(value), true),
        _ => (Value::Object(members.clone()).to_string(), members.contains_key("error")),
    })
}

/// The prompt's part for data and code; `None` for parts without any. `shows` where images may be shown.
fn attached(part: &Field<'_>, shows: bool) -> Result<Option<Piece>, ApiError> {
    let (inline, file) = (get(part, "inlineData"), get(part, "fileData"));
    if let Some(data) = inline.present().or(file.present()) {
        return data_part(data, !inline.is_absent(), shows).map(Some);
    }
    let (code, printed) = (get(part, "executableCode"), get(part, "codeExecutionResult"));
    if let Some(code) = code.present() {
        return Ok(Some(Piece::Text(format!("```\n{}\n```", code.get("code").string_or_empty()?))));
    }
    if let Some(printed) = printed.present() {
        return Ok(Some(Piece::Text(format!("```\n{}\n```", printed.get("output").string_or_empty()?))));
    }
    let known =
        ["thought", "thoughtSignature", "thought_signature", "videoMetadata", "mediaResolution", "partMetadata"];
    if let Some(other) = part.object()?.keys().find(|name| !known.contains(&name.as_str())) {
        part.note(format_args!("parts with '{}' are not served here; it is left out", Quote(other)));
    }
    Ok(None)
}

/// The prompt's part for a file: its own if it is inline and text, or an image for a model that reads some, else a note.
fn data_part(data: &Field<'_>, is_inline: bool, shows: bool) -> Result<Piece, ApiError> {
    data.object()?;
    let media_type = get(data, "mimeType").string_or_empty()?;
    let kind = media_type.split('/').next().unwrap_or_default();
    if kind == "image" && shows {
        return images::read(data, || match is_inline {
            true => data.get("data").string().map(Source::Base64),
            false => get(data, "fileUri").string().map(Source::Url),
        });
    }
    let text = match kind {
        "image" => images::out_of_place(data),
        "audio" => data.attachment("audio clip"),
        "video" => data.attachment("video"),
        _ if is_inline => {
            let content = documents::Content::Base64 { media_type, data: data.get("data").string()? };
            documents::part(data, &content, get(data, "displayName").string_or_empty()?)
        }
        _ => data.elsewhere(documents::NOT_FETCHED),
    };
    text.map(Piece::Text)
}
