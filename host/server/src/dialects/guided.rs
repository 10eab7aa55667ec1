//! Constraints on the answer in the fields of other servers: vLLM's `structured_outputs` and `guided_…`, llama.cpp's
//! `grammar` and `json_schema`, and SGLang's `regex` and `ebnf`.

use serde_json::Value;

use super::{ApiError, choices, extensions, fields::Field, gbnf};
use crate::chat::ResponseFormat;
use pensieve_protocol::grammar::Grammar;

/// The constraints of `structured_outputs`.
const OUTPUTS: [&str; 5] = ["json", "regex", "choice", "grammar", "json_object"];
const REGEX_LEN_MAX: usize = 16 << 10;
const GRAMMAR_LEN_MAX: usize = 64 << 10;

/// Reads these fields into `format`. Two constraints at once are an error, as none can be ignored.
pub(super) fn read(body: &Field<'_>, format: &mut ResponseFormat) -> Result<(), ApiError> {
    let outputs = body.get("structured_outputs");
    if let Some(outputs) = outputs.present() {
        outputs.object()?;
        if let Some(tag) = outputs.get("structural_tag").present() {
            return Err(tag.invalid("is not served; send 'json', 'regex', 'choice' or 'grammar'"));
        }
        if OUTPUTS.iter().all(|name| outputs.get(name).is_absent()) {
            return Err(outputs.invalid(format_args!("should have one of '{}'", OUTPUTS.join("', '"))));
        }
    }
    let fields: [(Field<'_>, Reader); 12] = [
        (outputs.get("json"), json),
        (outputs.get("regex"), regex),
        (outputs.get("choice"), choice),
        (outputs.get("grammar"), grammar),
        (body.get("guided_json"), json),
        (body.get("guided_regex"), regex),
        (body.get("guided_choice"), choice),
        (body.get("guided_grammar"), grammar),
        (body.get("json_schema"), json),
        (body.get("grammar"), grammar),
        (body.get("regex"), regex),
        (body.get("ebnf"), grammar),
    ];
    for (field, read) in &fields {
        if field.is_absent() {
            continue;
        }
        if field.string() == Ok("") {
            field.note("is empty, so the answer is not constrained");
            continue;
        }
        set(format, field, read(field)?)?;
    }
    let object = outputs.get("json_object");
    if object.flag(false)? {
        set(format, &object, of(&object, Grammar::any_json_object())?)?;
    }
    Ok(())
}

type Reader = fn(&Field<'_>) -> Result<ResponseFormat, ApiError>;

fn set(format: &mut ResponseFormat, field: &Field<'_>, found: ResponseFormat) -> Result<(), ApiError> {
    if *format != ResponseFormat::Free {
        return Err(field.invalid("the request also asks for another format"));
    }
    *format = found;
    Ok(())
}

fn of(field: &Field<'_>, grammar: Grammar) -> Result<ResponseFormat, ApiError> {
    Ok(ResponseFormat::Grammar { grammar, field: field.path().to_owned() })
}

/// A schema, as an object or as its text.
fn json(field: &Field<'_>) -> Result<ResponseFormat, ApiError> {
    if !field.is_string() {
        return of(field, Grammar::json_schema(extensions::schema(field)?, true));
    }
    let parsed: Result<Value, _> = serde_json::from_str(field.string()?);
    match parsed {
        Ok(schema @ Value::Object(_)) => of(field, Grammar::json_schema(schema.to_string(), true)),
        Ok(_) => Err(field.invalid("should be a JSON schema, an object")),
        Err(error) => Err(field.invalid(format_args!("is not JSON: {error}"))),
    }
}

fn regex(field: &Field<'_>) -> Result<ResponseFormat, ApiError> {
    of(field, Grammar::Regex(field.text(REGEX_LEN_MAX)?.to_owned()))
}

fn choice(field: &Field<'_>) -> Result<ResponseFormat, ApiError> {
    choices::read(field)
}

/// A grammar in GBNF, or in Lark, which vLLM takes as well.
fn grammar(field: &Field<'_>) -> Result<ResponseFormat, ApiError> {
    let text = field.text(GRAMMAR_LEN_MAX)?;
    if !text.contains("::=") {
        return of(field, Grammar::Lark(text.to_owned()));
    }
    let lark = gbnf::to_lark(text).map_err(|why| field.invalid(why))?;
    of(field, Grammar::Lark(lark))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn format(body: Value) -> Result<ResponseFormat, String> {
        let mut format = ResponseFormat::Free;
        read(&Field::root(&body), &mut format).map(|()| format).map_err(|error| error.message)
    }

    #[test]
    fn every_field_is_a_constraint() {
        let schema = Grammar::json_schema(r#"{"type":"object"}"#, true);
        let regex = Grammar::Regex("a+".into());
        let words = Grammar::Regex("(a|b)".into());
        let lark = Grammar::Lark("start: \"a\"".into());
        let table = [
            (json!({"guided_json": {"type": "object"}}), "guided_json", schema.clone()),
            (json!({"guided_json": "{\"type\": \"object\"}"}), "guided_json", schema.clone()),
            (json!({"json_schema": {"type": "object"}}), "json_schema", schema.clone()),
            (json!({"structured_outputs": {"json": {"type": "object"}}}), "structured_outputs.json", schema),
            (json!({"guided_regex": "a+"}), "guided_regex", regex.clone()),
            (json!({"regex": "a+"}), "regex", regex.clone()),
            (json!({"ebnf": "root ::= \"a\""}), "ebnf", Grammar::Lark("start: \"a\"\n".into())),
            (json!({"structured_outputs": {"regex": "a+"}}), "structured_outputs.regex", regex),
            (json!({"guided_choice": ["a", "b"]}), "guided_choice", words.clone()),
            (json!({"structured_outputs": {"choice": ["a", "b"]}}), "structured_outputs.choice", words),
            (json!({"guided_grammar": "start: \"a\""}), "guided_grammar", lark.clone()),
            (json!({"grammar": "root ::= \"a\""}), "grammar", Grammar::Lark("start: \"a\"\n".into())),
            (json!({"structured_outputs": {"grammar": "start: \"a\""}}), "structured_outputs.grammar", lark),
            (
                json!({"structured_outputs": {"json_object": true}}),
                "structured_outputs.json_object",
                Grammar::any_json_object(),
            ),
        ];
        for (body, field, grammar) in table {
            assert_eq!(format(body.clone()), Ok(ResponseFormat::Grammar { grammar, field: field.into() }), "{body}");
        }
        for none in
            [json!({}), json!({"grammar": "", "guided_json": null, "structured_outputs": {"json_object": false}})]
        {
            assert_eq!(format(none), Ok(ResponseFormat::Free));
        }
    }

    const OUTPUTS_HELP: &str =
        "structured_outputs: should have one of 'json', 'regex', 'choice', 'grammar', 'json_object'";

    #[test]
    fn complaints_name_the_field() {
        let table = [
            (json!({"guided_json": 1}), "guided_json: should be an object, not 1"),
            (json!({"guided_json": "[]"}), "guided_json: should be a JSON schema, an object"),
            (json!({"guided_regex": 1}), "guided_regex: should be a string, not 1"),
            (json!({"guided_choice": "a"}), "guided_choice: should be a list, not a string"),
            (json!({"grammar": "root ::= a"}), "grammar: the rule 'a' is not defined"),
            (
                json!({"guided_regex": "a", "guided_choice": ["a"]}),
                "guided_choice: the request also asks for another format",
            ),
            (json!({"structured_outputs": {}}), OUTPUTS_HELP),
            (json!({"structured_outputs": {"foo": 1}}), OUTPUTS_HELP),
            (
                json!({"structured_outputs": {"structural_tag": {}}}),
                "structured_outputs.structural_tag: is not served; send 'json', 'regex', 'choice' or 'grammar'",
            ),
        ];
        for (body, expected) in table {
            assert_eq!(format(body).unwrap_err(), expected);
        }
    }
}
