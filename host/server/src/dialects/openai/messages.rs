//! Converts messages to the system prompt and turns.
//!
//! `system` and `developer` are equivalent here. Leading ones form the system prompt; later ones stay in place, since
//! moving them would change the prefix of a cached prompt. A `name` is accepted and ignored, as templates do not
//! support it.

use serde_json::{Map, Value, json};

use crate::{
    chat::{Part, Role, Turn},
    dialects::{
        ApiError, custom_tools, documents,
        fields::{Field, Quote},
        images::{self, Piece, Source},
        orphans,
    },
};

const MESSAGES_MAX: usize = 10_000;
const PARTS_MAX: usize = 10_000;
const CALLS_MAX: usize = 1_000;
const ID_BYTES_MAX: usize = 256;
/// Limit for names of called tools, which need not be among the request's tools.
const NAME_BYTES_MAX: usize = 256;
const ROLES: [&str; 6] = ["developer", "system", "user", "assistant", "tool", "function"];

/// Returns the system prompt and the turns.
pub(super) fn read(field: &Field<'_>) -> Result<(String, Vec<Turn>), ApiError> {
    let mut system = Vec::new();
    let mut turns: Vec<Turn> = Vec::new();
    let messages = field.items(MESSAGES_MAX)?;
    if messages.len() == 0 {
        return Err(field.invalid("should have at least one message"));
    }
    for message in messages {
        message.object()?;
        message.get("name").optional(Field::string)?;
        let (role, parts) = match message.get("role").choice(&ROLES)? {
            0 | 1 => (Role::System, content(&message, true, false)?),
            2 => (Role::User, content(&message, true, true)?),
            3 => (Role::Assistant, assistant(&message)?),
            4 => (Role::User, result(&message, &turns)?),
            _ => return Err(message.get("role").invalid("'function' is an older form that is not served; use 'tool'")),
        };
        match turns.last_mut() {
            None if role == Role::System => system.push(text(&parts)),
            // Results of one turn's calls form one turn.
            Some(turn) if is_result(&parts) && is_result(&turn.parts) => turn.parts.extend(parts),
            _ => turns.push(Turn { role, parts }),
        }
    }
    Ok((system.join("\n\n"), turns))
}

/// A string or parts; may be absent for an assistant. `shows` for messages that may show images.
fn content(message: &Field<'_>, required: bool, shows: bool) -> Result<Vec<Part>, ApiError> {
    let field = message.get("content");
    if field.is_absent() && !required {
        return Ok(Vec::new());
    }
    if field.is_string() {
        let text = field.string()?.to_owned();
        // Some clients send an empty string along with tool calls.
        let is_placeholder = text.is_empty() && !message.get("tool_calls").is_absent();
        return Ok(if is_placeholder { Vec::new() } else { vec![Part::Text(text)] });
    }
    if !field.is_absent() && field.json()?.is_object() {
        return Err(field.should_be("a string or a list of parts"));
    }
    field.items(PARTS_MAX)?.map(|part| content_part(&part, shows)).collect()
}

fn content_part(part: &Field<'_>, shows: bool) -> Result<Part, ApiError> {
    part.object()?;
    let kind = part.get("type");
    match kind.string()? {
        "text" => Ok(Part::Text(part.get("text").string()?.to_owned())),
        "refusal" => Ok(Part::Text(part.get("refusal").string()?.to_owned())),
        "image_url" if shows => image(part).map(Part::from),
        "image_url" => images::out_of_place(part).map(Part::Text),
        "input_audio" => part.attachment("audio clip").map(Part::Text),
        "file" => file(&part.get("file")).map(Part::Text),
        other => Err(kind.invalid(format_args!("'{}' parts are not known; send 'text'", Quote(other)))),
    }
}

/// An image by its address or data URL, in an object or bare.
fn image(part: &Field<'_>) -> Result<Piece, ApiError> {
    let image = part.get("image_url");
    images::read(part, || {
        let url = if image.is_string() { image } else { image.get("url") };
        url.string().map(Source::Url)
    })
}

/// A file by its data; those named by an id or an address are not here.
fn file(file: &Field<'_>) -> Result<String, ApiError> {
    file.object()?;
    match file.get("file_data").present() {
        Some(data) => {
            let content = documents::Content::DataUrl(data.string()?);
            documents::part(file, &content, file.get("filename").string_or_empty()?)
        }
        None if file.get("file_id").is_absent() => {
            Err(file.invalid("should have 'file_data', the document as a data URL"))
        }
        None => file.elsewhere(documents::NOT_FETCHED),
    }
}

/// An earlier turn of the model, in the order of generation: reasoning, text, calls.
fn assistant(message: &Field<'_>) -> Result<Vec<Part>, ApiError> {
    for (name, why) in [
        ("function_call", "is an older form that is not served; use 'tool_calls'"),
        ("audio", "is not served, as the model reads text only"),
    ] {
        if let Some(field) = message.get(name).present() {
            return Err(field.invalid(why));
        }
    }
    let mut parts = Vec::new();
    if let Some(reasoning) = message.get("reasoning_content").present() {
        let text = reasoning.string()?;
        if !text.is_empty() {
            parts.push(Part::Thinking(text.to_owned()));
        }
    }
    parts.extend(content(message, false, false)?);
    if let Some(refusal) = message.get("refusal").present() {
        parts.push(Part::Text(refusal.string()?.to_owned()));
    }
    if let Some(calls) = message.get("tool_calls").present() {
        for item in calls.items(CALLS_MAX)? {
            parts.push(call(&item)?);
        }
    }
    if parts.is_empty() && message.get("content").is_absent() {
        return Err(message.get("content").invalid("this field is required where there are no 'tool_calls'"));
    }
    Ok(parts)
}

fn call(field: &Field<'_>) -> Result<Part, ApiError> {
    field.object()?;
    let id = field.get("id").text(ID_BYTES_MAX)?.to_owned();
    let kind = field.get("type");
    // Some clients omit it.
    if let Some(kind) = kind.present()
        && kind.choice(&["function", "custom"])? == 1
    {
        let custom = field.get("custom");
        custom.object()?;
        let name = custom.get("name").text(NAME_BYTES_MAX)?.to_owned();
        return Ok(Part::ToolCall { id, name, arguments: custom_tools::arguments(custom.get("input").string()?) });
    }
    let function = field.get("function");
    function.object()?;
    let name = function.get("name").text(NAME_BYTES_MAX)?.to_owned();
    let arguments = function.get("arguments").string()?;
    let arguments = match serde_json::from_str(arguments) {
        Ok(Value::Object(arguments)) => Value::Object(arguments),
        Err(_) if arguments.trim().is_empty() => Value::Object(Map::new()),
        // The model wrote this and the client only echoes it, so it is no error; templates need an object.
        _ => json!({ "malformed_arguments": arguments }),
    };
    Ok(Part::ToolCall { id, name, arguments })
}

fn result(message: &Field<'_>, turns: &[Turn]) -> Result<Vec<Part>, ApiError> {
    let field = message.get("tool_call_id");
    let id = field.text(ID_BYTES_MAX)?.to_owned();
    // Instructions may come between a call and its result; user messages may not.
    let mut before = turns.iter().rev().filter(|turn| turn.role != Role::System).peekable();
    let answered = before.next_if(|turn| is_result(&turn.parts));
    let is_this = |part: &Part| matches!(part, Part::ToolResult { id: known, .. } if *known == id);
    if answered.is_some_and(|turn| turn.parts.iter().any(is_this)) {
        return Err(field.invalid(format_args!("call '{}' has an answer already", Quote(&id))));
    }
    let caller = before.next().filter(|turn| turn.role == Role::Assistant);
    let is_call = |part: &Part| matches!(part, Part::ToolCall { id: called, .. } if *called == id);
    let pieces = content(message, true, true)?.into_iter().filter_map(|part| match part {
        Part::Text(text) => Some(Piece::Text(text)),
        Part::Image(item) => Some(Piece::Image(item)),
        _ => None,
    });
    let (text, images) = images::joined(pieces.collect(), "\n");
    if !turns.iter().any(|turn| turn.parts.iter().any(is_call)) {
        return Ok(orphans::parts(message, &text, &images));
    }
    if !caller.is_some_and(|turn| turn.parts.iter().any(is_call)) {
        let why = format_args!("the assistant's message before has no call '{}' among its 'tool_calls'", Quote(&id));
        return Err(field.invalid(why));
    }
    Ok(vec![Part::ToolResult { id, text, images, is_error: false }])
}

fn is_result(parts: &[Part]) -> bool {
    matches!(parts, [Part::ToolResult { .. }, ..])
}

fn text(parts: &[Part]) -> String {
    let texts = parts.iter().filter_map(|part| if let Part::Text(text) = part { Some(text.as_str()) } else { None });
    texts.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::dialects::fields::{Document, Notes};

    fn messages(messages: Value) -> Result<(String, Vec<Turn>), String> {
        let body = json!({ "messages": messages });
        read(&Field::root(&body).get("messages")).map_err(|problem| problem.message)
    }

    fn turn(role: Role, parts: Vec<Part>) -> Turn {
        Turn { role, parts }
    }

    fn turn_of(role: Role, text: &str) -> Turn {
        turn(role, vec![Part::Text(text.into())])
    }

    #[test]
    fn instructions_stay_where_they_are() {
        let (system, turns) = messages(json!([
            {"role": "developer", "content": "one"},
            {"role": "system", "content": [{"type": "text", "text": "two"}]},
            {"role": "user", "content": "hi", "name": "ada"},
            {"role": "system", "content": "three"},
            {"role": "assistant", "content": "hello"},
        ]))
        .unwrap();
        assert_eq!(system, "one\n\ntwo");
        assert_eq!(
            turns,
            [turn_of(Role::User, "hi"), turn_of(Role::System, "three"), turn_of(Role::Assistant, "hello")]
        );
    }

    #[test]
    fn calls_and_results_become_parts() {
        let call = |id: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": "add", "arguments": arguments}});
        let custom = json!({"id": "4", "type": "custom", "custom": {"name": "add", "input": "1 + 1"}});
        let (_, turns) = messages(json!([
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": null, "reasoning_content": "hm", "function_call": null,
                "tool_calls": [call("1", "{\"x\":1}"), call("2", ""), call("3", "{oops"), custom]},
            {"role": "tool", "tool_call_id": "1", "content": "one"},
            {"role": "tool", "tool_call_id": "2", "content": [{"type": "text", "text": "t"}, {"type": "text", "text": "wo"}]},
            {"role": "user", "content": "and?"},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        ]))
        .unwrap();
        let call = |id: &str, arguments| Part::ToolCall { id: id.into(), name: "add".into(), arguments };
        let result = |id: &str, text: &str| Part::ToolResult {
            id: id.into(),
            text: text.into(),
            images: Vec::new(),
            is_error: false,
        };
        let expect = [
            turn(Role::User, vec![Part::Text("a".into()), Part::Text("b".into())]),
            turn(
                Role::Assistant,
                vec![
                    Part::Thinking("hm".into()),
                    call("1", json!({"x": 1})),
                    call("2", json!({})),
                    call("3", json!({"malformed_arguments": "{oops"})),
                    call("4", json!({"input": "1 + 1"})),
                ],
            ),
            turn(Role::User, vec![result("1", "one"), result("2", "t\nwo")]),
            turn_of(Role::User, "and?"),
            turn_of(Role::Assistant, "no"),
        ];
        assert_eq!(turns, expect);
    }

    #[test]
    fn a_window_of_a_conversation_is_taken() {
        let found = messages(json!([
            {"role": "tool", "tool_call_id": "1", "content": "one"},
            {"role": "user", "content": []},
            {"role": "assistant", "content": []},
            {"role": "user", "content": "and?"},
        ]));
        let expected = vec![
            turn_of(Role::User, "[output of a tool: one]"),
            turn(Role::User, Vec::new()),
            turn(Role::Assistant, Vec::new()),
            turn_of(Role::User, "and?"),
        ];
        assert_eq!(found, Ok((String::new(), expected)));
        let call = json!([{"id": "1", "function": {"name": "add", "arguments": ""}}]);
        let late = messages(json!([
            {"role": "assistant", "tool_calls": call},
            {"role": "user", "content": "well?"},
            {"role": "tool", "tool_call_id": "1", "content": "one"},
        ]));
        let why = "messages.2.tool_call_id: the assistant's message before has no call '1' among its 'tool_calls'";
        assert_eq!(late, Err(why.into()));
    }

    #[test]
    fn a_file_of_text_is_its_text() {
        let file = |file: Value| {
            let content = json!([{"type": "file", "file": file}]);
            messages(json!([{ "role": "user", "content": content }])).map(|(_, turns)| turns)
        };
        let text = "<document title=\"a.py\">\nx = 1\n</document>";
        let found = file(json!({"filename": "a.py", "file_data": "data:text/x-python;base64,eCA9IDE="}));
        assert_eq!(found, Ok(vec![turn_of(Role::User, text)]));
        let note = "[a document was attached, but its content is not here]";
        assert_eq!(file(json!({"file_id": "file-1"})), Ok(vec![turn_of(Role::User, note)]));
        assert!(file(json!({})).unwrap_err().ends_with("should have 'file_data', the document as a data URL"));
        assert_eq!(file(Value::Null).unwrap_err(), "messages.0.content.0.file: this field is required");
    }

    #[test]
    fn an_attachment_becomes_a_note_or_an_error() {
        let content = json!([{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "data:"}}]);
        let body = json!({ "messages": [{ "role": "user", "content": content }] });
        let read = |reject| {
            let document = Document::unlimited(body.to_string().as_bytes(), Notes::new(reject)).unwrap();
            let turns = read(&document.root().get("messages")).map(|(_, turns)| turns);
            (turns.map_err(|error| error.message), document.warnings())
        };
        let note = Part::Text("[an image was attached; this model reads text only]".into());
        let warning = "messages.0.content.1: this model reads text only; a note stands in the prompt for the image";
        let turns = vec![turn(Role::User, vec![Part::Text("see".into()), note])];
        assert_eq!(read(false), (Ok(turns), vec![warning.to_owned()]));
        let message = "messages.0.content.1: this model reads text only, so it cannot take this image";
        assert_eq!(read(true), (Err(message.to_owned()), Vec::new()));
    }

    #[test]
    fn complaints_name_the_message() {
        let refuses = |message: Value, expect: &str| {
            assert_eq!(messages(json!([message])).unwrap_err(), format!("messages.0{expect}"));
        };
        assert_eq!(messages(json!([])).unwrap_err(), "messages: should have at least one message");
        assert_eq!(messages(json!("hi")).unwrap_err(), "messages: should be a list, not a string");
        assert_eq!(messages(Value::Null).unwrap_err(), "messages: this field is required");
        refuses(json!("hi"), ": should be an object, not a string");
        refuses(json!(null), ": this field is required");
        refuses(json!({"content": "x"}), ".role: this field is required");
        refuses(
            json!({"role": "bot", "content": "x"}),
            ".role: should be one of 'developer', 'system', 'user', 'assistant', 'tool', 'function', not 'bot'",
        );
        refuses(
            json!({"role": "function", "name": "x", "content": "x"}),
            ".role: 'function' is an older form that is not served; use 'tool'",
        );
        refuses(json!({"role": "user"}), ".content: this field is required");
        refuses(json!({"role": "user", "content": 5}), ".content: should be a list, not 5");
        refuses(
            json!({"role": "user", "content": {}}),
            ".content: should be a string or a list of parts, not an object",
        );
        refuses(json!({"role": "user", "content": ["x"]}), ".content.0: should be an object, not a string");
        refuses(json!({"role": "user", "content": "x", "name": 5}), ".name: should be a string, not 5");
        refuses(json!({"role": "tool", "content": "x"}), ".tool_call_id: this field is required");
        refuses(json!({"role": "assistant"}), ".content: this field is required where there are no 'tool_calls'");
        refuses(
            json!({"role": "assistant", "function_call": {}}),
            ".function_call: is an older form that is not served; use 'tool_calls'",
        );
        refuses(
            json!({"role": "assistant", "tool_calls": [{"id": "1", "type": "mcp"}]}),
            ".tool_calls.0.type: should be one of 'function', 'custom', not 'mcp'",
        );
        refuses(
            json!({"role": "assistant", "tool_calls": [{"id": "1", "type": "custom"}]}),
            ".tool_calls.0.custom: this field is required",
        );
        refuses(
            json!({"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "{}"}}]}),
            ".tool_calls.0.id: this field is required",
        );
        refuses(
            json!({"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "a", "arguments": {}}}]}),
            ".tool_calls.0.function.arguments: should be a string, not an object",
        );
    }
}
