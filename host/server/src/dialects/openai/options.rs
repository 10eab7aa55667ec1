//! Fields of both endpoints, checked before anything is rendered or queued. Fields of the API that have no use here
//! (`user`, `metadata`, `store`, `service_tier` and more) are accepted and ignored.

use crate::{
    chat::SamplingParams,
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
        presence_penalty: number("presence_penalty", -2.0..=2.0)?,
        frequency_penalty: number("frequency_penalty", -2.0..=2.0)?,
        logit_bias: logit_bias(&body.get("logit_bias"))?,
        seed: body.get("seed").optional(extensions::seed)?,
        ..SamplingParams::default()
    })
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
        assert!(read(json!(5)).unwrap_err().starts_with("stop: should be a list"));
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
