//! Limits checked before a grammar reaches the compiler.
//!
//! The compiler has a work budget, but not everywhere: it recurses along reference chains, so a stack overflow can kill
//! the process, and it enumerates all remainders of a `multipleOf`, which can exhaust memory. Text, node count and
//! depth are therefore limited so that its recursion fits in [`STACK_BYTES`], and divisors so that it terminates.
//!
//! A schema is also limited by its expanded size. Where several schemas apply to one value (`allOf`, `$ref` beside
//! other keywords), the compiler follows references and merges copies of their targets, and a merged pattern is as long
//! as both together: 26 definitions, each twice the previous one, make 2^26 patterns. That size is the sum of the
//! parts' sizes, so it is computed from the reference graph without expanding anything.

use std::collections::HashMap;

use llguidance::api::ParserLimits;
use serde_json::Value;

use crate::{anchors, error::GrammarError};
use pensieve_protocol::grammar::{Grammar, Marker, Spec, Trigger};

/// Stack of a compiling thread. Most of it is never touched.
pub(crate) const STACK_BYTES: usize = 256 << 20;

const RULES_MAX: usize = 256;
const MARKER_BYTES_MAX: usize = 256;
const SPEC_BYTES_MAX: usize = 4 << 20;
const SCHEMA_BYTES_MAX: usize = 512 << 10;
const SCHEMA_DEPTH_MAX: usize = 64;
const SCHEMA_NODES_MAX: usize = 10_000;
const SCHEMA_VALUES_MAX: usize = 50_000;
/// Schemas that apply to one value, with references followed.
const SCHEMA_EXPANDED_MAX: u64 = 10_000;
/// Compile time grows with the square of this.
const SCHEMA_FIELDS_MAX: usize = 2_000;
const LARK_BYTES_MAX: usize = 64 << 10;
const REGEX_BYTES_MAX: usize = 16 << 10;
const PARTS_MAX: usize = 1024;
const DIVISOR_MAX: u64 = 20_000;

/// The compiler's budget for a grammar, and for each step under it.
pub(crate) fn parser_limits() -> ParserLimits {
    // A lexer state takes 1 to 2 kB, and a grammar lives as long as its requests.
    ParserLimits { max_lexer_states: 20_000, verbose_errors: false, ..ParserLimits::default() }
}

/// Checks everything that needs neither vocabulary nor parsing.
pub(crate) fn check(spec: &Spec) -> Result<(), GrammarError> {
    if spec.rules.len() > RULES_MAX {
        return Err(too_large("rules", spec.rules.len(), RULES_MAX));
    }
    if spec.rules.iter().filter(|rule| rule.trigger == Trigger::Start).count() > 1 {
        return Err(GrammarError::Invalid("only one rule can begin at the start".to_owned()));
    }
    let reasoning = spec.reasoning.iter().flat_map(|reasoning| reasoning.begin.iter().chain([&reasoning.end]));
    reasoning.map(marker).try_for_each(|result| result)?;
    let mut total: usize = 0;
    for rule in &spec.rules {
        let trigger = if let Trigger::After(marker) = &rule.trigger { Some(marker) } else { None };
        let markers = [trigger, rule.open.as_ref(), rule.close.as_ref()];
        let grammar = match &rule.grammar {
            Grammar::Framed { frame, parts } => length("bytes of frame", frame, LARK_BYTES_MAX)
                .and_then(|_| length_of("parts in a frame", parts.len(), PARTS_MAX))
                .and_then(|_| {
                    parts
                        .iter()
                        .try_for_each(|part| size(&part.grammar).map(drop).map_err(|error| error.at(&part.field)))
                })
                .map(|()| rule.grammar.bytes()),
            grammar => size(grammar),
        };
        total += markers
            .into_iter()
            .flatten()
            .try_fold(0, |_, found| marker(found).map(|()| 0))
            .and(grammar)
            .map_err(|error| error.at(&rule.field))?;
    }
    length_of("bytes of grammars", total, SPEC_BYTES_MAX).map(drop)
}

fn size(grammar: &Grammar) -> Result<usize, GrammarError> {
    match grammar {
        Grammar::JsonSchema { schema, .. } => length("bytes of schema", schema, SCHEMA_BYTES_MAX),
        Grammar::Regex(regex) => length("bytes of regex", regex, REGEX_BYTES_MAX),
        Grammar::Lark(lark) => length("bytes of Lark", lark, LARK_BYTES_MAX),
        Grammar::Framed { .. } => Err(GrammarError::Invalid("a frame stands within another".to_owned())),
    }
}

/// Parses a schema and checks its size. In a lenient schema, divisors that are too large are removed.
pub(crate) fn schema(text: &str, lenient: bool) -> Result<Value, GrammarError> {
    let mut schema: Value =
        serde_json::from_str(text).map_err(|error| GrammarError::Invalid(format!("the schema is no JSON: {error}")))?;
    let mut count = Count { divisor: Some(1), ..Count::default() };
    count.visit(&schema, 0);
    length_of("levels of schema", count.depth, SCHEMA_DEPTH_MAX)?;
    length_of("objects and lists of schema", count.nodes, SCHEMA_NODES_MAX)?;
    length_of("values of schema", count.values, SCHEMA_VALUES_MAX)?;
    length_of("fields of an object of schema", count.fields, SCHEMA_FIELDS_MAX)?;
    anchors::replace(&mut schema);
    Expansion { root: &schema, known: HashMap::new() }.check(&schema)?;
    if count.divisor.is_none_or(|divisor| divisor > DIVISOR_MAX) {
        if !lenient {
            return Err(GrammarError::Unsupported(format!(
                "multiples of more than {DIVISOR_MAX}, or of numbers that have no smaller common multiple"
            )));
        }
        drop_divisors(&mut schema);
    }
    Ok(schema)
}

/// Only the compiler sees schemas and settings embedded in Lark, so what must not reach it there is searched for in the
/// text: divisors, and permission for bytes that are not UTF-8, one of which marks special tokens.
pub(crate) fn lark(text: &str) -> Result<(), GrammarError> {
    let unsupported = |what: &str| Err(GrammarError::Unsupported(format!("a Lark grammar can have no {what}")));
    let has_json = text.contains("%json") || text.contains("%llguidance");
    if has_json && text.contains("\\u") {
        return unsupported("\\u beside %json or %llguidance");
    }
    if text.contains("%json") && text.contains("multipleOf") {
        return unsupported("multipleOf in its schemas");
    }
    if text.contains("allow_invalid_utf8") {
        return unsupported("allow_invalid_utf8");
    }
    Ok(())
}

/// Counts the schemas that apply to one value once references are followed.
struct Expansion<'schema> {
    root: &'schema Value,
    /// Sizes by address; `None` while a schema's parts are being summed, so that a reference back to it is recursion,
    /// which the compiler does not expand.
    known: HashMap<*const Value, Option<u64>>,
}

impl<'schema> Expansion<'schema> {
    /// Rejects a document in which any schema expands too far. Recurses as deep as the document and its references.
    fn check(&mut self, value: &'schema Value) -> Result<(), GrammarError> {
        let size = self.size(value);
        if size > SCHEMA_EXPANDED_MAX {
            let what = "parts of schema for one value, references followed,";
            return Err(GrammarError::TooLarge(format!("{size} {what} are more than {SCHEMA_EXPANDED_MAX}")));
        }
        match value {
            Value::Object(fields) => fields.values().try_for_each(|value| self.check(value)),
            Value::Array(values) => values.iter().try_for_each(|value| self.check(value)),
            _ => Ok(()),
        }
    }

    fn size(&mut self, schema: &'schema Value) -> u64 {
        let Value::Object(fields) = schema else { return 1 };
        let place = std::ptr::from_ref(schema);
        if let Some(known) = self.known.get(&place) {
            return known.unwrap_or(1);
        }
        self.known.insert(place, None);
        let mut size: u64 = 1;
        for keyword in ["allOf", "anyOf", "oneOf"] {
            for part in fields.get(keyword).and_then(Value::as_array).into_iter().flatten() {
                size = size.saturating_add(self.size(part));
            }
        }
        // References are JSON pointers into the document; the compiler rejects any other kind.
        let reference = fields.get("$ref").and_then(Value::as_str).and_then(|reference| reference.strip_prefix('#'));
        if let Some(target) = reference.and_then(|pointer| self.root.pointer(pointer.trim_end_matches('/'))) {
            size = size.saturating_add(self.size(target));
        }
        self.known.insert(place, Some(size));
        size
    }
}

#[derive(Default)]
struct Count {
    depth: usize,
    nodes: usize,
    values: usize,
    fields: usize,
    /// Common multiple of all divisors, in units of their last digit; `None` if too large to track.
    divisor: Option<u64>,
    decimals: i32,
}

impl Count {
    fn visit(&mut self, value: &Value, depth: usize) {
        self.depth = self.depth.max(depth);
        self.values += 1;
        match value {
            Value::Object(fields) => {
                self.nodes += 1;
                self.fields = self.fields.max(fields.len());
                if let Some(Value::Number(divisor)) = fields.get("multipleOf") {
                    self.divide(divisor);
                }
                fields.values().for_each(|value| self.visit(value, depth + 1));
            }
            Value::Array(values) => {
                self.nodes += 1;
                values.iter().for_each(|value| self.visit(value, depth + 1));
            }
            _ => {}
        }
    }

    fn divide(&mut self, divisor: &serde_json::Number) {
        self.divisor = self.divisor.zip(divisor.as_f64()).and_then(|(sofar, divisor)| {
            let decimals = (0..=6).find(|decimals| {
                let scaled = divisor * 10f64.powi(*decimals);
                (scaled - scaled.round()).abs() < 1e-9 * scaled.abs()
            })?;
            let sofar = sofar.checked_mul(10u64.pow((decimals - self.decimals).max(0).unsigned_abs()))?;
            self.decimals = self.decimals.max(decimals);
            let scaled = (divisor * 10f64.powi(self.decimals)).round();
            // The range check bounds the cast; rounding could only make the number too large.
            if (1.0..=1e15).contains(&scaled) { least_common_multiple(sofar, scaled as u64) } else { None }
        });
    }
}

fn least_common_multiple(a: u64, b: u64) -> Option<u64> {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    (a / x).checked_mul(b)
}

fn drop_divisors(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if fields.get("multipleOf").is_some_and(Value::is_number) {
                fields.shift_remove("multipleOf");
            }
            fields.values_mut().for_each(drop_divisors);
        }
        Value::Array(values) => values.iter_mut().for_each(drop_divisors),
        _ => {}
    }
}

fn marker(marker: &Marker) -> Result<(), GrammarError> {
    match marker {
        Marker::Text(text) if text.is_empty() => Err(GrammarError::Invalid("a marker is empty".to_owned())),
        Marker::Text(text) => length("bytes of marker", text, MARKER_BYTES_MAX).map(drop),
        Marker::Token(_) => Ok(()),
    }
}

fn length(what: &str, text: &str, max: usize) -> Result<usize, GrammarError> {
    length_of(what, text.len(), max)
}

fn length_of(what: &str, count: usize, max: usize) -> Result<usize, GrammarError> {
    if count > max { Err(too_large(what, count, max)) } else { Ok(count) }
}

fn too_large(what: &str, count: usize, max: usize) -> GrammarError {
    GrammarError::TooLarge(format!("{count} {what} are more than {max}"))
}
