//! Requests of `chat/completions`.

use crate::{
    chat::{Conversation, Input, Request, ResponseFormat},
    dialects::{ApiError, custom_tools::CustomTools, extensions, fields::Field, guided},
};
use pensieve_protocol::grammar::Grammar;

use super::{
    messages, options,
    tools::{self, Tools},
};

pub(crate) const TOP_LOGPROBS_MAX: i64 = 20;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct ParsedRequest {
    /// Started once per choice.
    pub(super) request: Request,
    pub(super) choices: usize,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    pub(super) custom: CustomTools,
}

pub(super) fn read(body: &Field<'_>) -> Result<ParsedRequest, ApiError> {
    let model = options::model(body)?;
    let (stream, include_usage) = options::streaming(body)?;
    let mut format = format(&body.get("response_format"))?;
    guided::read(body, &mut format)?;
    let mut request = Request {
        model,
        max_tokens: max_tokens(body)?,
        sampling: options::sampling(body)?,
        stops: options::stops(body)?,
        logprobs: logprobs(body)?,
        format,
        ..Request::default()
    };
    let (system, turns) = messages::read(&body.get("messages"))?;
    let Tools { tools, choice: tool_choice, single_call, custom } = Tools::read(body)?;
    let mut conversation = Conversation { system, turns, tools, tool_choice, single_call, ..Conversation::default() };
    think(body, &mut request, &mut conversation)?;
    request.input = Input::Chat(conversation);
    text_only(&body.get("modalities"))?;
    Ok(ParsedRequest { request, choices: options::choices(body)?, stream, include_usage, custom })
}

/// `reasoning_effort`, or as of other servers `reasoning.effort`, `reasoning.max_tokens`, `enable_thinking` and `chat_template_kwargs`,
/// whose `thinking_budget` is a limit on the reasoning, too.
fn think(body: &Field<'_>, request: &mut Request, conversation: &mut Conversation) -> Result<(), ApiError> {
    if let Some(variables) = body.get("chat_template_kwargs").present() {
        conversation.variables.extend(extensions::variables(variables)?);
    }
    if let Some(enabled) = body.get("enable_thinking").optional(Field::boolean)? {
        conversation.thinking = Some(enabled);
    }
    let reasoning = body.get("reasoning");
    if let Some(reasoning) = reasoning.present() {
        reasoning.object()?;
    }
    let tokens = reasoning.get("max_tokens");
    request.thinking_tokens = tokens.optional(|tokens| tokens.count(1))?;
    if request.thinking_tokens.is_some() {
        conversation.thinking = Some(true);
    }
    for effort in [body.get("reasoning_effort"), reasoning.get("effort")] {
        if let Some(effort) = effort.present() {
            options::think(options::effort(effort)?, request, conversation);
        }
    }
    Ok(())
}

/// All names are read, and the newer one takes precedence.
fn max_tokens(body: &Field<'_>) -> Result<Option<u32>, ApiError> {
    let [old, new] = ["max_tokens", "max_completion_tokens"].map(|name| body.get(name));
    let old = old.optional(|field| field.count(1))?;
    let new = new.optional(|field| field.count(1))?;
    Ok(new.or(old).or(options::n_predict(body)?))
}

fn logprobs(body: &Field<'_>) -> Result<Option<u8>, ApiError> {
    let enabled = body.get("logprobs").flag(false)?;
    let top = body.get("top_logprobs");
    let count = top.optional(|top| top.integer(0..=TOP_LOGPROBS_MAX))?;
    match count {
        // The range makes the cast exact.
        Some(count) if enabled => Ok(Some(count as u8)),
        Some(count) if count > 0 => Err(top.invalid("is only allowed where 'logprobs' is true")),
        _ => Ok(enabled.then_some(0)),
    }
}

fn format(field: &Field<'_>) -> Result<ResponseFormat, ApiError> {
    if field.is_absent() {
        return Ok(ResponseFormat::Free);
    }
    field.object()?;
    let (grammar, field) = match field.get("type").choice(&["text", "json_object", "json_schema"])? {
        0 => return Ok(ResponseFormat::Free),
        // llama.cpp's form has a schema here.
        1 => match field.get("schema").present() {
            Some(schema) => (Grammar::json_schema(extensions::schema(schema)?, true), schema.clone()),
            None => (Grammar::any_json_object(), field.clone()),
        },
        _ => {
            let schema = field.get("json_schema");
            (json_schema(&schema)?, schema.get("schema"))
        }
    };
    Ok(ResponseFormat::Grammar { grammar, field: field.path().to_owned() })
}

fn json_schema(field: &Field<'_>) -> Result<Grammar, ApiError> {
    field.object()?;
    tools::name(&field.get("name"))?;
    field.get("description").optional(Field::string)?;
    let strict = field.get("strict").flag(false)?;
    let schema = field.get("schema");
    if schema.is_absent() {
        return Ok(Grammar::any_json_object());
    }
    Ok(Grammar::json_schema(extensions::schema(&schema)?, !strict))
}

fn text_only(modalities: &Field<'_>) -> Result<(), ApiError> {
    let Some(list) = modalities.present() else { return Ok(()) };
    for item in list.items(8)? {
        if item.string()? != "text" {
            return Err(item.invalid("only 'text' is served"));
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::chat::{Part, Role, ToolChoice, Turn};

    fn asked(more: Value) -> Result<ParsedRequest, String> {
        let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
        for (name, value) in more.as_object().unwrap() {
            body[name] = value.clone();
        }
        read(&Field::root(&body)).map_err(|problem| problem.message)
    }

    fn request(more: Value) -> Request {
        asked(more).unwrap().request
    }

    fn refuses(more: Value, expect: &str) {
        assert_eq!(asked(more).unwrap_err(), expect);
    }

    fn conversation_of(more: Value) -> Conversation {
        let Input::Chat(conversation) = request(more).input else { panic!("a chat is no text") };
        conversation
    }

    #[test]
    fn the_least_request_leaves_everything_open() {
        let turns = vec![Turn { role: Role::User, parts: vec![Part::Text("hi".into())] }];
        let conversation = Conversation { turns, ..Conversation::default() };
        let request = Request { model: "m".into(), input: Input::Chat(conversation), ..Request::default() };
        let (stream, include_usage, custom) = (false, false, CustomTools::default());
        assert_eq!(asked(json!({})), Ok(ParsedRequest { request, choices: 1, stream, include_usage, custom }));
    }

    #[test]
    fn what_has_no_use_here_is_accepted() {
        let more = json!({
            "user": "ada", "metadata": {"a": "b"}, "store": true, "service_tier": "auto", "verbosity": "low",
            "prediction": {"type": "content", "content": "x"}, "web_search_options": {}, "safety_identifier": "x",
            "prompt_cache_key": "x", "modalities": ["text"], "whatever": [1, {"deep": null}],
        });
        assert_eq!(asked(more), asked(json!({})));
    }

    #[test]
    fn the_newer_limit_holds() {
        assert_eq!(request(json!({"max_tokens": 5})).max_tokens, Some(5));
        assert_eq!(request(json!({"max_tokens": 5, "max_completion_tokens": 6})).max_tokens, Some(6));
        assert_eq!(request(json!({"max_tokens": 1e30})).max_tokens, Some(u32::MAX));
        assert_eq!(request(json!({"max_tokens": u64::MAX})).max_tokens, Some(u32::MAX));
        for name in ["max_tokens", "max_completion_tokens"] {
            for wrong in [json!(0), json!(-1), json!(0.5), json!("5"), json!([])] {
                let message = asked(json!({ name: wrong })).unwrap_err();
                assert!(message.starts_with(&format!("{name}: should be an integer of at least 1")), "{message}");
            }
        }
    }

    #[test]
    fn alternatives_need_log_probabilities() {
        assert_eq!(request(json!({"logprobs": true})).logprobs, Some(0));
        assert_eq!(request(json!({"logprobs": true, "top_logprobs": 20})).logprobs, Some(20));
        assert_eq!(request(json!({"logprobs": false, "top_logprobs": 0})).logprobs, None);
        assert_eq!(request(json!({"logprobs": null, "top_logprobs": null})).logprobs, None);
        refuses(json!({"top_logprobs": 1}), "top_logprobs: is only allowed where 'logprobs' is true");
        refuses(
            json!({"logprobs": true, "top_logprobs": 21}),
            "top_logprobs: should be an integer from 0 to 20, not 21",
        );
        refuses(
            json!({"logprobs": true, "top_logprobs": -1}),
            "top_logprobs: should be an integer from 0 to 20, not -1",
        );
        refuses(json!({"logprobs": 1}), "logprobs: should be true or false, not 1");
    }

    #[test]
    fn formats_become_grammars() {
        let format = |format: Value| request(json!({ "response_format": format })).format;
        assert_eq!(format(json!({"type": "text"})), ResponseFormat::Free);
        let of = |grammar, field: &str| ResponseFormat::Grammar { grammar, field: field.to_owned() };
        assert_eq!(format(json!({"type": "json_object"})), of(Grammar::any_json_object(), "response_format"));
        let schema = r#"{"type":"object","properties":{"b":{},"a":{}}}"#;
        let value: Value = serde_json::from_str(schema).unwrap();
        let named = |more: Value| {
            let mut named = json!({"name": "n", "schema": value});
            for (name, value) in more.as_object().unwrap() {
                named[name] = value.clone();
            }
            format(json!({"type": "json_schema", "json_schema": named}))
        };
        let of = |grammar| of(grammar, "response_format.json_schema.schema");
        assert_eq!(named(json!({})), of(Grammar::json_schema(schema, true)));
        assert_eq!(named(json!({"strict": true})), of(Grammar::json_schema(schema, false)));
        assert_eq!(named(json!({"schema": null})), of(Grammar::any_json_object()));

        let refuses = |format: Value, expect: &str| refuses(json!({ "response_format": format }), expect);
        refuses(json!("json"), "response_format: should be an object, not a string");
        refuses(
            json!({"type": "yaml"}),
            "response_format.type: should be one of 'text', 'json_object', 'json_schema', not 'yaml'",
        );
        refuses(json!({"type": "json_schema"}), "response_format.json_schema: this field is required");
        refuses(
            json!({"type": "json_schema", "json_schema": {"schema": {}}}),
            "response_format.json_schema.name: this field is required",
        );
        refuses(
            json!({"type": "json_schema", "json_schema": {"name": "n", "schema": []}}),
            "response_format.json_schema.schema: should be an object, not a list",
        );
    }

    #[test]
    fn constraints_and_variables_of_other_servers_are_taken() {
        let of = |grammar, field: &str| ResponseFormat::Grammar { grammar, field: field.to_owned() };
        let schema = || Grammar::json_schema(r#"{"type":"object"}"#, true);
        let format = json!({"type": "json_object", "schema": {"type": "object"}});
        assert_eq!(request(json!({ "response_format": format })).format, of(schema(), "response_format.schema"));
        assert_eq!(request(json!({"guided_json": {"type": "object"}})).format, of(schema(), "guided_json"));
        refuses(
            json!({"response_format": {"type": "json_object"}, "guided_regex": "a"}),
            "guided_regex: the request also asks for another format",
        );
        let variables = conversation_of(json!({"chat_template_kwargs": {"enable_thinking": false}})).variables;
        assert_eq!(Value::Object(variables), json!({"enable_thinking": false}));
        refuses(
            json!({"chat_template_kwargs": {"messages": []}}),
            "chat_template_kwargs.messages: this variable is reserved for the conversation",
        );
    }

    #[test]
    fn effort_turns_thinking_on_or_off() {
        assert_eq!(conversation_of(json!({})).thinking, None);
        let none = conversation_of(json!({"reasoning_effort": "none"}));
        assert_eq!((none.thinking, none.variables.is_empty()), (Some(false), true));
        let high = conversation_of(json!({"reasoning_effort": "high"}));
        assert_eq!((high.thinking, &high.variables["reasoning_effort"]), (Some(true), &json!("high")));
        assert!(
            asked(json!({"reasoning_effort": "huge"})).unwrap_err().starts_with("reasoning_effort: should be one of")
        );
    }

    #[test]
    fn tools_reach_the_conversation() {
        let tool = json!({"type": "function", "function": {"name": "a"}});
        let found = conversation_of(json!({"tools": [tool], "tool_choice": "required", "parallel_tool_calls": false}));
        assert_eq!((found.tools.len(), found.tool_choice, found.single_call), (1, ToolChoice::Any, true));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        refuses(json!({"model": null}), "model: this field is required");
        refuses(json!({"model": ""}), "model: should not be empty");
        refuses(json!({"model": 5}), "model: should be a string, not 5");
        refuses(json!({"model": "m".repeat(257)}), "model: has 257 bytes, more than 256");
        refuses(json!({"messages": null}), "messages: this field is required");
        refuses(json!({"modalities": ["text", "audio"]}), "modalities.1: only 'text' is served");
        refuses(json!({"n": 9}), "n: should be an integer from 1 to 8, not 9");
    }
}
