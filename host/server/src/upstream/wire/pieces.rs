//! Content of an answer, which is a text, or a list of pieces where a server tells reasoning from text by them (Mistral's does).

use serde::Deserialize;
use serde_json::value::RawValue;

use super::bounded::Few;

/// Pieces of one chunk, and parts of one of them.
const PIECES_MAX: usize = 256;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Pieces {
    pub(super) text: Option<String>,
    pub(super) thoughts: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Piece<'a> {
    text: Option<String>,
    /// A text, or a list of pieces again.
    #[serde(borrow)]
    thinking: Option<&'a RawValue>,
}

/// `None` for what is neither a text nor a list. Pieces of other kinds are left out.
pub(super) fn read(content: &RawValue) -> Option<Pieces> {
    if content.get() == "null" {
        return Some(Pieces::default());
    }
    if content.get().starts_with('"') {
        return Some(Pieces { text: Some(serde_json::from_str(content.get()).ok()?), thoughts: None });
    }
    let list: Few<Piece<'_>, PIECES_MAX> = serde_json::from_str(content.get()).ok()?;
    let mut pieces = Pieces::default();
    for piece in list.items {
        if let Some(text) = piece.text {
            pieces.text.get_or_insert_default().push_str(&text);
        }
        if let Some(thoughts) = piece.thinking.and_then(thoughts) {
            pieces.thoughts.get_or_insert_default().push_str(&thoughts);
        }
    }
    Some(pieces)
}

fn thoughts(thinking: &RawValue) -> Option<String> {
    if thinking.get().starts_with('"') {
        return serde_json::from_str(thinking.get()).ok();
    }
    let list: Few<Piece<'_>, PIECES_MAX> = serde_json::from_str(thinking.get()).ok()?;
    Some(list.items.into_iter().filter_map(|piece| piece.text).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn content_is_a_text_or_pieces() {
        let check = |json: &str, text: Option<&str>, thoughts: Option<&str>| {
            let content: Box<RawValue> = serde_json::from_str(json).unwrap();
            let expected = Pieces { text: text.map(str::to_owned), thoughts: thoughts.map(str::to_owned) };
            assert_eq!(read(&content), Some(expected), "{json}");
        };
        check("null", None, None);
        check(r#""a\u00e9""#, Some("aé"), None);
        check("[]", None, None);
        check(r#"[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]"#, Some("ab"), None);
        let mistral =
            r#"[{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "a"}]"#;
        check(mistral, Some("a"), Some("hm"));
        check(r#"[{"type": "thinking", "thinking": "hm"}, {"type": "image_url", "image_url": {}}]"#, None, Some("hm"));
        for nonsense in ["7", "{}", "[7]", r#"[{"text": 7}]"#] {
            assert_eq!(read(&serde_json::from_str::<Box<RawValue>>(nonsense).unwrap()), None, "{nonsense}");
        }
    }
}
