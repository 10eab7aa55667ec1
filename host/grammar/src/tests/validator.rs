//! The subset of JSON schema that the walks use, implemented from the specification, independently of the grammar.

use serde_json::Value;

pub(super) fn is_valid(root: &Value, schema: &Value, value: &Value) -> bool {
    let Some(fields) = schema.as_object() else { return schema.as_bool().unwrap() };
    fields.iter().all(|(keyword, argument)| keyword_holds(root, fields, keyword, argument, value))
}

fn keyword_holds(
    root: &Value,
    schema: &serde_json::Map<String, Value>,
    keyword: &str,
    argument: &Value,
    value: &Value,
) -> bool {
    let schemas = || argument.as_array().unwrap().iter();
    let number = || argument.as_f64().unwrap();
    let characters = value.as_str().map(|text| text.chars().count() as f64);
    let items = value.as_array().map(|items| items.len() as f64);
    match keyword {
        "$defs" | "description" => true,
        "$ref" => is_valid(root, root.pointer(argument.as_str().unwrap().trim_start_matches('#')).unwrap(), value),
        "type" => match argument {
            Value::Array(types) => types.iter().any(|kind| is_of_type(kind.as_str().unwrap(), value)),
            kind => is_of_type(kind.as_str().unwrap(), value),
        },
        "const" => argument == value,
        "enum" => schemas().any(|option| option == value),
        "anyOf" => schemas().any(|option| is_valid(root, option, value)),
        "allOf" => schemas().all(|option| is_valid(root, option, value)),
        "minLength" => characters.is_none_or(|length| length >= number()),
        "maxLength" => characters.is_none_or(|length| length <= number()),
        "minItems" => items.is_none_or(|length| length >= number()),
        "maxItems" => items.is_none_or(|length| length <= number()),
        "minimum" => value.as_f64().is_none_or(|value| value >= number()),
        "maximum" => value.as_f64().is_none_or(|value| value <= number()),
        "multipleOf" => value.as_f64().is_none_or(|value| value % number() == 0.0),
        "items" => value.as_array().is_none_or(|items| items.iter().all(|item| is_valid(root, argument, item))),
        "required" => {
            value.as_object().is_none_or(|fields| schemas().all(|name| fields.contains_key(name.as_str().unwrap())))
        }
        "properties" => value.as_object().is_none_or(|fields| {
            fields.iter().all(|(name, field)| argument.get(name).is_none_or(|schema| is_valid(root, schema, field)))
        }),
        "additionalProperties" => value.as_object().is_none_or(|fields| {
            let known =
                |name: &String| schema.get("properties").is_some_and(|properties| properties.get(name).is_some());
            fields.iter().all(|(name, field)| known(name) || is_valid(root, argument, field))
        }),
        other => panic!("the test's validator does not know {other}"),
    }
}

fn is_of_type(kind: &str, value: &Value) -> bool {
    match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        other => panic!("no type {other}"),
    }
}

#[test]
fn knows_good_from_bad() {
    let schema = serde_json::json!({
        "type": "object", "required": ["a"], "additionalProperties": false,
        "properties": { "a": { "type": "array", "maxItems": 2, "items": { "enum": ["x", "y"] } } },
    });
    let judge = |text: &str| is_valid(&schema, &schema, &serde_json::from_str(text).unwrap());
    assert!(judge(r#"{"a": ["x", "y"]}"#) && judge(r#"{"a": []}"#));
    assert!(
        !judge("{}")
            && !judge(r#"{"a": ["z"]}"#)
            && !judge(r#"{"a": [], "b": 1}"#)
            && !judge(r#"{"a": ["x", "x", "x"]}"#)
    );
}
