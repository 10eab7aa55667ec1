//! How models write tool calls and what they think, as data.
//!
//! There are some two dozen conventions, and each is a few words of data: what opens a call, what a call looks like, what
//! closes it ([`OutputFormat`]). A plugin's card may give them; otherwise they are found in the chat template's source
//! ([`OutputFormat::find`]), and where a template knows no tools a convention is taught in words ([`instruction`]). One parser
//! ([`ToolParser`](crate::answers::ToolParser)) and one generator of grammars ([`Rules`](crate::constraints::Rules)) serve all of them.
//!
//! As JSON, in the card's `formats`, Qwen's convention is
//! `{"calls": {"open": "<tool_call>", "close": "</tool_call>", "body": {"object": {}}},
//! "reasoning": {"open": "<think>", "close": "</think>"}}`; `docs/writing-a-plugin.md` has all the words.

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

/// How a model writes what is not its answer's text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OutputFormat {
    /// Tool calls; none if it knows no way, or writes them in a channel.
    pub calls: Option<Calls>,
    /// What it thinks before it answers; none if it does not, or has a channel for it.
    pub reasoning: Option<Reasoning>,
    /// The messages that an answer consists of, where thoughts, calls and text are told apart by the channel that each of
    /// them names; none if an answer is one text.
    pub channels: Option<Channels>,
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
    /// Whether calls may also stand without the two: at the beginning of an answer, or, where each call has a marker of its
    /// own ([`Named::before`]), anywhere.
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
    /// The name, a text, and the arguments: `f[ARGS]{}`.
    Named(Named),
    /// Calls as Python has them: `[f(a="x"), g()]`.
    Python(Python),
}

/// What the fields of a call are called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Keys {
    /// That with the tool's name.
    pub name: String,
    pub arguments: String,
}

/// A call that begins with the tool's name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Named {
    /// What stands before the name. If there is such a text, several calls may stand between one opener and its closer.
    pub before: String,
    /// What stands between name and arguments; empty if the arguments themselves show where the name ends.
    pub arguments: String,
    /// What may stand before that, followed by an id of the call, which is passed over; empty for nothing.
    pub id: String,
    pub form: Arguments,
    /// What stands behind the arguments; empty for nothing.
    pub after: String,
}

/// How the arguments of a call are written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arguments {
    /// As a JSON object.
    #[default]
    Json,
    /// Each between tags; a string as it is, anything else as JSON.
    Tags(Tags),
    /// As an object whose keys have no quotes and whose strings stand between a marker: `a:<escape>x<escape>,b:1}`.
    /// The brace that opens it is a part of [`Named::arguments`].
    Quoted {
        /// The marker on either side of a string.
        quote: String,
    },
}

/// The tags of an argument.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tags {
    /// What stands before its key.
    pub key: String,
    /// What stands behind its key.
    pub key_end: String,
    /// What stands before its value; empty for nothing.
    pub value: String,
    /// White space between the tags and the value, on either side, that is no part of the value; empty for none.
    pub margin: String,
    /// What stands behind its value.
    pub end: String,
}

/// Calls as Python has them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Python {
    /// Whether they stand in a list, rather than one below the other. Either is read.
    pub list: bool,
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

impl Default for Python {
    fn default() -> Self {
        Self { list: true }
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
        given.check()?;
        let found = template.map(|template| Self::find(template, has_token)).unwrap_or_default();
        // A card that says how calls are written says that there are no channels.
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

    /// Whether it says how tools are called.
    pub fn has_calls(&self) -> bool {
        self.calls.is_some() || self.channels.is_some()
    }

    /// What the end of a prompt means for the thoughts of the answer behind it.
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

    /// All texts that are looked for in an answer, and whether each may be empty.
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
    /// Whether an answer may begin with a call that has no marker at all.
    pub fn may_begin(&self) -> bool {
        self.bare && !matches!(self.body, Body::Named(_))
    }

    /// The form of calls that may stand without their opener.
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
