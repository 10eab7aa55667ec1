//! Requests as OpenAI's chat completions and completions, with the fields that each kind of server adds to them.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::{
    Addressee,
    content::{self, Piece},
};
use crate::{
    chat::{Conversation, Effort, Input, Part, Request, ResponseFormat, Role, SamplingParams, Tool, ToolChoice},
    fleet::UpstreamKind,
};
use pensieve_protocol::{
    grammar::Grammar,
    job::{Failure, FailureCode},
};

/// Fields by which a client would choose what the upstream's key pays for, which models, hosts, files and slots are used, or
/// what runs there: of gateways, of SGLang, of vLLM and of llama.cpp. The configuration alone decides that.
const REFUSED: [&str; 35] = [
    "models",
    "model_list",
    "provider",
    "route",
    "fallbacks",
    "context_window_fallback_dict",
    "plugins",
    "api_base",
    "base_url",
    "api_key",
    "api_type",
    "api_version",
    "headers",
    "extra_headers",
    "extra_body",
    "extra_query",
    "custom_llm_provider",
    "deployment_id",
    "organization",
    "user_config",
    "region_name",
    "mock_response",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "custom_logit_processor",
    "session_params",
    "return_hidden_states",
    "data_parallel_rank",
    "routed_dp_rank",
    "lora",
    "lora_path",
    "lora_request",
    "kv_transfer_params",
    "id_slot",
];
/// Beginnings of such fields.
const REFUSED_PREFIXES: [&str; 6] = ["aws_", "azure_", "vertex_", "watsonx_", "litellm_", "mock_"];

/// The path below the API's root, and the body. `max_tokens` is what fits, if it is known.
pub(crate) fn write(
    request: &Request,
    to: &Addressee<'_>,
    max_tokens: Option<u32>,
) -> Result<(&'static str, Map<String, Value>), Failure> {
    let mut body = Map::new();
    body.insert("model".into(), model(request, to)?.into());
    let path = match &request.input {
        Input::Chat(conversation) => {
            converse(conversation, &request.deferred_tools, to, &mut body)?;
            "/chat/completions"
        }
        Input::Text(text) => {
            body.insert("prompt".into(), text.as_str().into());
            "/completions"
        }
        Input::Infill { prefix, suffix } => {
            body.insert("prompt".into(), prefix.as_str().into());
            body.insert("suffix".into(), suffix.as_str().into());
            "/completions"
        }
        Input::Tokens(tokens) => {
            body.insert("prompt".into(), tokens.clone().into());
            "/completions"
        }
    };
    let is_chat = path == "/chat/completions";
    if let Some(tokens) = max_tokens {
        let newer = is_chat && to.is_openai && to.kind == UpstreamKind::OpenAi;
        body.insert(if newer { "max_completion_tokens" } else { "max_tokens" }.into(), tokens.into());
    }
    if !request.stops.is_empty() {
        body.insert("stop".into(), request.stops.clone().into());
    }
    if let Some(count) = request.logprobs {
        if is_chat {
            body.insert("logprobs".into(), true.into());
            body.insert("top_logprobs".into(), count.into());
        } else {
            body.insert("logprobs".into(), count.into());
        }
    }
    // Pensieve's own fields.
    let mut own = Map::new();
    sampling(&request.sampling, to, &mut body, &mut own)?;
    format(request, to, &mut body, &mut own)?;
    reasoning(request, to, &mut body, &mut own);
    if !own.is_empty() {
        body.insert("pensieve".into(), own.into());
    }
    if to.kind == UpstreamKind::Vllm && !request.client.salt.is_empty() {
        // Keeps what one client's prompts have left in the cache from the others. Hashed, as the salt stays on this machine.
        let salt = Sha256::new().chain_update(b"pensieve upstream\0").chain_update(&request.client.salt).finalize();
        body.insert("cache_salt".into(), URL_SAFE_NO_PAD.encode(salt).into());
    }
    for (name, value) in &request.unknown {
        if REFUSED.contains(&name.as_str()) || REFUSED_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
            return Err(to.cannot(&format!("take '{name}' from a client"), name));
        }
        // What this server has written itself stays as it is.
        body.entry(name.as_str()).or_insert_with(|| value.clone());
    }
    body.insert("stream".into(), true.into());
    body.insert("stream_options".into(), json!({ "include_usage": true }));
    Ok((path, body))
}

fn model(request: &Request, to: &Addressee<'_>) -> Result<String, Failure> {
    match &request.adapter.name {
        None if request.adapter.scale.is_some() => {
            Err(to.cannot("change an adapter's scale", "pensieve.adapter_scale"))
        }
        None => Ok(to.model.to_owned()),
        Some(name) if to.kind == UpstreamKind::Pensieve => Ok(format!("{}:{name}", to.model)),
        Some(_) => Err(to.cannot("choose an adapter", "pensieve.adapter")),
    }
}

fn converse(
    conversation: &Conversation,
    deferred: &[Tool],
    to: &Addressee<'_>,
    body: &mut Map<String, Value>,
) -> Result<(), Failure> {
    let mut messages = Vec::with_capacity(conversation.turns.len() + 1);
    if !conversation.system.is_empty() {
        messages.push(json!({ "role": "system", "content": conversation.system }));
    }
    for turn in &conversation.turns {
        match turn.role {
            Role::System => messages.push(json!({ "role": "system", "content": texts(&turn.parts) })),
            Role::Assistant => messages.push(assistant(&turn.parts, to)),
            Role::User => user(&turn.parts, to, &mut messages)?,
        }
    }
    body.insert("messages".into(), messages.into());
    let mut tools: Vec<&Tool> = conversation.tools.iter().chain(deferred).filter(|tool| !tool.barred).collect();
    let choice = match (&conversation.tool_choice, to.kind) {
        _ if tools.is_empty() => return Ok(()),
        // Ollama does not read the choice.
        (ToolChoice::Auto, UpstreamKind::Ollama) => None,
        (ToolChoice::None, UpstreamKind::Ollama) => return Ok(()),
        (ToolChoice::Any | ToolChoice::Named(_), UpstreamKind::Ollama) => {
            return Err(to.cannot("be made to call a tool", "tool_choice"));
        }
        (ToolChoice::Auto, _) => Some("auto".into()),
        (ToolChoice::None, _) => Some("none".into()),
        (ToolChoice::Any, _) => Some("required".into()),
        (ToolChoice::Named(name), UpstreamKind::LlamaCpp) => {
            // It takes words alone, and any object for `auto`.
            tools.retain(|tool| tool.name == *name);
            if tools.is_empty() {
                let message = format!("the tool '{name}' must be called, and it is not among the tools");
                return Err(Failure::new(FailureCode::Invalid, message));
            }
            Some("required".into())
        }
        (ToolChoice::Named(name), _) => Some(json!({ "type": "function", "function": { "name": name } })),
    };
    // llama.cpp's converter of schemas fails on groups and classes of characters, and others' are not known.
    let keeps_patterns = matches!(to.kind, UpstreamKind::Pensieve | UpstreamKind::Vllm);
    body.insert("tools".into(), tools.into_iter().map(|tool| self::tool(tool, keeps_patterns)).collect());
    if let Some(choice) = choice {
        body.insert("tool_choice".into(), choice);
    }
    if conversation.single_call {
        body.insert("parallel_tool_calls".into(), false.into());
    }
    Ok(())
}

fn tool(tool: &Tool, keeps_pattern: bool) -> Value {
    let mut function = json!({ "name": tool.name, "description": tool.description, "parameters": tool.schema });
    if tool.input.is_some() && !keeps_pattern {
        // A custom tool's only argument; its description has the grammar.
        for argument in function["parameters"]["properties"].as_object_mut().into_iter().flat_map(Map::values_mut) {
            argument.as_object_mut().map(|argument| argument.remove("pattern"));
        }
    }
    if tool.strict {
        function["strict"] = true.into();
    }
    json!({ "type": "function", "function": function })
}

fn texts(parts: &[Part]) -> String {
    let texts: Vec<&str> =
        parts.iter().filter_map(|part| if let Part::Text(text) = part { Some(text.as_str()) } else { None }).collect();
    texts.join("\n")
}

fn assistant(parts: &[Part], to: &Addressee<'_>) -> Value {
    let (mut text, mut thoughts, mut calls) = (String::new(), String::new(), Vec::new());
    for part in parts {
        match part {
            Part::Text(more) => text += more,
            Part::Thinking(more) => thoughts += more,
            Part::ToolCall { id, name, arguments } => {
                let arguments = match arguments {
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                };
                let function = json!({ "name": name, "arguments": arguments });
                calls.push(json!({ "id": id, "type": "function", "function": function }));
            }
            Part::ToolResult { .. } | Part::Image(_) => {}
        }
    }
    let content = if text.is_empty() && !calls.is_empty() { Value::Null } else { text.into() };
    let mut message = json!({ "role": "assistant", "content": content });
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    // OpenAI's own server refuses fields that it does not know.
    if !thoughts.is_empty() && to.kind != UpstreamKind::OpenAi {
        message["reasoning_content"] = thoughts.into();
    }
    message
}

/// A turn of the user: its results of tools are messages of their own, and pictures in them follow in the user's.
fn user(parts: &[Part], to: &Addressee<'_>, messages: &mut Vec<Value>) -> Result<(), Failure> {
    let mut content = Vec::new();
    for part in parts {
        match part {
            Part::Text(text) => content.push(json!({ "type": "text", "text": text })),
            Part::Image(item) => content.push(picture(to, *item)?),
            Part::ToolResult { id, text, images, is_error } => {
                let said = pieces_text(text, *is_error);
                messages.push(json!({ "role": "tool", "tool_call_id": id, "content": said }));
                for piece in content::pieces(text, images) {
                    if let Piece::Picture(item) = piece {
                        content.push(picture(to, item)?);
                    }
                }
            }
            Part::Thinking(_) | Part::ToolCall { .. } => {}
        }
    }
    // The plain form, where there is text alone: not every template takes lists.
    let is_text = content.iter().all(|piece| piece["type"] == "text");
    match content.len() {
        0 => {}
        _ if is_text => messages.push(json!({ "role": "user", "content": texts(parts) })),
        _ => messages.push(json!({ "role": "user", "content": content })),
    }
    Ok(())
}

/// Chat completions cannot say that a tool has failed, so its text does.
fn pieces_text(text: &str, is_error: bool) -> String {
    let says_so = text.trim_start().get(..5).is_some_and(|start| start.eq_ignore_ascii_case("error"));
    if is_error && !says_so { format!("Error: {text}") } else { text.to_owned() }
}

fn picture(to: &Addressee<'_>, item: u32) -> Result<Value, Failure> {
    let (kind, data) = content::picture(to, item)?;
    Ok(json!({ "type": "image_url", "image_url": { "url": format!("data:{kind};base64,{data}") } }))
}

fn sampling(
    params: &SamplingParams,
    to: &Addressee<'_>,
    body: &mut Map<String, Value>,
    own: &mut Map<String, Value>,
) -> Result<(), Failure> {
    let SamplingParams {
        temperature,
        top_k,
        top_p,
        min_p,
        repetition_penalty,
        presence_penalty,
        frequency_penalty,
        logit_bias,
        seed,
        stages,
    } = params;
    if let Some(stages) = stages {
        if to.kind != UpstreamKind::Pensieve {
            return Err(to.cannot("run samplers by name", "pensieve.samplers"));
        }
        let stage = |stage: &pensieve_protocol::job::StageSpec| {
            let mut value: Map<String, Value> = serde_json::from_str(&stage.parameters).unwrap_or_default();
            value.insert("sampler".into(), stage.sampler.as_str().into());
            Value::Object(value)
        };
        own.insert("samplers".into(), stages.iter().map(stage).collect());
    }
    let own_words = !matches!(to.kind, UpstreamKind::OpenAi | UpstreamKind::Ollama);
    let repetition = if to.kind == UpstreamKind::LlamaCpp { "repeat_penalty" } else { "repetition_penalty" };
    let numbers = [
        ("temperature", *temperature, true),
        ("top_p", *top_p, true),
        ("presence_penalty", *presence_penalty, true),
        ("frequency_penalty", *frequency_penalty, true),
        ("min_p", *min_p, own_words),
        (repetition, *repetition_penalty, own_words),
    ];
    for (name, value, is_known) in numbers {
        // The shortest text that is this number: 0.7, not 0.699999988079071.
        let number = value.filter(|_| is_known).and_then(|value| value.to_string().parse::<f64>().ok());
        if let Some(number) = number {
            body.insert(name.into(), number.into());
        }
    }
    if let Some(top_k) = top_k.filter(|_| own_words) {
        // vLLM and SGLang turn it off by -1.
        let off = top_k == 0 && matches!(to.kind, UpstreamKind::Vllm | UpstreamKind::Sglang);
        body.insert("top_k".into(), if off { json!(-1) } else { top_k.into() });
    }
    if !logit_bias.is_empty() {
        let bias: Map<String, Value> =
            logit_bias.iter().map(|(token, bias)| (token.to_string(), json!(bias))).collect();
        body.insert("logit_bias".into(), bias.into());
    }
    if let Some(seed) = seed {
        // Other servers take signed numbers.
        body.insert("seed".into(), (seed & (i64::MAX as u64)).into());
    }
    Ok(())
}

fn format(
    request: &Request,
    to: &Addressee<'_>,
    body: &mut Map<String, Value>,
    own: &mut Map<String, Value>,
) -> Result<(), Failure> {
    let ResponseFormat::Grammar { grammar, field } = &request.format else { return Ok(()) };
    let (name, value) = match (grammar, to.kind) {
        (Grammar::JsonSchema { schema, lenient, .. }, _) => {
            let schema: Value = serde_json::from_str(schema).unwrap_or_else(|_| json!({ "type": "object" }));
            let is_any = schema == json!({ "type": "object" });
            let named = json!({ "name": "answer", "schema": schema, "strict": !lenient });
            let format = if is_any {
                json!({ "type": "json_object" })
            } else {
                json!({ "type": "json_schema", "json_schema": named })
            };
            body.insert("response_format".into(), format);
            return Ok(());
        }
        (Grammar::Regex(text), UpstreamKind::Vllm) => ("structured_outputs", json!({ "regex": text })),
        (Grammar::Regex(text), UpstreamKind::Sglang) => ("regex", json!(text)),
        (Grammar::Lark(text), UpstreamKind::Vllm) => ("structured_outputs", json!({ "grammar": text })),
        (Grammar::Regex(text), UpstreamKind::Pensieve) => {
            own.insert("grammar".into(), json!({ "regex": text }));
            return Ok(());
        }
        (Grammar::Lark(text), UpstreamKind::Pensieve) => {
            own.insert("grammar".into(), json!({ "lark": text }));
            return Ok(());
        }
        _ => return Err(to.cannot("hold an answer to such a grammar", field)),
    };
    body.insert(name.into(), value);
    Ok(())
}

/// Reasoning on or off, how much of it, and variables of the template.
fn reasoning(request: &Request, to: &Addressee<'_>, body: &mut Map<String, Value>, own: &mut Map<String, Value>) {
    if let Some(effort) = request.effort {
        // The vendor's words end at `high`.
        let effort = if matches!(effort, Effort::XHigh | Effort::Max) { Effort::High } else { effort };
        let word = Effort::ALL.iter().find(|(_, level)| *level == effort).map_or("medium", |(word, _)| word);
        body.insert("reasoning_effort".into(), word.into());
    }
    if to.kind == UpstreamKind::Pensieve
        && let Some(tokens) = request.thinking_tokens
    {
        own.insert("thinking_tokens".into(), tokens.into());
    }
    let Input::Chat(conversation) = &request.input else { return };
    let mut variables = conversation.variables.clone();
    if let Some(thinking) = conversation.thinking {
        variables.entry("enable_thinking").or_insert_with(|| thinking.into());
    }
    let is_open =
        matches!(to.kind, UpstreamKind::Vllm | UpstreamKind::Sglang | UpstreamKind::LlamaCpp | UpstreamKind::Pensieve);
    if is_open && !variables.is_empty() {
        body.insert("chat_template_kwargs".into(), variables.into());
    }
}

#[cfg(test)]
#[path = "chat_request_tests.rs"]
mod tests;
