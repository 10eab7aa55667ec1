//! Google's `Schema`, a dialect of OpenAPI's: types in capitals, `nullable`, counts as strings, and `propertyOrdering`.
//! It is converted to JSON schema; `parametersJsonSchema` and `responseJsonSchema` are JSON schema already.

use serde_json::{Map, Value, json};

use crate::dialects::{
    ApiError, extensions,
    fields::{Field, Quote},
};

/// Keywords with schemas below them, by name and in a list.
const DEPTH_MAX: usize = 64;
const TYPES: [&str; 7] = ["string", "number", "integer", "boolean", "array", "object", "null"];
/// Counts, which proto3 writes as strings.
const COUNTS: [(&str, &str); 6] = [
    ("minItems", "min_items"),
    ("maxItems", "max_items"),
    ("minLength", "min_length"),
    ("maxLength", "max_length"),
    ("minProperties", "min_properties"),
    ("maxProperties", "max_properties"),
];
const SAME: [&str; 10] =
    ["title", "description", "format", "enum", "pattern", "minimum", "maximum", "default", "required", "example"];

/// A schema as JSON schema, its size checked.
pub(super) fn read(field: &Field<'_>) -> Result<Value, ApiError> {
    extensions::schema(field)?;
    converted(field, 0)
}

fn converted(field: &Field<'_>, depth: usize) -> Result<Value, ApiError> {
    if depth > DEPTH_MAX {
        return Err(field.invalid(format_args!("is nested more than {DEPTH_MAX} levels deep")));
    }
    let from = field.object()?;
    let mut schema = Map::new();
    if let Some(kind) = kind(field)? {
        schema.insert("type".into(), kind);
    }
    for name in SAME.iter().filter(|name| from.get(**name).is_some_and(|value| !value.is_null())) {
        schema.insert((*name).to_owned(), from[*name].clone());
    }
    for (name, snake) in COUNTS {
        if let Some(count) = from.get(name).or_else(|| from.get(snake)) {
            let number = count.as_str().and_then(|text| text.parse::<u64>().ok()).map(Value::from);
            schema.insert(name.into(), number.unwrap_or_else(|| count.clone()));
        }
    }
    let items = field.get("items");
    if !items.is_absent() {
        schema.insert("items".into(), converted(&items, depth + 1)?);
    }
    for (name, snake) in [("anyOf", "any_of"), ("oneOf", "one_of"), ("allOf", "all_of")] {
        let list = if field.get(name).is_absent() { field.get(snake) } else { field.get(name) };
        if !list.is_absent() {
            let options = list.items(usize::MAX)?.map(|item| converted(&item, depth + 1));
            schema.insert(name.into(), options.collect::<Result<Vec<_>, _>>()?.into());
        }
    }
    let properties = field.get("properties");
    if !properties.is_absent() {
        schema.insert("properties".into(), ordered(field, &properties, depth)?.into());
    }
    for name in ["additionalProperties", "$ref", "$defs", "const"] {
        if let Some(value) = from.get(name) {
            schema.insert(name.into(), value.clone());
        }
    }
    Ok(Value::Object(schema))
}

/// `STRING`, `string`, or the lists of JSON schema, which clients send as well.
fn kind(field: &Field<'_>) -> Result<Option<Value>, ApiError> {
    let one = |name: &str| {
        let lower = name.to_ascii_lowercase();
        TYPES.contains(&lower.as_str()).then_some(lower)
    };
    let kind = field.get("type");
    let Some(kind) = kind.present() else { return Ok(None) };
    let mut kinds = Vec::new();
    if kind.is_string() {
        let name = kind.string()?;
        if name == "TYPE_UNSPECIFIED" {
            return Ok(None);
        }
        kinds.push(one(name).ok_or_else(|| kind.invalid(format_args!("there is no type '{}'", Quote(name))))?);
    } else {
        for item in kind.items(TYPES.len())? {
            let name = item.string()?;
            kinds.push(one(name).ok_or_else(|| item.invalid(format_args!("there is no type '{}'", Quote(name))))?);
        }
    }
    if field.get("nullable").flag(false)? && !kinds.iter().any(|kind| kind == "null") {
        kinds.push("null".into());
    }
    Ok(Some(if let [kind] = kinds.as_slice() { json!(kind) } else { json!(kinds) }))
}

/// The properties, those named by `propertyOrdering` first.
fn ordered(field: &Field<'_>, properties: &Field<'_>, depth: usize) -> Result<Map<String, Value>, ApiError> {
    let order = field.get("propertyOrdering");
    let order = if order.is_absent() { field.get("property_ordering") } else { order };
    let mut first = Vec::new();
    if let Some(order) = order.present() {
        for name in order.items(usize::MAX)? {
            first.push(name.string()?);
        }
    }
    let mut rest = Map::new();
    for (name, property) in properties.entries()? {
        rest.insert(name.to_owned(), converted(&property, depth + 1)?);
    }
    let mut all: Map<String, Value> =
        first.into_iter().filter_map(|name| Some((name.to_owned(), rest.shift_remove(name)?))).collect();
    all.extend(rest);
    Ok(all)
}
