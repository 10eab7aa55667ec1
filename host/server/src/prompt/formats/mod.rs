//! How models write tool calls and what they think, as data.
//!
//! There are a handful of conventions, and each is a few words of data: what opens a call, what a call looks like, what
//! closes it ([`OutputFormat`]). A plugin's card may give them; otherwise they are found in the chat template's source
//! ([`OutputFormat::find`]), and where a template knows no tools a convention is taught in words ([`instruction`]). One parser
//! ([`ToolParser`]) and one maker of grammars ([`Rules`]) serve all of them.
//!
//! As JSON, in the card's `formats`, Qwen's convention is
//! `{"calls": {"open": "<tool_call>", "close": "</tool_call>", "body": {"object": {}}},
//! "reasoning": {"open": "<think>", "close": "</think>"}}`.

mod body;
mod grammar;
pub mod instruction;
mod known;
mod markers;
mod parser;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

pub use grammar::Rules;
pub use markers::{MarkerWeaver, Markers};
pub use parser::ToolParser;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// How a model writes what is not its answer's text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OutputFormat {
    /// Tool calls; none if it knows no way.
    pub calls: Option<Calls>,
    /// What it thinks before it answers; none if it does not.
    pub reasoning: Option<Reasoning>,
}

/// How a model writes tool calls. Texts here may be, or contain, the names of special tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calls {
    /// What stands before a call, or before a list of them.
    pub open: String,
    /// What stands behind it; empty for nothing.
    #[serde(default)]
    pub close: String,
    /// Whether an answer may also begin with a call that nothing opens or closes.
    #[serde(default)]
    pub bare: bool,
    /// What stands between.
    pub body: Body,
}

/// What a call looks like.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Body {
    /// A JSON object: `{"name": "f", "arguments": {}}`. A list is read as well.
    Object(Keys),
    /// A JSON list of such objects. A single object is read as well.
    List(Keys),
    /// The name, a text, and the arguments as a JSON object: `f[ARGS]{}`.
    Named {
        /// What stands between them.
        arguments: String,
        /// What may stand before that, followed by an id of the call, which is passed over; empty for nothing.
        #[serde(default)]
        id: String,
    },
}

/// What the fields of a call are called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Keys {
    /// That with the tool's name.
    pub name: String,
    /// That with the arguments.
    pub arguments: String,
}

/// How a model writes what it thinks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reasoning {
    /// What opens it, at the start of an answer or at the end of a prompt.
    pub open: String,
    /// What ends it.
    pub close: String,
}

/// Where an answer's thoughts are when it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thoughts {
    /// There are none.
    Never,
    /// The model may open them.
    Possible,
    /// The prompt has opened them.
    Begun,
}

impl Default for Keys {
    fn default() -> Self {
        Self { name: "name".into(), arguments: "arguments".into() }
    }
}

impl OutputFormat {
    /// Reads a card's `formats`; what it leaves out is found in the template.
    pub fn of(card: &str, template: Option<&str>, has_token: impl Fn(&str) -> bool) -> Result<Self, String> {
        let given: Self = if card.trim().is_empty() {
            Self::default()
        } else {
            // A list would pass for the fields in order.
            let fields = serde_json::from_str::<Map<String, Value>>(card);
            let format = fields.and_then(|fields| serde_json::from_value(Value::Object(fields)));
            format.map_err(|error| format!("its formats are not understood: {error}"))?
        };
        let bare = given.calls.as_ref().filter(|calls| calls.bare);
        if bare.is_some_and(|calls| matches!(calls.body, Body::Named { .. })) {
            return Err("its formats have calls without a marker that are not JSON".into());
        }
        if given.markers().any(|(marker, may_be_empty)| !may_be_empty && marker.is_empty()) {
            return Err("its formats have an empty marker".into());
        }
        let found = template.map(|template| Self::find(template, has_token)).unwrap_or_default();
        Ok(Self { calls: given.calls.or(found.calls), reasoning: given.reasoning.or(found.reasoning) })
    }

    /// What the end of a prompt means for the thoughts of the answer behind it.
    pub fn thoughts(&self, prompt: &str) -> Thoughts {
        let prompt = prompt.trim_end();
        match &self.reasoning {
            Some(reasoning) if prompt.ends_with(&reasoning.open) => Thoughts::Begun,
            Some(reasoning) if !prompt.ends_with(&reasoning.close) => Thoughts::Possible,
            _ => Thoughts::Never,
        }
    }

    /// All texts that are looked for in an answer, and whether each may be empty.
    fn markers(&self) -> impl Iterator<Item = (&str, bool)> {
        let calls = self.calls.iter().flat_map(|calls| {
            let body = match &calls.body {
                Body::Named { arguments, id } => [(arguments.as_str(), false), (id.as_str(), true)],
                Body::Object(keys) | Body::List(keys) => {
                    [(keys.name.as_str(), false), (keys.arguments.as_str(), false)]
                }
            };
            [(calls.open.as_str(), false), (calls.close.as_str(), true)].into_iter().chain(body)
        });
        let reasoning = self.reasoning.iter();
        calls.chain(
            reasoning.flat_map(|reasoning| [(reasoning.open.as_str(), false), (reasoning.close.as_str(), false)]),
        )
    }
}
