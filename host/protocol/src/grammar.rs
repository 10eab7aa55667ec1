//! Constraints on the output of a request: plain data from a dialect to the worker. Schemas are kept as the text that the
//! client sent, because the model writes properties in the order in which the schema lists them.

use serde::{Deserialize, Serialize};

/// Constraints on the output of one sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Spec {
    /// Delimiters of the reasoning before the answer, in which no rule applies.
    pub reasoning: Option<Reasoning>,
    /// Grammars with their triggers. At most one has `Trigger::Start`.
    pub rules: Vec<Rule>,
}

/// Text before the answer, in which nothing is constrained and no trigger is seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reasoning {
    /// The marker that opens it, recognized only at the start of the output; `None` if the prompt has opened it already.
    pub begin: Option<Marker>,
    pub end: Marker,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The request field that it comes from, for errors.
    #[serde(default)]
    pub field: String,
    pub trigger: Trigger,
    /// Required before the grammar's text.
    #[serde(default)]
    pub open: Option<Marker>,
    pub grammar: Grammar,
    /// Required after the grammar's text.
    #[serde(default)]
    pub close: Option<Marker>,
    #[serde(default)]
    pub then: Then,
}

/// When a rule starts to apply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trigger {
    /// At the start of the output, or at the end of the reasoning if there is one.
    Start,
    /// After a marker in the output. The marker that completes first wins; of several, the one that began first.
    After(Marker),
}

/// A text or token that is recognized in the output.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Marker {
    /// Matched on bytes, across token boundaries.
    Text(String),
    Token(u32),
}

/// The continuation once a grammar's text is complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Then {
    #[default]
    Stop,
    /// The output is unconstrained again, and triggers are recognized again.
    Resume,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grammar {
    JsonSchema {
        schema: String,
        /// Ignores keywords that the grammar cannot express, as for tools, instead of failing.
        lenient: bool,
        /// Objects may have properties beside those that the schema lists, even where it does not say so.
        #[serde(default)]
        open: bool,
    },
    /// Matches the whole text. No anchors, no look-around.
    Regex(String),
    /// A grammar in llguidance's dialect of Lark.
    Lark(String),
    /// A Lark grammar in which `@part0`, `@part1`, … stand for other grammars. Lenient schemas among them that cannot be
    /// enforced at all become any JSON of their type.
    Framed {
        frame: String,
        /// Must not be `Framed` themselves.
        parts: Vec<Part>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// The request field that holds it, for errors.
    pub field: String,
    pub grammar: Grammar,
    /// A text that begins with it is an answer; any other text of the frame consists of calls.
    pub is_answer: bool,
    /// Takes the grammar's place if that cannot be compiled.
    pub fallback: Option<Box<Grammar>>,
}

impl Spec {
    /// Tokens among the `open` and `close` markers.
    pub fn written_tokens(&self) -> Vec<u32> {
        let markers = self.rules.iter().flat_map(|rule| rule.open.iter().chain(&rule.close));
        markers.filter_map(|marker| if let Marker::Token(token) = marker { Some(*token) } else { None }).collect()
    }
}

impl Rule {
    /// A rule for the whole answer.
    pub fn from_start(answer: Part, then: Then) -> Self {
        let Part { field, grammar, .. } = answer;
        Self { field, trigger: Trigger::Start, open: None, grammar, close: None, then }
    }
}

impl Grammar {
    /// JSON that matches a schema, without properties that it does not list; if `lenient`, as far as the schema can be
    /// enforced.
    pub fn json_schema(schema: impl Into<String>, lenient: bool) -> Self {
        Self::JsonSchema { schema: schema.into(), lenient, open: false }
    }

    /// Any JSON object: the fallback for a schema that cannot be enforced.
    pub fn any_json_object() -> Self {
        Self::json_schema(r#"{"type":"object"}"#, true)
    }

    /// Allows properties that its schemas neither list nor rule out.
    #[must_use]
    pub fn opened(self) -> Self {
        match self {
            Self::JsonSchema { schema, lenient, .. } => Self::JsonSchema { schema, lenient, open: true },
            Self::Framed { frame, parts } => {
                let opened = |part: Part| Part { grammar: part.grammar.opened(), ..part };
                Self::Framed { frame, parts: parts.into_iter().map(opened).collect() }
            }
            other => other,
        }
    }

    /// Length of all source texts.
    pub fn bytes(&self) -> usize {
        match self {
            Self::JsonSchema { schema: text, .. } | Self::Regex(text) | Self::Lark(text) => text.len(),
            Self::Framed { frame, parts } => frame.len() + parts.iter().map(|part| part.grammar.bytes()).sum::<usize>(),
        }
    }
}

impl Part {
    pub fn new(field: impl Into<String>, grammar: Grammar) -> Self {
        Self { field: field.into(), grammar, is_answer: false, fallback: None }
    }

    #[must_use]
    pub fn or(self, fallback: Grammar) -> Self {
        Self { fallback: Some(Box::new(fallback)), ..self }
    }
}
