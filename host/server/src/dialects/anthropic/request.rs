//! Converts a body to a [`Request`]: the fields besides the conversation.

use serde_json::Value;

use super::{context_management, conversation, deferred::Deferred, error::THREAD, no_calls, tools};
use crate::{
    chat::{Conversation, Effort, Input, Request, ResponseFormat, SamplingParams, Tool, ToolChoice},
    dialects::{
        ApiError, extensions,
        fields::Field,
        guided,
        openai::options::{self, EFFORTS},
    },
};
use pensieve_protocol::grammar::Grammar;

const MODEL_LEN_MAX: usize = 256;
const MESSAGE_ID_LEN_MAX: usize = 256;
const USER_LEN_MAX: usize = 16 << 10;
const TEMPERATURE_MAX: f32 = 1.0;
const STOPS_MAX: usize = 32;
const STOP_LEN_MAX: usize = 1024;
/// Fields that have no use here, or whose effect is there anyway.
const IGNORED: [&str; 8] = [
    "anthropic_beta",
    "anthropic_version",
    "betas",
    "cache_control",
    "inference_geo",
    "service_tier",
    "speed",
    "tool_choice",
];

#[derive(Debug)]
pub(super) struct MessageRequest {
    /// The request without its client, which the body does not contain.
    pub(super) request: Request,
    pub(super) stream: bool,
    /// It asks for edits of a conversation that has grown long.
    pub(super) manages: bool,
    /// The id of an earlier message if it asks how it differs from that; an empty one for the first turn.
    pub(super) diagnosed: Option<String>,
}

pub(super) fn message(body: &Field<'_>) -> Result<MessageRequest, ApiError> {
    let max_tokens = body.get("max_tokens").count(1)?;
    let stream = body.get("stream").flag(false)?;
    let (request, manages) = request(body)?;
    let diagnosed = body.get("diagnostics").optional(previous_message)?;
    body.note_unknown(&IGNORED);
    Ok(MessageRequest { request: Request { max_tokens: Some(max_tokens), ..request }, stream, manages, diagnosed })
}

/// Reads `diagnostics`: the id of the message to compare with.
fn previous_message(field: &Field<'_>) -> Result<String, ApiError> {
    field.object()?;
    let id = field.get("previous_message_id").optional(|id| id.text(MESSAGE_ID_LEN_MAX))?;
    Ok(id.unwrap_or_default().to_owned())
}

/// Reads the body of `count_tokens`, which lacks the fields about the answer.
pub(super) fn count(body: &Field<'_>) -> Result<(Request, bool), ApiError> {
    request(body)
}

/// The request, and whether it asks for edits of its conversation.
fn request(body: &Field<'_>) -> Result<(Request, bool), ApiError> {
    if let Some(metadata) = body.get("metadata").present() {
        metadata.object()?;
        metadata.get("user_id").optional(|user| user.text(USER_LEN_MAX))?;
    }
    if body.get(THREAD).present().is_some() {
        return Err(ApiError::field(
            THREAD,
            "this server keeps no conversations; send all messages with every request",
        ));
    }
    let edits = context_management::read(body)?;
    let mut format = format(body)?;
    guided::read(body, &mut format)?;
    let (conversation, deferred_tools) = conversation(body)?;
    let mut request = Request {
        model: body.get("model").text(MODEL_LEN_MAX)?.to_owned(),
        sampling: sampling(body)?,
        stops: body.get("stop_sequences").optional(stops)?.unwrap_or_default(),
        format,
        input: Input::Chat(conversation),
        deferred_tools,
        context: edits.clone().unwrap_or_default(),
        ..Request::default()
    };
    let effort = body.get("output_config").get("effort");
    request.effort = effort.optional(options::effort)?.and_then(|level| Effort::named(EFFORTS[level]));
    extensions::read(body, &mut request)?;
    Ok((request, edits.is_some()))
}

fn sampling(body: &Field<'_>) -> Result<SamplingParams, ApiError> {
    let temperature = body.get("temperature").optional(|field| field.number(0.0..=TEMPERATURE_MAX))?;
    let top_k = body.get("top_k").optional(|field| field.count(0))?;
    // The other APIs have a seed, `min_p` and penalties besides.
    Ok(SamplingParams { temperature, top_k, ..options::sampling(body)? })
}

fn stops(field: &Field<'_>) -> Result<Vec<String>, ApiError> {
    field.items(STOPS_MAX)?.map(|stop| stop.text(STOP_LEN_MAX).map(str::to_owned)).collect()
}

fn format(body: &Field<'_>) -> Result<ResponseFormat, ApiError> {
    let output = body.get("output_config");
    if !output.is_absent() {
        output.object()?;
    }
    // `output_format` was the field's name during the beta.
    for field in [output.get("format"), body.get("output_format")] {
        if !field.is_absent() {
            field.object()?;
            field.get("type").choice(&["json_schema"])?;
            let schema = field.get("schema");
            let grammar = Grammar::json_schema(extensions::schema(&schema)?, false);
            return Ok(ResponseFormat::Grammar { grammar, field: schema.path().to_owned() });
        }
    }
    Ok(ResponseFormat::Free)
}

/// The conversation, and the tools outside of its head that may be called.
fn conversation(body: &Field<'_>) -> Result<(Conversation, Vec<Tool>), ApiError> {
    let (tools, deferred) = tools::list(body)?;
    let mut deferred = Deferred::new(&tools, deferred);
    let (mut tool_choice, single_call) = tools::choice(body, &tools, &deferred)?;
    let (system, turns) = conversation::read(body, &mut deferred)?;
    if tool_choice == ToolChoice::Auto && no_calls::are_asked_for(&turns) {
        tool_choice = ToolChoice::None;
    }
    let required = if let ToolChoice::Named(name) = &tool_choice { Some(name.as_str()) } else { None };
    let deferred = deferred.callable(&turns, required);
    let mut conversation = Conversation { system, turns, tools, tool_choice, single_call, ..Conversation::default() };
    think(body, &mut conversation)?;
    Ok((conversation, deferred))
}

/// Without the field there is no reasoning, as in the original. Adaptive thinking leaves it to the template.
fn think(body: &Field<'_>, conversation: &mut Conversation) -> Result<(), ApiError> {
    let field = body.get("thinking");
    conversation.thinking = Some(false);
    if !field.is_absent() {
        field.object()?;
        let budget = field.get("budget_tokens");
        conversation.thinking = match field.get("type").choice(&["enabled", "adaptive", "disabled"])? {
            0 => {
                let tokens = budget.count(1)?;
                conversation.variables.insert("thinking_budget".into(), tokens.into());
                Some(true)
            }
            1 => None,
            _ => Some(false),
        };
    }
    let effort = body.get("output_config").get("effort");
    if let Some(effort) = effort.present() {
        let effort = match EFFORTS[options::effort(effort)?] {
            level @ ("minimal" | "low" | "medium" | "high") => level,
            // Templates have three levels at most.
            "xhigh" | "max" => "high",
            _ => return Ok(()),
        };
        conversation.variables.insert("reasoning_effort".into(), Value::from(effort));
    }
    Ok(())
}
