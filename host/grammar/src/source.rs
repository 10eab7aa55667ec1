//! Translates our grammars into the compiler's terms, and its errors into ours.

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::{Value, json};

use crate::token_trie::TokenTrie;
use crate::{closed, error::GrammarError, limits};
use pensieve_protocol::grammar::{Grammar, Marker, Part, Rule};

/// Everything that a compiled grammar depends on; the cache key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Source {
    /// Requests with another salt compile the grammar anew, since a cache hit's timing would reveal what others have
    /// sent.
    salt: Vec<u8>,
    open: Option<Marker>,
    grammar: Grammar,
    close: Option<Marker>,
}

/// JSON tokens may be separated by one space, or a line break with indentation: a model that has lost its way would
/// write white space forever.
const JSON_SPACE: &str = r" |\r?\n( {0,32}|\t{0,16})";
/// White space between JSON and the text around it.
const JSON_MARGIN_MAX: usize = 8;

impl Source {
    pub(crate) fn of(rule: &Rule, salt: &[u8]) -> Self {
        Self { salt: salt.to_vec(), open: rule.open.clone(), grammar: rule.grammar.clone(), close: rule.close.clone() }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.grammar.bytes()
    }

    /// Returns the same source with each part of its frame that does not compile by itself replaced: by its fallback,
    /// or if it is a lenient schema by any JSON of the right type. If each compiles by itself, all that have a fallback are
    /// replaced. Fails with the error of a part that may not be relaxed, or else with `error`.
    pub(crate) fn relaxed(
        &self,
        error: GrammarError,
        compile: impl Fn(&Self) -> Result<(), GrammarError>,
    ) -> Result<Self, GrammarError> {
        let Grammar::Framed { frame, parts } = &self.grammar else { return Err(error) };
        let mut relaxed = parts.clone();
        for part in &mut relaxed {
            let alone = Self { salt: Vec::new(), open: None, grammar: part.grammar.clone(), close: None };
            match compile(&alone) {
                Ok(()) => {}
                Err(error) => match (part.fallback.take(), &part.grammar) {
                    (Some(fallback), _) => part.grammar = *fallback,
                    (None, Grammar::JsonSchema { schema, lenient: true, .. }) => {
                        part.grammar = any_of_its_type(schema);
                    }
                    (None, _) => return Err(error.at(&part.field)),
                },
            }
        }
        if relaxed == *parts {
            if parts.iter().all(|part| part.fallback.is_none()) {
                return Err(error);
            }
            // They are too much together.
            for part in &mut relaxed {
                if let Some(fallback) = part.fallback.take() {
                    part.grammar = *fallback;
                }
            }
        }
        Ok(Self { grammar: Grammar::Framed { frame: frame.clone(), parts: relaxed }, ..self.clone() })
    }

    /// Text that it may begin with if it matches anything at all, so that the mask after it can be inspected.
    pub(crate) fn lead(&self) -> &'static [u8] {
        let is_json = matches!(self.grammar, Grammar::JsonSchema { .. });
        if is_json && self.open.is_none() { &[b' '; JSON_MARGIN_MAX] } else { &[] }
    }

    pub(crate) fn render(&self, vocabulary: &TokenTrie) -> Result<TopLevelGrammar, GrammarError> {
        let mut body = compiled(&self.grammar)?;
        let mut parts = Vec::new();
        if let Grammar::Framed { parts: grammars, .. } = &self.grammar {
            for (index, Part { field, grammar, .. }) in grammars.iter().enumerate() {
                let mut part = compiled(grammar).map_err(|error| error.at(field))?;
                part.name = Some(format!("part{index}"));
                parts.push(part);
            }
        }
        let is_json = matches!(self.grammar, Grammar::JsonSchema { .. });
        if !is_json && self.open.is_none() && self.close.is_none() {
            parts.insert(0, body);
            return Ok(TopLevelGrammar { grammars: parts, max_tokens: None });
        }
        body.name = Some("body".to_owned());
        let margin = if is_json { "MARGIN" } else { "" };
        let open = literal(self.open.as_ref(), vocabulary)?;
        let close = literal(self.close.as_ref(), vocabulary)?;
        let margin_before_close = if self.close.is_some() { margin } else { "" };
        let mut frame = format!("start: {open} {margin} @body {margin_before_close} {close}\n");
        if is_json {
            frame.push_str(&format!("MARGIN: /[ \\t\\r\\n]{{0,{JSON_MARGIN_MAX}}}/\n"));
        }
        parts.splice(0..0, [GrammarWithLexer::from_lark(frame), body]);
        Ok(TopLevelGrammar { grammars: parts, max_tokens: None })
    }
}

/// Returns a grammar for any JSON of the type that the schema names, or for any object.
fn any_of_its_type(schema: &str) -> Grammar {
    let schema: Value = serde_json::from_str(schema).unwrap_or_default();
    match schema.get("type").and_then(Value::as_str) {
        Some(kind @ ("array" | "number" | "integer" | "boolean" | "string" | "null")) => {
            Grammar::json_schema(json!({ "type": kind }).to_string(), true)
        }
        _ => Grammar::any_json_object(),
    }
}

/// Compiles a grammar by itself, without the parts embedded in it.
fn compiled(grammar: &Grammar) -> Result<GrammarWithLexer, GrammarError> {
    match grammar {
        Grammar::JsonSchema { schema, lenient, open } => {
            json(schema, *lenient, *open).map(GrammarWithLexer::from_json_schema)
        }
        Grammar::Regex(regex) => Ok(GrammarWithLexer::from_regex(regex)),
        Grammar::Lark(lark) | Grammar::Framed { frame: lark, .. } => {
            limits::lark(lark)?;
            Ok(GrammarWithLexer::from_lark(lark.clone()))
        }
    }
}

/// Returns a schema with our settings in it. The client's own settings, which a schema can carry, are ignored.
fn json(schema: &str, lenient: bool, open: bool) -> Result<Value, GrammarError> {
    let schema = limits::schema(schema, lenient)?;
    let mut schema = if open { schema } else { closed::close(schema) };
    if schema == Value::Bool(true) {
        schema = json!({});
    }
    let Some(fields) = schema.as_object_mut() else {
        return Err(GrammarError::Invalid("the schema is not a JSON object".to_owned()));
    };
    let settings = json!({ "whitespace_pattern": JSON_SPACE, "lenient": lenient });
    fields.insert("x-guidance".to_owned(), settings);
    Ok(schema)
}

fn literal(marker: Option<&Marker>, vocabulary: &TokenTrie) -> Result<String, GrammarError> {
    let quote = |text: &str| Value::from(text).to_string();
    match marker {
        None => Ok(String::new()),
        Some(Marker::Text(text)) => Ok(quote(text)),
        Some(Marker::Token(token)) if vocabulary.is_special(*token) => Ok(format!("<[{token}]>")),
        Some(Marker::Token(token)) => match std::str::from_utf8(vocabulary.bytes(*token)) {
            Ok(text) if !text.is_empty() => Ok(quote(text)),
            _ => Err(GrammarError::Invalid(format!("token {token} is no text, so it can be no marker"))),
        },
    }
}

/// Prefix of the compiler's message when no text fits a grammar.
pub(crate) const NO_TEXT: &str = "NoExtension";

/// The compiler has a single error type, so its message has to tell which of ours applies.
pub(crate) fn explain(message: &str) -> GrammarError {
    let brief: String = message.split("\n<").next().unwrap_or_default().chars().take(400).collect();
    let says = |words: &[&str]| words.iter().any(|word| brief.contains(word));
    if says(&[
        "too large",
        "too big",
        "too many",
        "fuel",
        "exceeded",
        "max is",
        "too complex",
        "TooComplex",
        "too deeply",
    ]) {
        GrammarError::TooLarge(brief)
    } else if says(&[
        "nimplemented",
        "not supported",
        "Unknown format",
        "not disjoint",
        "Unable to",
        "without 'referencing'",
    ]) {
        GrammarError::Unsupported(brief)
    } else if brief.starts_with(NO_TEXT) {
        GrammarError::Invalid("no text fits the grammar".to_owned())
    } else if brief.starts_with("panic") {
        GrammarError::Unsupported("the grammar made its compiler fail".to_owned())
    } else {
        GrammarError::Invalid(brief)
    }
}
