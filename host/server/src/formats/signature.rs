//! A tool as its call parser sees it: the name, and the types of the arguments.
//!
//! A model that writes arguments between tags writes strings without quotes, so only the tool's schema distinguishes
//! the number `42` from the string.

use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::chat::Tool;

/// Depth to which references and branches are followed.
const DEPTH_MAX: usize = 16;
/// Maximum number of schemas visited for one argument, and for a whole tool. Branches may be circular, a hundred at a
/// time; a schema that is not visited allows anything.
const VISITS_MAX: usize = 1_000;
const TOOL_VISITS_MAX: usize = 20_000;
/// Number of enumeration values that count as one visited schema.
const VALUES_PER_VISIT: usize = 64;
/// Maximum length of a reference that is followed.
const REFERENCE_BYTES_MAX: usize = 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    pub name: String,
    parameters: Vec<(String, Types)>,
}

/// A set of JSON types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Types(u8);

impl Signature {
    pub fn of(tool: &Tool) -> Self {
        let properties = tool.schema.get("properties").and_then(Value::as_object);
        let mut visits = TOOL_VISITS_MAX;
        let of = |(key, schema): (&String, &Value)| {
            let own = visits.min(VISITS_MAX);
            let mut left = own;
            let types = Types::within(schema, &tool.schema, DEPTH_MAX, &mut left);
            visits -= own - left;
            (key.clone(), types)
        };
        Self { name: tool.name.clone(), parameters: properties.into_iter().flatten().map(of).collect() }
    }

    /// The types that an argument may have.
    pub fn types(&self, key: &str) -> Types {
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

    /// The types that a schema allows, by a simple analysis.
    pub fn of(schema: &Value, root: &Value) -> Self {
        Self::within(schema, root, DEPTH_MAX, &mut { VISITS_MAX })
    }

    /// Like [`Types::of`], with a limit on the number of visited schemas.
    fn within(schema: &Value, root: &Value, depth: usize, visits: &mut usize) -> Self {
        let Some((schema, depth)) = schema.as_object().zip(depth.checked_sub(1)) else { return Self::ANY };
        let values = |name: &str| schema.get(name).and_then(Value::as_array);
        let listed = ["enum", "type"].into_iter().filter_map(values).map(Vec::len).sum::<usize>();
        let Some(left) = visits.checked_sub(1 + listed / VALUES_PER_VISIT) else {
            *visits = 0;
            return Self::ANY;
        };
        *visits = left;
        let union = |types: &mut dyn Iterator<Item = Self>| types.fold(Self(0), |all, one| Self(all.0 | one.0));
        let mut types = Self::ANY;
        if let Some(target) = schema.get("$ref").and_then(Value::as_str).and_then(|target| resolve(target, root)) {
            types = types.and(Self::within(target, root, depth, visits));
        }
        if let Some(value) = schema.get("const") {
            types = types.and(Self::of_value(value));
        }
        if let Some(values) = values("enum") {
            types = types.and(union(&mut values.iter().map(Self::of_value)));
        }
        match schema.get("type") {
            Some(Value::String(name)) => types = types.and(Self::named(name)),
            Some(Value::Array(names)) => {
                types = types.and(union(&mut names.iter().filter_map(Value::as_str).map(Self::named)));
            }
            _ => {}
        }
        for branches in ["anyOf", "oneOf"].into_iter().filter_map(values) {
            // Once anything is allowed, the remaining branches make no difference.
            let mut all = Self(0);
            for branch in branches {
                all = Self(all.0 | Self::within(branch, root, depth, visits).0);
                if all == Self::ANY {
                    break;
                }
            }
            types = types.and(all);
        }
        for part in values("allOf").into_iter().flatten() {
            if *visits == 0 {
                break;
            }
            types = types.and(Self::within(part, root, depth, visits));
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

    /// The type of a value.
    pub fn of_value(value: &Value) -> Self {
        match value {
            Value::String(_) => Self::TEXT,
            Value::Number(_) => Self::NUMBER,
            Value::Bool(_) => Self::BOOLEAN,
            Value::Null => Self::NULL,
            Value::Array(_) => Self::LIST,
            Value::Object(_) => Self::OBJECT,
        }
    }

    /// The intersection of both sets; anything if it is empty, because the schema then contradicts itself.
    fn and(self, other: Self) -> Self {
        if self.0 & other.0 == 0 { Self::ANY } else { Self(self.0 & other.0) }
    }

    /// True if the two sets overlap.
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// Resolves a reference within a document.
pub fn resolve<'a>(reference: &str, root: &'a Value) -> Option<&'a Value> {
    if reference.len() > REFERENCE_BYTES_MAX {
        return None;
    }
    root.pointer(reference.strip_prefix('#')?.trim_end_matches('/'))
}

/// Returns the properties of an object's schema, if it lists them, and the required ones.
pub fn properties(schema: &Value) -> (Option<&Map<String, Value>>, HashSet<&str>) {
    let properties = schema.get("properties").and_then(Value::as_object);
    let required = schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    (properties, required.collect())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use serde_json::json;

    use super::*;

    fn signature(schema: Value) -> (Signature, Duration) {
        let tool = Tool { name: "f".into(), schema, ..Tool::default() };
        let began = Instant::now();
        (Signature::of(&tool), began.elapsed())
    }

    #[test]
    fn a_schema_that_leads_back_to_itself_a_hundred_times_is_anything_at_once() {
        let again = vec![json!({ "$ref": "#/$defs/a" }); 100];
        for keyword in ["anyOf", "oneOf", "allOf"] {
            // Each branch restricts the type, so that none of them ends the search.
            let schema = json!({
                "properties": { "x": { "$ref": "#/$defs/a" }, "n": { "type": "integer" } },
                "$defs": { "a": { keyword: again, "type": ["string", "null"] } },
            });
            let (signature, took) = signature(schema);
            assert!(took < Duration::from_secs(1), "{keyword}: {took:?}");
            assert_eq!(signature.types("n"), Types::NUMBER, "{keyword}");
            assert!(signature.types("x").has(Types::TEXT), "{keyword}");
        }
    }

    #[test]
    fn many_arguments_that_share_a_long_list_or_name_a_long_way_are_read_at_once() {
        let shared: serde_json::Map<_, _> =
            (0..20_000).map(|number| (format!("p{number}"), json!({ "$ref": "#/$defs/a" }))).collect();
        let many = json!({ "properties": shared, "$defs": { "a": { "enum": vec!["word"; 60_000] } } });
        let far = format!("#{}", "/x".repeat(500_000));
        let away = json!({ "properties": { "p0": { "anyOf": vec![json!({ "$ref": far }); 20] } } });
        for schema in [many, away] {
            let (_, took) = signature(schema);
            assert!(took < Duration::from_secs(1), "{took:?}");
        }
        let honest = json!({ "properties": { "p": { "anyOf": [{ "$ref": "#/$defs/a" }, { "type": "null" }] } },
            "$defs": { "a": { "enum": vec!["word"; 5_000] } } });
        assert_eq!(signature(honest).0.types("p"), Types(Types::TEXT.0 | Types::NULL.0));
    }
}
