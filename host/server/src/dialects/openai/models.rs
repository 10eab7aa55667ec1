//! The names of models as OpenAI's API lists them: each model, each of its adapters as a model of its own, other names.

use serde_json::{Value, json};
use std::time::UNIX_EPOCH;

use crate::fleet::Listed;

/// All of them.
pub(super) fn list(models: &[Listed]) -> Value {
    json!({ "object": "list", "data": models.iter().map(entry).collect::<Vec<Value>>() })
}

/// One of them.
pub(super) fn entry(model: &Listed) -> Value {
    // A model is as old as its weights.
    let modified = std::fs::metadata(&model.source).and_then(|about| about.modified()).ok();
    let created = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).map_or(0, |since| since.as_secs());
    json!({ "id": model.id, "object": "model", "created": created, "owned_by": "pensieve" })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_as_old_as_its_weights() {
        let folder = tempfile::tempdir().unwrap();
        let models = [
            Listed { id: "large:poet".into(), source: folder.path().into() },
            Listed { id: "gone".into(), source: folder.path().join("gone") },
        ];
        let list = list(&models);
        assert_eq!((&list["object"], &list["data"]), (&json!("list"), &json!([entry(&models[0]), entry(&models[1])])));
        assert!(list["data"][0]["created"].as_u64().unwrap() > 0);
        let gone = json!({"id": "gone", "object": "model", "created": 0, "owned_by": "pensieve"});
        assert_eq!(list["data"][1], gone);
    }
}
