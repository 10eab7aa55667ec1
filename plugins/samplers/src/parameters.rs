//! A stage's parameters: one JSON object, read key by key.
//!
//! The text comes from a request, so every value is checked and every error names the stage, the key, the value and
//! what is expected. A derived deserializer knows neither the stage nor the range, hence this small reader; it also
//! collects the known keys as they are read, so that they are written down only once.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use pensieve_sdk::{Error, Result};
use serde_json::{Map, Value, json};

/// Maximum number of tokens in a list.
const TOKENS_MAX: usize = 4096;

/// Maximum number of characters that an error quotes of a wrong value.
const QUOTE_MAX: usize = 60;

/// The parameters of one stage.
pub(crate) struct Parameters {
    stage: &'static str,
    given: Map<String, Value>,
    known: Vec<&'static str>,
    /// The same keys as a host shows them.
    described: Vec<Value>,
}

impl Parameters {
    /// Parses the object; empty text is an empty object.
    pub(crate) fn parse(stage: &'static str, text: &str) -> Result<Self> {
        let text = if text.trim().is_empty() { "{}" } else { text };
        let given = serde_json::from_str(text).map_err(|error| {
            Error::invalid(format!("{stage}: the parameters are not a JSON object: {error}"))
                .help("pass an object, such as {}")
        })?;
        Ok(Self { stage, given, known: Vec::new(), described: Vec::new() })
    }

    /// The parameters that a stage has read so far, which are all that it knows: names, types, defaults and ranges.
    pub(crate) fn description(self) -> Vec<Value> {
        self.described
    }

    /// A number within the range.
    pub(crate) fn number(&mut self, key: &'static str, default: f64, range: RangeInclusive<f64>) -> Result<f64> {
        self.describe(key, "number", &json!({ "default": default, "minimum": range.start(), "maximum": range.end() }));
        let Some(value) = self.take(key) else { return Ok(default) };
        match value.as_f64() {
            Some(number) if range.contains(&number) => Ok(number),
            _ => Err(self.wrong(key, &value, &format!("a number from {} to {}", range.start(), range.end()))),
        }
    }

    /// An integer within the range; accepts `40.0`, as some clients write all numbers that way.
    pub(crate) fn integer(&mut self, key: &'static str, default: i64, range: RangeInclusive<i64>) -> Result<i64> {
        self.describe(key, "integer", &json!({ "default": default, "minimum": range.start(), "maximum": range.end() }));
        let Some(value) = self.take(key) else { return Ok(default) };
        let whole = |number: f64| (number.fract() == 0.0 && number.abs() < 2e15).then_some(number as i64);
        match value.as_i64().or_else(|| value.as_f64().and_then(whole)) {
            Some(number) if range.contains(&number) => Ok(number),
            _ => Err(self.wrong(key, &value, &format!("an integer from {} to {}", range.start(), range.end()))),
        }
    }

    /// A list of token ids; empty if the key is absent.
    pub(crate) fn tokens(&mut self, key: &'static str, vocabulary: u32) -> Result<Vec<u32>> {
        self.describe(key, "tokens", &json!({}));
        let Some(value) = self.take(key) else { return Ok(Vec::new()) };
        let token = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|&id| id < vocabulary);
        let list = value.as_array().filter(|list| list.len() <= TOKENS_MAX);
        list.and_then(|list| list.iter().map(token).collect()).ok_or_else(|| {
            self.wrong(key, &value, &format!("a list of at most {TOKENS_MAX} token ids below {vocabulary}"))
        })
    }

    /// Numbers within the range by token id; empty if the key is absent.
    pub(crate) fn biases(
        &mut self,
        key: &'static str,
        vocabulary: u32,
        range: RangeInclusive<f64>,
    ) -> Result<HashMap<u32, f32>> {
        self.describe(key, "biases", &json!({ "minimum": range.start(), "maximum": range.end() }));
        let Some(value) = self.take(key) else { return Ok(HashMap::new()) };
        let bias = |(token, bias): (&String, &Value)| {
            let token = token.parse().ok().filter(|&id: &u32| id < vocabulary)?;
            Some((token, bias.as_f64().filter(|bias| range.contains(bias))? as f32))
        };
        let object = value.as_object().filter(|object| object.len() <= TOKENS_MAX);
        object.and_then(|object| object.iter().map(bias).collect()).ok_or_else(|| {
            let (low, high) = (range.start(), range.end());
            let wanted = format!(
                "an object of at most {TOKENS_MAX} numbers from {low} to {high} by token id below {vocabulary}"
            );
            self.wrong(key, &value, &wanted)
        })
    }

    /// Rejects keys that the stage does not know.
    pub(crate) fn finish(self) -> Result<()> {
        let Some((key, value)) = self.given.iter().next() else { return Ok(()) };
        let known = if self.known.is_empty() { "none".into() } else { self.known.join(", ") };
        let (key, value) = (quote(key), quote(&value.to_string()));
        Err(Error::invalid(format!("{}: unknown parameter '{key}' = {value}", self.stage))
            .help(format!("parameters of this stage: {known}")))
    }

    fn describe(&mut self, key: &'static str, kind: &str, more: &Value) {
        let mut described = json!({ "name": key, "type": kind });
        if let (Value::Object(described), Value::Object(more)) = (&mut described, more) {
            described.extend(more.clone());
        }
        self.described.push(described);
    }

    fn take(&mut self, key: &'static str) -> Option<Value> {
        self.known.push(key);
        self.given.remove(key)
    }

    fn wrong(&self, key: &str, value: &Value, wanted: &str) -> Error {
        let value = quote(&value.to_string());
        Error::invalid(format!("{}: parameter '{key}' = {value} is not {wanted}", self.stage))
    }
}

/// Quotes the start of a possibly long text.
fn quote(text: &str) -> String {
    let mut characters = text.chars();
    let mut quote: String = characters.by_ref().take(QUOTE_MAX).collect();
    if characters.next().is_some() {
        quote.push('…');
    }
    quote
}
