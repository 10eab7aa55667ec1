//! JSON that comes to an end: completed from anywhere, and without numbers that go on.

use pensieve_protocol::grammar::Grammar;
use serde_json::{Value, json};

use super::fixture::*;

#[test]
fn json_is_completed_from_wherever_it_stands() {
    let vocabulary = vocabulary(true);
    let compiler = compiler(&vocabulary);
    let node = json!({ "properties": { "label": { "type": "string" }, "nodes": { "type": "array", "items": { "$ref": "#" } } },
        "required": ["label", "nodes"] });
    let person = json!({ "properties": { "name": { "type": "string", "minLength": 2 }, "age": { "type": "integer" },
        "kind": { "enum": ["child", "adult"] }, "note": { "type": "string" } }, "required": ["name", "age", "kind"] });
    for (schema, begun) in [
        (&person, ""),
        (&person, r#"{"na"#),
        (&person, r#"{"name": "A"#),
        (&person, r#"{"name": "Ann\"#),
        (&person, r#"{"name": "Ann", "age": -"#),
        (&person, r#"{"name": "Ann", "age": 31, "kind": "a"#),
        (&person, r#"{"name": "Ann", "age": 31, "kind": "adult", "no"#),
        (&node, r#"{"label": "a", "nodes": [{"label": "b", "nodes": [{"label": "#),
        (&json!({ "type": "array", "minItems": 3, "items": { "type": "boolean" } }), "[tr"),
        (&json!({ "type": "object" }), r#"{"a": [1, {"b": "#),
    ] {
        let mut constraint = compiler.compile(&from_start(Grammar::json_schema(schema.to_string(), true))).unwrap();
        let shortest = constraint.shortest().unwrap().len();
        let letters: Vec<String> = begun.chars().map(String::from).collect();
        write(&vocabulary, &mut constraint, &letters.iter().map(String::as_str).collect::<Vec<_>>());
        let tokens = constraint.completion().unwrap();
        assert!(shortest > 0 && (!begun.is_empty() || tokens.len() == shortest));
        let text = format!("{begun}{}", vocabulary.text_of(&tokens));
        serde_json::from_str::<Value>(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        for token in tokens {
            assert!(allows(&mut constraint, token), "{text}");
            constraint.accept(token).unwrap();
        }
        assert!(constraint.is_complete(), "{text}");
    }
}

#[test]
fn only_a_json_answer_is_completed() {
    let vocabulary = vocabulary(true);
    let constraint = compiler(&vocabulary).compile(&from_start(Grammar::Regex("a+b".into()))).unwrap();
    assert_eq!((constraint.completion(), constraint.shortest()), (None, None));
}

#[test]
fn a_number_ends_and_a_text_of_digits_need_not() {
    let vocabulary = vocabulary(true);
    let compiler = compiler(&vocabulary);
    let seven = token(&vocabulary, "7");
    for (kind, begun, expect) in [("number", "", 24), ("integer", "", 24), ("string", "\"", 100)] {
        let spec = from_start(schema(&json!({ "type": "array", "items": { "type": kind } })));
        let mut constraint = compiler.compile(&spec).unwrap();
        write(&vocabulary, &mut constraint, &["["]);
        if !begun.is_empty() {
            write(&vocabulary, &mut constraint, &[begun]);
        }
        let written =
            (0..100).take_while(|_| allows(&mut constraint, seven) && constraint.accept(seven).is_ok()).count();
        assert_eq!(written, expect, "{kind}");
        if kind != "string" {
            write(&vocabulary, &mut constraint, &["]"]);
        }
    }
}

#[test]
fn a_schema_may_name_its_parts_by_anchors() {
    let vocabulary = vocabulary(true);
    let compiler = compiler(&vocabulary);
    let schema = json!({ "type": "object", "properties": { "kind": { "$ref": "#kind" } }, "required": ["kind"],
        "$defs": { "k": { "$anchor": "kind", "enum": ["only"] } } });
    let constraint = compiler.compile(&from_start(Grammar::json_schema(schema.to_string(), false))).unwrap();
    let text = vocabulary.text_of(&constraint.completion().unwrap());
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), json!({ "kind": "only" }), "{text}");
}
