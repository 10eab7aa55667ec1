//! Grammars for the arguments of a call, in each notation, constrained to the tool's schema.
//!
//! JSON arguments use a separate JSON grammar. Between tags, a string is any text that does not close its tag;
//! everything else is JSON according to the property's schema. Python and Gemma literals follow the schema's types,
//! properties, items and enumerations; its other keywords are not enforced.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::{SPACE, escaped, json};
use crate::{
    chat::Tool,
    formats::{Markers, Tags, Types, properties, resolve},
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
/// Beyond this total length of an enumeration's strings, a literal accepts any string.
const TEXTS_BYTES_MAX: usize = 16 << 10;
/// Maximum nesting depth of literals that are constrained by their schema.
const DEPTH_MAX: usize = 4;

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
        let (fields, required) = properties(&tool.schema);
        let mut arguments = String::new();
        let fields = fields.filter(|fields| self.has_room_for(fields));
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
            None => arguments += "(other SPACE)* ",
            Some(fields) if is_text && takes_more(&tool.schema, open) => {
                let named = fields.keys().map(|key| escaped(key)).collect::<Vec<_>>().join("|");
                let key = any_key(tags);
                let (head, tail) = (escaped(&tags.key), escaped(&tags.key_end));
                self.line(&format!(
                    "KEY{index}: {key} & ~/{head}({named}){tail}/\nother{index}: KEY{index} {value} text"
                ));
                arguments += &format!("(other{index} SPACE)* ");
            }
            Some(_) => {}
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

    /// Adds a tool's arguments as literals in the schema's order: in Python's notation, or with `quote` around strings.
    /// The caller adds the closing bracket.
    pub fn literals(&mut self, index: usize, tool: &Tool, quote: Option<&str>) -> String {
        if !std::mem::replace(&mut self.has_literals, true) {
            self.literal_rules(quote);
        }
        let notation = Notation { quote, root: &tool.schema };
        self.fields(&notation, &tool.schema, &format!("f{index}"), true, DEPTH_MAX)
    }

    /// Adds the rules shared by all literals.
    fn literal_rules(&mut self, quote: Option<&str>) {
        match quote {
            None => self.line(concat!(
                "string: STRING\n",
                r#"STRING: /"(\\[^\n]|[^"\\\n])*"|'(\\[^\n]|[^'\\\n])*'/"#,
                "\nfield: STRING COLON value\nword: \"True\" | \"False\" | \"None\"",
            )),
            Some(quote) => {
                let mark = self.markers.lark(quote);
                if self.is_text(quote) {
                    let quote = escaped(quote);
                    self.line(&format!(
                        "string: STRING\nSTRING: /{quote}(?s:.*){quote}/ & ~/{quote}(?s:.*){quote}(?s:.+)/"
                    ));
                } else {
                    self.line(&format!("string: {mark} FREE {mark}\nFREE: /(?s:.*)/"));
                }
                self.line("field: KEY \":\" value\nword: \"true\" | \"false\" | \"null\"");
            }
        }
        self.line(concat!(
            "value: string | NUMBER | word | list | fields\n",
            "list: \"[\" (value (COMMA value)*)? \"]\"\n",
            "fields: \"{\" (field (COMMA field)*)? \"}\"\n",
            "KEY: /[A-Za-z_][A-Za-z0-9_.-]{0,127}/\n",
            "INTEGER: /-?(0|[1-9][0-9]{0,18})/\n",
            r"NUMBER: /-?(0|[1-9][0-9]{0,18})(\.[0-9]{1,18})?([eE][+-]?[0-9]{1,3})?/",
            "\nCOLON: /[ ]?:[ ]?/",
        ));
    }

    /// Adds the comma-separated fields of an object.
    fn fields(&mut self, notation: &Notation<'_>, schema: &Value, name: &str, is_outer: bool, depth: usize) -> String {
        let (fields, required) = properties(schema);
        let Some(fields) = fields.filter(|fields| self.has_room_for(fields)) else {
            let field = if notation.is_python() && is_outer { "KEY \"=\" value" } else { "field" };
            return format!("({field} (COMMA {field})*)?");
        };
        let key_of = |key: &str| match (notation.is_python(), is_outer) {
            (true, true) => json(&format!("{key}=")),
            (true, false) => format!("(\"'{key}'\" | {}) COLON", json(&json(key))),
            (false, _) => json(&format!("{key}:")),
        };
        let mut fields: Vec<_> = fields.iter().collect();
        if !notation.is_python() {
            // Gemma's templates sort the fields.
            fields.sort_by_cached_key(|(key, _)| key.to_lowercase());
        }
        let mut items: Vec<(String, bool)> = Vec::new();
        for (place, (key, schema)) in fields.into_iter().enumerate() {
            let value = self.literal(notation, schema, &format!("{name}x{place}"), depth);
            items.push((format!("{} {value}", key_of(key)), required.contains(key.as_str())));
        }
        // A tail is everything that may follow an item, including the comma; a head begins with the first item present.
        let mut tail = String::new();
        let mut heads = Vec::new();
        for (place, (item, is_required)) in items.iter().enumerate().rev() {
            self.line(&format!("{name}i{place}: {item}"));
            if *is_required {
                heads.clear();
            }
            heads.push(format!("{name}i{place} {tail}"));
            let link = if *is_required { format!("COMMA {name}i{place}") } else { format!("(COMMA {name}i{place})?") };
            self.line(&format!("{name}t{place}: {link} {tail}"));
            tail = format!("{name}t{place}");
        }
        let is_any = items.iter().any(|(_, is_required)| *is_required);
        format!("({}){}", heads.join(" | "), if is_any { "" } else { "?" })
    }

    /// Adds a value according to its schema.
    fn literal(&mut self, notation: &Notation<'_>, schema: &Value, name: &str, depth: usize) -> String {
        let Some(deeper) = depth.checked_sub(1).filter(|_| self.has_room()) else { return "value".into() };
        if let Some(target) =
            schema.get("$ref").and_then(Value::as_str).and_then(|target| resolve(target, notation.root))
        {
            return self.literal(notation, target, name, deeper);
        }
        let words = if notation.is_python() {
            ["\"True\"", "\"False\"", "\"None\""]
        } else {
            ["\"true\"", "\"false\"", "\"null\""]
        };
        let texts = schema.get("enum").and_then(Value::as_array).filter(|values| values.iter().all(Value::is_string));
        let bytes = |values: &Vec<Value>| values.iter().filter_map(Value::as_str).map(str::len).sum::<usize>();
        if let Some(values) = texts.filter(|values| bytes(values) <= TEXTS_BYTES_MAX) {
            let texts = values.iter().filter_map(Value::as_str).map(|text| self.literal_text(notation, text));
            return format!("({})", texts.collect::<Vec<_>>().join(" | "));
        }
        match Types::of(schema, notation.root) {
            Types::TEXT => "string".into(),
            Types::BOOLEAN => format!("({} | {})", words[0], words[1]),
            Types::NULL => words[2].into(),
            Types::NUMBER if schema.get("type").is_some_and(|name| name == "integer") => "INTEGER".into(),
            Types::NUMBER => "NUMBER".into(),
            Types::LIST => {
                let item =
                    schema.get("items").map_or("value".into(), |items| self.literal(notation, items, name, deeper));
                format!("\"[\" ({item} (COMMA {item})*)? \"]\"")
            }
            Types::OBJECT => format!("\"{{\" {} \"}}\"", self.fields(notation, schema, name, false, deeper)),
            _ => "value".into(),
        }
    }

    /// Adds a string as a literal.
    fn literal_text(&self, notation: &Notation<'_>, text: &str) -> String {
        match notation.quote {
            Some(quote) => self.markers.lark(&format!("{quote}{text}{quote}")),
            None => format!("{} | {}", json(&json(text)), json(&format!("'{text}'"))),
        }
    }
}

/// The notation of literals, and the document in which references are resolved.
struct Notation<'a> {
    /// The marker around strings; `None` for quotation marks.
    quote: Option<&'a str>,
    root: &'a Value,
}

impl Notation<'_> {
    fn is_python(&self) -> bool {
        self.quote.is_none()
    }
}

/// A key that the schema does not name, with its tags. It is a single terminal, like the known keys, because the
/// longest of the terminals that match wins.
fn any_key(tags: &Tags) -> String {
    format!(r"/{}[^<>\n\x22]{{1,128}}{}/", escaped(&tags.key), escaped(&tags.key_end))
}

/// True if an object that lists its properties may have others. If it does not say, `open` tells.
fn takes_more(schema: &Value, open: bool) -> bool {
    let says = ["additionalProperties", "unevaluatedProperties"].into_iter().find_map(|name| schema.get(name));
    match says {
        Some(more) => *more != Value::Bool(false),
        None => open || schema.get("patternProperties").is_some(),
    }
}
