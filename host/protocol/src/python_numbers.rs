//! Numbers that Python writes into JSON although JSON has none of them. The `config.json` of a published checkpoint may have
//! a bare `Infinity`, and must be read, and be written again as it was.

const NUMBERS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];
/// Begins the strings that stand for them.
const MARK: &str = "a number of Python: ";

/// Replaces them by strings, which makes JSON of the text if nothing else is wrong with it.
pub fn quoted(text: &[u8]) -> Vec<u8> {
    let (mut json, mut rest, mut in_string) = (Vec::with_capacity(text.len()), text, false);
    while let Some((&byte, after)) = rest.split_first() {
        if let Some(number) = NUMBERS.iter().find(|number| !in_string && rest.starts_with(number.as_bytes())) {
            json.extend_from_slice(format!("\"{MARK}{number}\"").as_bytes());
            rest = &rest[number.len()..];
            continue;
        }
        let escaped = if in_string && byte == b'\\' { after.first() } else { None };
        in_string ^= byte == b'"';
        json.push(byte);
        json.extend(escaped);
        rest = &after[usize::from(escaped.is_some())..];
    }
    json
}

/// Puts them back.
pub fn unquoted(json: &str) -> String {
    NUMBERS.iter().fold(json.to_owned(), |json, number| json.replace(&format!("\"{MARK}{number}\""), number))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_python_are_read_and_written_again() {
        let text = r#"{"limit":[0.0,Infinity],"low":-Infinity,"name":"NaN \" Infinity \\","none":NaN}"#;
        let json: serde_json::Value = serde_json::from_slice(&quoted(text.as_bytes())).unwrap();
        assert_eq!(json["name"], "NaN \" Infinity \\");
        assert_eq!(unquoted(&json.to_string()), text);
    }

    #[test]
    fn what_is_no_json_stays_so() {
        for text in ["Infinit", "{\"a\": Infinitely}", "\"", "\\", "{\"a\": --Infinity}"] {
            assert!(serde_json::from_slice::<serde_json::Value>(&quoted(text.as_bytes())).is_err(), "{text}");
        }
    }
}
