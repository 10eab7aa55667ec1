//! A list of texts of which the answer must be one.

use super::{ApiError, fields::Field};
use crate::chat::ResponseFormat;
use pensieve_protocol::grammar::Grammar;

const CHOICES_MAX: usize = 1024;
const BYTES_MAX: usize = 16 << 10;
/// Characters with a meaning of their own in a regular expression.
const SPECIAL: &str = r"\.+*?()|[]{}^$#&-~/";

/// The list in `field` as a constraint on the answer.
pub(super) fn read(field: &Field<'_>) -> Result<ResponseFormat, ApiError> {
    let mut expression = String::new();
    let items = field.items(CHOICES_MAX)?;
    if items.len() == 0 {
        return Err(field.invalid("should have at least one choice"));
    }
    for item in items {
        let text = item.text(BYTES_MAX)?;
        if !expression.is_empty() {
            expression.push('|');
        }
        literal(text, &mut expression);
        if expression.len() > BYTES_MAX {
            return Err(field.invalid(format_args!("has more than {BYTES_MAX} bytes in all")));
        }
    }
    Ok(ResponseFormat::Grammar { grammar: Grammar::Regex(format!("({expression})")), field: field.path().to_owned() })
}

/// Appends a regular expression that matches exactly this text.
fn literal(text: &str, expression: &mut String) {
    for letter in text.chars() {
        match letter {
            '\n' => expression.push_str("\\n"),
            '\r' => expression.push_str("\\r"),
            '\t' => expression.push_str("\\t"),
            _ if SPECIAL.contains(letter) => expression.extend(['\\', letter]),
            _ => expression.push(letter),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn choices_are_literal_texts() {
        let value = json!({ "words": ["a.b", "(c)", "<d>", "e\nf", "é"] });
        let ResponseFormat::Grammar { grammar, field } = read(&Field::root(&value).get("words")).unwrap() else {
            panic!("a constraint")
        };
        assert_eq!(grammar, Grammar::Regex(r"(a\.b|\(c\)|<d>|e\nf|é)".into()));
        assert_eq!(field, "words");
        for (words, expected) in [
            (json!([]), "words: should have at least one choice"),
            (json!(["a", 1]), "words.1: should be a string, not 1"),
            (json!(["x".repeat(10_000), "y".repeat(10_000)]), "words: has more than 16384 bytes in all"),
        ] {
            let value = json!({ "words": words });
            assert_eq!(read(&Field::root(&value).get("words")).unwrap_err().message, expected);
        }
    }
}
