//! What an answer may be, as grammars: calls of the tools on offer with arguments that fit their schemas, an answer of a
//! given form, or both.
//!
//! A tool that may be called is constrained from its marker on; text around calls stays free. One that must be called is
//! constrained from the answer's first byte, behind the thoughts. Where nothing marks a call, the answer is free until it
//! has written the name of a tool where a call has it; beside an answer of a given form it needs its marker. Where no tool may be called, though the prompt tells of them so
//! that it stays the same from turn to turn, markers are barred.
//!
//! Fields come in the order of the convention, and arguments in that of the schema. A schema that cannot be enforced is
//! any JSON object, unless its tool is strict.

use std::fmt::Write as _;

use super::{Body, Calls, Markers, OutputFormat, Thoughts};
use crate::chat::{Tool, ToolChoice};
use pensieve_protocol::grammar::{Grammar, Part, Reasoning, Rule, Spec, Then, Trigger};

/// The field of a request that has the tools, whatever its dialect.
const TOOLS: &str = "tools";

/// White space as calls have it, at most so much.
const SPACE: &str = r"[ \t\r\n]{0,8}";

/// A schema that is longer is not enforced, nor are those behind so many bytes of them; the engine takes no more.
const SCHEMA_BYTES_MAX: usize = 256 << 10;
const SCHEMAS_BYTES_MAX: usize = 2 << 20;

/// What an answer may be.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    /// The convention.
    pub format: &'a OutputFormat,
    /// The special tokens in it.
    pub markers: &'a Markers,
    /// The tools that the prompt tells of.
    pub tools: &'a [Tool],
    /// Which of them may or must be called.
    pub choice: &'a ToolChoice,
    /// Whether one call is the most.
    pub single: bool,
    /// What the answer must look like if it is no call.
    pub answer: Option<&'a Part>,
    /// Where the thoughts are.
    pub thoughts: Thoughts,
}

impl Rules<'_> {
    /// The rules for the engine; none if everything is allowed.
    pub fn spec(&self) -> Option<Spec> {
        let rules = self.rules();
        let reasoning = self.format.reasoning.as_ref().filter(|_| self.thoughts != Thoughts::Never);
        let reasoning = reasoning.map(|reasoning| Reasoning {
            begin: (self.thoughts == Thoughts::Possible).then(|| self.markers.marker(&reasoning.open)),
            end: self.markers.marker(&reasoning.close),
        });
        (!rules.is_empty()).then_some(Spec { reasoning, rules })
    }

    fn rules(&self) -> Vec<Rule> {
        let Some(calls) = self.format.calls.as_ref().filter(|_| !self.tools.is_empty()) else {
            return self.answer.map(|answer| Rule::from_start(answer.clone(), Then::Stop)).into_iter().collect();
        };
        let named = |name: &str| self.tools.iter().filter(|tool| tool.name == name).collect();
        let all: Vec<&Tool> = self.tools.iter().collect();
        let frame = |tools| Frame { calls, markers: self.markers, tools, single: self.single };
        match (self.choice, self.answer) {
            (ToolChoice::Any, _) => vec![from_start(frame(all).must_call(None))],
            (ToolChoice::Named(name), _) => vec![from_start(frame(named(name)).must_call(None))],
            (ToolChoice::None, Some(answer)) => vec![Rule::from_start(answer.clone(), Then::Stop)],
            (ToolChoice::None, None) => vec![from_start(frame(all).no_call())],
            (ToolChoice::Auto, Some(answer)) => vec![from_start(frame(all).must_call(Some(answer)))],
            (ToolChoice::Auto, None) => {
                let frame = frame(all);
                let then = if self.single { Then::Stop } else { Then::Resume };
                let marked = Rule {
                    field: TOOLS.to_owned(),
                    trigger: Trigger::After(self.markers.marker(&calls.open)),
                    open: None,
                    grammar: frame.rest_of_call(),
                    close: None,
                    then,
                };
                let bare = calls.bare.then(|| Rule { then, ..from_start(frame.may_call()) });
                bare.into_iter().chain([marked]).collect()
            }
        }
    }
}

fn from_start(calls: Grammar) -> Rule {
    Rule::from_start(Part::new(TOOLS, calls), Then::Stop)
}

/// Grammars of calls.
struct Frame<'a> {
    calls: &'a Calls,
    markers: &'a Markers,
    tools: Vec<&'a Tool>,
    single: bool,
}

impl Frame<'_> {
    /// One or more calls, or an answer.
    fn must_call(&self, answer: Option<&Part>) -> Grammar {
        // An answer in JSON and a call that nothing marks begin alike, and the engine cannot keep them apart.
        let is_bare = self.calls.bare && answer.is_none();
        let open = if is_bare { String::new() } else { self.markers.lark(&self.calls.open) };
        let close = if is_bare { String::new() } else { self.close() };
        let space = if open.is_empty() { "" } else { "SPACE" };
        let call = format!("call: {open} {space} {} {close}\n", self.body());
        let calls = match (self.single || self.is_list(), is_bare) {
            (true, _) => "calls: SPACE call\n",
            (false, false) => "calls: SPACE call (SPACE call)*\n",
            (false, true) => "calls: SPACE call (SEPARATOR call)*\n",
        };
        let start = if answer.is_some() { "start: SPACE @part0 | calls\n" } else { "start: calls\n" };
        self.framed(&format!("{start}{calls}{call}SEPARATOR: /{SPACE};?{SPACE}/\n"), answer)
    }

    /// What stands behind a marker.
    fn rest_of_call(&self) -> Grammar {
        self.framed(&format!("start: SPACE {} {}\n", self.body(), self.close()), None)
    }

    /// A call that nothing marks, or any text that does not begin like one.
    fn may_call(&self) -> Grammar {
        let calls = if self.single { "call" } else { "call (SEPARATOR call)*" };
        let rules = format!("start: FREE | {calls}\ncall: {}\nSEPARATOR: /{SPACE};?{SPACE}/\n", self.body());
        self.framed(&format!("{rules}FREE: /(?s:.*)/ & ~/{}(?s:.*)/\n", self.bare_heads()), None)
    }

    /// Any text without a call.
    fn no_call(&self) -> Grammar {
        let mut free = String::from("FREE: /(?s:.*)/");
        // Special tokens are never part of a text.
        if let pensieve_protocol::grammar::Marker::Text(text) = self.markers.marker(&self.calls.open) {
            let _ = write!(free, " & ~/(?s:.*){}(?s:.*)/", escaped(&text));
        }
        if self.calls.bare {
            let _ = write!(free, " & ~/{}(?s:.*)/", self.bare_heads());
        }
        Grammar::Lark(format!("start: FREE\n{free}\n"))
    }

    fn is_list(&self) -> bool {
        matches!(self.calls.body, Body::List(_))
    }

    fn close(&self) -> String {
        if self.calls.close.is_empty() {
            String::new()
        } else {
            format!("SPACE {}", self.markers.lark(&self.calls.close))
        }
    }

    /// The body of a call, or of a list of calls.
    fn body(&self) -> &'static str {
        match (&self.calls.body, self.single) {
            (Body::List(_), true) => "\"[\" SPACE object SPACE \"]\"",
            (Body::List(_), false) => "\"[\" SPACE object (COMMA object)* SPACE \"]\"",
            _ => "object",
        }
    }

    /// How bare calls begin, up to their tool's name.
    fn bare_heads(&self) -> String {
        let (Body::Object(keys) | Body::List(keys)) = &self.calls.body else { return r"\z".into() };
        let names: Vec<String> = self.tools.iter().map(|tool| escaped(&json(&tool.name))).collect();
        format!("{SPACE}\\{{{SPACE}{}{SPACE}:{SPACE}({})", escaped(&json(&keys.name)), names.join("|"))
    }

    /// Adds what calls consist of to a frame's rules.
    fn framed(&self, rules: &str, answer: Option<&Part>) -> Grammar {
        let mut frame = String::from(rules);
        let _ = writeln!(frame, "SPACE: /{SPACE}/\nCOMMA: /{SPACE},{SPACE}/\nEND: /{SPACE}\\}}/");
        if let Body::Object(keys) | Body::List(keys) = &self.calls.body {
            let [name, arguments] = [&keys.name, &keys.arguments].map(|key| escaped(&json(key)));
            let _ = writeln!(frame, "OPENING: /\\{{{SPACE}{name}{SPACE}:{SPACE}/");
            let _ = writeln!(frame, "MIDDLE: /{SPACE},{SPACE}{arguments}{SPACE}:{SPACE}/");
        }
        let mut room = SCHEMAS_BYTES_MAX;
        let mut parts: Vec<Part> = answer.cloned().into_iter().collect();
        let mut objects = Vec::new();
        for (index, tool) in self.tools.iter().enumerate() {
            let part = parts.len();
            objects.push(match &self.calls.body {
                Body::Object(_) | Body::List(_) => {
                    let name = escaped(&json(&tool.name));
                    let _ = writeln!(frame, "HEAD{index}: OPENING /{name}/ MIDDLE");
                    format!("HEAD{index} @part{part} END")
                }
                Body::Named { arguments, id } => {
                    let (name, marker) = (json(&tool.name), self.markers.lark(arguments));
                    let id = if id.is_empty() {
                        String::new()
                    } else {
                        format!("({} /[A-Za-z0-9]{{1,64}}/)?", self.markers.lark(id))
                    };
                    format!("{name} {id} {marker} SPACE @part{part}")
                }
            });
            let schema = tool.schema.to_string();
            let fits = tool.schema.is_object() && schema.len() <= room.min(SCHEMA_BYTES_MAX);
            let grammar = if fits || tool.strict {
                room = room.saturating_sub(schema.len());
                Grammar::json_schema(schema, !tool.strict)
            } else {
                Grammar::any_json_object()
            };
            parts.push(Part::new(&tool.field, grammar));
        }
        let _ = writeln!(frame, "object: {}", objects.join("\n  | "));
        Grammar::Framed { frame, parts }
    }
}

fn json(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A text as a regular expression within slashes.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for char in text.chars() {
        if char.is_alphanumeric() || matches!(char, '_' | ' ' | '"') {
            escaped.push(char);
        } else {
            let _ = write!(escaped, "\\x{{{:x}}}", u32::from(char));
        }
    }
    escaped
}
