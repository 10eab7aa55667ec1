//! Closes the objects of a schema to the properties that it names.
//!
//! By the letter of JSON Schema an object without `additionalProperties` may have any further properties, and a small
//! model makes use of that until its limit. Hardly any author means it: pydantic and MCP servers just leave the keyword
//! out. So an object that lists its `properties` gets no others, unless the schema says otherwise.
//!
//! Where several schemas apply to one object (`allOf`, `$ref` beside other keywords, `anyOf` beside `properties`), each
//! of them must leave room for what the others name. A property that another one names becomes `true` here, which the
//! compiler merges with its definition there; a reference gets a copy of its target, which others may refer to as well.

use std::collections::{BTreeSet, HashSet};

use serde_json::{Map, Value};

/// Depth to which references and branches are followed.
const DEPTH_MAX: usize = 32;
/// Number of schemas visited in search of names, and bytes of copied targets, before a schema is left open.
const VISITS_MAX: usize = 20_000;
const COPIED_BYTES_MAX: usize = 256 << 10;

/// Keywords that let an object have more properties, or say that it has none.
const OPENING: [&str; 3] = ["additionalProperties", "patternProperties", "unevaluatedProperties"];
const LISTS: [&str; 3] = ["allOf", "anyOf", "oneOf"];

/// Names that the schemas of one object allow together; `None` if one of them allows any.
type Names = Option<BTreeSet<String>>;

struct Closer<'a> {
    root: &'a Value,
    visits: usize,
    copied_bytes: usize,
}

/// Closes all objects of a document that has passed the limits on schemas. A schema whose parts refer to each other too
/// often stays as it is.
pub(crate) fn close(schema: Value) -> Value {
    let mut closed = schema.clone();
    let mut closer = Closer { root: &schema, visits: VISITS_MAX, copied_bytes: COPIED_BYTES_MAX };
    match closer.close(&mut closed, &Some(BTreeSet::new()), 0) {
        Some(()) => closed,
        None => schema,
    }
}

impl<'a> Closer<'a> {
    /// Closes a schema and those within it. `beside` are the names that other schemas of the same object allow.
    fn close(&mut self, schema: &mut Value, beside: &Names, depth: usize) -> Option<()> {
        let Value::Object(fields) = schema else { return Some(()) };
        if depth > DEPTH_MAX {
            return None;
        }
        let total = join(beside.clone(), self.names(fields, depth, &mut HashSet::new())?);
        self.close_parts(fields, &total, beside, depth)?;
        close_own(fields, &total);
        self.close_within(fields, depth)
    }

    /// Closes the schemas that apply to the same object.
    fn close_parts(
        &mut self,
        fields: &mut Map<String, Value>,
        total: &Names,
        beside: &Names,
        depth: usize,
    ) -> Option<()> {
        for keyword in LISTS {
            let Some(Value::Array(parts)) = fields.get(keyword) else { continue };
            let mut parts = parts.clone();
            // Branches do not leave room for each other, only for what applies beside them.
            let of_branch = if keyword == "allOf" || parts.len() == 1 {
                total.clone()
            } else {
                let others = fields.iter().filter(|(name, _)| *name != keyword);
                let others: Map<String, Value> = others.map(|(name, value)| (name.clone(), value.clone())).collect();
                join(beside.clone(), self.names(&others, depth, &mut HashSet::new())?)
            };
            for part in &mut parts {
                self.close(part, &of_branch, depth + 1)?;
            }
            fields.insert(keyword.to_owned(), parts.into());
        }
        let Some(target) = fields.get("$ref").and_then(Value::as_str).and_then(|to| resolve(to, self.root)) else {
            return Some(());
        };
        let own =
            if let Value::Object(target) = target { self.names(target, depth, &mut HashSet::new())? } else { None };
        if own != *total {
            let mut copy = target.clone();
            self.copied_bytes = self.copied_bytes.checked_sub(copy.to_string().len())?;
            self.close(&mut copy, total, depth + 1)?;
            fields.shift_remove("$ref");
            match fields.entry("allOf").or_insert_with(|| Value::Array(Vec::new())) {
                Value::Array(parts) => parts.push(copy),
                _ => return None,
            }
        }
        Some(())
    }

    /// Closes the schemas of other values: properties, items, definitions.
    fn close_within(&mut self, fields: &mut Map<String, Value>, depth: usize) -> Option<()> {
        let none = Some(BTreeSet::new());
        for keyword in ["properties", "patternProperties", "$defs", "definitions"] {
            for part in fields.get_mut(keyword).and_then(Value::as_object_mut).into_iter().flatten() {
                self.close(part.1, &none, depth + 1)?;
            }
        }
        for keyword in ["items", "prefixItems", "additionalItems", "additionalProperties", "contains"] {
            match fields.get_mut(keyword) {
                Some(Value::Array(parts)) => {
                    parts.iter_mut().try_for_each(|part| self.close(part, &none, depth + 1))?;
                }
                Some(part) => self.close(part, &none, depth + 1)?,
                None => {}
            }
        }
        Some(())
    }

    /// The names that the schemas of one object allow together. Each reference is followed once.
    fn names(&mut self, fields: &Map<String, Value>, depth: usize, seen: &mut HashSet<String>) -> Option<Names> {
        self.visits = self.visits.checked_sub(1)?;
        if depth > DEPTH_MAX {
            return None;
        }
        if OPENING.iter().any(|name| fields.get(*name).is_some_and(|value| *value != Value::Bool(false))) {
            return Some(None);
        }
        let own = fields.get("properties").and_then(Value::as_object).into_iter().flatten().map(|(name, _)| name);
        let required = fields.get("required").and_then(Value::as_array).into_iter().flatten();
        let required = required.filter_map(Value::as_str).map(str::to_owned);
        let mut names = Some(own.cloned().chain(required).collect());
        let target = fields.get("$ref").and_then(Value::as_str).filter(|to| seen.insert((*to).to_owned()));
        let target = target.and_then(|to| resolve(to, self.root));
        let lists = LISTS.iter().filter_map(|keyword| fields.get(*keyword)?.as_array()).flatten();
        let conditional = ["then", "else"].iter().filter_map(|keyword| fields.get(*keyword));
        let dependent = fields.get("dependentSchemas").and_then(Value::as_object).into_iter().flatten();
        for part in target.into_iter().chain(lists).chain(conditional).chain(dependent.map(|(_, part)| part)) {
            if let Value::Object(part) = part {
                names = join(names, self.names(part, depth + 1, seen)?);
            }
        }
        Some(names)
    }
}

/// Closes an object to the names that all its schemas allow.
fn close_own(fields: &mut Map<String, Value>, total: &Names) {
    let Some(total) = total else { return };
    // The compiler does not know this keyword, which says what is done here anyway.
    if fields.get("unevaluatedProperties") == Some(&Value::Bool(false)) {
        fields.shift_remove("unevaluatedProperties");
    }
    if OPENING.iter().any(|name| fields.contains_key(*name)) {
        return;
    }
    let Some(Value::Object(properties)) = fields.get_mut("properties") else { return };
    for name in total {
        properties.entry(name.as_str()).or_insert(Value::Bool(true));
    }
    fields.insert("additionalProperties".to_owned(), Value::Bool(false));
}

fn join(one: Names, other: Names) -> Names {
    one.zip(other).map(|(mut one, other)| {
        one.extend(other);
        one
    })
}

fn resolve<'a>(reference: &str, root: &'a Value) -> Option<&'a Value> {
    root.pointer(reference.strip_prefix('#')?.trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[allow(clippy::needless_pass_by_value, reason = "both are written where they are passed")]
    fn check(schema: Value, expect: Value) {
        assert_eq!(close(schema.clone()).to_string(), expect.to_string(), "{schema}");
    }

    #[test]
    fn an_object_has_the_properties_that_it_names() {
        let named = json!({ "properties": { "a": {} }, "additionalProperties": false });
        check(json!({ "properties": { "a": {} } }), named.clone());
        check(
            json!({ "items": { "properties": { "a": {} } }, "$defs": { "x": { "properties": { "a": {} } } } }),
            json!({ "items": named, "$defs": { "x": named } }),
        );
        check(
            json!({ "properties": { "a": { "properties": {} } }, "required": ["a", "b"] }),
            json!({ "properties": { "a": { "properties": {}, "additionalProperties": false }, "b": true },
                "required": ["a", "b"], "additionalProperties": false }),
        );
        let unevaluated = json!({ "properties": { "a": {} }, "unevaluatedProperties": false });
        check(unevaluated, named);
    }

    #[test]
    fn what_says_otherwise_or_names_nothing_stays_open() {
        for open in [
            json!({ "type": "object" }),
            json!({ "properties": { "a": {} }, "additionalProperties": true }),
            json!({ "properties": { "a": {} }, "additionalProperties": { "type": "string" } }),
            json!({ "properties": { "a": {} }, "patternProperties": { "^x": {} } }),
            json!({ "properties": { "a": {} }, "unevaluatedProperties": true }),
            json!({ "const": { "properties": { "a": 1 } }, "default": { "properties": {} }, "enum": [{ "properties": {} }] }),
            json!({ "properties": { "a": {} }, "allOf": [{ "properties": { "b": {} }, "additionalProperties": true }] }),
            json!(true),
        ] {
            check(open.clone(), open);
        }
    }

    #[test]
    fn schemas_of_one_object_leave_room_for_each_other() {
        check(
            json!({ "allOf": [{ "properties": { "a": {} } }, { "properties": { "b": {} } }] }),
            json!({ "allOf": [
                { "properties": { "a": {}, "b": true }, "additionalProperties": false },
                { "properties": { "b": {}, "a": true }, "additionalProperties": false }] }),
        );
        // Branches leave room for what stands beside them, not for each other.
        check(
            json!({ "properties": { "k": {} }, "anyOf": [{ "properties": { "a": {} } }, { "properties": { "b": {} } }] }),
            json!({ "properties": { "k": {}, "a": true, "b": true }, "anyOf": [
                { "properties": { "a": {}, "k": true }, "additionalProperties": false },
                { "properties": { "b": {}, "k": true }, "additionalProperties": false }],
                "additionalProperties": false }),
        );
        // A definition is copied where it applies beside others, as it is closed by itself.
        let base = json!({ "properties": { "a": {} } });
        check(
            json!({ "allOf": [{ "$ref": "#/$defs/base" }, { "properties": { "b": {} } }], "$defs": { "base": base } }),
            json!({ "allOf": [
                { "allOf": [{ "properties": { "a": {}, "b": true }, "additionalProperties": false }] },
                { "properties": { "b": {}, "a": true }, "additionalProperties": false }],
                "$defs": { "base": { "properties": { "a": {} }, "additionalProperties": false } } }),
        );
        let plain = json!({ "$ref": "#/$defs/a", "$defs": { "a": { "enum": [1] } } });
        check(plain.clone(), plain);
    }

    #[test]
    fn schemas_that_lead_back_to_themselves_are_left_as_they_are_in_time() {
        let again = vec![json!({ "$ref": "#/$defs/a" }); 100];
        let began = std::time::Instant::now();
        for keyword in LISTS {
            let schema = json!({ "$ref": "#/$defs/a",
                "$defs": { "a": { keyword: again, "properties": { "x": { "$ref": "#/$defs/a" } } } } });
            let closed = close(schema.clone());
            assert!(closed == schema || closed["$defs"]["a"]["additionalProperties"] == false, "{closed}");
        }
        assert!(began.elapsed() < std::time::Duration::from_secs(5), "{:?}", began.elapsed());
    }
}
