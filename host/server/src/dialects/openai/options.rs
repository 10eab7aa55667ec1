//! Fields of both endpoints, checked before anything is rendered or queued. Fields of the API that have no use here
//! (`user`, `metadata`, `store`, `service_tier` and more) are accepted and ignored.

use serde_json::{Map, Value};

use crate::{
    chat::{Conversation, Effort, Request, SamplingParams},
    dialects::{
        ApiError, extensions,
        fields::{Field, Quote},
    },
};

pub(crate) const CHOICES_MAX: i64 = 8;
const MODEL_BYTES_MAX: usize = 256;
const STOPS_MAX: usize = 4;
const STOP_BYTES_MAX: usize = pensieve_protocol::job::STOP_BYTES_MAX;
const BIASES_MAX: usize = 1024;
/// Limit of the JSON of fields that are passed on without being known.
const UNKNOWN_BYTES_MAX: usize = 64 << 10;
/// Fields of these APIs that have no use here, or whose effect is there anyway. Every other field that nothing reads is
/// named in a warning.
const IGNORED: [&str; 24] = [
    "add_special_tokens",
    "add_generation_prompt",
    "cache_prompt",
    "function_call",
    "id_slot",
    "include",
    "max_tool_calls",
    "metadata",
    "modalities",
    "parallel_tool_calls",
    "prediction",
    "priority",
    "prompt_cache_key",
    "prompt_cache_retention",
    "reasoning_format",
    "request_id",
    "return_progress",
    "safety_identifier",
    "service_tier",
    "store",
    "timings_per_token",
    "tool_choice",
    "user",
    "verbosity",
];

/// Levels of reasoning; the first turns it off.
pub(crate) const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// The index of a level among [`EFFORTS`], in capitals or not.
pub(crate) fn effort(field: &Field<'_>) -> Result<usize, ApiError> {
    let word = field.string()?;
    let level = EFFORTS.iter().position(|level| level.eq_ignore_ascii_case(word));
    level.map_or_else(|| field.choice(&EFFORTS), Ok)
}

/// Applies a level of [`EFFORTS`]. Some templates support levels, too.
pub(crate) fn think(level: usize, request: &mut Request, conversation: &mut Conversation) {
    request.effort = Effort::named(EFFORTS[level]);
    conversation.thinking = Some(level > 0);
    if level > 0 {
        conversation.variables.insert("reasoning_effort".into(), EFFORTS[level].into());
    }
}

pub(crate) fn model(body: &Field<'_>) -> Result<String, ApiError> {
    Ok(body.get("model").text(MODEL_BYTES_MAX)?.to_owned())
}

pub(crate) fn choices(body: &Field<'_>) -> Result<usize, ApiError> {
    let n = body.get("n");
    // The range makes the cast exact.
    Ok(n.optional(|n| n.integer(1..=CHOICES_MAX))?.unwrap_or(1) as usize)
}

/// Reads `stream` and `stream_options.include_usage`.
pub(crate) fn streaming(body: &Field<'_>) -> Result<(bool, bool), ApiError> {
    let stream = body.get("stream").flag(false)?;
    let options = body.get("stream_options");
    if options.is_absent() {
        return Ok((stream, false));
    }
    options.object()?;
    let include_usage = options.get("include_usage").flag(false)?;
    if !stream {
        return Err(options.invalid("is only allowed where 'stream' is true"));
    }
    Ok((stream, include_usage))
}

pub(crate) fn sampling(body: &Field<'_>) -> Result<SamplingParams, ApiError> {
    let number = |name: &str, range| body.get(name).optional(|field| field.number(range));
    Ok(SamplingParams {
        temperature: number("temperature", 0.0..=2.0)?,
        top_p: number("top_p", 0.0..=1.0)?,
        top_k: body.get("top_k").optional(top_k)?,
        min_p: number("min_p", 0.0..=1.0)?,
        // llama.cpp's name is the second.
        repetition_penalty: match number("repetition_penalty", 0.01..=100.0)? {
            Some(penalty) => Some(penalty),
            None => number("repeat_penalty", 0.01..=100.0)?,
        },
        presence_penalty: number("presence_penalty", -2.0..=2.0)?,
        frequency_penalty: number("frequency_penalty", -2.0..=2.0)?,
        logit_bias: logit_bias(&body.get("logit_bias"))?,
        seed: body.get("seed").optional(extensions::seed)?,
        ..SamplingParams::default()
    })
}

/// Warns of every field that nothing has read.
pub(crate) fn note_unknown(body: &Field<'_>) {
    body.note_unknown(&IGNORED);
}

/// Every field that nothing has read, for an upstream that may know it.
pub(crate) fn unknown(body: &Field<'_>) -> Map<String, Value> {
    body.unknown(&IGNORED, UNKNOWN_BYTES_MAX)
}

/// llama.cpp's limit; anything negative stands for none.
pub(crate) fn n_predict(body: &Field<'_>) -> Result<Option<u32>, ApiError> {
    let field = body.get("n_predict");
    let Some(field) = field.present() else { return Ok(None) };
    if field.json()?.as_i64().is_some_and(|limit| limit < 0) { Ok(None) } else { field.count(1).map(Some) }
}

/// vLLM's -1 stands for all tokens, as 0 does.
fn top_k(field: &Field<'_>) -> Result<u32, ApiError> {
    if field.json()?.as_i64() == Some(-1) { Ok(0) } else { field.count(0) }
}

fn logit_bias(field: &Field<'_>) -> Result<Vec<(u32, f32)>, ApiError> {
    if field.is_absent() {
        return Ok(Vec::new());
    }
    let count = field.object()?.len();
    if count > BIASES_MAX {
        return Err(field.invalid(format_args!("has {count} entries, more than {BIASES_MAX}")));
    }
    let bias = |(name, bias): (&str, Field<'_>)| {
        let token = name.parse().map_err(|_| field.invalid(format_args!("'{}' is no token id", Quote(name))))?;
        Ok((token, bias.number(-100.0..=100.0)?))
    };
    field.entries()?.map(bias).collect()
}

pub(crate) fn stops(body: &Field<'_>) -> Result<Vec<String>, ApiError> {
    body.get("stop").texts(STOPS_MAX, STOP_BYTES_MAX)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::dialects::fields::Document;

    fn with<T>(body: Value, read: impl FnOnce(&Field<'_>) -> Result<T, ApiError>) -> Result<T, String> {
        read(&Field::root(&body)).map_err(|problem| problem.message)
    }

    #[test]
    fn numbers_are_taken_up_to_their_limits() {
        let table = [
            ("temperature", 0.0, 2.0),
            ("top_p", 0.0, 1.0),
            ("presence_penalty", -2.0, 2.0),
            ("frequency_penalty", -2.0, 2.0),
        ];
        for (name, min, max) in table {
            for inside in [json!(min), json!(max), json!((min + max) / 2.0), Value::Null] {
                assert!(with(json!({ name: inside }), sampling).is_ok(), "{name}: {inside}");
            }
            for outside in [json!(min - 0.01), json!(max + 0.01), json!(1e300), json!("1"), json!(true), json!([])] {
                let message = with(json!({ name: outside }), sampling).unwrap_err();
                assert!(message.starts_with(&format!("{name}: should be a number from {min} to {max}")), "{message}");
            }
        }
        for (n, expect) in [(json!(1), 1), (json!(8), 8), (Value::Null, 1)] {
            assert_eq!(with(json!({ "n": n }), choices), Ok(expect));
        }
        for n in [json!(0), json!(-1), json!(9), json!(1.5), json!(u64::MAX), json!("1")] {
            assert!(with(json!({ "n": n }), choices).is_err(), "{n}");
        }
        for seed in [json!(0), json!(-1), json!(u64::MAX), json!(i64::MIN)] {
            assert!(with(json!({ "seed": seed }), sampling).unwrap().seed.is_some(), "{seed}");
        }
        assert!(with(json!({ "seed": 1.5 }), sampling).is_err());
        assert!(with(json!({ "seed": 1e30 }), sampling).is_err());
    }

    #[test]
    fn fields_of_other_servers_work_or_are_named() {
        let sent = json!({
            "top_k": 40, "min_p": 0.1, "repeat_penalty": 1.1, "n_predict": 3, "typical_p": 0.9, "min_tokens": 4,
            "ignore_eos": null, "samplers": [], "user": "ada", "a\u{7}b": 1,
        });
        let document = Document::of(&sent);
        let (body, found) = (document.root(), sampling(&document.root()).unwrap());
        assert_eq!((found.top_k, found.min_p, found.repetition_penalty), (Some(40), Some(0.1), Some(1.1)));
        assert_eq!(n_predict(&body).unwrap(), Some(3));
        note_unknown(&body);
        let what = "this server does not know this field; it has no effect";
        let expected = ["typical_p", "min_tokens", "a\\u{7}b"].map(|name| format!("{name}: {what}"));
        assert_eq!(document.warnings(), expected);
        assert_eq!(with(json!({"n_predict": -1}), n_predict), Ok(None));
        assert!(with(json!({"n_predict": 0}), n_predict).is_err());
        assert_eq!(with(json!({"top_k": -1}), sampling).unwrap().top_k, Some(0));
        assert!(with(json!({"top_k": -2}), sampling).is_err() && with(json!({"min_p": 2}), sampling).is_err());
    }

    #[test]
    fn biases_are_a_map_of_tokens() {
        let read = |bias| with(json!({ "logit_bias": bias }), sampling).map(|sampling| sampling.logit_bias);
        assert_eq!(read(json!({"5": -100, "7": 2.5})), Ok(vec![(5, -100.0), (7, 2.5)]));
        assert_eq!(read(Value::Null), Ok(Vec::new()));
        assert_eq!(read(json!({"x": 1})).unwrap_err(), "logit_bias: 'x' is no token id");
        assert_eq!(read(json!({"-1": 1})).unwrap_err(), "logit_bias: '-1' is no token id");
        assert!(read(json!({"5": 101})).unwrap_err().starts_with("logit_bias.5: should be a number from -100 to 100"));
        assert!(read(json!([5])).unwrap_err().starts_with("logit_bias: should be an object"));
        let many: serde_json::Map<String, Value> = (0..=BIASES_MAX).map(|id| (id.to_string(), json!(1))).collect();
        assert_eq!(read(many.into()).unwrap_err(), "logit_bias: has 1025 entries, more than 1024");
    }

    #[test]
    fn stops_are_a_string_or_four() {
        let read = |stop| with(json!({ "stop": stop }), stops);
        assert_eq!(read(json!("a")), Ok(vec!["a".to_owned()]));
        assert_eq!(read(json!([])), Ok(Vec::new()));
        assert_eq!(read(json!(["a", "b", "c", "d"])).unwrap().len(), 4);
        assert_eq!(read(json!(["a", "b", "c", "d", "e"])).unwrap_err(), "stop: has 5 items, more than 4");
        assert_eq!(read(json!("")).unwrap_err(), "stop: should not be empty");
        assert_eq!(read(json!(["a", ""])).unwrap_err(), "stop.1: should not be empty");
        assert!(read(json!("a".repeat(STOP_BYTES_MAX))).is_ok());
        assert_eq!(read(json!("a".repeat(STOP_BYTES_MAX + 1))).unwrap_err(), "stop: has 1025 bytes, more than 1024");
        assert_eq!(read(json!(5)).unwrap_err(), "stop: should be a string or a list of strings, not 5");
    }

    #[test]
    fn only_streams_have_options() {
        let read = |body| with(body, streaming);
        assert_eq!(read(json!({})), Ok((false, false)));
        assert_eq!(read(json!({"stream": true, "stream_options": {"include_usage": true}})), Ok((true, true)));
        assert_eq!(read(json!({"stream": true, "stream_options": {}})), Ok((true, false)));
        assert_eq!(read(json!({"stream_options": null})), Ok((false, false)));
        let message = read(json!({"stream": false, "stream_options": {}})).unwrap_err();
        assert_eq!(message, "stream_options: is only allowed where 'stream' is true");
        assert!(read(json!({"stream": "yes"})).is_err());
        assert!(read(json!({"stream": true, "stream_options": {"include_usage": 1}})).is_err());
        assert!(read(json!({"stream": true, "stream_options": []})).is_err());
    }
}
