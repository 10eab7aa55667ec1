//! JSON that comes to an end: completed from anywhere, and without numbers that go on.

use pensieve_protocol::grammar::{Grammar, Part};
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

#[test]
fn a_list_leaves_room_for_what_has_to_follow_it() {
    let vocabulary = vocabulary(true);
    let compiler = compiler(&vocabulary);
    let list = json!({ "type": "array", "items": { "type": "integer" } });
    let followed =
        json!({ "properties": { "list": list, "more": { "type": "boolean" } }, "required": ["list", "more"] });
    let last = json!({ "properties": { "list": list, "more": { "type": "boolean" } }, "required": ["list"] });
    let seven = token(&vocabulary, "7");
    let comma = token(&vocabulary, ",");
    for (schema, room, expect) in [(&followed, 800, 256_u32), (&followed, 1600, 400), (&last, 800, 1000)] {
        let spec = from_start(Grammar::json_schema(schema.to_string(), false));
        let mut constraint = compiler.compile(&spec).unwrap().within(room);
        let begun: Vec<String> = r#"{"list": ["#.chars().map(String::from).collect();
        write(&vocabulary, &mut constraint, &begun.iter().map(String::as_str).collect::<Vec<_>>());
        let mut items = 0_u32;
        while items < 1000 {
            assert!(allows(&mut constraint, seven), "{items}");
            constraint.accept(seven).unwrap();
            items += 1;
            if !allows(&mut constraint, comma) {
                break;
            }
            constraint.accept(comma).unwrap();
        }
        assert!(items.abs_diff(expect) <= 8, "{items} items in {room} tokens: {schema}");
        let rest = vocabulary.text_of(&constraint.completion().unwrap());
        let follows = rest.contains("more");
        assert_eq!((follows, rest.starts_with(']')), (*schema == followed, *schema == followed), "{rest}");
    }
}

#[test]
fn an_answer_beside_calls_is_completed_and_a_call_is_not() {
    let vocabulary = vocabulary(true);
    let compiler = compiler(&vocabulary);
    let schema = json!({ "properties": { "name": { "type": "string" } }, "required": ["name"] });
    let mut part = Part::new("format", Grammar::json_schema(schema.to_string(), true));
    part.is_answer = true;
    let frame = "start: SPACE @part0 | calls\ncalls: SPACE call\ncall: \"<tool_call>\" @part0 \"</tool_call>\"\nSPACE: /[ \\n]{0,8}/\n";
    let spec = from_start(Grammar::Framed { frame: frame.to_owned(), parts: vec![part] });
    let at = |begun: &[&str]| {
        let mut constraint = compiler.compile(&spec).unwrap();
        write(&vocabulary, &mut constraint, begun);
        (constraint.completion().map(|tokens| vocabulary.text_of(&tokens)), constraint.in_text())
    };
    assert_eq!(at(&["{\"", "n", "a"]), (Some("me\":\"\"}".to_owned()), true));
    assert_eq!(at(&["\n", "{\"", "n", "a", "m", "e", "\": \""]).0, Some("\"}".to_owned()));
    assert_eq!(at(&["<tool", "_call>", "{\"", "n", "a"]), (None, false));
    assert_eq!(at(&[]), (None, false));
    let shortest = compiler.compile(&spec).unwrap().shortest();
    assert_eq!(shortest.map(|tokens| vocabulary.text_of(&tokens)).as_deref(), Some("{\"name\":\"\"}"));
}

#[test]
fn numbers_within_bounds_are_completed() {
    let vocabulary = vocabulary(true);
    let compiler = compiler(&vocabulary);
    for number in [
        json!({ "type": "integer", "minimum": 1 }),
        json!({ "type": "integer", "minimum": 1900 }),
        json!({ "type": "integer", "maximum": -5 }),
        json!({ "type": "number", "exclusiveMinimum": 0 }),
        json!({ "type": "number", "minimum": 0.25, "maximum": 0.5 }),
        json!({ "type": "integer", "minimum": 1, "multipleOf": 7 }),
    ] {
        let record = json!({ "type": "object", "properties": { "id": number, "more": number }, "required": ["id"] });
        let schema = json!({ "type": "object", "properties": { "rows": { "type": "array", "items": record } }, "required": ["rows"] });
        let constraint = compiler.compile(&from_start(Grammar::json_schema(schema.to_string(), true))).unwrap();
        let filled = constraint.filled().unwrap_or_else(|| panic!("{number}"));
        let filled: Value = serde_json::from_str(&vocabulary.text_of(&filled)).unwrap();
        assert!(filled["rows"][0]["id"].is_number(), "{number}: {filled}");
        assert!(constraint.shortest().is_some_and(|tokens| tokens.len() < 20), "{number}");
    }
}

#[test]
fn a_search_that_leads_nowhere_ends() {
    let vocabulary = vocabulary(true);
    let compiler = compiler(&vocabulary);
    let text = json!({ "type": "string", "minLength": 9000 });
    let schema = json!({ "type": "object", "properties": { "text": text }, "required": ["text"] });
    let constraint = compiler.compile(&from_start(Grammar::json_schema(schema.to_string(), true))).unwrap();
    assert_eq!(constraint.shortest(), None);
}

#[test]
fn a_filled_answer_has_an_item_in_each_list() {
    let vocabulary = vocabulary(true);
    let compiler = compiler(&vocabulary);
    let record =
        json!({ "properties": { "a": { "type": "string" }, "b": { "type": "integer" } }, "required": ["a", "b"] });
    let lists = json!({ "properties": { "rows": { "type": "array", "items": record }, "ok": { "type": "boolean" } },
        "required": ["rows", "ok"] });
    let endless =
        json!({ "properties": { "nodes": { "type": "array", "items": { "$ref": "#" } } }, "required": ["nodes"] });
    let filled = |schema: &Value| {
        let constraint = compiler.compile(&from_start(Grammar::json_schema(schema.to_string(), true))).unwrap();
        constraint.filled().map(|tokens| serde_json::from_str::<Value>(&vocabulary.text_of(&tokens)).unwrap())
    };
    assert_eq!(filled(&lists).unwrap()["rows"].as_array().unwrap().len(), 1);
    assert_eq!(filled(&json!({ "type": "array", "items": record })).unwrap().as_array().unwrap().len(), 1);
    assert_eq!(filled(&endless), None, "it would never end");
}
