//! Requests of the legacy `completions`: texts or tokens to continue, without a template.

use crate::{
    chat::{Input, Request, ResponseFormat},
    dialects::{ApiError, fields::Field, guided},
};

use super::options::{self, CHOICES_MAX};

const LOGPROBS_MAX: i64 = 5;
const PROMPTS_MAX: usize = 64;
/// Generations per request: prompts times choices.
const GENERATIONS_MAX: usize = 128;
/// More than any model's context; the model's own limit is checked later.
const TOKENS_MAX: usize = 1 << 20;
/// This API's default of `max_tokens`.
const MAX_TOKENS: u32 = 16;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct ParsedRequest {
    /// One request per prompt.
    pub(super) requests: Vec<Request>,
    /// Generations per prompt (`best_of`).
    pub(super) copies: usize,
    /// How many of them are returned, the most likely ones (`n`).
    pub(super) choices: usize,
    /// Number of alternatives per token.
    pub(super) logprobs: Option<u8>,
    pub(super) echo: bool,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
}

pub(super) fn read(body: &Field<'_>) -> Result<ParsedRequest, ApiError> {
    let model = options::model(body)?;
    let (stream, include_usage) = options::streaming(body)?;
    let suffix = body.get("suffix").string_or_empty()?;
    let echo = body.get("echo").flag(false)?;
    let logprobs = body.get("logprobs");
    // The range makes the cast exact.
    let shown = logprobs.optional(|count| count.integer(0..=LOGPROBS_MAX))?.map(|count| count as u8);
    if echo && shown.is_some() {
        return Err(logprobs.invalid("is not served together with 'echo', as prompts have no log-probabilities here"));
    }
    let choices = options::choices(body)?;
    let copies = copies(&body.get("best_of"), choices, stream)?;
    let inputs = prompts(&body.get("prompt"), echo)?;
    if inputs.len() * copies > GENERATIONS_MAX {
        let message = format!("{} prompts times {copies} choices are more than {GENERATIONS_MAX}", inputs.len());
        return Err(body.get("prompt").invalid(message));
    }
    let max_tokens = max_tokens(body)?;
    let inputs = if suffix.is_empty() { inputs } else { infills(&body.get("prompt"), inputs, suffix)? };
    let mut format = ResponseFormat::Free;
    guided::read(body, &mut format)?;
    let request = Request {
        model,
        format,
        max_tokens,
        sampling: options::sampling(body)?,
        stops: options::stops(body)?,
        // Also needed to rank the choices.
        logprobs: shown.or((copies > choices).then_some(0)),
        ..Request::default()
    };
    let requests = inputs.into_iter().map(|input| Request { input, ..request.clone() }).collect();
    Ok(ParsedRequest { requests, copies, choices, logprobs: shown, echo, stream, include_usage })
}

fn max_tokens(body: &Field<'_>) -> Result<Option<u32>, ApiError> {
    let limit = body.get("max_tokens").optional(|field| field.count(1))?.or(options::n_predict(body)?);
    let is_open = body.get("max_tokens").is_absent() && !body.get("n_predict").is_absent();
    Ok(if is_open { limit } else { limit.or(Some(MAX_TOKENS)) })
}

fn copies(best_of: &Field<'_>, choices: usize, stream: bool) -> Result<usize, ApiError> {
    let Some(field) = best_of.present() else { return Ok(choices) };
    let copies = field.integer(1..=CHOICES_MAX)? as usize;
    if copies < choices {
        return Err(field.invalid(format_args!("should not be less than 'n', which is {choices}")));
    }
    if copies > choices && stream {
        return Err(field.invalid("cannot be streamed: the best is known at the end"));
    }
    Ok(copies)
}

/// One or several prompts, each a string or a list of token ids.
fn prompts(field: &Field<'_>, echo: bool) -> Result<Vec<Input>, ApiError> {
    if field.is_string() {
        return Ok(vec![text(field)?]);
    }
    let first = field.json()?.get(0);
    if first.is_some_and(serde_json::Value::is_number) {
        return Ok(vec![tokens(field, echo)?]);
    }
    let items = field.items(PROMPTS_MAX)?;
    if items.len() == 0 {
        return Err(field.invalid("should have at least one prompt"));
    }
    items.map(|item| if item.is_string() { text(&item) } else { tokens(&item, echo) }).collect()
}

/// The prompts as what comes before the gap.
fn infills(field: &Field<'_>, inputs: Vec<Input>, suffix: &str) -> Result<Vec<Input>, ApiError> {
    let infill = |input| match input {
        Input::Text(prefix) => Ok(Input::Infill { prefix, suffix: suffix.to_owned() }),
        _ => Err(field.invalid("should be a text where there is a 'suffix'")),
    };
    inputs.into_iter().map(infill).collect()
}

fn text(field: &Field<'_>) -> Result<Input, ApiError> {
    Ok(Input::Text(field.string()?.to_owned()))
}

fn tokens(field: &Field<'_>, echo: bool) -> Result<Input, ApiError> {
    let mut items = field.items(TOKENS_MAX)?;
    if items.len() == 0 {
        return Err(field.invalid("should have at least one token"));
    }
    if echo {
        return Err(field.invalid("tokens are not repeated by 'echo'; send a text"));
    }
    let values = field.json()?.as_array().map(Vec::as_slice).unwrap_or_default();
    let mut ids = Vec::with_capacity(values.len());
    for (place, value) in values.iter().enumerate() {
        let Some(id) = value.as_u64().and_then(|id| u32::try_from(id).ok()) else {
            // Paths are built only for the item at fault.
            let item = items.nth(place);
            return Err(item.unwrap_or_else(|| field.clone()).should_be("a token id"));
        };
        ids.push(id);
    }
    Ok(Input::Tokens(ids))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn asked(more: Value) -> Result<ParsedRequest, String> {
        let mut body = json!({"model": "m", "prompt": "hi"});
        for (name, value) in more.as_object().unwrap() {
            body[name] = value.clone();
        }
        read(&Field::root(&body)).map_err(|problem| problem.message)
    }

    fn inputs(prompt: Value) -> Vec<Input> {
        asked(json!({ "prompt": prompt })).unwrap().requests.into_iter().map(|request| request.input).collect()
    }

    fn refuses(more: Value, expect: &str) {
        assert_eq!(asked(more).unwrap_err(), expect);
    }

    #[test]
    fn a_suffix_makes_a_gap_of_the_answer() {
        let gap = |prefix: &str| Input::Infill { prefix: prefix.into(), suffix: "S".into() };
        let found = asked(json!({"suffix": "S", "prompt": ["a", "b"]})).unwrap().requests;
        assert_eq!(found.into_iter().map(|request| request.input).collect::<Vec<_>>(), [gap("a"), gap("b")]);
        assert_eq!(asked(json!({"suffix": ""})), asked(json!({})));
    }

    #[test]
    fn prompts_are_texts_or_tokens() {
        let text = |text: &str| Input::Text(text.into());
        assert_eq!(inputs(json!("")), [text("")]);
        assert_eq!(inputs(json!(["a", "b"])), [text("a"), text("b")]);
        assert_eq!(inputs(json!([1, 2])), [Input::Tokens(vec![1, 2])]);
        assert_eq!(inputs(json!([[1], [2, 3]])), [Input::Tokens(vec![1]), Input::Tokens(vec![2, 3])]);
        assert_eq!(inputs(json!(vec!["a"; 64])).len(), 64);

        let refuses = |prompt: Value, expect: &str| refuses(json!({ "prompt": prompt }), expect);
        refuses(Value::Null, "prompt: this field is required");
        refuses(json!(5), "prompt: should be a list, not 5");
        refuses(json!({}), "prompt: should be a list, not an object");
        refuses(json!([]), "prompt: should have at least one prompt");
        refuses(json!([[]]), "prompt.0: should have at least one token");
        refuses(json!([1, -1]), "prompt.1: should be a token id, not -1");
        refuses(json!([1, "a"]), "prompt.1: should be a token id, not a string");
        refuses(json!(["a", 1]), "prompt.1: should be a list, not 1");
        refuses(json!([true]), "prompt.0: should be a list, not true");
        refuses(json!(vec!["a"; 65]), "prompt: has 65 items, more than 64");
    }

    #[test]
    fn the_api_has_defaults_of_its_own() {
        let found = asked(json!({})).unwrap();
        assert_eq!(found.requests[0].max_tokens, Some(16));
        assert_eq!((found.copies, found.choices, found.logprobs, found.echo), (1, 1, None, false));
        assert!(!found.stream && !found.include_usage);
        assert_eq!(asked(json!({"max_tokens": 7})).unwrap().requests[0].max_tokens, Some(7));
        refuses(json!({"max_tokens": 0}), "max_tokens: should be an integer of at least 1, not 0");
    }

    #[test]
    fn the_best_are_chosen_at_the_end() {
        let found = asked(json!({"n": 2, "best_of": 3})).unwrap();
        assert_eq!((found.copies, found.choices, found.logprobs), (3, 2, None));
        assert_eq!(found.requests[0].logprobs, Some(0));
        let found = asked(json!({"n": 2, "best_of": 2, "stream": true})).unwrap();
        assert_eq!((found.copies, found.choices, found.requests[0].logprobs), (2, 2, None));
        refuses(json!({"n": 3, "best_of": 2}), "best_of: should not be less than 'n', which is 3");
        refuses(json!({"best_of": 9}), "best_of: should be an integer from 1 to 8, not 9");
        refuses(json!({"best_of": 0}), "best_of: should be an integer from 1 to 8, not 0");
        refuses(json!({"best_of": 2, "stream": true}), "best_of: cannot be streamed: the best is known at the end");
    }

    #[test]
    fn limits_count_prompts_and_choices() {
        assert!(asked(json!({"prompt": vec!["a"; 16], "n": 8})).is_ok());
        refuses(json!({"prompt": vec!["a"; 17], "n": 8}), "prompt: 17 prompts times 8 choices are more than 128");
    }

    #[test]
    fn what_is_not_served_is_said() {
        refuses(json!({"suffix": "x", "prompt": [1]}), "prompt: should be a text where there is a 'suffix'");
        refuses(json!({"suffix": 1}), "suffix: should be a string, not 1");
        refuses(
            json!({"echo": true, "logprobs": 0}),
            "logprobs: is not served together with 'echo', as prompts have no log-probabilities here",
        );
        refuses(json!({"echo": true, "prompt": [1]}), "prompt: tokens are not repeated by 'echo'; send a text");
        refuses(json!({"logprobs": 6}), "logprobs: should be an integer from 0 to 5, not 6");
        refuses(json!({"logprobs": true}), "logprobs: should be an integer from 0 to 5, not true");
        assert_eq!(asked(json!({"logprobs": 5})).unwrap().requests[0].logprobs, Some(5));
    }
}
