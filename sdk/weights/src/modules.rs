//! `modules.json` of sentence-transformers: the steps from a text to its vector, in order, each with a folder of its own
//! or the checkpoint's.

use std::path::Path;

use serde_json::{Map, Value};

use super::{json, quote};
use crate::{Error, Result};

const FILE_BYTES_MAX: u64 = 1 << 20;

/// A step.
#[derive(Clone, Debug)]
pub(super) struct Module {
    /// The class, without the path of its Python module: `Pooling`.
    pub(super) kind: String,
    /// The name of its folder in the checkpoint's; empty for the latter.
    pub(super) place: String,
}

/// Reads the list of a folder; `None` if it has none.
pub(super) fn read(folder: &Path) -> Result<Option<Vec<Module>>> {
    let path = folder.join("modules.json");
    if !path.is_file() {
        return Ok(None);
    }
    let modules: Vec<Map<String, Value>> = serde_json::from_slice(&json::read(&path, FILE_BYTES_MAX)?)
        .map_err(|error| Error::corrupt(format!("{}: {error}", path.display())).help("download it again"))?;
    let module = |module: &Map<String, Value>| {
        let text = |key| module.get(key).and_then(Value::as_str).unwrap_or_default();
        let (kind, place) = (text("type").rsplit('.').next().unwrap_or_default(), text("path"));
        if place.contains("..") || place.contains(['/', '\\']) {
            let message = format!("{}: the path {} is not the name of a folder", path.display(), quote(place));
            return Err(Error::corrupt(message));
        }
        Ok(Module { kind: kind.to_owned(), place: place.to_owned() })
    };
    modules.iter().map(module).collect::<Result<_>>().map(Some)
}
