//! The models that there are, and each of their adapters as a model of its own.

use serde_json::{Value, json};
use std::time::UNIX_EPOCH;

use crate::fleet::Listed;

/// All of them, in the order of the configuration.
pub(super) fn list(models: &[Listed]) -> Value {
    let entries: Vec<Value> = models.iter().flat_map(entries).collect();
    json!({ "object": "list", "data": entries })
}

/// The one of this id, adapter and all.
pub(super) fn find(models: &[Listed], id: &str) -> Option<Value> {
    models.iter().flat_map(entries).find(|entry| entry["id"] == id)
}

fn entries(model: &Listed) -> impl Iterator<Item = Value> {
    // A model is as old as its weights.
    let modified = std::fs::metadata(&model.source).and_then(|about| about.modified()).ok();
    let created = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).map_or(0, |since| since.as_secs());
    let entry = move |id: String| json!({ "id": id, "object": "model", "created": created, "owned_by": "pensieve" });
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
        let poet = find(&models, "large:poet").unwrap();
        assert!(poet["created"].as_u64().unwrap() > 0);
        assert_eq!((&poet["object"], &poet["owned_by"]), (&json!("model"), &json!("pensieve")));
        assert_eq!(find(&models, "gone").unwrap()["created"], 0);
        assert_eq!(find(&models, "large:painter"), None);
    }
}
