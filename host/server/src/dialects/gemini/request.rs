//! Reads a body, except for its contents and tools.

use serde_json::Value;

use super::{
    content,
    names::{get, snake},
    schema, tools,
};
use crate::{
    chat::{Conversation, Effort, Input, Request, ResponseFormat, SamplingParams},
    dialects::{
        ApiError, choices, extensions,
        fields::Field,
        openai::options::{self, EFFORTS},
    },
};
use pensieve_protocol::grammar::Grammar;

const CHOICES_MAX: i64 = 8;
const STOPS_MAX: usize = 16;
const STOP_BYTES_MAX: usize = pensieve_protocol::job::STOP_BYTES_MAX;
const TOP_LOGPROBS_MAX: i64 = 20;
const NO_LEVEL: &str = "THINKING_LEVEL_UNSPECIFIED";
/// Fields that have no use here, or whose effect is there anyway.
const IGNORED: [&str; 7] =
    ["labels", "model", "safetySettings", "safety_settings", "serviceTier", "service_tier", "store"];
/// Settings that are read.
const SETTINGS: [&str; 16] = [
    "candidateCount",
    "frequencyPenalty",
    "logprobs",
    "maxOutputTokens",
    "presencePenalty",
    "responseJsonSchema",
    "responseLogprobs",
    "responseMimeType",
    "responseModalities",
    "responseSchema",
    "seed",
    "stopSequences",
    "temperature",
    "thinkingConfig",
    "topK",
    "topP",
];

#[derive(Debug, PartialEq)]
pub(super) struct GeminiRequest {
    /// The request without model and client, which the body does not contain.
    pub(super) request: Request,
    pub(super) choices: usize,
    /// Include the model's reasoning in the answer.
    pub(super) with_thoughts: bool,
}

pub(super) fn read(body: &Field<'_>) -> Result<GeminiRequest, ApiError> {
    if let Some(cached) = get(body, "cachedContent").present() {
        return Err(
            cached.invalid("this server stores no contents; send them all, as every prompt is cached by itself")
        );
    }
    let (system, turns) = content::read(body)?;
    let (tools, tool_choice) = tools::read(body)?;
    let mut conversation = Conversation { system, turns, tools, tool_choice, ..Conversation::default() };
    let config = get(body, "generationConfig");
    if let Some(config) = config.present() {
        config.object()?;
    }
    let (with_thoughts, effort) = think(&get(&config, "thinkingConfig"), &mut conversation)?;
    modalities(&get(&config, "responseModalities"))?;
    let choices = get(&config, "candidateCount").optional(|count| count.integer(1..=CHOICES_MAX))?;
    let mut request = Request {
        max_tokens: get(&config, "maxOutputTokens").optional(limit)?.flatten(),
        sampling: sampling(&config)?,
        stops: get(&config, "stopSequences").texts(STOPS_MAX, STOP_BYTES_MAX)?,
        logprobs: logprobs(&config)?,
        format: format(&config)?,
        input: Input::Chat(conversation),
        effort,
        ..Request::default()
    };
    extensions::read(body, &mut request)?;
    body.note_unknown(&IGNORED);
    config.note_unknown_members(|name| SETTINGS.iter().any(|known| *known == name || snake(known) == name))?;
    // The range makes the cast exact.
    Ok(GeminiRequest { request, choices: choices.unwrap_or(1) as usize, with_thoughts })
}

/// Reads the body of `countTokens`: contents alone, or a whole request as `generateContentRequest`.
pub(super) fn count(body: &Field<'_>) -> Result<Request, ApiError> {
    let whole = get(body, "generateContentRequest");
    let read = if whole.is_absent() { read(body)? } else { read(&whole)? };
    Ok(read.request)
}

/// 0 stands for none in proto3.
fn limit(field: &Field<'_>) -> Result<Option<u32>, ApiError> {
    Ok(Some(field.count(0)?).filter(|limit| *limit > 0))
}

fn sampling(config: &Field<'_>) -> Result<SamplingParams, ApiError> {
    let number = |name: &str, range| get(config, name).optional(|field| field.number(range));
    Ok(SamplingParams {
        temperature: number("temperature", 0.0..=2.0)?,
        top_p: number("topP", 0.0..=1.0)?,
        top_k: get(config, "topK").optional(|field| field.count(0))?,
        presence_penalty: number("presencePenalty", -2.0..=2.0)?,
        frequency_penalty: number("frequencyPenalty", -2.0..=2.0)?,
        seed: config.get("seed").optional(extensions::seed)?,
        ..SamplingParams::default()
    })
}

fn logprobs(config: &Field<'_>) -> Result<Option<u8>, ApiError> {
    let enabled = get(config, "responseLogprobs").flag(false)?;
    let top = config.get("logprobs");
    let count = top.optional(|top| top.integer(0..=TOP_LOGPROBS_MAX))?;
    match count {
        // The range makes the cast exact.
        Some(count) if enabled => Ok(Some(count as u8)),
        Some(count) if count > 0 => Err(top.invalid("is only allowed where 'responseLogprobs' is true")),
        _ => Ok(enabled.then_some(0)),
    }
}

fn format(config: &Field<'_>) -> Result<ResponseFormat, ApiError> {
    let media_type = get(config, "responseMimeType");
    let kind = media_type
        .present()
        .filter(|field| field.string() != Ok(""))
        .map(|field| field.choice(&["text/plain", "application/json", "text/x.enum"]))
        .transpose()?
        .unwrap_or(0);
    let (json_schema, given) = (get(config, "responseJsonSchema"), get(config, "responseSchema"));
    let (schema, field) = match (json_schema.present(), given.present()) {
        (Some(field), _) => (Value::Object(field.object()?.clone()), field),
        (None, Some(field)) => (schema::read(field)?, field),
        (None, None) if kind == 1 => {
            let field = media_type.path().to_owned();
            return Ok(ResponseFormat::Grammar { grammar: Grammar::any_json_object(), field });
        }
        (None, None) => return Ok(ResponseFormat::Free),
    };
    extensions::schema(field)?;
    let grammar = match kind {
        0 => return Err(field.invalid("needs a responseMimeType of 'application/json' or 'text/x.enum'")),
        1 => Grammar::json_schema(schema.to_string(), true),
        _ => {
            // One of the words as plain text, without quotes.
            let field = field.get("enum");
            return choices::read(&field);
        }
    };
    Ok(ResponseFormat::Grammar { grammar, field: field.path().to_owned() })
}

/// Returns whether the answer shows the reasoning, and how much of it there should be.
fn think(config: &Field<'_>, conversation: &mut Conversation) -> Result<(bool, Option<Effort>), ApiError> {
    let Some(config) = config.present() else { return Ok((false, None)) };
    config.object()?;
    let budget = get(config, "thinkingBudget").optional(|budget| budget.integer(-1..=i64::from(u32::MAX)))?;
    match budget {
        Some(0) => conversation.thinking = Some(false),
        Some(tokens) if tokens > 0 => {
            conversation.thinking = Some(true);
            conversation.variables.insert("thinking_budget".into(), tokens.into());
        }
        _ => {}
    }
    let (level, mut known_effort) = (get(config, "thinkingLevel"), None);
    if let Some(level) = level.present()
        && !level.string()?.eq_ignore_ascii_case(NO_LEVEL)
    {
        let effort = EFFORTS[options::effort(level)?];
        known_effort = Effort::named(effort);
        if known_effort.is_some() {
            conversation.variables.insert("reasoning_effort".into(), effort.into());
        } else {
            conversation.thinking = Some(false);
        }
    }
    Ok((get(config, "includeThoughts").flag(false)?, known_effort))
}

fn modalities(field: &Field<'_>) -> Result<(), ApiError> {
    let Some(list) = field.present() else { return Ok(()) };
    let mut names = Vec::new();
    for item in list.items(8)? {
        names.push(item.string()?);
    }
    if !names.is_empty() && !names.contains(&"TEXT") {
        return Err(list.invalid("only 'TEXT' is served"));
    }
    if names.len() > 1 {
        list.note("only 'TEXT' is served");
    }
    Ok(())
}
