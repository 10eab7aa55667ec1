//! Custom tools of OpenAI's APIs, which take a text instead of arguments: the model sees a function with one string. The
//! format of that text is shown to the model, and enforced if it is a grammar that can be converted to a regular expression.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::{ApiError, fields::Field};
use crate::{
    chat::{Client, Tool},
    requests::Chats,
};
use pensieve_protocol::prompt::Syntax;

const GRAMMAR_BYTES_MAX: usize = 64 << 10;
/// Limits of the formats that are enforced per request: number and total bytes.
const FORMATS_MAX: usize = 32;
const FORMATS_BYTES_MAX: usize = 256 << 10;
/// Warnings per request; further ones would only repeat them.
const WARNINGS_MAX: usize = 16;
/// Two escapes of four digits.
const ESCAPE_BYTES_MAX: usize = 12;
/// The argument of the function.
const ARGUMENT: &str = "input";

/// The custom tools of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct CustomTools {
    /// As the model sees them.
    names: HashSet<String>,
    formats: Vec<Format>,
}

/// The format that the input of a custom tool must match.
#[derive(Clone, Debug, PartialEq)]
struct Format {
    /// The tool's name as the model sees it.
    tool: String,
    /// The request field with the definition.
    path: String,
    syntax: Syntax,
    definition: String,
}

/// The function's arguments for an input.
pub(super) fn arguments(input: &str) -> Value {
    json!({ ARGUMENT: input })
}

/// The input in a function's arguments, which may have been cut.
pub(super) fn input(arguments: &str) -> String {
    let parsed = serde_json::from_str(arguments).ok().or_else(|| begun(arguments));
    let text = parsed.as_ref().and_then(|arguments: &Value| arguments[ARGUMENT].as_str());
    text.map_or_else(|| arguments.to_owned(), str::to_owned)
}

/// Arguments that end within their text, closed there.
fn begun(arguments: &str) -> Option<Value> {
    // The last character may be half an escape; of two halves of a pair at most.
    let ends = arguments.char_indices().rev().map(|(end, _)| end).take(ESCAPE_BYTES_MAX);
    let mut texts = std::iter::once(arguments.len()).chain(ends).map(|end| format!("{}\"}}", &arguments[..end]));
    texts.find_map(|text| serde_json::from_str(&text).ok())
}

impl CustomTools {
    /// Reads a tool that the model sees under this name.
    pub(super) fn read(&mut self, item: &Field<'_>, name: String) -> Result<Tool, ApiError> {
        let mut description = item.get("description").string_or_empty()?.to_owned();
        let mut field = item.path().to_owned();
        let given = item.get("format");
        if let Some(given) = given.present() {
            given.object()?;
            if given.get("type").choice(&["text", "grammar"])? == 1 {
                // Chat completions have the grammar in an object of its own.
                let nested = given.get("grammar");
                let grammar = nested.present().unwrap_or(given);
                grammar.object()?;
                let definition = grammar.get("definition");
                let text = definition.text(GRAMMAR_BYTES_MAX)?;
                let (kind, syntax) = match grammar.get("syntax").choice(&["lark", "regex"])? {
                    0 => ("Lark grammar", Syntax::Lark),
                    _ => ("regular expression", Syntax::Regex),
                };
                definition.path().clone_into(&mut field);
                let format = Format { tool: name.clone(), path: field.clone(), syntax, definition: text.to_owned() };
                self.formats.push(format);
                description.push_str(&format!("\nThe input has to match this {kind}:\n{text}"));
            }
        }
        let schema = json!({
            "type": "object", "properties": { ARGUMENT: { "type": "string" } }, "required": [ARGUMENT],
            "additionalProperties": false,
        });
        self.names.insert(name.clone());
        Ok(Tool { name, description, schema, field, ..Tool::default() })
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// Enforces the formats of `tools`: a grammar process converts each to a regular expression. One that cannot be
    /// converted is a warning, as a 400 would end a Codex session.
    pub(super) async fn enforce(
        &mut self,
        chats: &Chats,
        client: &Client,
        tools: &mut [Tool],
        warnings: &mut Vec<String>,
    ) -> Result<(), ApiError> {
        let asked = self.formats_of(tools, warnings);
        let formats: Vec<_> = asked.iter().map(|format| (format.syntax, format.definition.as_str())).collect();
        let expressed = chats.expressions(client, &formats).await.map_err(ApiError::of_model)?;
        for (format, expressed) in asked.into_iter().zip(expressed) {
            format.apply(tools, expressed, warnings);
        }
        // They may be long, and are not needed for the answer.
        self.formats = Vec::new();
        Ok(())
    }

    /// The formats of these tools, up to the limits.
    fn formats_of(&self, tools: &[Tool], warnings: &mut Vec<String>) -> Vec<&Format> {
        let mut remaining = FORMATS_BYTES_MAX;
        let mut formats = Vec::new();
        for format in
            self.formats.iter().filter(|format| tools.iter().any(|tool| tool.name == format.tool && !tool.barred))
        {
            match remaining.checked_sub(format.definition.len()).filter(|_| formats.len() < FORMATS_MAX) {
                Some(left) => {
                    remaining = left;
                    formats.push(format);
                }
                None => format.warn("the request has too many formats, or they are too long together", warnings),
            }
        }
        formats
    }
}

impl Format {
    /// Constrains the tool's input to the regular expression, or adds the reason to the warnings.
    fn apply(&self, tools: &mut [Tool], expressed: Result<String, String>, warnings: &mut Vec<String>) {
        match (expressed, tools.iter_mut().find(|tool| tool.name == self.tool)) {
            (Ok(expression), Some(tool)) => {
                let pattern = format!("^(?:{expression})$");
                tool.schema["properties"][ARGUMENT]["pattern"] = pattern.into();
                tool.input = Some(expression);
            }
            (Err(why), _) => self.warn(&why, warnings),
            (Ok(_), None) => {}
        }
    }

    fn warn(&self, why: &str, warnings: &mut Vec<String>) {
        if warnings.len() < WARNINGS_MAX {
            warnings.push(format!("{}: is shown to the model, but not enforced: {why}", self.path));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Custom tools with these formats, under the names `t0` and so on.
    fn tools(formats: &[Value]) -> (Vec<Tool>, CustomTools) {
        let items: Vec<Value> = formats.iter().map(|format| json!({ "format": format })).collect();
        let body = json!({ "tools": items });
        let (root, mut custom) = (Field::root(&body), CustomTools::default());
        let list = root.get("tools");
        let items = list.items(1_000).unwrap().enumerate();
        let tools = items.map(|(place, item)| custom.read(&item, format!("t{place}")).unwrap()).collect();
        (tools, custom)
    }

    fn regex(definition: &str) -> Value {
        json!({"type": "grammar", "syntax": "regex", "definition": definition})
    }

    #[test]
    fn a_format_is_enforced_or_a_warning() {
        let lark = json!({"syntax": "lark", "definition": "start: \"a\"+"});
        let nested = json!({"type": "grammar", "grammar": lark});
        let (mut tools, custom) = tools(&[regex("a+"), nested, json!({"type": "text"}), regex("b"), Value::Null]);
        assert!(tools[0].description.ends_with("regular expression:\na+") && tools[1].description.contains("start: "));
        assert_eq!((tools[2].description.as_str(), tools[1].strict), ("", false));
        tools[3].barred = true;
        let mut warnings = Vec::new();
        let found = custom.formats_of(&tools, &mut warnings);
        assert_eq!((found.len(), warnings.len()), (2, 0), "a tool that may not be called needs no expression");
        for (format, expressed) in found.into_iter().zip([Err("why".to_owned()), Ok("a+|b".to_owned())]) {
            format.apply(&mut tools, expressed, &mut warnings);
        }
        let pattern = |tool: usize| &tools[tool].schema["properties"]["input"]["pattern"];
        assert_eq!((pattern(0), pattern(1)), (&Value::Null, &json!("^(?:a+|b)$")));
        assert_eq!((tools[0].input.as_deref(), tools[1].input.as_deref()), (None, Some("a+|b")));
        assert_eq!(warnings, ["tools.0.format.definition: is shown to the model, but not enforced: why"]);
    }

    #[test]
    fn formats_beyond_what_is_enforced_are_warnings() {
        let count = |formats: Vec<Value>| {
            let ((tools, custom), mut warnings) = (tools(&formats), Vec::new());
            (custom.formats_of(&tools, &mut warnings).len(), warnings)
        };
        let (many, warnings) = count((0..100).map(|_| regex("a")).collect());
        assert_eq!((many, warnings.len()), (32, 16), "{warnings:?}");
        assert!(warnings[0].starts_with("tools.32.format.definition: is shown"), "{warnings:?}");
        let (long, warnings) = count((0..6).map(|_| regex(&"a".repeat(60_000))).collect());
        assert_eq!((long, warnings.len()), (4, 2), "{warnings:?}");
    }

    #[test]
    fn an_input_is_found_in_its_arguments() {
        assert_eq!(input(&arguments("a \"b\"\n").to_string()), "a \"b\"\n");
        let cut = [
            (r#"{"input": "a"#, "a"),
            (r#"{"input":"a\"#, "a"),
            (r#"{"input":"a\nb"#, "a\nb"),
            (r#"{"input":"#, r#"{"input":"#),
        ];
        for (text, expect) in cut.into_iter().chain([(r#"{"input": "a\ud83e\ude"#, "a"), (r#"{"input": "a\u00"#, "a")])
        {
            assert_eq!(input(text), expect);
        }
        for broken in ["{\"input\": 1}", "plain", ""] {
            assert_eq!(input(broken), broken);
        }
    }
}
