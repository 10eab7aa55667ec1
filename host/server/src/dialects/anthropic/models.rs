//! The names of models as Anthropic's API lists them: each model, each of its adapters as a model of its own, other names.

use serde_json::{Value, json};

use crate::fleet::Listed;

/// All of them, on one page.
pub(super) fn list(models: &[Listed]) -> Value {
    json!({
        "first_id": models.first().map(|model| &model.id),
        "last_id": models.last().map(|model| &model.id),
        "has_more": false,
        "data": models.iter().map(entry).collect::<Vec<Value>>(),
    })
}

/// One of them.
pub(super) fn entry(model: &Listed) -> Value {
    // A model is as old as its weights, or as time itself if there are none, as the original has it.
    let modified = std::fs::metadata(&model.source).and_then(|about| about.modified()).ok();
    let created = modified.and_then(|time| jiff::Timestamp::try_from(time).ok()).unwrap_or_default();
    let created = jiff::fmt::temporal::DateTimePrinter::new().precision(Some(0)).timestamp_to_string(&created);
    json!({ "type": "model", "id": model.id, "display_name": model.id, "created_at": created })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_a_first_and_a_last() {
        let folder = tempfile::tempdir().unwrap();
        let models = [
            Listed { id: "large".into(), source: folder.path().into() },
            Listed { id: "gone".into(), source: folder.path().join("gone") },
        ];
        let list = list(&models);
        assert_eq!((&list["first_id"], &list["last_id"]), (&json!("large"), &json!("gone")));
        assert_eq!(list["has_more"], false);
        let gone = json!({"type": "model", "id": "gone", "display_name": "gone", "created_at": "1970-01-01T00:00:00Z"});
        assert_eq!(list["data"][1], gone);
        let created = list["data"][0]["created_at"].as_str().unwrap();
        assert!(created.len() == gone["created_at"].as_str().unwrap().len() && created > "2024", "{created}");
    }

    #[test]
    fn a_list_may_be_empty() {
        assert_eq!(list(&[]), json!({"first_id": null, "last_id": null, "has_more": false, "data": []}));
    }
}
