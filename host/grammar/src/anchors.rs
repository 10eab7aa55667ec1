//! References to anchors, `{"$ref": "#name"}`, as the paths to what they name: the compiler knows only those.

use std::collections::HashMap;

use serde_json::{Map, Value};

/// Keywords whose values are data, in which nothing is a keyword.
const DATA: [&str; 4] = ["const", "enum", "default", "examples"];
/// Keywords whose values are schemas by name, in which no name is a keyword.
const NAMED: [&str; 5] = ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];

/// The longest path that replaces a name, so that a document stays of about its size.
const PATH_BYTES_MAX: usize = 256;

/// Replaces the references in a document. The first schema of a name counts. Paths with signs that the compiler would have to
/// decode are left out.
pub(crate) fn replace(schema: &mut Value) {
    let mut paths = HashMap::new();
    visit(schema, &mut String::from("#"), &mut |fields, path| {
        if let Some(name) = fields.get("$anchor").and_then(Value::as_str)
            && path.len() <= PATH_BYTES_MAX
            && !path.contains(['~', '%'])
        {
            paths.entry(name.to_owned()).or_insert_with(|| path.to_owned());
        }
    });
    if paths.is_empty() {
        return;
    }
    visit(schema, &mut String::from("#"), &mut |fields, _| {
        if let Some(Value::String(reference)) = fields.get_mut("$ref")
            && let Some(path) = reference.strip_prefix('#').and_then(|name| paths.get(name))
        {
            path.clone_into(reference);
        }
    });
}

/// Visits the schemas within a value, each with its path. Recurses as deep as the document.
fn visit(value: &mut Value, path: &mut String, see: &mut dyn FnMut(&mut Map<String, Value>, &str)) {
    match value {
        Value::Object(fields) => {
            see(fields, path);
            for (keyword, value) in fields.iter_mut().filter(|(keyword, _)| !DATA.contains(&keyword.as_str())) {
                within(path, keyword, |path| match value {
                    Value::Object(named) if NAMED.contains(&keyword.as_str()) => {
                        for (name, schema) in named {
                            within(path, name, |path| visit(schema, path, see));
                        }
                    }
                    value => visit(value, path, see),
                });
            }
        }
        Value::Array(values) => {
            for (place, value) in values.iter_mut().enumerate() {
                within(path, &place.to_string(), |path| visit(value, path, see));
            }
        }
        _ => {}
    }
}

fn within(path: &mut String, segment: &str, visit: impl FnOnce(&mut String)) {
    let length = path.len();
    path.push('/');
    path.push_str(&segment.replace('/', "~1"));
    visit(path);
    path.truncate(length);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_reference_to_an_anchor_becomes_a_path() {
        let mut schema = json!({
            "properties": {
                "a": { "$ref": "#node" }, "$anchor": { "$ref": "#item" }, "const": { "$ref": "#node" },
                "b": { "const": { "$ref": "#node", "$anchor": "data" } }, "c": { "$ref": "#/$defs/n" },
                "d": { "$ref": "#unknown" }, "e": { "$ref": "#" }, "f": { "$ref": "#data" },
            },
            "$defs": { "n": { "$anchor": "node", "items": [{ "$anchor": "item" }] } },
        });
        replace(&mut schema);
        let reference = |name: &str| schema["properties"][name]["$ref"].as_str().unwrap_or_default().to_owned();
        let found = ["a", "$anchor", "const", "c", "d", "e", "f"].map(reference);
        let expected =
            ["#/$defs/n", "#/$defs/n/items/0", "#/$defs/n", "#/$defs/n", "#unknown", "#", "#data"].map(str::to_owned);
        assert_eq!(found, expected);
        assert_eq!(schema["properties"]["b"]["const"]["$ref"], "#node");
    }
}
