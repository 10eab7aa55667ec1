//! What is known of a tool when its calls are read: its name, and which of its arguments are texts.
//!
//! Where a model writes arguments between tags, a string stands there without quotes, and only the tool's schema tells
//! `42` the number from `42` the text.

use serde_json::{Map, Value};
use std::{cell::Cell, collections::HashSet};

use super::{literal::Literal, pieces::escape};
use crate::chat::Tool;

/// References and branches are followed so deep.
const DEPTH_MAX: usize = 16;
/// Schemas that are looked at for one value, and for all values of a tool. Branches that each lead back to all of them are more
/// than anyone can walk; what is not looked at may be anything.
const SCHEMAS_MAX: usize = 1000;
const SCHEMAS_OF_TOOL_MAX: usize = 10_000;

/// A tool as its calls are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    pub name: String,
    parameters: Vec<(String, Types)>,
}

/// Kinds of JSON values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Types(u8);

impl Signature {
    pub fn of(tool: &Tool) -> Self {
        let properties = tool.schema.get("properties").and_then(Value::as_object);
        let left = Cell::new(SCHEMAS_OF_TOOL_MAX);
        let of = |(key, schema): (&String, &Value)| {
            let limit = Cell::new(left.get().min(SCHEMAS_MAX));
            let given = limit.get();
            let types = Types::within(schema, &tool.schema, DEPTH_MAX, &limit);
            left.set(left.get() - (given - limit.get()));
            (key.clone(), types)
        };
        Self { name: tool.name.clone(), parameters: properties.into_iter().flatten().map(of).collect() }
    }

    /// What an argument may be.
    pub(super) fn types(&self, key: &str) -> Types {
        self.parameters.iter().find(|(name, _)| name == key).map_or(Types::ANY, |(_, types)| *types)
    }
}

impl Types {
    pub const TEXT: Self = Self(1);
    pub const NUMBER: Self = Self(2);
    pub const BOOLEAN: Self = Self(4);
    pub const NULL: Self = Self(8);
    pub const LIST: Self = Self(16);
    pub const OBJECT: Self = Self(32);
    pub const ANY: Self = Self(63);

    /// What fits a schema, as far as that is plain to see.
    pub fn of(schema: &Value, root: &Value) -> Self {
        Self::within(schema, root, DEPTH_MAX, &Cell::new(SCHEMAS_MAX))
    }

    fn within(schema: &Value, root: &Value, depth: usize, left: &Cell<usize>) -> Self {
        let Some((schema, depth)) = schema.as_object().zip(depth.checked_sub(1)) else { return Self::ANY };
        let Some(fewer) = left.get().checked_sub(1) else { return Self::ANY };
        left.set(fewer);
        let union = |types: &mut dyn Iterator<Item = Self>| types.fold(Self(0), |all, one| Self(all.0 | one.0));
        let branches = |of: &Value| {
            of.as_array().map(|all| union(&mut all.iter().map(|one| Self::within(one, root, depth, left))))
        };
        let keyword = |name: &str| schema.get(name);
        let mut types = Self::ANY;
        if let Some(target) = keyword("$ref").and_then(Value::as_str).and_then(|target| resolve(target, root)) {
            types = types.and(Self::within(target, root, depth, left));
        }
        if let Some(value) = keyword("const") {
            types = types.and(Self::of_value(value));
        }
        if let Some(values) = keyword("enum").and_then(Value::as_array) {
            types = types.and(union(&mut values.iter().map(Self::of_value)));
        }
        match keyword("type") {
            Some(Value::String(name)) => types = types.and(Self::named(name)),
            Some(Value::Array(names)) => {
                types = types.and(union(&mut names.iter().filter_map(Value::as_str).map(Self::named)));
            }
            _ => {}
        }
        for name in ["anyOf", "oneOf"] {
            types = keyword(name).and_then(branches).map_or(types, |found| types.and(found));
        }
        for part in keyword("allOf").and_then(Value::as_array).into_iter().flatten() {
            types = types.and(Self::within(part, root, depth, left));
        }
        if types == Self::ANY && schema.contains_key("properties") { Self::OBJECT } else { types }
    }

    fn named(name: &str) -> Self {
        match name {
            "string" => Self::TEXT,
            "number" | "integer" => Self::NUMBER,
            "boolean" => Self::BOOLEAN,
            "null" => Self::NULL,
            "array" => Self::LIST,
            "object" => Self::OBJECT,
            _ => Self::ANY,
        }
    }

    fn of_value(value: &Value) -> Self {
        match value {
            Value::String(_) => Self::TEXT,
            Value::Number(_) => Self::NUMBER,
            Value::Bool(_) => Self::BOOLEAN,
            Value::Null => Self::NULL,
            Value::Array(_) => Self::LIST,
            Value::Object(_) => Self::OBJECT,
        }
    }

    /// What is both; if that is nothing, the schema contradicts itself, and anything may come.
    fn and(self, other: Self) -> Self {
        if self.0 & other.0 == 0 { Self::ANY } else { Self(self.0 & other.0) }
    }

    /// Whether one of these is possible.
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// The JSON of a value that stands between tags.
    pub fn json_of(self, raw: &[u8]) -> Vec<u8> {
        let text = String::from_utf8_lossy(raw);
        let trimmed = text.trim();
        // A text in quotes where a text may stand is a text with quotes.
        let fits = |value: &Value| self.has(Self::of_value(value)) && !(value.is_string() && self.has(Self::TEXT));
        let is_json = |text: &str| serde_json::from_str::<Value>(text).is_ok_and(|value| fits(&value));
        if is_json(trimmed) {
            return trimmed.as_bytes().to_vec();
        }
        // Some templates print values as Python does, and their models have learned it.
        let python = Literal::python(trimmed).and_then(|json| String::from_utf8(json).ok());
        if let Some(python) = python.filter(|json| is_json(json)) {
            return python.into_bytes();
        }
        let mut json = vec![b'"'];
        escape(raw, &mut json);
        json.push(b'"');
        json
    }
}

/// What a reference within a document leads to.
pub(super) fn resolve<'a>(reference: &str, root: &'a Value) -> Option<&'a Value> {
    root.pointer(reference.strip_prefix('#')?.trim_end_matches('/'))
}

/// The properties of an object's schema, and which of them must be there.
pub(super) fn properties(schema: &Value) -> (Option<&Map<String, Value>>, HashSet<&str>) {
    let properties = schema.get("properties").and_then(Value::as_object).filter(|fields| !fields.is_empty());
    let required = schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    (properties, required.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::time::{Duration, Instant};

    fn of(schema: Value) -> Types {
        let tool = Tool { schema: json!({"properties": {"x": schema}}), ..Tool::default() };
        Signature::of(&tool).types("x")
    }

    #[test]
    fn branches_that_lead_back_to_each_other_cost_no_time() {
        let back = vec![json!({"$ref": "#/properties/x"}); 100];
        for schema in [json!({"anyOf": back}), json!({"allOf": back}), json!({"oneOf": back, "allOf": back})] {
            let began = Instant::now();
            assert_eq!(of(schema), Types::ANY);
            assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
        }
        let mut many: Map<String, Value> =
            (0..10_000).map(|n| (format!("p{n}"), json!({"$ref": "#/properties/x"}))).collect();
        many.insert("x".into(), json!({ "anyOf": back }));
        let began = Instant::now();
        Signature::of(&Tool { schema: json!({ "properties": many }), ..Tool::default() });
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
        assert_eq!(of(json!({"anyOf": [{"type": "string"}, {"type": "null"}]})), Types(Types::TEXT.0 | Types::NULL.0));
        assert_eq!(of(json!({"allOf": [{"anyOf": [{"type": "integer"}]}]})), Types::NUMBER);
    }
}
