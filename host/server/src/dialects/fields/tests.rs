//! Reading of fields, and the errors for invalid ones.

#![allow(clippy::unwrap_used)]

use serde_json::json;

use super::{super::ApiError, Document, Field, Notes, notes::NOTE_LEN_MAX};

fn error_of<T>(result: Result<T, ApiError>) -> String {
    result.err().unwrap().message
}

#[test]
fn an_error_names_the_path() {
    let value = json!({"messages": [{"content": [1, {"text": 5}]}]});
    let root = Field::root(&value);
    let message = root.get("messages").items(9).unwrap().next().unwrap();
    let block = message.get("content").items(9).unwrap().nth(1).unwrap();
    let error = block.get("text").string().unwrap_err();
    assert_eq!(error.message, "messages.0.content.1.text: should be a string, not 5");
    assert_eq!(error.field.as_deref(), Some("messages.0.content.1.text"));
    assert_eq!(error_of(block.get("name").string()), "messages.0.content.1.name: this field is required");
    assert_eq!(error_of(root.get("messages").items(0).map(drop)), "messages: has 1 items, more than 0");
    assert_eq!(error_of(root.get("messages").get("x").string()), "messages.x: this field is required");
    assert_eq!(error_of(root.get("messages").object()), "messages: should be an object, not a list");
}

#[test]
fn arbitrary_names_are_cut_in_errors() {
    let value = json!({ "a".repeat(100_000): 1 });
    let (_, entry) = Field::root(&value).entries().unwrap().next().unwrap();
    assert!(entry.invalid("no").to_string().len() < 200);
    let document = Document::of(&value);
    let (_, entry) = document.root().entries().unwrap().next().unwrap();
    assert!(entry.invalid("no").to_string().len() < 200);
}

#[test]
fn notes_are_cut_and_escaped() {
    let document = Document::of(&json!({ "type": "x" }));
    let field = document.root();
    field.get("type").note(format_args!("unlike '{}\u{1b}[2J'", "ü".repeat(500_000)));
    field.get("type").note("\u{1b}]0;x\u{202e}");
    let list = document.warnings();
    assert!(list[0].starts_with("type: unlike 'üü") && list[0].chars().count() == NOTE_LEN_MAX + 1, "{list:?}");
    assert_eq!(list[1], "type: \\u{1b}]0;x\\u{202e}");
}

#[test]
fn null_is_absent() {
    let value = json!({"a": null, "b": [null]});
    let root = Field::root(&value);
    assert!(root.get("a").is_absent());
    assert!(root.get("a").present().is_none());
    assert!(root.get("b").items(1).unwrap().next().unwrap().is_absent());
    assert_eq!(error_of(root.get("a").boolean()), "a: this field is required");
}

#[test]
fn numbers_are_checked_against_their_range() {
    let value = json!({
        "ten": 10, "minus": -1, "half": 0.5, "float": 4.0, "large": 1e300, "word": "1", "most": u64::MAX, "tiny": 1e-300,
    });
    let root = Field::root(&value);
    assert_eq!(root.get("ten").integer(0..=10), Ok(10));
    assert_eq!(root.get("float").integer(0..=10), Ok(4));
    for (name, shown) in
        [("minus", "-1"), ("half", "0.5"), ("large", "1e+300"), ("word", "a string"), ("most", "18446744073709551615")]
    {
        let expected = format!("{name}: should be an integer from 0 to 9, not {shown}");
        assert_eq!(error_of(root.get(name).integer(0..=9)), expected);
    }
    assert_eq!(error_of(root.get("ten").integer(0..=9)), "ten: should be an integer from 0 to 9, not 10");
    assert_eq!(root.get("most").count(1), Ok(u32::MAX));
    assert_eq!(root.get("large").count(1), Ok(u32::MAX));
    assert_eq!(error_of(root.get("minus").count(1)), "minus: should be an integer of at least 1, not -1");
    assert_eq!(error_of(root.get("half").count(0)), "half: should be an integer of at least 0, not 0.5");
    assert_eq!(root.get("half").number(0.0..=1.0), Ok(0.5));
    assert_eq!(root.get("tiny").number(0.0..=1.0), Ok(0.0));
    assert_eq!(error_of(root.get("large").number(0.0..=1.0)), "large: should be a number from 0 to 1, not 1e+300");
    assert_eq!(error_of(root.get("word").number(-2.0..=2.0)), "word: should be a number from -2 to 2, not a string");
}

#[test]
fn strings_and_choices_are_checked() {
    let value = json!({"empty": "", "long": "xxxx", "word": "no\nway", "odd": "é".repeat(100)});
    let root = Field::root(&value);
    assert_eq!(error_of(root.get("empty").text(3)), "empty: should not be empty");
    assert_eq!(error_of(root.get("long").text(3)), "long: has 4 bytes, more than 3");
    assert_eq!(error_of(root.get("word").choice(&["a", "b"])), "word: should be one of 'a', 'b', not 'no\\nway'");
    assert_eq!(root.get("long").choice(&["x", "xxxx"]), Ok(1));
    let cut = format!("odd: should be one of 'a', not '{}…'", "é".repeat(60));
    assert_eq!(error_of(root.get("odd").choice(&["a"])), cut);
}

#[test]
fn a_body_must_be_a_json_object() {
    let document = |body: &[u8]| Document::unlimited(body, Notes::default());
    let check = |body: &[u8], expected: &str| {
        let message = error_of(document(body));
        assert!(message.starts_with(expected), "{message}");
    };
    check(b"", "the body is not JSON: EOF");
    check(b"[]", "the body should be a JSON object, not a list");
    check(b"{\"a\":\"\xff\"}", "the body is not UTF-8: byte 6 is not part of a character");
    check(b"{\"a\":NaN}", "the body is not JSON: ");
    let body = format!("{{\"a\":1e999,\"b\":{}{},\"c\":[1]}}", "[".repeat(200), "]".repeat(200));
    let document = document(body.as_bytes()).unwrap();
    let root = document.root();
    assert!(error_of(root.get("a").string()).starts_with("a: is not JSON: number out of range"));
    for read in [root.get("b").items(9).map(drop), root.get("b").get("x").string().map(drop)] {
        assert!(error_of(read).starts_with("b: is not JSON: recursion limit exceeded"));
    }
    assert!(error_of(root.get("a").texts(1, 1)).starts_with("a: is not JSON"));
    assert!(!root.get("a").is_absent() && error_of(root.get("a").flag(true)).starts_with("a: is not JSON"));
    assert_eq!(root.get("c").items(1).unwrap().len(), 1);
    assert_eq!(root.entries().unwrap().map(|(name, _)| name).collect::<Vec<_>>(), ["a", "b", "c"]);
}
