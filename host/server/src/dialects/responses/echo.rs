//! Request fields that every response echoes. They are part of three events of a stream and of the stored response, so
//! they are serialized once, as received, and shared.

use serde_json::{Map, Value};

use crate::dialects::{ApiError, fields::Field};

const METADATA_MAX: usize = 16;

/// Echoed fields with the API's defaults; `metadata` is handled separately.
const FIELDS: [(&str, &str); 13] = [
    ("instructions", "null"),
    ("max_output_tokens", "null"),
    ("model", "null"),
    ("parallel_tool_calls", "true"),
    ("previous_response_id", "null"),
    ("reasoning", r#"{"effort":null,"summary":null}"#),
    ("store", "true"),
    ("temperature", "1.0"),
    ("text", r#"{"format":{"type":"text"}}"#),
    ("tool_choice", r#""auto""#),
    ("tools", "[]"),
    ("top_p", "1.0"),
    ("user", "null"),
];

/// Members of a JSON object, as text.
#[derive(Debug)]
pub(super) struct Echo {
    fields: String,
    metadata: String,
}

impl Echo {
    pub(super) fn read(body: &Field<'_>, truncate: bool) -> Result<Self, ApiError> {
        let metadata = body.get("metadata");
        if let Some(metadata) = metadata.present()
            && metadata.object()?.len() > METADATA_MAX
        {
            return Err(metadata.invalid(format_args!("has more than {METADATA_MAX} entries")));
        }
        let mut fields = String::new();
        for (name, default) in FIELDS {
            let text = body.text_of(name);
            fields.extend(["\"", name, "\":", text.as_deref().unwrap_or(default), ","]);
        }
        let truncation = if truncate { "auto" } else { "disabled" };
        fields.extend(["\"truncation\":\"", truncation, "\""]);
        let metadata = body.text_of("metadata").unwrap_or_else(|| "{}".to_owned());
        Ok(Self { fields, metadata })
    }

    /// The text of all members. Warnings are added to the metadata, as SDKs do not expose headers.
    pub(super) fn with_warnings(self, warnings: &[String]) -> String {
        let Self { fields, mut metadata } = self;
        if !warnings.is_empty() {
            let warning =
                |(place, warning): (usize, &String)| (format!("pensieve_warning_{place}"), warning.as_str().into());
            let more = Value::Object(warnings.iter().enumerate().map(warning).collect::<Map<_, _>>()).to_string();
            let is_empty = metadata == "{}";
            metadata.pop();
            metadata.push_str(if is_empty { "" } else { "," });
            metadata.push_str(&more[1..]);
        }
        format!("{fields},\"metadata\":{metadata}")
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use bytes::Bytes;
    use serde_json::json;

    use super::*;
    use crate::dialects::{
        RequestMemory,
        fields::{Document, Notes},
    };

    fn echo(body: &'static str, warnings: &[String]) -> Value {
        let document = Document::parse(Bytes::from(body), RequestMemory::default(), Notes::default()).unwrap();
        let text = Echo::read(&document.root(), false).unwrap().with_warnings(warnings);
        assert!(!text.contains('\n'), "an event would end there: {text}");
        serde_json::from_str(&format!("{{{text}}}")).unwrap()
    }

    #[test]
    fn repeats_what_was_sent_in_one_line() {
        let sent = echo(
            "{\"model\": \"a  b\",\n\t\"metadata\": {\r\n\"k\" : \"\\\"v \\\\\" },\n\"top_p\":0.50, \"tools\":null}",
            &[],
        );
        assert_eq!(
            (&sent["model"], &sent["metadata"], &sent["tools"]),
            (&json!("a  b"), &json!({"k": "\"v \\"}), &json!([]))
        );
        assert_eq!(
            (&sent["top_p"], &sent["truncation"], sent.as_object().unwrap().len()),
            (&json!(0.5), &json!("disabled"), 15)
        );
    }

    #[test]
    fn warnings_stand_beside_the_clients_metadata() {
        let warnings = ["one \"1\"".to_owned(), "two".to_owned()];
        let expected = json!({"a": 1, "pensieve_warning_0": "one \"1\"", "pensieve_warning_1": "two"});
        assert_eq!(echo("{\"metadata\": {\"a\": 1}}", &warnings)["metadata"], expected);
        assert_eq!(echo("{}", &warnings[1..])["metadata"], json!({"pensieve_warning_0": "two"}));
        assert_eq!(echo("{\"metadata\": { }}", &warnings[1..])["metadata"], json!({"pensieve_warning_0": "two"}));
    }
}
