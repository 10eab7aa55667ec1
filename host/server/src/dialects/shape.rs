//! What a body looks like, for the log: the names of its fields, their kinds and sizes. What people wrote is not in it: of
//! texts there is the length, and of the items of lists what kind they call themselves.

use std::fmt;

use serde_json::Value;

const FIELDS_MAX: usize = 48;
const ITEMS_MAX: usize = 16;
const WORD_LEN_MAX: usize = 40;

/// A body's shape: `model: text of 8, messages: list of 2 (system, user), stream: true`.
pub(super) struct Shape<'a>(pub(super) &'a Value);

impl fmt::Display for Shape<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Value::Object(fields) = self.0 else { return write!(f, "{}", Size(self.0)) };
        for (place, (name, value)) in fields.iter().take(FIELDS_MAX).enumerate() {
            let comma = if place > 0 { ", " } else { "" };
            write!(f, "{comma}{}: {}", word(name), Size(value))?;
            let kinds = value.as_array().map(|items| items.iter().take(ITEMS_MAX).filter_map(kind).collect::<Vec<_>>());
            if let Some(kinds) = kinds.filter(|kinds| !kinds.is_empty()) {
                write!(f, " ({})", kinds.join(", "))?;
            }
        }
        if fields.len() > FIELDS_MAX { write!(f, ", and {} more", fields.len() - FIELDS_MAX) } else { Ok(()) }
    }
}

struct Size<'a>(&'a Value);

impl fmt::Display for Size<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Value::Null => f.write_str("null"),
            Value::Bool(value) => write!(f, "{value}"),
            Value::Number(value) => write!(f, "{value}"),
            Value::String(text) => write!(f, "text of {}", text.len()),
            Value::Array(items) => write!(f, "list of {}", items.len()),
            Value::Object(fields) => write!(f, "object of {}", fields.len()),
        }
    }
}

/// What an item of a list calls itself: a message its role, a tool or a part its type.
fn kind(item: &Value) -> Option<&str> {
    ["role", "type"].iter().find_map(|name| item.get(name)?.as_str()).map(word)
}

/// A word of an API as it is; anything else may be what a person wrote.
fn word(text: &str) -> &str {
    let is_word = !text.is_empty()
        && text.len() <= WORD_LEN_MAX
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
    if is_word { text } else { "…" }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tells_names_kinds_and_sizes_and_nothing_that_was_written() {
        let body = json!({
            "model": "secret-1", "stream": true, "max_tokens": 5, "stop": null, "Dear Ada": {"a": 1},
            "messages": [{"role": "user", "content": "secret-2"}, {"role": "Secret 3!"}, "secret-4"],
            "tools": [{"type": "function", "function": {"name": "secret-5"}}],
        });
        let expect = "model: text of 8, stream: true, max_tokens: 5, stop: null, …: object of 1, \
                      messages: list of 3 (user, …), tools: list of 1 (function)";
        assert_eq!(Shape(&body).to_string(), expect);
    }

    #[test]
    fn is_bounded() {
        let fields = (0..100).map(|place| (format!("f{place}"), json!(vec![json!({"type": "text"}); 50])));
        let shape = Shape(&Value::Object(fields.collect())).to_string();
        assert!(shape.ends_with(", and 52 more") && shape.len() < 8_000, "{shape}");
    }
}
