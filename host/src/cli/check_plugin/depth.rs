//! Finds the first layer that differs from transformers: a checkpoint whose configuration says fewer layers is a smaller
//! model, to the plugin and to transformers alike, so that both can be asked for its numbers after any layer.

use serde_json::{Map, Value};
use std::{
    fs::{self, File},
    io::Read as _,
    os::unix::fs::symlink,
    path::Path,
};
use tempfile::TempDir;

use super::super::error::CliError;
use pensieve_protocol::{outside::Outside, python_numbers};

/// Keys of the number of layers.
const LAYERS: [&str; 4] = ["num_hidden_layers", "n_layers", "n_layer", "num_layers"];
/// Lists whose items are not of layers, however many there are.
const OTHER_LISTS: [&str; 3] = ["architectures", "eos_token_id", "time_step_limit"];
const CONFIG_BYTES_MAX: u64 = 8 << 20;

/// A checkpoint's `config.json` with its number of layers.
pub(super) struct Depth<'a> {
    folder: &'a Path,
    config: Map<String, Value>,
    pub(super) layers: usize,
}

impl<'a> Depth<'a> {
    /// Reads the configuration of a folder; `None` if it is a file, or does not say how many layers it has.
    pub(super) fn of(checkpoint: &'a Path) -> Option<Self> {
        let mut text = Vec::new();
        let file = File::open(checkpoint.join("config.json")).ok()?;
        file.take(CONFIG_BYTES_MAX).read_to_end(&mut text).ok()?;
        let config: Map<String, Value> = serde_json::from_slice(&python_numbers::quoted(&text)).ok()?;
        let layers = layers(&config)?;
        Some(Self { folder: checkpoint, config, layers })
    }

    /// A folder with the same files and only the first `count` layers in its configuration.
    pub(super) fn cut(&self, count: usize) -> Result<TempDir, CliError> {
        let folder = tempfile::tempdir().map_err(|error| CliError::system("a temporary folder", &error))?;
        let failed = |error: std::io::Error| CliError::system(Outside::path(&self.folder), &error);
        let source = std::path::absolute(self.folder).map_err(failed)?;
        for entry in fs::read_dir(&source).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            if name != "config.json" {
                symlink(source.join(&name), folder.path().join(&name)).map_err(failed)?;
            }
        }
        let config = Value::Object(cut(&self.config, self.layers, count));
        let text = python_numbers::unquoted(&config.to_string());
        fs::write(folder.path().join("config.json"), text).map_err(failed)?;
        Ok(folder)
    }
}

fn layers(config: &Map<String, Value>) -> Option<usize> {
    let own = LAYERS.iter().find_map(|key| config.get(*key)).and_then(Value::as_u64);
    let found = own.map(|count| count as usize).or_else(|| layers(config.get("text_config")?.as_object()?))?;
    Some(found).filter(|count| *count > 1)
}

/// Shortens the numbers of layers, and lists and patterns with an item or a letter for each layer.
fn cut(config: &Map<String, Value>, all: usize, count: usize) -> Map<String, Value> {
    let shortened = config.iter().map(|(key, value)| {
        let value = match value {
            Value::Number(number) if LAYERS.contains(&key.as_str()) && number.as_u64() == Some(all as u64) => {
                count.into()
            }
            Value::Array(items) if items.len() == all && !OTHER_LISTS.contains(&key.as_str()) => items[..count].into(),
            Value::String(letters) if key.ends_with("_pattern") && letters.chars().count() == all => {
                letters.chars().take(count).collect::<String>().into()
            }
            Value::Object(inner) if key == "text_config" => Value::Object(cut(inner, all, count)),
            other => other.clone(),
        };
        (key.clone(), value)
    });
    shortened.collect()
}

/// The smallest number of layers with which a model `differs`, by bisection: a model of `all` layers does.
pub(super) fn first_that_differs<E>(all: usize, mut differs: impl FnMut(usize) -> Result<bool, E>) -> Result<usize, E> {
    let (mut same, mut other) = (0, all);
    while other - same > 1 {
        let middle = same.midpoint(other);
        if differs(middle)? {
            other = middle;
        } else {
            same = middle;
        }
    }
    Ok(other)
}

/// What to tell an author whose model differs with `count` of its layers, but not with one less.
pub(super) fn describe(count: usize, all: usize) -> String {
    if count == 1 {
        return format!(
            "with one of its {all} layers the model differs already: look at layer 0, and at what every model has of it, the \
             embedding, the last norm and the output layer"
        );
    }
    format!(
        "with {} of its {all} layers the model agrees: layer {}, the next one, is the first that differs",
        count - 1,
        count - 1
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_first_layer_that_differs_is_found_among_any_number() {
        for all in 1..20 {
            for first in 1..=all {
                let found = first_that_differs(all, |count| Ok::<_, ()>(count >= first));
                assert_eq!(found, Ok(first), "{first} of {all}");
            }
        }
    }

    #[test]
    fn a_configuration_with_numbers_of_python_and_patterns_of_layers_is_cut() {
        let folder = tempfile::tempdir().unwrap();
        let text = r#"{"eos_token_id":[1,2],"hybrid_override_pattern":"M*","num_hidden_layers":2,"time_step_limit":[0.0,Infinity]}"#;
        fs::write(folder.path().join("config.json"), text).unwrap();
        fs::write(folder.path().join("model.safetensors"), "weights").unwrap();
        let depth = Depth::of(folder.path()).unwrap();
        assert_eq!(depth.layers, 2);
        let cut = depth.cut(1).unwrap();
        let expected = text.replace("\"M*\"", "\"M\"").replace("layers\":2", "layers\":1");
        assert_eq!(fs::read_to_string(cut.path().join("config.json")).unwrap(), expected);
        assert_eq!(fs::read_to_string(cut.path().join("model.safetensors")).unwrap(), "weights");
    }

    #[test]
    fn a_cut_configuration_has_fewer_layers_and_shorter_lists_of_them() {
        let config = json!({
            "num_hidden_layers": 3, "layer_types": ["a", "b", "c"], "eos_token_id": [1, 2], "hidden_size": 3,
            "text_config": {"num_hidden_layers": 3, "windows": [1, 2, 3]}, "vision_config": {"num_hidden_layers": 3},
        });
        let config = config.as_object().unwrap();
        assert_eq!(layers(config), Some(3));
        let expected = json!({
            "num_hidden_layers": 2, "layer_types": ["a", "b"], "eos_token_id": [1, 2], "hidden_size": 3,
            "text_config": {"num_hidden_layers": 2, "windows": [1, 2]}, "vision_config": {"num_hidden_layers": 3},
        });
        assert_eq!(Value::Object(cut(config, 3, 2)), expected);
        assert_eq!(layers(json!({"num_hidden_layers": 1}).as_object().unwrap()), None);
    }
}
