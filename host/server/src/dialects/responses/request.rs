//! Reads the request body, except for the input.

use super::{PREVIOUS, echo::Echo, input, tools::Tools};
use crate::{
    chat::{Compaction, ContextEdit, Conversation, Input, Request, ResponseFormat},
    dialects::{
        ApiError, extensions,
        fields::Field,
        guided,
        openai::{self, options},
    },
};
use pensieve_protocol::grammar::Grammar;

const INCLUDES_MAX: usize = 32;
const ENTRIES_MAX: usize = 8;
const NAME_BYTES_MAX: usize = 64;
/// Fields that have no use here, or whose effect is there anyway.
const IGNORED: [&str; 9] = [
    "client_metadata",
    "include",
    "parallel_tool_calls",
    "prompt_cache_options",
    "prompt_cache_retention",
    "stream_options",
    "tool_choice",
    // A message over a WebSocket has one.
    "type",
    "verbosity",
];

#[derive(Debug)]
pub(super) struct ResponseRequest {
    pub(super) request: Request,
    pub(super) stream: bool,
    pub(super) store: bool,
    /// Answer at once, and generate meanwhile.
    pub(super) background: bool,
    /// The client has set `max_output_tokens`.
    pub(super) is_limited: bool,
    /// Reasoning items get `encrypted_content`.
    pub(super) with_encrypted: bool,
    /// For mapping tool names back to the client's.
    pub(super) tools: Tools,
    /// Fields that the response echoes.
    pub(super) echo: Echo,
}

/// Reads the body; `input` is the list of all items.
pub(super) fn read(body: &Field<'_>, input: &Field<'_>) -> Result<ResponseRequest, ApiError> {
    for (name, why) in [
        ("conversation", "is not served; send the whole input, or name the response before in 'previous_response_id'"),
        ("prompt", "is not served, as this server has no templates of prompts; send 'instructions' and 'input'"),
    ] {
        if let Some(field) = body.get(name).present() {
            return Err(field.invalid(why));
        }
    }
    let (background, store) = (body.get("background").flag(false)?, body.get("store").flag(true)?);
    if background && !store {
        return Err(body.get("background").invalid("needs \"store\": true, as the answer is fetched later"));
    }
    let mut tools = Tools::read(body)?;
    let goes_on = !body.get(PREVIOUS).is_absent();
    let (system, turns) = input::read(&body.get("instructions"), input, goes_on)?;
    let mut conversation = Conversation {
        system,
        turns,
        tools: std::mem::take(&mut tools.list),
        tool_choice: tools.choice.clone(),
        single_call: tools.single_call,
        ..Conversation::default()
    };
    let limit = body.get("max_output_tokens");
    let max_tokens = limit.optional(|limit| limit.count(1))?;
    let mut format = format(body)?;
    guided::read(body, &mut format)?;
    let mut request = Request {
        model: options::model(body)?,
        max_tokens,
        sampling: options::sampling(body)?,
        stops: options::stops(body)?,
        format,
        logprobs: logprobs(body)?,
        ..Request::default()
    };
    think(body, &mut request, &mut conversation)?;
    request.input = Input::Chat(conversation);
    let truncation = body.get("truncation");
    let truncate = truncation.optional(|word| word.choice(&["disabled", "auto"]))? == Some(1);
    request.context.extend(truncate.then_some(ContextEdit::Truncate));
    request.context.extend(compaction(body)?.map(ContextEdit::Compact));
    Ok(ResponseRequest {
        request,
        stream: body.get("stream").flag(false)?,
        store,
        background,
        is_limited: max_tokens.is_some(),
        with_encrypted: includes(body, "reasoning.encrypted_content")?,
        tools,
        echo: Echo::read(body, truncate)?,
    })
}

/// Warns of every field that nothing has read.
pub(super) fn note_unknown(body: &Field<'_>) {
    body.note_unknown(&IGNORED);
}

/// `context_management`: a summary within the answer, once the prompt has reached a threshold.
fn compaction(body: &Field<'_>) -> Result<Option<Compaction>, ApiError> {
    let field = body.get("context_management");
    let Some(entries) = field.present() else { return Ok(None) };
    let mut compaction = None;
    for entry in entries.items(ENTRIES_MAX)? {
        entry.object()?;
        entry.get("type").choice(&["compaction"])?;
        let trigger = entry.get("compact_threshold").optional(|threshold| threshold.count(1))?;
        compaction = Some(Compaction { trigger, ..Compaction::default() });
    }
    Ok(compaction)
}

fn think(body: &Field<'_>, request: &mut Request, conversation: &mut Conversation) -> Result<(), ApiError> {
    let reasoning = body.get("reasoning");
    let Some(reasoning) = reasoning.present() else { return Ok(()) };
    reasoning.object()?;
    let tokens = reasoning.get("max_tokens");
    request.thinking_tokens = tokens.optional(|tokens| tokens.count(1))?;
    if let Some(effort) = reasoning.get("effort").present() {
        options::think(options::effort(effort)?, request, conversation);
    }
    Ok(())
}

fn format(body: &Field<'_>) -> Result<ResponseFormat, ApiError> {
    let text = body.get("text");
    if let Some(text) = text.present() {
        text.object()?;
    }
    let field = text.get("format");
    let Some(format) = field.present() else { return Ok(ResponseFormat::Free) };
    format.object()?;
    let (grammar, field) = match format.get("type").choice(&["text", "json_object", "json_schema"])? {
        0 => return Ok(ResponseFormat::Free),
        1 => (Grammar::any_json_object(), format.clone()),
        _ => {
            format.get("name").text(NAME_BYTES_MAX)?;
            let strict = format.get("strict").flag(false)?;
            let schema = format.get("schema");
            (Grammar::json_schema(extensions::schema(&schema)?, !strict), schema)
        }
    };
    Ok(ResponseFormat::Grammar { grammar, field: field.path().to_owned() })
}

/// With alternatives if `top_logprobs` asks for them, else if `include` does.
fn logprobs(body: &Field<'_>) -> Result<Option<u8>, ApiError> {
    let top = body.get("top_logprobs").optional(|top| top.integer(0..=openai::TOP_LOGPROBS_MAX))?.unwrap_or(0);
    let is_included = includes(body, "message.output_text.logprobs")?;
    // The range makes the cast exact.
    Ok((top > 0 || is_included).then_some(top as u8))
}

fn includes(body: &Field<'_>, name: &str) -> Result<bool, ApiError> {
    let Some(list) = body.get("include").present().cloned() else { return Ok(false) };
    let mut included = false;
    for item in list.items(INCLUDES_MAX)? {
        included |= item.string()? == name;
    }
    Ok(included)
}
