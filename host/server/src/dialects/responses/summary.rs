//! Items of type `compaction`, which stand for a conversation. Their `encrypted_content` is the summary in base64, as this
//! server has no secrets from its client.
//!
//! A summary from `/v1/responses/compact` comes with the messages that it leaves as they are. One that was made in the middle
//! of an answer stands for all items before it, which clients go on sending.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::dialects::{ApiError, fields::Field, fresh_id};

/// In front of a summary, so that another server's items are not taken for it.
const BESIDE: &str = "pensieve summary:";
/// The same for one that stands for all items before it.
const INSTEAD: &str = "pensieve summary of all:";

/// A summary, and whether it stands for all items before it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Summary {
    pub(super) text: String,
    pub(super) is_all: bool,
}

impl Summary {
    pub(super) fn item(&self) -> Value {
        let mark = if self.is_all { INSTEAD } else { BESIDE };
        let content = STANDARD.encode(format!("{mark}{}", self.text));
        json!({ "id": fresh_id("cmp_"), "type": "compaction", "encrypted_content": content })
    }

    /// The summary of an item; `None` if another server made it.
    pub(super) fn read(item: &Field<'_>) -> Result<Option<Self>, ApiError> {
        let content = item.get("encrypted_content").string()?;
        let text = STANDARD.decode(content).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let of = |mark: &str| text.as_deref().and_then(|text| text.strip_prefix(mark));
        let (all, beside) = (of(INSTEAD), of(BESIDE));
        Ok(all.or(beside).map(|text| Self { text: text.to_owned(), is_all: all.is_some() }))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_this_server_s_summaries_are_read() {
        let of = |item: &Value| Summary::read(&Field::root(item)).unwrap();
        for is_all in [false, true] {
            let summary = Summary { text: "all done".into(), is_all };
            assert_eq!(of(&summary.item()), Some(summary));
        }
        let foreign = |content: &str| json!({"type": "compaction", "encrypted_content": content});
        assert_eq!(of(&foreign(&STANDARD.encode("all done"))), None);
        assert_eq!(of(&foreign("gAAAA==not base64")), None);
        assert!(Summary::read(&Field::root(&json!({"type": "compaction"}))).is_err());
    }
}
