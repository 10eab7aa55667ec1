//! Vision towers in GGUF files of their own, beside the text model's: their names travel to the plugin among the model's
//! options, as a fenced child may not list the folder.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};

/// The option with the tower's file. A text names the one to take; a list has those that lie beside the model, of which
/// the plugin takes the one that fits, if any does.
pub const OPTION: &str = "mmproj";
/// Files beside a model that are passed on.
const BESIDE_MAX: usize = 16;
const ENTRIES_MAX: usize = 4096;

/// Returns true for the name of a GGUF file with a tower.
pub fn is_tower(name: &str) -> bool {
    name.starts_with("mmproj") && name.ends_with(".gguf")
}

/// The names of the towers beside a GGUF file, in order.
pub fn beside(source: &Path) -> Vec<String> {
    let own = source.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if !own.ends_with(".gguf") || source.is_dir() {
        return Vec::new();
    }
    let folder = source.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().take(ENTRIES_MAX);
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| is_tower(name) && name != own).collect();
    names.sort();
    names.truncate(BESIDE_MAX);
    names
}

/// The file that a model's options name.
pub fn named(source: &Path, options: &str) -> Option<PathBuf> {
    let options: Map<String, Value> = serde_json::from_str(options).ok()?;
    Some(source.with_file_name(options.get(OPTION)?.as_str()?))
}

/// Adds the towers beside a model to its options, unless these name one.
pub fn with_beside(source: &Path, options: &str) -> String {
    let towers = beside(source);
    let text = if options.trim().is_empty() { "{}" } else { options };
    let Ok(mut object) = serde_json::from_str::<Map<String, Value>>(text) else { return options.to_owned() };
    if towers.is_empty() || object.contains_key(OPTION) {
        return options.to_owned();
    }
    object.insert(OPTION.to_owned(), towers.into());
    Value::Object(object).to_string()
}

/// Removes what [`with_beside`] has added, for architectures that read no images and know no such option.
pub fn without_beside(options: &str) -> String {
    let Ok(mut object) = serde_json::from_str::<Map<String, Value>>(options) else { return options.to_owned() };
    if !object.get(OPTION).is_some_and(Value::is_array) {
        return options.to_owned();
    }
    object.remove(OPTION);
    if object.is_empty() { String::new() } else { Value::Object(object).to_string() }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn towers_beside_a_file_are_options_until_the_user_names_one() {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("model.gguf");
        assert_eq!(with_beside(&model, ""), "", "no folder yet has any");
        for file in ["model.gguf", "mmproj-b.gguf", "mmproj-a.gguf", "mmproj.txt", "x-mmproj.gguf"] {
            fs::write(folder.path().join(file), "").unwrap();
        }
        assert_eq!(beside(&model), ["mmproj-a.gguf", "mmproj-b.gguf"]);
        assert_eq!(beside(&folder.path().join("mmproj-a.gguf")), ["mmproj-b.gguf"]);
        assert!(beside(folder.path()).is_empty(), "a folder has its tower already");
        let listed = with_beside(&model, r#"{"kv":"f16"}"#);
        assert_eq!(listed, r#"{"kv":"f16","mmproj":["mmproj-a.gguf","mmproj-b.gguf"]}"#);
        assert_eq!(without_beside(&listed), r#"{"kv":"f16"}"#);
        assert_eq!(without_beside(&with_beside(&model, "")), "");
        let chosen = r#"{"mmproj":"../other/x.gguf"}"#;
        assert_eq!([with_beside(&model, chosen), without_beside(chosen)], [chosen; 2]);
        assert_eq!(named(&model, chosen).unwrap(), folder.path().join("../other/x.gguf"));
        assert!(named(&model, &listed).is_none() && named(&model, "").is_none());
        assert_eq!(with_beside(&model, "no JSON"), "no JSON");
    }
}
