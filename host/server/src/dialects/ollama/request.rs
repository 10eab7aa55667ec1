//! The bodies of `/api/chat` and `/api/generate`.

use serde_json::{Map, Value, json};

use super::keep_alive;
use crate::{
    chat::{Conversation, Effort, Input, Part, Request, ResponseFormat, Role, SamplingParams, Tool, Turn},
    dialects::{
        ApiError, extensions,
        fields::Field,
        images::{self, Piece, Source},
        openai::options::{self, EFFORTS},
        orphans,
    },
    fleet::KeepAlive,
};
use pensieve_protocol::grammar::Grammar;

const MODEL_BYTES_MAX: usize = 256;
const MESSAGES_MAX: usize = 10_000;
const CALLS_MAX: usize = 1_000;
const IMAGES_MAX: usize = 1_000;
const TOOLS_MAX: usize = 512;
const NAME_BYTES_MAX: usize = 256;
const STOPS_MAX: usize = 16;
const TOP_LOGPROBS_MAX: i64 = 20;
const STOP_BYTES_MAX: usize = pensieve_protocol::job::STOP_BYTES_MAX;
/// Fields that have no use here, or whose effect is there anyway.
const IGNORED: [&str; 4] = ["_debug_render_only", "name", "shift", "truncate"];
/// Options that are read.
const OPTIONS: [&str; 10] = [
    "frequency_penalty",
    "min_p",
    "num_predict",
    "presence_penalty",
    "repeat_penalty",
    "seed",
    "stop",
    "temperature",
    "top_k",
    "top_p",
];
/// Options about memory and speed, which the server's own configuration decides.
const ENGINE_OPTIONS: [&str; 14] = [
    "embedding_only",
    "f16_kv",
    "logits_all",
    "low_vram",
    "main_gpu",
    "num_batch",
    "num_ctx",
    "num_gpu",
    "num_keep",
    "num_thread",
    "numa",
    "use_mlock",
    "use_mmap",
    "vocab_only",
];
/// Options that many clients send with a value that changes nothing.
const NEUTRAL: [(&str, f64); 4] = [("mirostat", 0.0), ("tfs_z", 1.0), ("typical_p", 1.0), ("repeat_last_n", 64.0)];

#[derive(Clone, Debug, PartialEq)]
pub(super) struct OllamaRequest {
    /// `None` if the client only wants the model to be loaded.
    pub(super) request: Option<Request>,
    /// The model name from the client.
    pub(super) name: String,
    pub(super) stream: bool,
    /// Include the model's reasoning in the answer.
    pub(super) with_thinking: bool,
    /// How long the model stays in memory; `None` as configured.
    pub(super) keep: Option<KeepAlive>,
}

pub(super) fn chat(body: &Field<'_>) -> Result<OllamaRequest, ApiError> {
    let name = name(body)?;
    let field = body.get("messages");
    let mut conversation = Conversation { tools: tools(body)?, ..Conversation::default() };
    let mut reader = Reader::default();
    if let Some(messages) = field.present() {
        for message in messages.items(MESSAGES_MAX)? {
            reader.message(&message)?;
        }
    }
    let is_empty = reader.turns.is_empty() && reader.system.is_empty();
    conversation.system = reader.system.join("\n\n");
    conversation.turns = reader.turns;
    finish(body, name, Input::Chat(conversation), is_empty)
}

/// Reads the body of `/api/generate`: the prompt is a user turn, or with `raw` a text without the template.
pub(super) fn generate(body: &Field<'_>) -> Result<OllamaRequest, ApiError> {
    let name = name(body)?;
    let suffix = body.get("suffix").string_or_empty()?;
    let prompt = body.get("prompt").string_or_empty()?;
    let system = body.get("system").string_or_empty()?;
    if let Some(template) = body.get("template").present() {
        template.string()?;
        template.note("the model's own template is used");
    }
    let input = if !suffix.is_empty() {
        Input::Infill { prefix: prompt.to_owned(), suffix: suffix.to_owned() }
    } else if body.get("raw").flag(false)? {
        Input::Text(prompt.to_owned())
    } else {
        let mut parts = image_parts(body)?;
        parts.push(Part::Text(prompt.to_owned()));
        let turns = vec![Turn { role: Role::User, parts }];
        Input::Chat(Conversation { system: system.to_owned(), turns, ..Conversation::default() })
    };
    finish(body, name, input, prompt.is_empty() && suffix.is_empty())
}

fn finish(body: &Field<'_>, name: String, mut input: Input, is_empty: bool) -> Result<OllamaRequest, ApiError> {
    let with_thinking = think(body, &mut input)?;
    let options = body.get("options");
    if let Some(options) = options.present() {
        options.object()?;
    }
    let mut request = Request {
        max_tokens: limit(&options)?,
        sampling: sampling(&options)?,
        stops: options.get("stop").texts(STOPS_MAX, STOP_BYTES_MAX)?,
        format: format(&body.get("format"))?,
        logprobs: logprobs(body)?,
        input,
        ..Request::default()
    };
    // A level limits the reasoning, too.
    let level = body.get("think").present().filter(|think| think.is_string()).map(options::effort).transpose()?;
    request.effort = level.and_then(|level| Effort::named(EFFORTS[level]));
    extensions::read(body, &mut request)?;
    let (stream, keep) = (body.get("stream").flag(true)?, keep_alive::read(body)?);
    body.note_unknown(&IGNORED);
    note_unknown_options(&options)?;
    Ok(OllamaRequest { request: (!is_empty).then_some(request), name, stream, with_thinking, keep })
}

/// Names the options that have an effect elsewhere, and none here.
pub(super) fn note_unknown_options(options: &Field<'_>) -> Result<(), ApiError> {
    options.note_unknown_members(|name| {
        let has_no_effect = |(neutral, value): &(&str, f64)| {
            *neutral == name && options.get(name).json().ok().and_then(Value::as_f64) == Some(*value)
        };
        OPTIONS.contains(&name) || ENGINE_OPTIONS.contains(&name) || NEUTRAL.iter().any(has_no_effect)
    })
}

fn name(body: &Field<'_>) -> Result<String, ApiError> {
    // `name` is the older spelling.
    let field = if body.get("model").is_absent() { body.get("name") } else { body.get("model") };
    if field.is_absent() {
        return Err(body.get("model").invalid("this field is required"));
    }
    Ok(field.text(MODEL_BYTES_MAX)?.to_owned())
}

/// `think` is a boolean or a level. Without it, the template decides and reasoning is included.
fn think(body: &Field<'_>, input: &mut Input) -> Result<bool, ApiError> {
    let field = body.get("think");
    let Some(think) = field.present() else { return Ok(true) };
    let effort = if think.is_string() { Some(options::effort(think)?) } else { None };
    let is_on = match effort {
        Some(level) => level > 0,
        None => think.json()?.as_bool().ok_or_else(|| think.should_be("true, false or a level such as 'low'"))?,
    };
    if let Input::Chat(conversation) = input {
        conversation.thinking = Some(is_on);
        if let Some(level) = effort.filter(|_| is_on) {
            conversation.variables.insert("reasoning_effort".into(), EFFORTS[level].into());
        }
    }
    Ok(is_on)
}

/// Any negative number means as many tokens as fit.
fn limit(options: &Field<'_>) -> Result<Option<u32>, ApiError> {
    let field = options.get("num_predict");
    let Some(limit) = field.present() else { return Ok(None) };
    let limit = limit.integer(i64::from(i32::MIN)..=i64::from(u32::MAX))?;
    Ok(u32::try_from(limit).ok().map(|limit| limit.max(1)))
}

fn sampling(options: &Field<'_>) -> Result<SamplingParams, ApiError> {
    let number = |name: &str, range| options.get(name).optional(|field| field.number(range));
    let positive = number("repeat_penalty", 0.0..=100.0)?.filter(|penalty| *penalty > 0.0);
    Ok(SamplingParams {
        temperature: number("temperature", 0.0..=10.0)?,
        top_p: number("top_p", 0.0..=1.0)?,
        min_p: number("min_p", 0.0..=1.0)?,
        top_k: options.get("top_k").optional(|field| field.count(0))?,
        repetition_penalty: positive,
        presence_penalty: number("presence_penalty", -2.0..=2.0)?,
        frequency_penalty: number("frequency_penalty", -2.0..=2.0)?,
        seed: options.get("seed").optional(extensions::seed)?,
        ..SamplingParams::default()
    })
}

fn logprobs(body: &Field<'_>) -> Result<Option<u8>, ApiError> {
    let enabled = body.get("logprobs").flag(false)?;
    let count = body.get("top_logprobs").optional(|top| top.integer(0..=TOP_LOGPROBS_MAX))?.unwrap_or(0);
    // The range makes the cast exact.
    Ok(enabled.then_some(count as u8))
}

/// `"json"`, or a schema. Some clients send an empty string for none.
fn format(field: &Field<'_>) -> Result<ResponseFormat, ApiError> {
    let grammar = if field.is_absent() {
        return Ok(ResponseFormat::Free);
    } else if field.is_string() {
        match field.choice(&["json", ""])? {
            0 => Grammar::any_json_object(),
            _ => return Ok(ResponseFormat::Free),
        }
    } else {
        Grammar::json_schema(extensions::schema(field)?, true)
    };
    Ok(ResponseFormat::Grammar { grammar, field: field.path().to_owned() })
}

fn tools(body: &Field<'_>) -> Result<Vec<Tool>, ApiError> {
    let Some(list) = body.get("tools").present().cloned() else { return Ok(Vec::new()) };
    let mut tools: Vec<Tool> = Vec::new();
    for item in list.items(TOOLS_MAX)? {
        item.object()?;
        let function = item.get("function");
        function.object()?;
        let name = function.get("name");
        let parameters = function.get("parameters");
        let schema = match parameters.present() {
            Some(parameters) => {
                extensions::schema(parameters)?;
                Value::Object(parameters.object()?.clone())
            }
            None => json!({ "type": "object", "properties": {} }),
        };
        let description = function.get("description").string_or_empty()?;
        let tool = Tool {
            name: name.text(NAME_BYTES_MAX)?.to_owned(),
            description: description.to_owned(),
            schema,
            strict: false,
            field: parameters.path().to_owned(),
            ..Tool::default()
        };
        if tools.iter().any(|other| other.name == tool.name) {
            return Err(name.invalid(format_args!("another tool is called '{}' already", tool.name)));
        }
        tools.push(tool);
    }
    Ok(tools)
}

/// Images in base64, which come before the text.
fn images(message: &Field<'_>) -> Result<Vec<Piece>, ApiError> {
    let field = message.get("images");
    let Some(list) = field.present() else { return Ok(Vec::new()) };
    list.items(IMAGES_MAX)?.map(|image| images::read(&image, || image.string().map(Source::Base64))).collect()
}

/// A message's text, after a note for each image if its role shows none.
fn text_with_notes(message: &Field<'_>, text: String) -> Result<String, ApiError> {
    let field = message.get("images");
    let Some(list) = field.present() else { return Ok(text) };
    let mut lines = list.items(IMAGES_MAX)?.map(|image| images::out_of_place(&image)).collect::<Result<Vec<_>, _>>()?;
    lines.extend(Some(text).filter(|text| !text.is_empty()));
    Ok(lines.join("\n"))
}

fn image_parts(message: &Field<'_>) -> Result<Vec<Part>, ApiError> {
    Ok(images(message)?.into_iter().map(Part::from).collect())
}

/// Converts messages to turns. Calls have no ids in this API, so a result belongs to the first call without one.
#[derive(Default)]
struct Reader {
    system: Vec<String>,
    turns: Vec<Turn>,
    open: Vec<(String, String)>,
    calls: usize,
}

impl Reader {
    fn message(&mut self, message: &Field<'_>) -> Result<(), ApiError> {
        message.object()?;
        let role = message.get("role").choice(&["system", "user", "assistant", "tool", "developer"])?;
        let content = message.get("content");
        let text = content.string_or_empty()?.to_owned();
        match role {
            0 | 4 => {
                let text = text_with_notes(message, text)?;
                match self.turns.is_empty() {
                    true => self.system.push(text),
                    false => self.turns.push(Turn { role: Role::System, parts: vec![Part::Text(text)] }),
                }
            }
            1 => {
                let mut parts = image_parts(message)?;
                parts.push(Part::Text(text));
                self.turns.push(Turn { role: Role::User, parts });
            }
            2 => self.assistant(message, text_with_notes(message, text)?)?,
            _ => self.result(message, text)?,
        }
        Ok(())
    }

    fn assistant(&mut self, message: &Field<'_>, text: String) -> Result<(), ApiError> {
        let mut parts = Vec::new();
        if let Some(thinking) = message.get("thinking").present() {
            let thinking = thinking.string()?;
            if !thinking.is_empty() {
                parts.push(Part::Thinking(thinking.to_owned()));
            }
        }
        let calls = message.get("tool_calls");
        if !text.is_empty() || calls.is_absent() {
            parts.push(Part::Text(text));
        }
        if let Some(calls) = calls.present() {
            for call in calls.items(CALLS_MAX)? {
                let function = call.get("function");
                function.object()?;
                let name = function.get("name").text(NAME_BYTES_MAX)?.to_owned();
                let arguments = function.get("arguments").optional(Field::json)?;
                let arguments = match arguments {
                    None => Value::Object(Map::new()),
                    Some(Value::Object(arguments)) => Value::Object(arguments.clone()),
                    // The model wrote this and the client only echoes it, so it is no error; templates need an object.
                    Some(other) => json!({ "malformed_arguments": other }),
                };
                let id = format!("{:09}", self.calls);
                self.calls += 1;
                self.open.push((id.clone(), name.clone()));
                parts.push(Part::ToolCall { id, name, arguments });
            }
        }
        self.turns.push(Turn { role: Role::Assistant, parts });
        Ok(())
    }

    fn result(&mut self, message: &Field<'_>, text: String) -> Result<(), ApiError> {
        let name = message.get("tool_name");
        let name = if name.is_absent() { message.get("name") } else { name };
        let name = name.optional(Field::string)?;
        let index = self.open.iter().position(|(_, called)| name.is_none_or(|name| name == called));
        let pieces = images(message)?.into_iter().chain([Piece::Text(text)]).collect();
        let (text, images) = images::joined(pieces, "\n");
        let Some(index) = index.or_else(|| (!self.open.is_empty()).then_some(0)) else {
            self.turns.push(Turn { role: Role::User, parts: orphans::parts(message, &text, &images) });
            return Ok(());
        };
        let (id, _) = self.open.remove(index);
        let part = Part::ToolResult { id, text, images, is_error: false };
        match self.turns.last_mut() {
            Some(turn) if matches!(turn.parts.as_slice(), [Part::ToolResult { .. }, ..]) => turn.parts.push(part),
            _ => self.turns.push(Turn { role: Role::User, parts: vec![part] }),
        }
        Ok(())
    }
}
