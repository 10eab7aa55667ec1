//! Our extension of all APIs: the body field `pensieve`, which every dialect reads in the same way.
//!
//! ```json
//! "pensieve": {
//!   "samplers": [{"sampler": "top_k", "k": 40}, "seeded"],
//!   "adapter": "poet", "adapter_scale": 0.8,
//!   "grammar": {"json_schema": {…}} or {"regex": "…"} or {"lark": "…"},
//!   "seed": 7, "thinking_tokens": 1000, "open_schemas": true,
//!   "template": {"enable_thinking": false}
//! }
//! ```
//!
//! Unlike in the rest of a body, unknown fields are errors here: no client sends them by default, so they must be
//! mistakes.

use serde_json::{Map, Value};

use super::{
    ApiError,
    fields::{Field, Quote},
};
use crate::chat::{AdapterSelection, Input, Request, ResponseFormat};
use pensieve_protocol::{grammar::Grammar, job::StageSpec};

const NAMES: [&str; 8] =
    ["samplers", "adapter", "adapter_scale", "grammar", "seed", "template", "open_schemas", "thinking_tokens"];
const STAGES_MAX: usize = 32;
const NAME_LEN_MAX: usize = 128;
const PARAMETERS_LEN_MAX: usize = 16 << 10;
const SCHEMA_LEN_MAX: usize = 512 << 10;
const REGEX_LEN_MAX: usize = 16 << 10;
const LARK_LEN_MAX: usize = 64 << 10;
const VARIABLES_MAX: usize = 64;
const VARIABLES_LEN_MAX: usize = 64 << 10;
const SCALE_MAX: f32 = 16.0;
/// Template variables that come from the conversation.
const RESERVED: [&str; 6] = ["messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"];

/// Applies the field, if present, to the request. It takes precedence over the API's own fields. Every API's request ends
/// here, so the images that were read on the way are added, too.
pub(crate) fn read(body: &Field<'_>, request: &mut Request) -> Result<(), ApiError> {
    request.images = body.images();
    let field = body.get("pensieve");
    if field.is_absent() {
        return Ok(());
    }
    check_names(&field, &NAMES)?;
    if let Some(samplers) = field.get("samplers").present() {
        request.sampling.stages = Some(stages(samplers)?);
    }
    request.adapter = adapter(&field)?;
    if let Some(text) = field.get("grammar").present() {
        let format = grammar(text)?;
        if request.format != ResponseFormat::Free {
            return Err(text.invalid("the request also asks for another format"));
        }
        request.format = format;
    }
    if let Some(number) = field.get("seed").present() {
        request.sampling.seed = Some(seed(number)?);
    }
    if let Some(open) = field.get("open_schemas").present() {
        request.open_schemas = Some(open.boolean()?);
    }
    if let Some(tokens) = field.get("thinking_tokens").present() {
        request.thinking_tokens = Some(tokens.count(0)?);
    }
    if let Some(template) = field.get("template").present() {
        let variables = variables(template)?;
        let Input::Chat(conversation) = &mut request.input else {
            return Err(template.invalid("a text is not rendered by a template"));
        };
        conversation.variables.extend(variables);
    }
    Ok(())
}

/// Refuses members of our own object that nothing reads.
pub(crate) fn check_names(field: &Field<'_>, names: &[&str]) -> Result<(), ApiError> {
    for (name, entry) in field.entries()? {
        if !names.contains(&name) {
            let names = names.join("', '");
            return Err(entry.invalid(format_args!("unknown field; '{names}' are allowed")));
        }
    }
    Ok(())
}

/// A seed, any integer; also used for the APIs' own seed fields.
pub(crate) fn seed(field: &Field<'_>) -> Result<u64, ApiError> {
    match field.json()?.as_u64() {
        Some(seed) => Ok(seed),
        None => field.integer(i64::MIN..=i64::MAX).map(i64::cast_unsigned),
    }
}

/// The text of a schema, with members in the client's order.
pub(crate) fn schema(field: &Field<'_>) -> Result<String, ApiError> {
    let text = Value::Object(field.object()?.clone()).to_string();
    if text.len() > SCHEMA_LEN_MAX {
        return Err(field.invalid(format_args!("has {} bytes, more than {SCHEMA_LEN_MAX}", text.len())));
    }
    Ok(text)
}

fn stages(field: &Field<'_>) -> Result<Vec<StageSpec>, ApiError> {
    let stage = |item: Field<'_>| {
        if item.is_string() {
            let sampler = item.text(NAME_LEN_MAX)?.to_owned();
            return Ok(StageSpec { sampler, field: item.path().to_owned(), ..StageSpec::default() });
        }
        let Some(mut parameters) = item.json()?.as_object().cloned() else {
            return Err(item.should_be("a sampler's name, or an object with the name as 'sampler' and its parameters"));
        };
        let sampler = item.get("sampler").text(NAME_LEN_MAX)?.to_owned();
        parameters.shift_remove("sampler");
        let parameters = if parameters.is_empty() { String::new() } else { Value::Object(parameters).to_string() };
        if parameters.len() > PARAMETERS_LEN_MAX {
            return Err(item.invalid(format_args!("has {} bytes, more than {PARAMETERS_LEN_MAX}", parameters.len())));
        }
        Ok(StageSpec { sampler, parameters, field: item.path().to_owned() })
    };
    field.items(STAGES_MAX)?.map(stage).collect()
}

/// `adapter_scale` may come alone, for the adapter in the model's name.
fn adapter(field: &Field<'_>) -> Result<AdapterSelection, ApiError> {
    let (name, scale) = (field.get("adapter"), field.get("adapter_scale"));
    let scale = scale.optional(|scale| scale.number(-SCALE_MAX..=SCALE_MAX))?;
    let name = name.optional(|name| name.text(NAME_LEN_MAX))?;
    Ok(AdapterSelection { name: name.map(str::to_owned), scale })
}

fn grammar(field: &Field<'_>) -> Result<ResponseFormat, ApiError> {
    let mut entries = field.entries()?;
    let (Some((kind, entry)), None) = (entries.next(), entries.next()) else {
        return Err(field.invalid("should have one field, 'json_schema', 'regex' or 'lark'"));
    };
    let grammar = match kind {
        "json_schema" => Grammar::json_schema(schema(&entry)?, false),
        "regex" => Grammar::Regex(entry.text(REGEX_LEN_MAX)?.to_owned()),
        "lark" => Grammar::Lark(entry.text(LARK_LEN_MAX)?.to_owned()),
        other => {
            let why = format_args!("should be a 'json_schema', a 'regex' or a 'lark', not a '{}'", Quote(other));
            return Err(field.invalid(why));
        }
    };
    Ok(ResponseFormat::Grammar { grammar, field: entry.path().to_owned() })
}

/// Variables for the template.
pub(crate) fn variables(field: &Field<'_>) -> Result<Map<String, Value>, ApiError> {
    let variables = field.object()?;
    if variables.len() > VARIABLES_MAX {
        return Err(field.invalid(format_args!("has {} fields, more than {VARIABLES_MAX}", variables.len())));
    }
    for (name, entry) in field.entries()? {
        if RESERVED.contains(&name) {
            return Err(entry.invalid("this variable is reserved for the conversation"));
        }
    }
    let len = Value::Object(variables.clone()).to_string().len();
    if len > VARIABLES_LEN_MAX {
        return Err(field.invalid(format_args!("has {len} bytes, more than {VARIABLES_LEN_MAX}")));
    }
    Ok(variables.clone())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::chat::{Conversation, SamplingParams};
    use pensieve_protocol::job::AdapterUse;

    fn request(extensions: Value) -> Result<Request, ApiError> {
        let body = json!({ "pensieve": extensions });
        let mut request = Request { input: Input::Chat(Conversation::default()), ..Request::default() };
        read(&Field::root(&body), &mut request).map(|()| request)
    }

    fn check(extensions: Value, expected: &str) {
        assert_eq!(request(extensions).unwrap_err().message, expected);
    }

    #[test]
    fn reads_everything() {
        let request = request(json!({
            "samplers": ["top_k", {"sampler": "temperature", "temperature": 0.5, "a": 1}, {"sampler": "x"}],
            "adapter": "poet", "adapter_scale": 0.5, "grammar": {"json_schema": {"type": "object", "a": 1}},
            "seed": -1, "template": {"enable_thinking": true},
        }));
        let request = request.unwrap();
        let stage = |place: usize, sampler: &str, parameters: &str| StageSpec {
            sampler: sampler.into(),
            parameters: parameters.into(),
            field: format!("pensieve.samplers.{place}"),
        };
        let hot = r#"{"temperature":0.5,"a":1}"#;
        let chain = vec![stage(0, "top_k", ""), stage(1, "temperature", hot), stage(2, "x", "")];
        assert_eq!(request.sampling.stages, Some(chain));
        assert_eq!(request.sampling.seed, Some(u64::MAX));
        assert_eq!(request.adapter, AdapterSelection { name: Some("poet".into()), scale: Some(0.5) });
        let grammar = Grammar::json_schema(r#"{"type":"object","a":1}"#, false);
        assert_eq!(request.format, ResponseFormat::Grammar { grammar, field: "pensieve.grammar.json_schema".into() });
        let Input::Chat(conversation) = request.input else { panic!("{:?}", request.input) };
        assert_eq!(Value::Object(conversation.variables), json!({"enable_thinking": true}));
    }

    #[test]
    fn takes_a_body_without_them() {
        let plain = request(Value::Null).unwrap();
        assert_eq!(plain.sampling, SamplingParams::default());
        assert_eq!(request(json!({})), Ok(plain));
        let alone = request(json!({"adapter_scale": 2})).unwrap().adapter;
        let own = AdapterUse { name: "poet".into(), scale: 1.0 };
        assert_eq!(alone.clone().or_of_model(Some(own)), Ok(Some(AdapterUse { name: "poet".into(), scale: 2.0 })));
        assert_eq!(alone.or_of_model(None).unwrap_err().field, "pensieve.adapter_scale");
        assert_eq!(request(json!({"seed": u64::MAX})).unwrap().sampling.seed, Some(u64::MAX));
        assert_eq!(request(json!({"samplers": []})).unwrap().sampling.stages, Some(Vec::new()));
        let regex = request(json!({"grammar": {"regex": "[a-z]+"}})).unwrap();
        let grammar = Grammar::Regex("[a-z]+".into());
        assert_eq!(regex.format, ResponseFormat::Grammar { grammar, field: "pensieve.grammar.regex".into() });
    }

    #[test]
    fn names_what_is_wrong() {
        check(json!(1), "pensieve: should be an object, not 1");
        check(json!({"samplers": "top_k"}), "pensieve.samplers: should be a list, not a string");
        check(json!({"samplers": vec!["a"; 33]}), "pensieve.samplers: has 33 items, more than 32");
        check(json!({"samplers": [""]}), "pensieve.samplers.0: should not be empty");
        check(
            json!({"samplers": [1]}),
            "pensieve.samplers.0: should be a sampler's name, or an object with the name as 'sampler' and its parameters, not 1",
        );
        check(json!({"samplers": [{}]}), "pensieve.samplers.0.sampler: this field is required");
        check(
            json!({"samplers": [{"sampler": "a", "b": "x".repeat(20_000)}]}),
            "pensieve.samplers.0: has 20008 bytes, more than 16384",
        );
        check(json!({"adapter": 1}), "pensieve.adapter: should be a string, not 1");
        check(json!({"adapter_scale": "1"}), "pensieve.adapter_scale: should be a number from -16 to 16, not a string");
        check(
            json!({"adapter": "a", "adapter_scale": 1e300}),
            "pensieve.adapter_scale: should be a number from -16 to 16, not 1e+300",
        );
        check(json!({"grammar": {}}), "pensieve.grammar: should have one field, 'json_schema', 'regex' or 'lark'");
        check(
            json!({"grammar": {"gbnf": ""}}),
            "pensieve.grammar: should be a 'json_schema', a 'regex' or a 'lark', not a 'gbnf'",
        );
        check(json!({"grammar": {"json_schema": true}}), "pensieve.grammar.json_schema: should be an object, not true");
        check(
            json!({"grammar": {"lark": "x".repeat(65_537)}}),
            "pensieve.grammar.lark: has 65537 bytes, more than 65536",
        );
        check(
            json!({"seed": 0.5}),
            &format!("pensieve.seed: should be an integer from {} to {}, not 0.5", i64::MIN, i64::MAX),
        );
        check(
            json!({"template": {"tools": []}}),
            "pensieve.template.tools: this variable is reserved for the conversation",
        );
        check(
            json!({"sampler": []}),
            "pensieve.sampler: unknown field; \
             'samplers', 'adapter', 'adapter_scale', 'grammar', 'seed', 'template', 'open_schemas', \
             'thinking_tokens' are allowed",
        );
    }

    #[test]
    fn does_not_contradict_the_request() {
        let check = |extensions: Value, mut request: Request, expected: &str| {
            let body = json!({ "pensieve": extensions });
            assert_eq!(read(&Field::root(&body), &mut request).unwrap_err().message, expected);
        };
        let formed = ResponseFormat::Grammar { grammar: Grammar::any_json_object(), field: String::new() };
        let formed = Request { format: formed, ..Request::default() };
        let expected = "pensieve.grammar: the request also asks for another format";
        check(json!({"grammar": {"regex": "a"}}), formed, expected);
        let text = Request { input: Input::Text("a".into()), ..Request::default() };
        check(json!({"template": {}}), text, "pensieve.template: a text is not rendered by a template");
    }
}
