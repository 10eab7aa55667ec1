//! The models as Anthropic's API lists them: each of the configuration, and each with every one of its adapters.

use serde_json::{Value, json};

use crate::fleet::Listed;

/// All of them, on one page.
pub(super) fn list(models: &[Listed]) -> Value {
    let entries: Vec<(String, Value)> = models.iter().flat_map(entries).collect();
    json!({
        "first_id": entries.first().map(|(id, _)| id),
        "last_id": entries.last().map(|(id, _)| id),
        "has_more": false,
        "data": entries.into_iter().map(|(_, entry)| entry).collect::<Vec<Value>>(),
    })
}

/// The one of this id, adapter and all.
pub(super) fn find(models: &[Listed], id: &str) -> Option<Value> {
    models.iter().flat_map(entries).find(|(known, _)| known == id).map(|(_, entry)| entry)
}

fn entries(model: &Listed) -> impl Iterator<Item = (String, Value)> {
    // A model is as old as its weights, or as time itself if there are none, as the original has it.
    let modified = std::fs::metadata(&model.source).and_then(|about| about.modified()).ok();
    let created = modified.and_then(|time| jiff::Timestamp::try_from(time).ok()).unwrap_or_default();
    let created = jiff::fmt::temporal::DateTimePrinter::new().precision(Some(0)).timestamp_to_string(&created);
    let entry = move |id: String| {
        let entry = json!({ "type": "model", "id": id, "display_name": id, "created_at": created });
        (id, entry)
    };
    let adapters = model.adapters.iter().map(|adapter| format!("{}:{adapter}", model.id));
    std::iter::once(model.id.clone()).chain(adapters).map(entry)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn adapters_are_models_too() {
        let folder = tempfile::tempdir().unwrap();
        let models = [
            Listed { id: "large".into(), source: folder.path().into(), adapters: vec!["poet".into()] },
            Listed { id: "gone".into(), source: folder.path().join("gone"), ..Listed::default() },
        ];
        let list = list(&models);
        let ids: Vec<&str> =
            list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
        assert_eq!(ids, ["large", "large:poet", "gone"]);
        assert_eq!((&list["first_id"], &list["last_id"]), (&json!("large"), &json!("gone")));
        assert_eq!(list["has_more"], false);
        let gone = json!({"type": "model", "id": "gone", "display_name": "gone", "created_at": "1970-01-01T00:00:00Z"});
        assert_eq!(list["data"][2], gone);
        let created = list["data"][0]["created_at"].as_str().unwrap();
        assert_eq!(find(&models, "large:poet").unwrap()["id"], "large:poet");
        assert_eq!(find(&models, "large:painter"), None);
        assert!(created.len() == gone["created_at"].as_str().unwrap().len() && created > "2024", "{created}");
    }

    #[test]
    fn a_list_may_be_empty() {
        assert_eq!(list(&[]), json!({"first_id": null, "last_id": null, "has_more": false, "data": []}));
    }
}
