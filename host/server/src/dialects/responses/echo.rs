//! Request fields that every response echoes. They are part of three events of a stream and of the stored response, so
//! they are serialized once, as received, and shared.

use serde_json::{Map, Value};

use crate::dialects::{ApiError, fields::Field};

const METADATA_MAX: usize = 16;

/// Echoed fields with the API's defaults; `metadata` is handled separately, and so are those in [`COMPLETED`].
const FIELDS: [(&str, &str); 17] = [
    ("frequency_penalty", "0.0"),
    ("instructions", "null"),
    ("max_output_tokens", "null"),
    ("max_tool_calls", "null"),
    ("model", "null"),
    ("parallel_tool_calls", "true"),
    ("presence_penalty", "0.0"),
    ("previous_response_id", "null"),
    ("prompt_cache_key", "null"),
    ("safety_identifier", "null"),
    ("service_tier", r#""default""#),
    ("store", "true"),
    ("temperature", "1.0"),
    ("tool_choice", r#""auto""#),
    ("top_logprobs", "0"),
    ("top_p", "1.0"),
    ("user", "null"),
];

/// Echoed fields whose members clients may leave out, but responses may not.
const COMPLETED: [(&str, &str); 3] =
    [("reasoning", r#"{"effort":null,"summary":null}"#), ("text", r#"{"format":{"type":"text"}}"#), ("tools", "[]")];

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
        for (name, default) in COMPLETED {
            let field = body.get(name);
            let text = field.optional(|field| Ok(completed(field.json()?, default)))?;
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

/// A field of [`COMPLETED`] as the client sent it, with the members that it lacks.
fn completed(value: &Value, default: &str) -> String {
    let mut value = value.clone();
    if let Ok(Value::Object(members)) = serde_json::from_str(default) {
        fill(&mut value, members);
    }
    for tool in value.as_array_mut().into_iter().flatten().filter(|tool| tool["type"] == "function") {
        let members = ["description", "parameters"].map(|name| (name.to_owned(), Value::Null));
        fill(tool, members.into_iter().chain([("strict".to_owned(), Value::Bool(false))]).collect());
    }
    value.to_string()
}

fn fill(value: &mut Value, members: Map<String, Value>) {
    let Some(object) = value.as_object_mut() else { return };
    for (name, member) in members {
        object.entry(name).or_insert(member);
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
            (&json!(0.5), &json!("disabled"), 22)
        );
    }

    #[test]
    fn objects_are_completed_to_what_responses_have() {
        let sent = echo(
            r#"{"reasoning": {"effort": "low"}, "text": {"verbosity": "low"},
                "tools": [{"type": "function", "name": "f"}, {"type": "custom", "name": "c"}]}"#,
            &[],
        );
        assert_eq!(sent["reasoning"], json!({"effort": "low", "summary": null}));
        assert_eq!(sent["text"], json!({"verbosity": "low", "format": {"type": "text"}}));
        let function =
            json!({"type": "function", "name": "f", "description": null, "parameters": null, "strict": false});
        assert_eq!(sent["tools"], json!([function, {"type": "custom", "name": "c"}]));
        let absent = echo(r#"{"tools": null}"#, &[]);
        assert_eq!((&absent["tools"], &absent["text"]), (&json!([]), &json!({"format": {"type": "text"}})));
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
