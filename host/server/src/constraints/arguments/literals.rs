//! Arguments as literals, in Python's notation or in Gemma's, which differ in their strings and keys.

use serde_json::{Map, Value};

use super::{Writer, escaped, json, listed, takes_more};
use crate::{
    chat::Tool,
    formats::{Types, resolve},
};
use pensieve_protocol::grammar::{Grammar, Part};

/// Beyond this total length of an enumeration's strings, a literal accepts any string.
const TEXTS_BYTES_MAX: usize = 16 << 10;
/// Expressions for a Python string, and for a key without quotes.
const STRING: &str = r#""(\\[^\n]|[^"\\\n])*"|'(\\[^\n]|[^'\\\n])*'"#;
const KEY: &str = "[A-Za-z_][A-Za-z0-9_.-]{0,127}";
/// Maximum nesting depth of literals that are constrained by their schema.
const DEPTH_MAX: usize = 4;

impl Writer<'_> {
    /// Adds a tool's arguments as literals in the schema's order: in Python's notation, or with `quote` around strings.
    /// The caller adds the closing bracket.
    pub fn literals(&mut self, index: usize, tool: &Tool, quote: Option<&str>, open: bool) -> String {
        if !std::mem::replace(&mut self.has_literals, true) {
            self.literal_rules(quote);
        }
        let notation = Notation { quote, tool, open };
        self.fields(&notation, &tool.schema, &format!("f{index}"), true, DEPTH_MAX)
    }

    /// Adds the rules shared by all literals.
    fn literal_rules(&mut self, quote: Option<&str>) {
        match quote {
            None => self.line(&format!(
                "string: STRING\nSTRING: /{STRING}/\nfield: STRING COLON value\nword: \"True\" | \"False\" | \"None\""
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
        self.line(&format!("KEY: /{KEY}/"));
        self.line(concat!(
            "value: string | NUMBER | word | list | fields\n",
            "list: \"[\" (value (COMMA value)*)? \"]\"\n",
            "fields: \"{\" (field (COMMA field)*)? \"}\"\n",
            "INTEGER: /-?(0|[1-9][0-9]{0,18})/\n",
            r"NUMBER: /-?(0|[1-9][0-9]{0,18})(\.[0-9]{1,18})?([eE][+-]?[0-9]{1,3})?/",
            "\nCOLON: /[ ]?:[ ]?/",
        ));
    }

    /// Adds the comma-separated fields of an object.
    fn fields(&mut self, notation: &Notation<'_>, schema: &Value, name: &str, is_outer: bool, depth: usize) -> String {
        let (listed, required) = listed(schema);
        let fields = listed.filter(|fields| self.has_room_for(fields));
        let may_have_any = match fields {
            None => listed.is_some() || takes_more(schema, true),
            Some(fields) => fields.is_empty() && takes_more(schema, notation.open),
        };
        if may_have_any {
            let field = if notation.is_python() && is_outer { "KEY \"=\" value" } else { "field" };
            return format!("({field} (COMMA {field})*)?");
        }
        let Some(fields) = fields.filter(|fields| !fields.is_empty()) else { return String::new() };
        let more = takes_more(schema, notation.open).then(|| self.more_fields(notation, fields, name, is_outer));
        let key_of = |key: &str| match (notation.is_python(), is_outer) {
            (true, true) => json(&format!("{key}=")),
            (true, false) => format!("({}) COLON", python_text(key)),
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
        let listed = heads.join(" | ");
        match (more, is_any) {
            (None, true) => format!("({listed})"),
            (None, false) => format!("({listed})?"),
            (Some(more), true) => format!("({listed}) (COMMA {more})*"),
            (Some(more), false) => format!("(({listed} | {more}) (COMMA {more})*)?"),
        }
    }

    /// Adds a field that the object's schema does not list.
    fn more_fields(
        &mut self,
        notation: &Notation<'_>,
        fields: &Map<String, Value>,
        name: &str,
        is_outer: bool,
    ) -> String {
        let names = fields.keys().map(|key| escaped(key)).collect::<Vec<_>>().join("|");
        let key = format!("KEY{}", name.to_uppercase());
        let (form, names) = match (notation.is_python(), is_outer) {
            (true, false) => (STRING, format!("[\"'](?:{names})[\"']")),
            _ => (KEY, format!("(?:{names})")),
        };
        let link = match (notation.is_python(), is_outer) {
            (true, true) => "\"=\"",
            (true, false) => "COLON",
            (false, _) => "\":\"",
        };
        self.line(&format!("{key}: /{form}/ & ~/{names}/\n{name}m: {key} {link} value"));
        format!("{name}m")
    }

    /// Adds a value according to its schema.
    fn literal(&mut self, notation: &Notation<'_>, schema: &Value, name: &str, depth: usize) -> String {
        if let Some(expression) = &notation.tool.input {
            return self.literal_input(notation, expression, schema);
        }
        let Some(deeper) = depth.checked_sub(1).filter(|_| self.has_room()) else { return "value".into() };
        if let Some(target) =
            schema.get("$ref").and_then(Value::as_str).and_then(|target| resolve(target, &notation.tool.schema))
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
        match Types::of(schema, &notation.tool.schema) {
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

    /// Adds the text of a custom tool.
    fn literal_input(&mut self, notation: &Notation<'_>, expression: &str, schema: &Value) -> String {
        let Some(quote) = notation.quote else {
            // A JSON string is also a Python string.
            let schema = Grammar::json_schema(schema.to_string(), true);
            self.parts.push(Part::new(&notation.tool.field, schema));
            return format!("@part{}", self.parts.len() - 1);
        };
        if self.is_text(quote) {
            let mark = escaped(quote);
            return self.input(notation.tool, expression, &mark, &mark, &mark);
        }
        let mark = self.markers.lark(quote);
        format!("{mark} {} {mark}", self.input(notation.tool, expression, "", "", ""))
    }

    /// Adds a string as a literal.
    fn literal_text(&self, notation: &Notation<'_>, text: &str) -> String {
        match notation.quote {
            Some(quote) => self.markers.lark(&format!("{quote}{text}{quote}")),
            None => python_text(text),
        }
    }
}

/// The ways to write a text in Python.
fn python_text(text: &str) -> String {
    let double = json(&json(text));
    if text.contains(['\'', '\\']) || text.contains(char::is_control) {
        return double;
    }
    format!("{double} | {}", json(&format!("'{text}'")))
}

/// The notation of literals, and the tool whose schema they follow.
struct Notation<'a> {
    /// The marker around strings; `None` for quotation marks.
    quote: Option<&'a str>,
    /// References are resolved in its schema.
    tool: &'a Tool,
    /// Objects may have properties that their schemas do not list.
    open: bool,
}

impl Notation<'_> {
    fn is_python(&self) -> bool {
        self.quote.is_none()
    }
}
