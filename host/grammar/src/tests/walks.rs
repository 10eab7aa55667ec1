//! Whatever token is picked under a mask, the text matches the grammar.

use serde_json::{Value, json};

use super::{fixture::*, validator::is_valid};
use crate::GrammarError;
use pensieve_protocol::grammar::{Grammar, Marker, Rule, Spec, Then, Trigger};

const WALKS: u64 = 60;

fn schemas() -> Vec<Value> {
    vec![
        json!({ "type": "object", "additionalProperties": false, "required": ["name", "arguments"], "properties": {
            "name": { "const": "get_weather" },
            "arguments": { "type": "object", "additionalProperties": false, "required": ["city"], "properties": {
                "city": { "type": "string", "maxLength": 12 },
                "unit": { "enum": ["c", "f", null, 7] },
                "days": { "type": "integer", "minimum": 1, "maximum": 14 },
            } },
        } }),
        json!({ "type": "array", "minItems": 1, "maxItems": 4, "items": { "anyOf": [
            { "type": "number", "minimum": -5, "maximum": 2.5 }, { "type": "boolean" },
            { "type": "string", "minLength": 2, "maxLength": 3 },
        ] } }),
        json!({ "$ref": "#/$defs/tree", "$defs": { "tree": { "type": "object", "additionalProperties": false, "properties": {
            "value": { "type": ["integer", "null"] },
            "left": { "$ref": "#/$defs/tree" }, "right": { "$ref": "#/$defs/tree" },
        }, "required": ["value"] } } }),
        json!({ "type": "object", "properties": { "note": { "type": "string" } }, "additionalProperties": { "type": "boolean" } }),
        json!({ "allOf": [{ "type": "integer", "minimum": 0, "maximum": 5000 }, { "multipleOf": 12 }] }),
        json!({ "type": "object" }),
        json!(true),
    ]
}

#[test]
fn json_written_at_random_fits_its_schema() {
    for byte_level in [true, false] {
        let vocabulary = vocabulary(byte_level);
        let compiler = compiler(&vocabulary);
        let mut random = fastrand::Rng::with_seed(11);
        for schema in schemas() {
            let constraint = compiler.compile(&from_start(Grammar::json_schema(schema.to_string(), false))).unwrap();
            let mut seen = std::collections::HashSet::new();
            for _ in 0..WALKS {
                let text = String::from_utf8(babble(&vocabulary, constraint.clone(), &mut random)).unwrap();
                match serde_json::from_str(&text) {
                    Ok(value) => assert!(is_valid(&schema, &schema, &value), "{text} does not fit {schema}"),
                    // A number with a long exponent is valid JSON, but not every parser takes it.
                    Err(error) => assert!(error.to_string().contains("number out of range"), "{error}: {text}"),
                }
                seen.insert(text);
            }
            assert!(seen.len() > 20, "the walks hardly differ under {schema}");
        }
    }
}

#[test]
fn a_regex_is_matched_as_a_whole() {
    for byte_level in [true, false] {
        let vocabulary = vocabulary(byte_level);
        let compiler = compiler(&vocabulary);
        let mut random = fastrand::Rng::with_seed(12);
        let constraint = compiler.compile(&from_start(Grammar::Regex(r"[a-c]{2,5}/é{1,3}(12)*".to_owned()))).unwrap();
        for _ in 0..WALKS {
            let text = String::from_utf8(babble(&vocabulary, constraint.clone(), &mut random)).unwrap();
            let (letters, rest) = text.split_once('/').unwrap();
            assert!(
                (2..=5).contains(&letters.len()) && letters.chars().all(|char| ('a'..='c').contains(&char)),
                "{text}"
            );
            let twelves = rest.trim_start_matches('é');
            assert!((1..=3).contains(&(rest.chars().count() - twelves.len())), "{text}");
            assert!(twelves.replace("12", "").is_empty(), "{text}");
        }
    }
}

#[test]
fn a_lark_grammar_nests() {
    let vocabulary = vocabulary(true);
    let compiler = compiler(&vocabulary);
    let mut random = fastrand::Rng::with_seed(13);
    let lark = "start: list\nlist: \"[\" (item (\",\" item)*)? \"]\"\nitem: list | /[0-9]{1,3}/\n";
    let constraint = compiler.compile(&from_start(Grammar::Lark(lark.to_owned()))).unwrap();
    for _ in 0..WALKS {
        let text = String::from_utf8(babble(&vocabulary, constraint.clone(), &mut random)).unwrap();
        let mut depth = 0i32;
        for char in text.chars() {
            assert!("[],0123456789".contains(char), "{text}");
            depth += i32::from(char == '[') - i32::from(char == ']');
            assert!(depth >= 0, "{text}");
        }
        assert_eq!(depth, 0, "{text}");
    }
}

#[test]
fn special_tokens_come_through_where_lark_names_them_and_nowhere_else() {
    let vocabulary = vocabulary(true);
    let compiler = compiler(&vocabulary);
    let lark = |text: &str| Grammar::Lark(text.to_owned());
    let regex = |text: &str| Grammar::Regex(text.to_owned());
    let mut compiled = 0;
    for grammar in [
        regex("(?s:.)*"),
        regex("(?s-u:.)*"),
        regex(r"(\xff|a).*"),
        regex("[^b]*"),
        lark(r#"start: ("a" | "\xff") /(?s:.)*/"#),
        lark(r#"start: ("a" | "ÿ") /(?s:.)*/"#),
        lark("%llguidance {\"allow_invalid_utf8\": true}\nstart: /(?s-u:.)*/"),
        lark("%llguidance {\"allow_invalid_\\u0075tf8\": true}\nstart: /(?s-u:.)*/"),
    ] {
        let Ok(mut constraint) = compiler.compile(&from_start(grammar.clone())) else { continue };
        compiled += 1;
        for _ in 0..2 {
            assert!(allows(&mut constraint, token(&vocabulary, "a")), "{grammar:?}");
            assert!(!allows(&mut constraint, SPECIAL) && !allows(&mut constraint, PADDING), "{grammar:?}");
            assert!(constraint.clone().accept(SPECIAL).is_err(), "{grammar:?}");
            constraint.accept(token(&vocabulary, "a")).unwrap();
        }
    }
    assert!(compiled >= 3);
    let mut named = compiler.compile(&from_start(Grammar::Lark(format!("start: <[{SPECIAL}]> \"ab\"")))).unwrap();
    assert!(!allows(&mut named, token(&vocabulary, "a")) && !allows(&mut named, token(&vocabulary, "[")));
    write(&vocabulary, &mut named, &["[TOOL]", "a", "b"]);
    assert!(named.is_complete());
}

#[test]
fn the_end_of_the_turn_waits_for_the_end_of_the_text() {
    let vocabulary = vocabulary(true);
    let mut constraint = compiler(&vocabulary).compile(&from_start(Grammar::Regex("[ab]+c?".to_owned()))).unwrap();
    assert!(!allows(&mut constraint, END));
    assert!(constraint.clone().accept(END).is_err());
    write(&vocabulary, &mut constraint, &["a"]);
    assert!(allows(&mut constraint, END));
    let mut ended = constraint.clone();
    ended.accept(END).unwrap();
    assert!(ended.is_complete() && ended.mask().is_err());
    write(&vocabulary, &mut constraint, &["b", "c"]);
    assert!(constraint.is_complete(), "nothing may follow, so the end of the turn need not be generated");
}

#[test]
fn white_space_in_json_is_allowed_and_bounded() {
    let vocabulary = vocabulary(true);
    let mut constraint = compiler(&vocabulary).compile(&from_start(Grammar::any_json_object())).unwrap();
    // In front of it stands none: a model that would rather write something else makes it longer and longer.
    assert!(["\n", " "].iter().all(|space| !allows(&mut constraint, token(&vocabulary, space))));
    write(&vocabulary, &mut constraint, &["{", "\n", " ", " ", "\"", "a", "\"", " ", ":", " ", "1", "\n"]);
    let space = token(&vocabulary, " ");
    let spaces = (0..200).take_while(|_| allows(&mut constraint, space) && constraint.accept(space).is_ok()).count();
    assert!((16..100).contains(&spaces), "{spaces} spaces in a row");
    write(&vocabulary, &mut constraint, &["}"]);
    assert!(constraint.is_complete());
}

#[test]
fn a_grammar_is_framed_by_markers() {
    let vocabulary = vocabulary(true);
    let rule = Rule {
        field: String::new(),
        trigger: Trigger::Start,
        open: Some(Marker::Token(SPECIAL)),
        grammar: schema(&json!({ "type": "integer" })),
        close: Some(Marker::Text("</tool_call>".to_owned())),
        then: Then::Stop,
    };
    let spec = Spec { reasoning: None, rules: vec![rule] };
    let mut constraint = compiler(&vocabulary).compile(&spec).unwrap();
    assert!(!allows(&mut constraint, token(&vocabulary, "1")));
    write(&vocabulary, &mut constraint, &["[TOOL]", " ", "12", "\n"]);
    assert!(!allows(&mut constraint, END));
    write(&vocabulary, &mut constraint, &["</", "t"]);
    write(&vocabulary, &mut constraint, &["o", "o", "l", "_call>"]);
    assert!(constraint.is_complete());
}

#[test]
fn says_which_schemas_cannot_be_expressed_and_passes_over_what_it_may() {
    let vocabulary = vocabulary(true);
    let compiler = compiler(&vocabulary);
    let compile = |value: &Value, lenient| {
        compiler.compile(&from_start(Grammar::json_schema(value.to_string(), lenient))).map(|_| ())
    };
    let hard = [
        json!({ "type": "object", "not": {} }),
        json!({ "type": "array", "uniqueItems": true, "items": { "type": "integer" } }),
        json!({ "type": "string", "format": "telepathy" }),
        json!({ "oneOf": [{ "type": "integer" }, { "type": "number" }] }),
        json!({ "type": "integer", "multipleOf": 99_999_989 }),
    ];
    for value in hard {
        let error = compile(&value, false).unwrap_err();
        assert!(matches!(error, GrammarError::Unsupported(_)), "{value}: {error:?}");
        assert!(error.is_of_the_grammar());
        assert_eq!(compile(&value, true), Ok(()), "{value}");
    }
    assert!(matches!(compile(&json!({ "type": 7 }), true), Err(GrammarError::Invalid(_))));
    assert!(matches!(compile(&json!({ "$ref": "https://example.org/x" }), true), Err(GrammarError::Unsupported(_))));
    assert!(matches!(compile(&json!(false), true), Err(GrammarError::Invalid(_))));
}

#[test]
fn a_specs_json_reads_back() {
    let text = r#"{"reasoning":{"begin":null,"end":{"text":"</think>"}},"rules":[{"trigger":{"after":{"token":7}},"grammar":{"json_schema":{"schema":"{}","lenient":true}},"then":"resume"}]}"#;
    let spec: Spec = serde_json::from_str(text).unwrap();
    assert_eq!(spec.rules[0].grammar, Grammar::json_schema("{}", true));
    assert_eq!(serde_json::from_str::<Spec>(&serde_json::to_string(&spec).unwrap()).unwrap(), spec);
}
