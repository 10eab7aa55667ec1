//! Requests as Anthropic's Messages, for upstreams that speak nothing else, and for counting tokens.

use std::{
    borrow::Cow,
    hash::{Hash, Hasher},
};

use serde_json::{Map, Value, json};
use siphasher::sip::SipHasher13;

use super::{
    Addressee,
    content::{self, Piece},
};
use crate::{
    chat::{Conversation, Effort, Input, Part, Request, ResponseFormat, Role, Tool, ToolChoice},
    fleet::UpstreamKind,
};
use pensieve_protocol::{grammar::Grammar, job::Failure};

/// `max_tokens` if the request has no limit, as the API requires one.
const MAX_TOKENS_USUAL: u32 = 8192;
/// The smallest budget for reasoning that the API takes.
const THINKING_MIN: u32 = 1024;
/// The smallest `top_p` that the API takes with reasoning.
const TOP_P_MIN: f32 = 0.95;

/// The path below the API's root, and the body.
pub(crate) fn write(
    request: &Request,
    to: &Addressee<'_>,
    max_tokens: Option<u32>,
) -> Result<(&'static str, Map<String, Value>), Failure> {
    let mut body = counted(request, to)?;
    let own = request.max_tokens.filter(|_| !request.limit_is_usual);
    let max_tokens = max_tokens.or(own).unwrap_or(MAX_TOKENS_USUAL);
    body.insert("max_tokens".into(), max_tokens.into());
    if !request.stops.is_empty() {
        body.insert("stop_sequences".into(), request.stops.clone().into());
    }
    let params = &request.sampling;
    let refused = [
        (request.logprobs.is_some(), "report log-probabilities", "logprobs"),
        (params.stages.is_some(), "run samplers by name", "pensieve.samplers"),
        (!params.logit_bias.is_empty(), "change the odds of tokens", "logit_bias"),
        (request.adapter.name.is_some(), "choose an adapter", "pensieve.adapter"),
    ];
    if let Some((_, what, field)) = refused.into_iter().find(|(is_asked, ..)| *is_asked) {
        return Err(to.cannot(what, field));
    }
    for (name, value) in [("temperature", params.temperature), ("top_p", params.top_p)] {
        if let Some(number) = value.and_then(|value| value.to_string().parse::<f64>().ok()) {
            body.insert(name.into(), number.into());
        }
    }
    if let Some(top_k) = params.top_k.filter(|top_k| *top_k > 0) {
        body.insert("top_k".into(), top_k.into());
    }
    if let ResponseFormat::Grammar { grammar, field } = &request.format {
        let Grammar::JsonSchema { schema, .. } = grammar else {
            return Err(to.cannot("hold an answer to such a grammar", field));
        };
        let schema: Value = serde_json::from_str(schema).unwrap_or_else(|_| json!({ "type": "object" }));
        body.insert("output_config".into(), json!({ "format": { "type": "json_schema", "schema": schema } }));
    }
    thinking(request, max_tokens, &mut body);
    body.insert("stream".into(), true.into());
    Ok(("/messages", body))
}

/// The part of the body that is counted.
pub(crate) fn counted(request: &Request, to: &Addressee<'_>) -> Result<Map<String, Value>, Failure> {
    let Input::Chat(conversation) = &request.input else {
        return Err(to.cannot("continue a plain text", "prompt"));
    };
    let mut body = Map::new();
    body.insert("model".into(), to.model.into());
    let mut system = conversation.system.clone();
    let mut messages: Vec<Value> = Vec::with_capacity(conversation.turns.len());
    for turn in &conversation.turns {
        if turn.role == Role::System && to.kind == UpstreamKind::Anthropic {
            // The API has them at the beginning only.
            for part in &turn.parts {
                if let Part::Text(text) = part {
                    system = if system.is_empty() { text.clone() } else { format!("{system}\n\n{text}") };
                }
            }
            continue;
        }
        let content = content_of(&turn.parts, to)?;
        let role = match turn.role {
            Role::Assistant => "assistant",
            Role::System => "system",
            Role::User => "user",
        };
        if !content.is_empty() {
            messages.push(json!({ "role": role, "content": content }));
        }
    }
    if !system.is_empty() {
        body.insert("system".into(), system.into());
    }
    body.insert("messages".into(), messages.into());
    tools(conversation, &request.deferred_tools, &mut body);
    Ok(body)
}

fn tools(conversation: &Conversation, deferred: &[Tool], body: &mut Map<String, Value>) {
    let tool = |tool: &Tool| json!({ "name": tool.name, "description": tool.description, "input_schema": tool.schema });
    let tools: Vec<Value> = conversation.tools.iter().chain(deferred).filter(|tool| !tool.barred).map(tool).collect();
    if tools.is_empty() {
        return;
    }
    body.insert("tools".into(), tools.into());
    let mut choice = match &conversation.tool_choice {
        ToolChoice::Auto => json!({ "type": "auto" }),
        ToolChoice::None => json!({ "type": "none" }),
        ToolChoice::Any => json!({ "type": "any" }),
        ToolChoice::Named(name) => json!({ "type": "tool", "name": name }),
    };
    if conversation.single_call && conversation.tool_choice != ToolChoice::None {
        choice["disable_parallel_tool_use"] = true.into();
    }
    body.insert("tool_choice".into(), choice);
}

/// Reasoning of earlier turns is left out: only the server that made it can sign it.
fn content_of(parts: &[Part], to: &Addressee<'_>) -> Result<Vec<Value>, Failure> {
    let mut content = Vec::new();
    for part in parts {
        match part {
            Part::Text(text) if text.is_empty() => {}
            Part::Text(text) => content.push(json!({ "type": "text", "text": text })),
            Part::Thinking(_) => {}
            Part::Image(item) => content.push(picture(to, *item)?),
            Part::ToolCall { id, name, arguments } => {
                let input = if arguments.is_object() { arguments.clone() } else { json!({}) };
                content.push(json!({ "type": "tool_use", "id": call_id(id), "name": name, "input": input }));
            }
            Part::ToolResult { id, text, images, is_error } => {
                let mut inner = Vec::new();
                for piece in content::pieces(text, images) {
                    inner.push(match piece {
                        Piece::Text(text) => json!({ "type": "text", "text": text }),
                        Piece::Picture(item) => picture(to, item)?,
                    });
                }
                let mut result = json!({ "type": "tool_result", "tool_use_id": call_id(id), "content": inner });
                if *is_error {
                    result["is_error"] = true.into();
                }
                content.push(result);
            }
        }
    }
    Ok(content)
}

/// The id of a call as the API takes it: letters, digits, `_` and `-`. Clients send others that they had elsewhere
/// (`functions.look:0`); equal ones stay equal.
fn call_id(id: &str) -> Cow<'_, str> {
    if !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-') {
        return Cow::Borrowed(id);
    }
    let mut hasher = SipHasher13::new();
    id.hash(&mut hasher);
    Cow::Owned(format!("call_{:016x}", hasher.finish()))
}

fn picture(to: &Addressee<'_>, item: u32) -> Result<Value, Failure> {
    let (kind, data) = content::picture(to, item)?;
    Ok(json!({ "type": "image", "source": { "type": "base64", "media_type": kind, "data": data } }))
}

/// A share of the answer's room, or the budget that the client gives. None where the API refuses reasoning: if a tool must be
/// called, and in the middle of a round of tools, where it wants the reasoning that led to the calls, with its signature.
fn thinking(request: &Request, max_tokens: u32, body: &mut Map<String, Value>) {
    let Input::Chat(conversation) = &request.input else { return };
    let answers_tools = conversation.turns.iter().rev().find(|turn| turn.role == Role::User);
    let answers_tools =
        answers_tools.is_some_and(|turn| turn.parts.iter().any(|part| matches!(part, Part::ToolResult { .. })));
    let must_call = matches!(conversation.tool_choice, ToolChoice::Any | ToolChoice::Named(_));
    if conversation.thinking == Some(false) || answers_tools || (must_call && body.contains_key("tools")) {
        return;
    }
    let budget = request.thinking_tokens.or_else(|| request.input.thinking_budget()).or_else(|| {
        let share = match request.effort? {
            Effort::Minimal | Effort::Low => 8,
            Effort::Medium => 4,
            Effort::High | Effort::XHigh | Effort::Max => 2,
        };
        Some(max_tokens / share)
    });
    let budget = budget.map(|budget| budget.max(THINKING_MIN));
    if let Some(budget) = budget.filter(|budget| *budget < max_tokens) {
        body.insert("thinking".into(), json!({ "type": "enabled", "budget_tokens": budget }));
        // The API takes these only as they are by default.
        body.remove("temperature");
        body.remove("top_k");
        if request.sampling.top_p.is_some_and(|top_p| top_p < TOP_P_MIN) {
            body.remove("top_p");
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::chat::{SamplingParams, Turn};

    fn body(request: &Request) -> Map<String, Value> {
        let to = Addressee {
            id: "big",
            model: "m",
            kind: UpstreamKind::Anthropic,
            is_openai: false,
            images: &request.images,
        };
        write(request, &to, Some(8000)).map(|(_, body)| body).unwrap()
    }

    /// What is asked of a conversation that ends with these parts of the user's.
    fn asked(budget: u32, parts: Vec<Part>, tool_choice: ToolChoice, top_p: f32) -> Map<String, Value> {
        let variables = json!({ "thinking_budget": budget }).as_object().unwrap().clone();
        let conversation = Conversation {
            turns: vec![Turn { role: Role::User, parts }],
            tools: vec![Tool { name: "f".into(), ..Tool::default() }],
            tool_choice,
            thinking: Some(true),
            variables,
            ..Conversation::default()
        };
        let sampling = SamplingParams { top_p: Some(top_p), temperature: Some(0.5), ..SamplingParams::default() };
        body(&Request { input: Input::Chat(conversation), sampling, ..Request::default() })
    }

    #[test]
    fn ids_of_calls_become_what_the_api_takes_and_still_match() {
        let turns = |id: &str| {
            let call = Part::ToolCall { id: id.into(), name: "f".into(), arguments: json!({}) };
            let result = Part::ToolResult { id: id.into(), text: "x".into(), images: vec![], is_error: false };
            let turn = |role, part| Turn { role, parts: vec![part] };
            vec![turn(Role::Assistant, call), turn(Role::User, result)]
        };
        let ids = |id: &str| {
            let conversation = Conversation { turns: turns(id), ..Conversation::default() };
            let body = body(&Request { input: Input::Chat(conversation), ..Request::default() });
            let id = |place: &str| body["messages"].pointer(place).and_then(Value::as_str).unwrap().to_owned();
            let (call, result) = (id("/0/content/0/id"), id("/1/content/0/tool_use_id"));
            assert_eq!(call, result);
            call
        };
        assert_eq!(ids("toolu_01-A"), "toolu_01-A");
        let (dotted, other) = (ids("functions.f:0"), ids("functions:f.0"));
        assert!(dotted != other && dotted.starts_with("call_") && dotted.len() == 21, "{dotted} {other}");
        assert!(ids("").starts_with("call_"));
    }

    #[test]
    fn reasoning_is_asked_for_where_the_api_takes_it() {
        let hello = || vec![Part::Text("hi".into())];
        let open = asked(2000, hello(), ToolChoice::Auto, 0.9);
        assert_eq!(open["thinking"], json!({"type": "enabled", "budget_tokens": 2000}));
        assert_eq!((open.get("top_p"), open.get("temperature")), (None, None), "refused beside it");
        assert!(asked(10, hello(), ToolChoice::Auto, 0.98).contains_key("top_p"));
        assert_eq!(asked(10, hello(), ToolChoice::Auto, 1.0)["thinking"]["budget_tokens"], 1024, "the least");
        for choice in [ToolChoice::Any, ToolChoice::Named("f".into())] {
            let forced = asked(2000, hello(), choice, 0.9);
            assert_eq!((forced.get("thinking"), forced.contains_key("top_p")), (None, true));
        }
        let result = Part::ToolResult { id: "a".into(), text: "x".into(), images: vec![], is_error: false };
        assert_eq!(asked(2000, vec![result], ToolChoice::Auto, 0.9).get("thinking"), None, "no signatures");
        assert_eq!(asked(9000, hello(), ToolChoice::Auto, 0.9).get("thinking"), None, "no room for an answer");
    }
}
