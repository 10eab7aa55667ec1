//! What a request may ask for: plain data that travels from a dialect to the worker. Schemas travel as the text that the
//! client sent, because the order of properties in it is the order in which the model will write them.

use serde::{Deserialize, Serialize};

/// What holds for the output of one sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Spec {
    /// How the model writes what it thinks before it answers. No rule holds in there.
    pub reasoning: Option<Reasoning>,
    /// Grammars and when they hold. At most one begins at the start.
    pub rules: Vec<Rule>,
}

/// Text before the answer, in which nothing is constrained and no trigger is seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reasoning {
    /// What opens it, if the model may choose to; it counts at the start of the output alone. None if the prompt opened it.
    pub begin: Option<Marker>,
    pub end: Marker,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The field of the request that it follows from, for errors.
    #[serde(default)]
    pub field: String,
    pub trigger: Trigger,
    /// What must be written before the grammar's text.
    #[serde(default)]
    pub open: Option<Marker>,
    pub grammar: Grammar,
    /// What must be written after the grammar's text.
    #[serde(default)]
    pub close: Option<Marker>,
    #[serde(default)]
    pub then: Then,
}

/// When a rule begins to hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trigger {
    /// With the output, or with the end of the reasoning where there is some.
    Start,
    /// After a marker in the output. The marker that is complete first counts, and of several the one that began first.
    After(Marker),
}

/// Something that is recognised in the output.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Marker {
    /// A text, wherever its tokens are cut.
    Text(String),
    Token(u32),
}

/// What follows when a grammar's text is complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Then {
    #[default]
    Stop,
    /// The output is free again, and the triggers count again.
    Resume,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grammar {
    JsonSchema {
        schema: String,
        /// Whether what the grammar cannot express is passed over, as for tools, instead of being an error.
        lenient: bool,
    },
    /// A text that matches as a whole. No anchors, no look-around.
    Regex(String),
    /// A grammar in llguidance's dialect of Lark.
    Lark(String),
    /// Several grammars in a frame: a grammar in Lark whose `@part0`, `@part1`, … stand for them. Of the lenient schemas
    /// among them those that cannot be enforced at all become any JSON of their type.
    Framed {
        frame: String,
        /// What stands in it; not framed themselves.
        parts: Vec<Part>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// The field of the request that has it, for errors.
    pub field: String,
    pub grammar: Grammar,
}

impl Spec {
    /// The tokens that must be written around grammars' texts.
    pub fn written_tokens(&self) -> Vec<u32> {
        let markers = self.rules.iter().flat_map(|rule| rule.open.iter().chain(&rule.close));
        markers.filter_map(|marker| if let Marker::Token(token) = marker { Some(*token) } else { None }).collect()
    }
}

impl Rule {
    /// What holds for a whole answer.
    pub fn from_start(answer: Part, then: Then) -> Self {
        let Part { field, grammar } = answer;
        Self { field, trigger: Trigger::Start, open: None, grammar, close: None, then }
    }
}

impl Grammar {
    /// JSON that fits a schema, or as much of the schema as can be enforced.
    pub fn json_schema(schema: impl Into<String>, lenient: bool) -> Self {
        Self::JsonSchema { schema: schema.into(), lenient }
    }

    /// Any JSON object: what is left of a schema that cannot be enforced.
    pub fn any_json_object() -> Self {
        Self::json_schema(r#"{"type":"object"}"#, true)
    }

    pub fn bytes(&self) -> usize {
        match self {
            Self::JsonSchema { schema: text, .. } | Self::Regex(text) | Self::Lark(text) => text.len(),
            Self::Framed { frame, parts } => frame.len() + parts.iter().map(|part| part.grammar.bytes()).sum::<usize>(),
        }
    }
}

impl Part {
    /// What a field of the request has.
    pub fn new(field: impl Into<String>, grammar: Grammar) -> Self {
        Self { field: field.into(), grammar }
    }
}
