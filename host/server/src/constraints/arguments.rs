//! Grammars for the arguments of a call, in each notation, constrained to the tool's schema.
//!
//! JSON arguments use a separate JSON grammar. Between tags, a string is any text that does not close its tag;
//! everything else is JSON according to the property's schema. Python and Gemma literals follow the schema's types,
//! properties, items and enumerations; its other keywords are not enforced.

mod literals;

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::{SPACE, escaped, json};
use crate::{
    chat::Tool,
    formats::{Markers, Tags, Types, properties},
};
use pensieve_protocol::grammar::{Grammar, Part};

/// Maximum length of an enforced schema, and of all of them together; the engine's limit.
const SCHEMA_BYTES_MAX: usize = 256 << 10;
const SCHEMAS_BYTES_MAX: usize = 2 << 20;
/// Beyond this many bytes of a frame, further tools accept any arguments, and further parts any value.
const FRAME_BYTES_MAX: usize = 24 << 10;
const PARTS_MAX: usize = 768;
/// Objects with more properties, or with longer names, accept any properties.
const FIELDS_MAX: usize = 1_000;
const NAME_BYTES_MAX: usize = 256;

/// Writes a frame and collects its parts.
pub(super) struct Writer<'a> {
    markers: &'a Markers,
    lines: String,
    parts: Vec<Part>,
    known: HashMap<String, usize>,
    /// Parts by tool and property. Each of them includes the tool's definitions, which may be long.
    values: HashMap<(*const Tool, String), Option<usize>>,
    /// Lengths of the tools' definitions.
    definitions: HashMap<*const Tool, usize>,
    schemas_room: usize,
    has_tags: bool,
    has_literals: bool,
}

impl<'a> Writer<'a> {
    pub fn new(markers: &'a Markers, answer: Option<&Part>) -> Self {
        let parts = answer.cloned().into_iter().collect();
        Self {
            markers,
            lines: String::new(),
            parts,
            known: HashMap::new(),
            values: HashMap::new(),
            definitions: HashMap::new(),
            schemas_room: SCHEMAS_BYTES_MAX,
            has_tags: false,
            has_literals: false,
        }
    }

    pub fn line(&mut self, line: &str) {
        self.lines.push_str(line);
        self.lines.push('\n');
    }

    pub fn finish(mut self) -> Grammar {
        self.line(&format!("SPACE: /{SPACE}/\nCOMMA: /{SPACE},{SPACE}/"));
        Grammar::Framed { frame: self.lines, parts: self.parts }
    }

    /// Adds a tool's arguments as a JSON object.
    pub fn json(&mut self, tool: &Tool) -> String {
        let schema = tool.schema.to_string();
        let fits = tool.schema.is_object() && schema.len() <= self.schemas_room.min(SCHEMA_BYTES_MAX);
        let grammar = if fits || tool.strict {
            self.schemas_room = self.schemas_room.saturating_sub(schema.len());
            Grammar::json_schema(schema, !tool.strict)
        } else {
            Grammar::any_json_object()
        };
        self.parts.push(Part::new(&tool.field, grammar));
        format!("@part{}", self.parts.len() - 1)
    }

    /// True if these properties are few and short enough to be enumerated.
    fn has_room_for(&self, fields: &Map<String, Value>) -> bool {
        let fits = fields.len() <= FIELDS_MAX && fields.keys().all(|key| key.len() <= NAME_BYTES_MAX);
        fits && self.has_room()
    }

    fn has_room(&self) -> bool {
        self.lines.len() < FRAME_BYTES_MAX
    }

    /// Adds a tool's arguments between tags, in the schema's order.
    pub fn tags(&mut self, index: usize, tool: &Tool, tags: &Tags, open: bool) -> String {
        let value =
            if tags.value.is_empty() { String::new() } else { format!("SPACE {}", self.markers.lark(&tags.value)) };
        if !std::mem::replace(&mut self.has_tags, true) {
            self.tagged_text(tags);
            self.line(&format!("KEY: {}\nother: KEY {value} text", any_key(tags)));
        }
        let (listed, required) = listed(&tool.schema);
        let mut arguments = String::new();
        let fields = listed.filter(|fields| self.has_room_for(fields));
        for (place, (key, schema)) in fields.into_iter().flatten().enumerate() {
            let head = self.markers.lark(&format!("{}{key}{}", tags.key, tags.key_end));
            let tail = self.tagged(tool, schema, tags);
            self.line(&format!("p{index}x{place}: {head} {value} {tail}"));
            let is_required = required.contains(key.as_str());
            arguments +=
                &if is_required { format!("p{index}x{place} SPACE ") } else { format!("(p{index}x{place} SPACE)? ") };
        }
        let is_text = self.is_text(&tags.key) && self.is_text(&tags.key_end);
        match fields {
            None if listed.is_some() || takes_more(&tool.schema, true) => arguments += "(other SPACE)* ",
            Some(fields) if fields.is_empty() && takes_more(&tool.schema, open) => arguments += "(other SPACE)* ",
            Some(fields) if !fields.is_empty() && is_text && takes_more(&tool.schema, open) => {
                let named = fields.keys().map(|key| escaped(key)).collect::<Vec<_>>().join("|");
                let key = any_key(tags);
                let (head, tail) = (escaped(&tags.key), escaped(&tags.key_end));
                self.line(&format!(
                    "KEY{index}: {key} & ~/{head}({named}){tail}/\nother{index}: KEY{index} {value} text"
                ));
                arguments += &format!("(other{index} SPACE)* ");
            }
            _ => {}
        }
        arguments
    }

    /// True if the marker contains no special token.
    fn is_text(&self, marker: &str) -> bool {
        self.markers.lark(marker) == json(marker)
    }

    /// Adds a string between tags, including the closing tag.
    fn tagged_text(&mut self, tags: &Tags) {
        let (margin, end) = (self.markers.lark(&tags.margin), self.markers.lark(&tags.end));
        if !self.is_text(&tags.end) {
            // Special tokens are never part of a text.
            self.line(&format!("text: {margin} FREE {end}\nFREE: /(?s:.*)/"));
        } else {
            let (margin, end) = (escaped(&tags.margin), escaped(&tags.end));
            self.line(&format!("text: TEXT\nTEXT: /{margin}(?s:.*){margin}{end}/ & ~/(?s:.*){end}(?s:.+)/"));
        }
    }

    /// Adds a value between tags, including the closing tag.
    fn tagged(&mut self, tool: &Tool, schema: &Value, tags: &Tags) -> String {
        if let Some(expression) = &tool.input {
            let is_text = self.is_text(&tags.end);
            let end = if is_text { escaped(&tags.end) } else { String::new() };
            let part =
                self.input(tool, expression, &escaped(&tags.margin), &format!("{}{end}", escaped(&tags.margin)), &end);
            return if is_text { part } else { format!("{part} {}", self.markers.lark(&tags.end)) };
        }
        let types = Types::of(schema, &tool.schema);
        let texts = schema.get("enum").and_then(Value::as_array).filter(|values| values.iter().all(Value::is_string));
        let value = match (texts, types) {
            (Some(texts), _) => {
                let texts = texts.iter().filter_map(Value::as_str).map(json);
                format!("({})", texts.collect::<Vec<_>>().join(" | "))
            }
            (None, Types::BOOLEAN) => r#"("true" | "false" | "True" | "False")"#.to_owned(),
            (None, types) if types.has(Types::TEXT) => return "text".to_owned(),
            _ => match self.value_part(tool, schema) {
                Some(part) => format!("@part{part}"),
                None => return "text".to_owned(),
            },
        };
        let (margin, end) = (self.markers.lark(&tags.margin), self.markers.lark(&tags.end));
        format!("{margin} {value} {margin} {end}")
    }

    /// Adds a text that an expression describes, between two more expressions; `mark` ends it wherever it occurs.
    fn input(&mut self, tool: &Tool, expression: &str, before: &str, after: &str, mark: &str) -> String {
        let unmarked = if mark.is_empty() { String::new() } else { format!(" & ~/{before}(?s:.*){mark}(?s:.+)/") };
        let of = |expression: &str| {
            Grammar::Lark(format!("start: INPUT\nINPUT: /{before}(?:{expression}){after}/{unmarked}\n"))
        };
        self.parts.push(Part::new(&tool.field, of(&between_slashes(expression))).or(of("(?s:.*)")));
        format!("@part{}", self.parts.len() - 1)
    }

    /// Adds a property's value as JSON; `None` if there is no room for its schema.
    fn value_part(&mut self, tool: &Tool, schema: &Value) -> Option<usize> {
        let key = (std::ptr::from_ref(tool), schema.to_string());
        if let Some(part) = self.values.get(&key) {
            return *part;
        }
        let part = self.new_value_part(tool, schema, key.1.len());
        self.values.insert(key, part);
        part
    }

    fn new_value_part(&mut self, tool: &Tool, schema: &Value, bytes: usize) -> Option<usize> {
        // References may point anywhere in the document.
        let definitions = ["$defs", "definitions"].map(|name| Some((name, tool.schema.get(name)?)));
        let definitions = definitions.into_iter().flatten();
        let room = self.schemas_room.min(SCHEMA_BYTES_MAX);
        let own = self.definitions.entry(std::ptr::from_ref(tool));
        let own = *own.or_insert_with(|| definitions.clone().map(|(_, value)| value.to_string().len()).sum());
        if self.parts.len() >= PARTS_MAX || bytes.saturating_add(own) > room {
            return None;
        }
        let mut schema = schema.clone();
        let fields = schema.as_object_mut()?;
        for (name, value) in definitions {
            fields.entry(name).or_insert_with(|| value.clone());
        }
        let text = schema.to_string();
        if let Some(part) = self.known.get(&text) {
            return Some(*part);
        }
        self.schemas_room = self.schemas_room.checked_sub(text.len())?;
        self.parts.push(Part::new(&tool.field, Grammar::json_schema(text.clone(), !tool.strict)));
        self.known.insert(text, self.parts.len() - 1);
        Some(self.parts.len() - 1)
    }
}

/// Writes an expression as it stands between slashes in a grammar.
fn between_slashes(expression: &str) -> String {
    let (mut text, mut is_escaped) = (String::with_capacity(expression.len()), false);
    for letter in expression.chars() {
        match letter {
            '/' if !is_escaped => text.push_str("\\/"),
            '\n' if !is_escaped => text.push_str("\\n"),
            // Its backslash has been written already.
            '\n' => text.push('n'),
            letter => text.push(letter),
        }
        is_escaped = letter == '\\' && !is_escaped;
    }
    text
}

/// A key that the schema does not name, with its tags. It is a single terminal, like the known keys, because the
/// longest of the terminals that match wins.
fn any_key(tags: &Tags) -> String {
    format!(r"/{}[^<>\n\x22]{{1,128}}{}/", escaped(&tags.key), escaped(&tags.key_end))
}

/// The properties that an object lists, and the required ones. An empty list means nothing where others are combined with it.
fn listed(schema: &Value) -> (Option<&Map<String, Value>>, HashSet<&str>) {
    let (listed, required) = properties(schema);
    let has_others = ["allOf", "anyOf", "oneOf", "$ref"].into_iter().any(|name| schema.get(name).is_some());
    (listed.filter(|fields| !fields.is_empty() || !has_others && required.is_empty()), required)
}

/// True if an object that lists its properties may have others. If it does not say, `open` decides.
fn takes_more(schema: &Value, open: bool) -> bool {
    let says = ["additionalProperties", "unevaluatedProperties"].into_iter().find_map(|name| schema.get(name));
    match says {
        Some(more) => *more != Value::Bool(false),
        None => open || schema.get("patternProperties").is_some(),
    }
}
