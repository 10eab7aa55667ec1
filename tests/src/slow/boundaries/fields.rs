//! Fields, the values that they accept up to their limits, and those that they reject beyond.

use serde_json::{Value, json};

use super::routes::Route;

/// A field by its path, the fields that it requires, and accepted and rejected values.
pub struct Field {
    pub path: &'static str,
    pub good: Vec<Value>,
    pub bad: Vec<Value>,
    beside: Value,
}

impl Field {
    /// A field that accepts each value of one list and rejects each of the other.
    pub fn new(path: &'static str, good: Value, bad: Value) -> Self {
        let (Value::Array(good), Value::Array(bad)) = (good, bad) else { panic!("{path}: no lists of values") };
        Self { path, good, bad, beside: json!({}) }
    }

    pub fn beside(self, beside: Value) -> Self {
        Self { beside, ..self }
    }

    /// Marks the field as required.
    pub fn required(mut self) -> Self {
        self.good.retain(|value| !value.is_null());
        self.bad.push(Value::Null);
        self
    }

    /// Replaces the accepted values, where they need features that this server lacks, or take long.
    pub fn with_good(self, good: Value) -> Self {
        let Value::Array(good) = good else { panic!("{}: no list of values", self.path) };
        Self { good, ..self }
    }

    /// Leaves a value out of the rejected ones.
    pub fn without_bad(mut self, value: impl Into<Value>) -> Self {
        let value = value.into();
        self.bad.retain(|bad| *bad != value);
        self
    }

    /// A route's body with this value in it.
    pub fn body(&self, route: &Route, value: &Value) -> Value {
        let mut body = route.body.clone();
        body.as_object_mut().unwrap().extend(self.beside.as_object().unwrap().clone());
        let mut place = &mut body;
        for name in self.path.split('.') {
            place = &mut place[name];
        }
        *place = value.clone();
        body
    }
}

/// A field that also rejects values that are not numbers.
fn numeric(path: &'static str, good: Value, bad: Value) -> Field {
    let mut field = Field::new(path, good, bad);
    field.bad.extend(["1", "NaN", "Infinity", "-0", ""].map(Value::from));
    field.bad.extend([json!(true), json!([1]), json!({"a": 1})]);
    field
}

pub fn number(path: &'static str, min: f64, max: f64) -> Field {
    let bad = json!([min - 0.01, max + 0.01, -1e300, 1e300, u64::MAX, i64::MIN]);
    numeric(path, json!([min, max, null]), bad)
}

pub fn integer(path: &'static str, min: i64, max: i64) -> Field {
    numeric(path, json!([min, max, null]), json!([min - 1, max + 1, 1.5, -1e300, 1e300, u64::MAX]))
}

/// A count, capped at its maximum.
pub fn count(path: &'static str, min: u32) -> Field {
    let good = json!([min, u32::MAX, u64::MAX, 1e300, null]);
    numeric(path, good, json!([i64::from(min) - 1, -1, 0.5, -1e300, i64::MIN]))
}

pub fn seed(path: &'static str) -> Field {
    numeric(path, json!([0, -1, i64::MIN, u64::MAX, null]), json!([0.5, 1e300]))
}

pub fn flag(path: &'static str) -> Field {
    Field::new(path, json!([false, null]), json!([0, "true", [], {}]))
}

pub fn text(path: &'static str, bytes_max: usize) -> Field {
    let of = |bytes: usize| "x".repeat(bytes);
    Field::new(path, json!([of(1), of(bytes_max)]), json!(["", of(bytes_max + 1), 1, true, [], {}]))
}

/// A required text, which may be as long as a body.
pub fn words(path: &'static str) -> Field {
    Field::new(path, json!(["x", "x".repeat(10_000)]), json!(["", 1, true, ["a"], {}])).required()
}

/// A list of this many items, none of which is invalid.
pub fn list(path: &'static str, max: usize, item: impl Fn(usize) -> Value, wrong: Value) -> Field {
    let of = |count: usize| Value::Array((0..count).map(&item).collect());
    let mut field = Field::new(path, json!([of(1), of(max)]), json!([of(max + 1), 1, {"a": 1}, true]));
    field.bad.extend(wrong.as_array().unwrap().iter().map(|wrong| json!([item(0), wrong])));
    field
}

pub fn stops(path: &'static str, max: usize) -> Field {
    list(path, max, |place| json!(format!("stop {place}")), json!(["", "x".repeat(1025), 1, null, []]))
}
