//! Describes the structure of a body for the log: names, types and sizes of its fields. It contains no content: for
//! strings only their length, and for list items only their role or type.

use std::fmt;

use serde::{
    Deserialize,
    de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use serde_json::value::RawValue;

use super::fields::Members;

const FIELDS_MAX: usize = 48;
const ITEMS_MAX: usize = 16;
const WORD_LEN_MAX: usize = 40;

/// A body's shape: `model: text of 8, messages: list of 2 (system, user), stream: true`.
pub(super) struct Shape<'a>(pub(super) &'a Members);

impl fmt::Display for Shape<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, text)) in self.0.iter().take(FIELDS_MAX).enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            write!(f, "{comma}{}: ", word(name))?;
            match serde_json::from_str::<Outline>(text) {
                Ok(Outline { size, kinds }) if kinds.is_empty() => f.write_str(&size)?,
                Ok(Outline { size, kinds }) => write!(f, "{size} ({})", kinds.join(", "))?,
                Err(_) => f.write_str("unreadable")?,
            }
        }
        let fields = self.0.iter().count();
        if fields > FIELDS_MAX { write!(f, ", and {} more", fields - FIELDS_MAX) } else { Ok(()) }
    }
}

/// A value's type and size, without its content.
struct Outline {
    size: String,
    /// Role or type of the first items of a list.
    kinds: Vec<String>,
}

impl<'de> Deserialize<'de> for Outline {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OutlineVisitor)
    }
}

struct OutlineVisitor;

impl<'de> Visitor<'de> for OutlineVisitor {
    type Value = Outline;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Outline, E> {
        Ok(Outline { size: value.to_string(), kinds: Vec::new() })
    }

    fn visit_i64<E>(self, value: i64) -> Result<Outline, E> {
        Ok(Outline { size: value.to_string(), kinds: Vec::new() })
    }

    fn visit_u64<E>(self, value: u64) -> Result<Outline, E> {
        Ok(Outline { size: value.to_string(), kinds: Vec::new() })
    }

    fn visit_f64<E>(self, value: f64) -> Result<Outline, E> {
        Ok(Outline { size: value.to_string(), kinds: Vec::new() })
    }

    fn visit_str<E>(self, value: &str) -> Result<Outline, E> {
        Ok(Outline { size: format!("text of {}", value.len()), kinds: Vec::new() })
    }

    fn visit_unit<E>(self) -> Result<Outline, E> {
        Ok(Outline { size: "null".to_owned(), kinds: Vec::new() })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Outline, A::Error> {
        let (mut count, mut kinds) = (0_usize, Vec::new());
        while count < ITEMS_MAX {
            let Some(item) = items.next_element::<&'de RawValue>()? else { break };
            count += 1;
            kinds.extend(kind(item));
        }
        while items.next_element::<IgnoredAny>()?.is_some() {
            count += 1;
        }
        Ok(Outline { size: format!("list of {count}"), kinds })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Outline, A::Error> {
        let mut count = 0_usize;
        while fields.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
            count += 1;
        }
        Ok(Outline { size: format!("object of {count}"), kinds: Vec::new() })
    }
}

/// The role or type of an item, if it has one.
fn kind(item: &RawValue) -> Option<String> {
    #[derive(Deserialize)]
    struct Named<'a> {
        #[serde(borrow)]
        role: Option<&'a RawValue>,
        #[serde(borrow)]
        r#type: Option<&'a RawValue>,
    }
    let Named { role, r#type } = serde_json::from_str(item.get()).ok()?;
    let text: String = [role, r#type].iter().flatten().find_map(|name| serde_json::from_str(name.get()).ok())?;
    Some(word(&text).to_owned())
}

/// Lowercase identifiers pass; anything else could be content and becomes `…`.
fn word(text: &str) -> &str {
    let is_word = !text.is_empty()
        && text.len() <= WORD_LEN_MAX
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
    if is_word { text } else { "…" }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::dialects::fields::Document;

    fn shape(body: &Value) -> String {
        Shape(Document::of(body).members()).to_string()
    }

    #[test]
    fn tells_names_kinds_and_sizes_and_nothing_that_was_written() {
        let body = json!({
            "model": "secret-1", "stream": true, "max_tokens": 5, "stop": null, "Dear Ada": {"a": 1},
            "messages": [{"role": "user", "content": "secret-2"}, {"role": "Secret 3!"}, "secret-4"],
            "tools": [{"type": "function", "function": {"name": "secret-5"}}],
        });
        let expect = "model: text of 8, stream: true, max_tokens: 5, stop: null, …: object of 1, \
                      messages: list of 3 (user, …), tools: list of 1 (function)";
        assert_eq!(shape(&body), expect);
    }

    #[test]
    fn is_bounded() {
        let fields = (0..100).map(|place| (format!("f{place}"), json!(vec![json!({"type": "text"}); 50])));
        let shape = shape(&Value::Object(fields.collect()));
        assert!(shape.ends_with(", and 52 more") && shape.len() < 8_000, "{shape}");
    }
}
