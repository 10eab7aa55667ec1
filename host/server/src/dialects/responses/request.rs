//! Reads the request body, except for the input.

use super::{echo::Echo, input, tools::Tools};
use crate::{
    chat::{Conversation, Input, Request, ResponseFormat},
    dialects::{ApiError, extensions, fields::Field, openai::options},
};
use pensieve_protocol::grammar::Grammar;

const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];
const INCLUDES_MAX: usize = 32;
const NAME_BYTES_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct ResponseRequest {
    pub(super) request: Request,
    pub(super) stream: bool,
    pub(super) store: bool,
    /// Drop the oldest turns if the conversation is too long.
    pub(super) truncate: bool,
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
    if body.get("background").flag(false)? {
        return Err(body.get("background").invalid("is not served; send \"stream\": true"));
    }
    let tools = Tools::read(body)?;
    let (system, turns) = input::read(&body.get("instructions"), input)?;
    let mut conversation = Conversation {
        system,
        turns,
        tools: tools.list.clone(),
        tool_choice: tools.choice.clone(),
        single_call: tools.single_call,
        ..Conversation::default()
    };
    think(body, &mut conversation)?;
    let limit = body.get("max_output_tokens");
    let max_tokens = limit.optional(|limit| limit.count(1))?;
    let request = Request {
        model: options::model(body)?,
        max_tokens,
        sampling: options::sampling(body)?,
        format: format(body)?,
        input: Input::Chat(conversation),
        ..Request::default()
    };
    let truncation = body.get("truncation");
    let truncate = truncation.optional(|word| word.choice(&["disabled", "auto"]))? == Some(1);
    let store = body.get("store");
    Ok(ResponseRequest {
        request,
        stream: body.get("stream").flag(false)?,
        store: store.flag(true)?,
        truncate,
        is_limited: max_tokens.is_some(),
        with_encrypted: includes(body, "reasoning.encrypted_content")?,
        tools,
        echo: Echo::read(body, truncate)?,
    })
}

fn think(body: &Field<'_>, conversation: &mut Conversation) -> Result<(), ApiError> {
    let reasoning = body.get("reasoning");
    let Some(reasoning) = reasoning.present() else { return Ok(()) };
    reasoning.object()?;
    if let Some(effort) = reasoning.get("effort").present() {
        let effort = effort.choice(&EFFORTS)?;
        conversation.thinking = Some(effort > 0);
        if effort > 0 {
            conversation.variables.insert("reasoning_effort".into(), EFFORTS[effort].into());
        }
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

fn includes(body: &Field<'_>, name: &str) -> Result<bool, ApiError> {
    let Some(list) = body.get("include").present().cloned() else { return Ok(false) };
    let mut included = false;
    for item in list.items(INCLUDES_MAX)? {
        included |= item.string()? == name;
    }
    Ok(included)
}
