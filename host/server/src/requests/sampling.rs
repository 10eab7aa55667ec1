//! Sampling parameters of a request as a chain of sampler stages.
//!
//! The order is: `bias`, `penalties`, `dry`, `top_k`, `temperature`, `typical`, `top_p`, `min_p`, `xtc`, and a stage
//! that picks the token. (`top_k` has the same effect before and after `temperature`; before it, the other stages have
//! less to do.)
//!
//! A chain in the request is used as it is. Otherwise the chain from the model's configuration is the base, and each
//! field that the client sends replaces the stage of that name, or is inserted in order. Without a configured chain,
//! tokens are sampled at temperature 1 from those at least 0.05 times as likely as the best one (`min_p`), because the
//! long tail of a small or quantized model is noise; if the client sends `top_k`, `top_p` or `min_p`, only these apply.
//! Temperature 0 selects the most likely token, whatever the chain.

use serde_json::{Map, Value, json};

use crate::chat::SamplingParams;
use pensieve_protocol::job::StageSpec;

const ORDER: [&str; 12] = [
    "bias",
    "penalties",
    "dry",
    "top_k",
    "temperature",
    "typical",
    "top_p",
    "min_p",
    "xtc",
    "mirostat",
    "seeded",
    "greedy",
];
/// Default `min_p`, used if neither the client nor the configuration narrows the choice.
const MIN_P: f64 = 0.05;

/// Returns the chain for one request; `configured` is the model's own chain.
pub(super) fn stages(sampling: &SamplingParams, configured: Option<&[StageSpec]>) -> Vec<StageSpec> {
    if let Some(stages) = &sampling.stages {
        return stages.clone();
    }
    let given = given(sampling);
    if sampling.temperature.is_some_and(|temperature| temperature <= 0.0) {
        // An empty chain also selects the most likely token, without examining all the others.
        let mut chain: Vec<StageSpec> =
            given.into_iter().filter(|stage| matches!(stage.sampler.as_str(), "bias" | "penalties")).collect();
        if !chain.is_empty() {
            chain.push(stage("greedy", &Value::Null));
        }
        return chain;
    }
    let narrows = sampling.top_k.is_some() || sampling.top_p.is_some() || sampling.min_p.is_some();
    let mut chain = match configured {
        Some(stages) => stages.to_vec(),
        None if narrows => vec![stage("seeded", &Value::Null)],
        None => vec![stage("min_p", &json!({ "p": MIN_P })), stage("seeded", &Value::Null)],
    };
    for stage in given {
        match chain.iter_mut().find(|other| other.sampler == stage.sampler) {
            Some(other) => *other = stage,
            None => {
                let index = chain.iter().position(|other| rank(&other.sampler) > rank(&stage.sampler));
                chain.insert(index.unwrap_or(chain.len()), stage);
            }
        }
    }
    chain
}

/// Returns the stages for the client's values, in order.
fn given(sampling: &SamplingParams) -> Vec<StageSpec> {
    let mut stages = Vec::new();
    if !sampling.logit_bias.is_empty() {
        let biases: Map<String, Value> =
            sampling.logit_bias.iter().map(|(token, bias)| (token.to_string(), number(*bias))).collect();
        stages.push(stage("bias", &json!({ "biases": biases })));
    }
    let penalties = [
        ("repetition", sampling.repetition_penalty),
        ("presence", sampling.presence_penalty),
        ("frequency", sampling.frequency_penalty),
    ];
    let penalties: Map<String, Value> =
        penalties.into_iter().filter_map(|(name, value)| Some((name.to_owned(), number(value?)))).collect();
    let idle = |(name, value): (&String, &Value)| value.as_f64() == Some(if name == "repetition" { 1.0 } else { 0.0 });
    if !penalties.iter().all(idle) {
        stages.push(stage("penalties", &Value::Object(penalties)));
    }
    let single = [
        ("top_k", "k", sampling.top_k.map(Value::from)),
        ("temperature", "temperature", sampling.temperature.map(number)),
        ("top_p", "p", sampling.top_p.map(number)),
        ("min_p", "p", sampling.min_p.map(number)),
    ];
    for (name, key, value) in single {
        if let Some(value) = value {
            stages.push(stage(name, &json!({ key: value })));
        }
    }
    stages
}

fn stage(name: &str, parameters: &Value) -> StageSpec {
    let parameters = if parameters.is_null() { String::new() } else { parameters.to_string() };
    StageSpec { sampler: name.into(), parameters, ..StageSpec::default() }
}

/// A number as the client wrote it: 0.7, not 0.699999988.
fn number(value: f32) -> Value {
    value.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

/// A stage's rank in the order; stages of other plugins stay in place.
fn rank(name: &str) -> usize {
    ORDER.iter().position(|known| *known == name).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(sampling: &SamplingParams, configured: Option<&[(&str, &str)]>, expect: &[(&str, &str)]) {
        let specs = |stages: &[(&str, &str)]| -> Vec<StageSpec> {
            let stages = stages.iter();
            stages
                .map(|(name, text)| StageSpec {
                    sampler: (*name).into(),
                    parameters: (*text).into(),
                    ..StageSpec::default()
                })
                .collect()
        };
        let configured = configured.map(specs);
        assert_eq!(stages(sampling, configured.as_deref()), specs(expect), "{sampling:?}");
    }

    #[test]
    fn draws_from_the_likely_tokens_unless_told_otherwise() {
        check(&SamplingParams::default(), None, &[("min_p", r#"{"p":0.05}"#), ("seeded", "")]);
        let narrowed =
            SamplingParams { top_p: Some(0.9), temperature: Some(0.7), top_k: Some(40), ..SamplingParams::default() };
        let expect = [
            ("top_k", r#"{"k":40}"#),
            ("temperature", r#"{"temperature":0.7}"#),
            ("top_p", r#"{"p":0.9}"#),
            ("seeded", ""),
        ];
        check(&narrowed, None, &expect);
    }

    #[test]
    fn temperature_zero_takes_the_most_likely_token() {
        let zero = SamplingParams { temperature: Some(0.0), top_p: Some(0.5), ..SamplingParams::default() };
        check(&zero, Some(&[("mirostat", "")]), &[]);
        let zero = SamplingParams { frequency_penalty: Some(0.5), presence_penalty: Some(0.0), ..zero };
        check(&zero, None, &[("penalties", r#"{"presence":0.0,"frequency":0.5}"#), ("greedy", "")]);
        let zero = SamplingParams { logit_bias: vec![(7, -100.0)], frequency_penalty: Some(0.0), ..zero };
        check(&zero, None, &[("bias", r#"{"biases":{"7":-100.0}}"#), ("greedy", "")]);
    }

    #[test]
    fn a_clients_values_take_the_place_of_the_models() {
        let configured = [("dry", "{}"), ("temperature", r#"{"temperature":0.6}"#), ("mirostat", "{}")];
        check(&SamplingParams::default(), Some(&configured), &configured);
        check(&SamplingParams::default(), Some(&[]), &[]);
        let given = SamplingParams { temperature: Some(1.0), top_p: Some(0.5), ..SamplingParams::default() };
        let expect =
            [("dry", "{}"), ("temperature", r#"{"temperature":1.0}"#), ("top_p", r#"{"p":0.5}"#), ("mirostat", "{}")];
        check(&given, Some(&configured), &expect);
        let own = StageSpec { sampler: "mine".into(), ..StageSpec::default() };
        check(&SamplingParams { stages: Some(vec![own]), ..given }, Some(&configured), &[("mine", "")]);
    }
}
