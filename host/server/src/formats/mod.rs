//! Output formats: how models write tool calls and reasoning, as data.
//!
//! There are some two dozen formats, each described by a few strings: the opener of a call, its body, its closer
//! ([`OutputFormat`]). A plugin's card may specify them; otherwise they are detected in the chat template's source
//! ([`OutputFormat::find`]). If a template does not support tools, the model is taught a format by instructions
//! ([`instruction`]). One parser ([`ToolParser`](crate::answers::ToolParser)) and one generator of grammars
//! ([`Rules`](crate::constraints::Rules)) serve all formats.
//!
//! As JSON, in the card's `formats`, Qwen's format is
//! `{"calls": {"open": "<tool_call>", "close": "</tool_call>", "body": {"object": {}}},
//! "reasoning": {"open": "<think>", "close": "</think>"}}`; `docs/writing-a-plugin.md` lists all fields.

mod channels;
pub mod instruction;
mod known;
mod markers;
mod signature;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

pub use channels::Channels;
pub use markers::{MarkerWeaver, Markers};
pub use signature::{Signature, Types, properties, resolve};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// How a model writes everything but the text of its answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OutputFormat {
    /// Tool calls; `None` if the model has none, or writes them in a channel.
    pub calls: Option<Calls>,
    /// Reasoning before the answer; `None` if the model has none, or a channel for it.
    pub reasoning: Option<Reasoning>,
    /// Channels, for answers that consist of messages; `None` if an answer is a single text.
    pub channels: Option<Channels>,
}

/// How a model writes tool calls. Texts here may be, or contain, the names of special tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calls {
    /// Marker before a call, or before a list of them.
    pub open: String,
    /// Marker after a call, or after a list of them; may be empty.
    #[serde(default)]
    pub close: String,
    /// Calls may also come without the two markers: at the beginning of an answer or, if each call has its own marker
    /// ([`Named::before`]), anywhere.
    #[serde(default)]
    pub bare: bool,
    pub body: Body,
}

/// The form of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Body {
    /// A JSON object: `{"name": "f", "arguments": {}}`. A list is accepted as well.
    Object(Keys),
    /// A JSON list of such objects. A single object is accepted as well.
    List(Keys),
    /// The name as text, then the arguments: `f[ARGS]{}`.
    Named(Named),
    /// Calls in Python's notation: `[f(a="x"), g()]`.
    Python(Python),
}

/// The names of a call's fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Keys {
    /// The field with the tool's name.
    pub name: String,
    pub arguments: String,
}

/// A call that begins with the tool's name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Named {
    /// Marker before the name. If there is one, several calls may share one opener and closer.
    pub before: String,
    /// Marker between name and arguments; empty if the beginning of the arguments ends the name.
    pub arguments: String,
    /// Marker before the call's id, which precedes that marker and is skipped; may be empty.
    pub id: String,
    pub form: Arguments,
    /// Marker after the arguments; may be empty.
    pub after: String,
}

/// How the arguments of a call are written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arguments {
    /// As a JSON object.
    #[default]
    Json,
    /// Each between tags; strings as they are, other values as JSON.
    Tags(Tags),
    /// As an object with unquoted keys and with a marker around strings: `a:<escape>x<escape>,b:1}`. The opening brace
    /// is part of [`Named::arguments`].
    Quoted {
        /// The marker on either side of a string.
        quote: String,
    },
}

/// The tags of an argument.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tags {
    /// Marker before the key.
    pub key: String,
    /// Marker after the key.
    pub key_end: String,
    /// Marker before the value; may be empty.
    pub value: String,
    /// White space around the value that does not belong to it; may be empty.
    pub margin: String,
    /// Marker after the value.
    pub end: String,
}

/// Calls in Python's notation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Python {
    /// Calls are in a list, not one per line. Either is parsed.
    pub list: bool,
}

/// How a model writes its reasoning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reasoning {
    /// Opener, at the start of an answer or at the end of the prompt.
    pub open: String,
    /// Closer.
    pub close: String,
}

/// State of the reasoning at the beginning of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thoughts {
    /// The answer has no reasoning.
    Never,
    /// The model may open reasoning.
    Possible,
    /// The prompt has opened the reasoning.
    Begun,
}

impl Default for Keys {
    fn default() -> Self {
        Self { name: "name".into(), arguments: "arguments".into() }
    }
}

impl Default for Python {
    fn default() -> Self {
        Self { list: true }
    }
}

impl OutputFormat {
    /// Reads a card's `formats`; absent parts are detected from the template.
    pub fn of(card: &str, template: Option<&str>, has_token: impl Fn(&str) -> bool) -> Result<Self, String> {
        let given: Self = if card.trim().is_empty() {
            Self::default()
        } else {
            // serde would also accept a list of the fields in order.
            let fields = serde_json::from_str::<Map<String, Value>>(card);
            let format = fields.and_then(|fields| serde_json::from_value(Value::Object(fields)));
            format.map_err(|error| format!("its formats are not understood: {error}"))?
        };
        given.check()?;
        let found = template.map(|template| Self::find(template, has_token)).unwrap_or_default();
        // A card with a call format implies that there are no channels.
        let channels = given.channels.or(found.channels.filter(|_| given.calls.is_none()));
        Ok(Self { calls: given.calls.or(found.calls), reasoning: given.reasoning.or(found.reasoning), channels })
    }

    fn check(&self) -> Result<(), String> {
        if self.channels.is_some() && (self.calls.is_some() || self.reasoning.is_some()) {
            return Err("its formats have channels beside calls or reasoning".into());
        }
        if self.markers().into_iter().any(|(marker, may_be_empty)| !may_be_empty && marker.is_empty()) {
            return Err("its formats have an empty marker".into());
        }
        let bare = self.calls.as_ref().filter(|calls| calls.bare);
        if bare.is_some_and(|calls| matches!(&calls.body, Body::Named(named) if named.before.is_empty())) {
            return Err("its formats have calls without a marker that are not JSON".into());
        }
        Ok(())
    }

    /// True if there is a format for calls.
    pub fn has_calls(&self) -> bool {
        self.calls.is_some() || self.channels.is_some()
    }

    /// State of the reasoning after this prompt.
    pub fn thoughts(&self, prompt: &str) -> Thoughts {
        if let Some(channels) = &self.channels {
            return channels.thoughts(prompt);
        }
        let prompt = prompt.trim_end();
        match &self.reasoning {
            Some(reasoning) if prompt.ends_with(&reasoning.open) => Thoughts::Begun,
            Some(reasoning) if !prompt.ends_with(&reasoning.close) => Thoughts::Possible,
            _ => Thoughts::Never,
        }
    }

    /// All markers to search for in an answer, each with whether it may be empty.
    fn markers(&self) -> Vec<(&str, bool)> {
        let mut markers: Vec<(&str, bool)> = Vec::new();
        if let Some(calls) = &self.calls {
            markers.extend([(calls.open.as_str(), false), (calls.close.as_str(), true)]);
            match &calls.body {
                Body::Object(keys) | Body::List(keys) => {
                    markers.extend([(keys.name.as_str(), false), (keys.arguments.as_str(), false)]);
                }
                Body::Named(named) => named.add_markers(&mut markers),
                Body::Python(_) => {}
            }
        }
        if let Some(reasoning) = &self.reasoning {
            markers.extend([(reasoning.open.as_str(), false), (reasoning.close.as_str(), false)]);
        }
        if let Some(channels) = &self.channels {
            markers.extend(channels.markers());
        }
        markers
    }
}

impl Calls {
    /// True if an answer may begin with a call without any marker.
    pub fn may_begin(&self) -> bool {
        self.bare && !matches!(self.body, Body::Named(_))
    }

    /// The form of calls that may come without the opener.
    pub fn unopened(&self) -> Option<&Named> {
        if let (Body::Named(named), true) = (&self.body, self.bare) { Some(named) } else { None }
    }
}

impl Named {
    fn add_markers<'a>(&'a self, markers: &mut Vec<(&'a str, bool)>) {
        let is_tagged = matches!(self.form, Arguments::Tags(_));
        markers.extend([(self.before.as_str(), true), (self.id.as_str(), true), (self.after.as_str(), !is_tagged)]);
        markers.push((&self.arguments, !matches!(self.form, Arguments::Quoted { .. })));
        match &self.form {
            Arguments::Json => {}
            Arguments::Tags(tags) => {
                markers.extend([&tags.key, &tags.key_end, &tags.end].map(|text| (text.as_str(), false)));
                markers.push((&tags.value, true));
            }
            Arguments::Quoted { quote } => markers.push((quote, false)),
        }
    }
}
