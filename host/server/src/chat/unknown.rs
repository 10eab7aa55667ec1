//! Fields of an upstream's answer that this server does not know, on their way to a client of the same API.

use serde_json::{Map, Value};

/// The API of a request, where upstreams may have the same: then fields of either side that this server does not know pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    #[default]
    Other,
    /// Chat completions, and completions.
    Chat,
    Messages,
}

/// By the objects that they are in. Their number is bounded where they are read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Unknown {
    /// Of the answer, or of a chunk of it.
    pub answer: Map<String, Value>,
    /// Of chat's entry in `choices`.
    pub choice: Map<String, Value>,
    /// Of chat's message or a piece of it; of the end of one of Messages.
    pub message: Map<String, Value>,
    pub usage: Map<String, Value>,
    /// In all of them, as JSON.
    pub bytes: usize,
}

impl Unknown {
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Adds those that came later. Texts and lists of a message go on, as chat's pieces do; others take the place of the
    /// earlier ones.
    pub fn add(&mut self, later: Self) {
        self.answer.extend(later.answer);
        self.choice.extend(later.choice);
        self.usage.extend(later.usage);
        for (name, value) in later.message {
            match (self.message.get_mut(&name), value) {
                (Some(Value::String(text)), Value::String(more)) => text.push_str(&more),
                (Some(Value::Array(items)), Value::Array(more)) => items.extend(more),
                (_, value) => drop(self.message.insert(name, value)),
            }
        }
        self.bytes += later.bytes;
    }
}

/// Adds fields to an object, which keeps its own.
pub fn add_fields(fields: Map<String, Value>, object: &mut Value) {
    if let Value::Object(object) = object {
        for (name, value) in fields {
            object.entry(name).or_insert(value);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pieces_of_a_message_become_one_and_nothing_of_an_object_is_replaced() {
        let message =
            |value: Value| Unknown { message: value.as_object().unwrap().clone(), bytes: 1, ..Unknown::default() };
        let mut unknown = message(json!({ "audio": "a", "notes": [1], "n": 1 }));
        unknown.add(message(json!({ "audio": "b", "notes": [2], "n": 2, "later": true })));
        let mut object = json!({ "role": "assistant", "n": 0 });
        add_fields(unknown.message, &mut object);
        let expected = json!({ "role": "assistant", "n": 0, "audio": "ab", "notes": [1, 2], "later": true });
        assert_eq!((object, unknown.bytes), (expected, 2));
    }
}
