//! Mends the type of a value where the tool's schema leaves no doubt: `"5"` where only a number can be meant, `5` where only
//! a text can.

use serde_json::Value;

use crate::{answers::parsing::pieces::escape, formats::Types};

/// Writes a value that came in quotes, of which `inside` is in the form of a JSON string.
pub(super) fn of_text(inside: &[u8], types: Option<Types>, json: &mut Vec<u8>) {
    let text = [b"\"", inside, b"\""].concat();
    let inside = serde_json::from_slice::<String>(&text).unwrap_or_default();
    let meant = python(inside.trim());
    let fits = |value: Value| types.is_some_and(|types| types.has(Types::of_value(&value)));
    let is_meant = serde_json::from_str(meant).is_ok_and(fits);
    json.extend_from_slice(if is_meant { meant.as_bytes() } else { &text });
}

/// Writes a value that came without quotes.
pub(super) fn of_word(word: &[u8], types: Option<Types>, json: &mut Vec<u8>) {
    let is_text = types.is_some_and(|types| types == Types::TEXT);
    if is_known(word) && !is_text {
        json.extend_from_slice(python(std::str::from_utf8(word).unwrap_or_default()).as_bytes());
    } else {
        json.push(b'"');
        escape(word, json);
        json.push(b'"');
    }
}

/// True for a number or word of JSON or Python.
pub(super) fn is_known(word: &[u8]) -> bool {
    matches!(word, b"True" | b"False" | b"None")
        || serde_json::from_slice::<Value>(word).is_ok_and(|value| !value.is_string())
}

/// A word of Python in JSON.
fn python(word: &str) -> &str {
    match word {
        "True" => "true",
        "False" => "false",
        "None" => "null",
        other => other,
    }
}
