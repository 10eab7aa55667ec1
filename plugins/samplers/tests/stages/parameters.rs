//! Parameters: defaults, and errors that say which stage, key, value and range.

use pensieve_sdk::Code;

use crate::chain::stage;

fn refusal(name: &str, parameters: &str) -> String {
    let Err(error) = stage(name, parameters, 1000, 0) else { panic!("{name} took {parameters}") };
    assert_eq!(error.code, Code::Invalid);
    error.to_string()
}

#[test]
fn every_stage_has_defaults() {
    let samplers = pensieve_samplers::samplers();
    assert_eq!(samplers.len(), 12);
    for sampler in samplers {
        for parameters in ["", "{}", " { } "] {
            assert!(sampler.create(parameters, 1000, 0).is_ok(), "{}", sampler.name());
        }
    }
}

#[test]
fn refuses_unknown_keys_and_names_the_known_ones() {
    assert_eq!(refusal("top_k", r#"{"kk": 3}"#), "top_k: unknown parameter 'kk' = 3; parameters of this stage: k");
    assert_eq!(
        refusal("greedy", r#"{"k": [1]}"#),
        "greedy: unknown parameter 'k' = [1]; parameters of this stage: none"
    );
    assert!(refusal("penalties", r#"{"repeat": 1.1}"#).ends_with("repetition, presence, frequency, window"));
}

#[test]
fn refuses_values_out_of_range_and_names_the_range() {
    assert_eq!(refusal("top_p", r#"{"p": 1.5}"#), "top_p: parameter 'p' = 1.5 is not a number from 0 to 1");
    assert_eq!(refusal("top_k", r#"{"k": -1}"#), "top_k: parameter 'k' = -1 is not an integer from 0 to 4294967295");
    let wrong = [
        ("top_k", r#"{"k": 1.5}"#),
        ("top_k", r#"{"k": 1e300}"#),
        ("top_k", r#"{"k": null}"#),
        ("top_k", r#"{"k": "40"}"#),
        ("min_p", r#"{"p": -0.1}"#),
        ("typical", r#"{"p": 2}"#),
        ("temperature", r#"{"temperature": -1}"#),
        ("temperature", r#"{"temperature": true}"#),
        ("penalties", r#"{"repetition": 0}"#),
        ("penalties", r#"{"presence": 2.1}"#),
        ("penalties", r#"{"frequency": -3}"#),
        ("penalties", r#"{"window": -2}"#),
        ("dry", r#"{"base": 0.5}"#),
        ("dry", r#"{"multiplier": -1}"#),
        ("dry", r#"{"allowed_length": 0}"#),
        ("dry", r#"{"sequence_breakers": [1000]}"#),
        ("dry", r#"{"sequence_breakers": ["\n"]}"#),
        ("dry", r#"{"sequence_breakers": 5}"#),
        ("bias", r#"{"biases": {"1000": 1}}"#),
        ("bias", r#"{"biases": {"-1": 1}}"#),
        ("bias", r#"{"biases": {"1": 101}}"#),
        ("bias", r#"{"biases": [1]}"#),
        ("xtc", r#"{"threshold": 1.1}"#),
        ("xtc", r#"{"probability": -1}"#),
        ("mirostat", r#"{"tau": -1}"#),
        ("mirostat", r#"{"eta": 11}"#),
    ];
    for (name, parameters) in wrong {
        let key = parameters.split('"').nth(1).unwrap();
        let message = refusal(name, parameters);
        assert!(message.starts_with(&format!("{name}: parameter '{key}' = ")), "{message}");
    }
}

#[test]
fn refuses_what_is_not_an_object() {
    for text in ["[]", "3", "null", "{", "{\"k\": 3} x", "{\"k\": 1e999}"] {
        assert!(refusal("top_k", text).starts_with("top_k: the parameters are not a JSON object: "));
    }
}

#[test]
fn quotes_no_more_than_the_beginning_of_a_long_value() {
    let long = "ä".repeat(10_000);
    assert!(refusal("top_k", &format!(r#"{{"k": "{long}"}}"#)).len() < 300);
    assert!(refusal("top_k", &format!(r#"{{"{long}": "{long}"}}"#)).len() < 500);
}

#[test]
fn takes_whole_numbers_written_as_floats() {
    assert!(stage("top_k", r#"{"k": 40.0}"#, 1000, 0).is_ok());
}
