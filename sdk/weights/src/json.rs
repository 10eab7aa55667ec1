//! Reads the small text files beside the weights.
//!
//! Unlike weights they are copied, as a parser needs them whole. Their size is limited, so that a link to an endless
//! file costs an error and not the process's memory.

use std::{io::Read, path::Path};

use serde_json::{Map, Value};

use super::bytes::open;
use crate::{Error, Result};

/// Reads a file of at most `bytes_max` bytes.
pub(super) fn read(path: &Path, bytes_max: u64) -> Result<Vec<u8>> {
    let within = |error: std::io::Error| Error::from(error).context(path.display());
    let mut bytes = Vec::new();
    open(path)?.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes).map_err(within)?;
    if bytes.len() as u64 > bytes_max {
        return Err(Error::corrupt(format!("{}: is longer than the {bytes_max} bytes that are read", path.display())));
    }
    Ok(bytes)
}

/// Reads a file that holds one JSON object. Accepts `Infinity` and `NaN`, which Python writes although JSON has
/// neither: bare, or as the `{"__float__": "Infinity"}` of newer configurations. An infinity becomes the largest
/// number, NaN becomes null.
pub(super) fn object(path: &Path, bytes_max: u64) -> Result<Map<String, Value>> {
    let invalid = |what: String| Error::corrupt(format!("{}: {what}", path.display())).help("download it again");
    let text = read(path, bytes_max)?;
    match serde_json::from_slice(&text).or_else(|error| serde_json::from_slice(&in_json(&text)).map_err(|_| error)) {
        Ok(Value::Object(mut object)) => {
            object.values_mut().for_each(untag);
            Ok(object)
        }
        Ok(_) => Err(invalid("is not a JSON object".to_owned())),
        Err(error) => Err(invalid(format!("is not JSON: {error}"))),
    }
}

/// Rewrites Python's bare numbers as JSON, leaving strings alone.
fn in_json(text: &[u8]) -> Vec<u8> {
    const NUMBERS: [(&[u8], f64); 3] = [(b"-Infinity", f64::MIN), (b"Infinity", f64::MAX), (b"NaN", f64::NAN)];
    let (mut out, mut rest, mut in_string) = (Vec::with_capacity(text.len()), text, false);
    while let Some((&byte, after)) = rest.split_first() {
        if let Some((name, number)) = NUMBERS.iter().find(|(name, _)| !in_string && rest.starts_with(name)) {
            out.extend_from_slice(Value::from(*number).to_string().as_bytes());
            rest = &rest[name.len()..];
            continue;
        }
        let escaped = if in_string && byte == b'\\' { after.first() } else { None };
        in_string ^= byte == b'"';
        out.push(byte);
        out.extend(escaped);
        rest = &after[usize::from(escaped.is_some())..];
    }
    out
}

/// Replaces tagged numbers at any depth.
fn untag(value: &mut Value) {
    let tagged = value.as_object().filter(|object| object.len() == 1).and_then(|object| object.get("__float__"));
    match tagged.and_then(Value::as_str) {
        Some("Infinity") => *value = f64::MAX.into(),
        Some("-Infinity") => *value = f64::MIN.into(),
        Some("NaN") => *value = Value::Null,
        _ => match value {
            Value::Object(object) => object.values_mut().for_each(untag),
            Value::Array(items) => items.iter_mut().for_each(untag),
            _ => (),
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_of_python_are_read_as_numbers() {
        let path = tempfile::tempdir().unwrap().keep().join("config.json");
        let text = r#"{"limit": [0.0, Infinity], "low": -Infinity, "none": NaN, "name": "NaN \" Infinity",
            "tagged": {"__float__": "-Infinity"}, "deep": [{"x": {"__float__": "NaN"}}]}"#;
        std::fs::write(&path, text).unwrap();
        let expected = json!({ "limit": [0.0, f64::MAX], "low": f64::MIN, "none": null, "name": "NaN \" Infinity",
            "tagged": f64::MIN, "deep": [{ "x": null }] });
        assert_eq!(Value::Object(object(&path, 1000).unwrap()), expected);
    }

    #[test]
    fn what_is_no_json_is_refused_in_the_words_of_its_first_mistake() {
        let path = tempfile::tempdir().unwrap().keep().join("config.json");
        std::fs::write(&path, r#"{"a": Infinitely}"#).unwrap();
        assert!(object(&path, 1000).unwrap_err().message.contains("line 1 column 7"));
    }
}
