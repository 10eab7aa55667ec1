//! Structured output: derives the grammars that an answer must match, for calls of the offered tools with arguments
//! that fit their schemas, for a response format, or for both.
//!
//! With tool choice `auto` a call is constrained from its marker on, and text around calls stays free. A required call
//! is constrained from the answer's first byte after the reasoning. A bare call is unconstrained until the name of a
//! tool appears in its place in a call; combined with a response format a call needs its marker. With tool choice
//! `none` markers are barred, because the prompt still describes the tools so that it stays the same from turn to turn.
//!
//! Fields come in the order of the format, and arguments in that of the schema. A schema that cannot be enforced allows
//! any JSON object, unless its tool is strict.

mod arguments;
mod messages;

use std::fmt::Write as _;

use self::arguments::Writer;
use crate::{
    chat::{Tool, ToolChoice},
    formats::{Arguments, Body, Calls, Markers, Named, OutputFormat, Thoughts},
};
use pensieve_protocol::grammar::{Grammar, Marker, Part, Reasoning, Rule, Spec, Then, Trigger};

/// The request field that contains the tools, in every dialect.
const TOOLS: &str = "tools";

/// White space within calls, bounded.
const SPACE: &str = r"[ \t\r\n]{0,16}";

/// The inputs of an answer's grammar.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    pub format: &'a OutputFormat,
    pub markers: &'a Markers,
    /// The tools that the prompt describes.
    pub tools: &'a [Tool],
    pub choice: &'a ToolChoice,
    /// At most one call is allowed.
    pub single: bool,
    /// The response format of an answer that is not a call.
    pub answer: Option<&'a Part>,
    pub thoughts: Thoughts,
    /// Objects may have properties that their schemas do not list.
    pub open: bool,
}

impl Rules<'_> {
    /// Returns the rules for the engine; `None` if everything is allowed.
    pub fn spec(&self) -> Option<Spec> {
        if let Some(channels) = &self.format.channels {
            let rule = messages::rule(self, channels)?;
            return Some(Spec { reasoning: None, rules: self.opened(vec![rule]) });
        }
        let rules = self.opened(self.rules());
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
        let (markers, known, tools) = (self.markers, self.tools, self.callable());
        let frame = Frame { calls, markers, known, tools, single: self.single, open: self.open };
        match (self.choice, self.answer) {
            (ToolChoice::Any | ToolChoice::Named(_), _) => vec![from_start(frame.must_call(None))],
            (ToolChoice::None, Some(answer)) => vec![Rule::from_start(answer.clone(), Then::Stop)],
            (ToolChoice::None, None) => vec![from_start(frame.no_call())],
            (ToolChoice::Auto, Some(answer)) => vec![from_start(frame.must_call(Some(answer)))],
            (ToolChoice::Auto, None) => {
                let then = if self.single { Then::Stop } else { Then::Resume };
                let after = |marker: &str, grammar| Rule {
                    field: TOOLS.to_owned(),
                    trigger: Trigger::After(self.markers.marker(marker)),
                    open: None,
                    grammar,
                    close: None,
                    then,
                };
                let bare = frame.is_unmarked().then(|| Rule { then, ..from_start(frame.may_call()) });
                let unopened = calls.unopened().map(|named| after(&named.before, frame.rest_of_unopened()));
                bare.into_iter().chain([after(&calls.open, frame.rest_of_call())]).chain(unopened).collect()
            }
        }
    }

    fn opened(&self, rules: Vec<Rule>) -> Vec<Rule> {
        let opened = |rule: Rule| if self.open { Rule { grammar: rule.grammar.opened(), ..rule } } else { rule };
        rules.into_iter().map(opened).collect()
    }

    fn callable(&self) -> Vec<&Tool> {
        let may = |tool: &&Tool| match self.choice {
            ToolChoice::Named(name) => tool.name == *name,
            ToolChoice::None => false,
            ToolChoice::Any | ToolChoice::Auto => !tool.barred,
        };
        self.tools.iter().filter(may).collect()
    }
}

fn from_start(calls: Grammar) -> Rule {
    Rule::from_start(Part::new(TOOLS, calls), Then::Stop)
}

struct Frame<'a> {
    calls: &'a Calls,
    markers: &'a Markers,
    /// All tools of the prompt.
    known: &'a [Tool],
    /// Those that may be called.
    tools: Vec<&'a Tool>,
    single: bool,
    open: bool,
}

impl Frame<'_> {
    /// True if a call may come without a marker at the beginning of an answer.
    fn is_unmarked(&self) -> bool {
        self.calls.bare && self.calls.unopened().is_none()
    }

    /// The grammar of one or more calls, or an answer.
    fn must_call(&self, answer: Option<&Part>) -> Grammar {
        // A JSON answer and a bare call begin alike, and the engine cannot tell them apart.
        let is_bare = self.is_unmarked() && answer.is_none();
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
        let mut grammar = self.framed(&format!("{start}{calls}{call}SEPARATOR: /{SPACE};?{SPACE}/\n"), answer);
        if let (Grammar::Framed { parts, .. }, Some(_)) = (&mut grammar, answer)
            && let Some(answer) = parts.first_mut()
        {
            answer.is_answer = true;
        }
        grammar
    }

    /// The grammar after a marker.
    fn rest_of_call(&self) -> Grammar {
        self.framed(&format!("start: SPACE {} {}\n", self.body(), self.close()), None)
    }

    /// The grammar after the marker of a single call whose list has no opener.
    fn rest_of_unopened(&self) -> Grammar {
        let close = self.close();
        let close = if close.is_empty() { close } else { format!("({close})?") };
        self.framed(&format!("start: inner {close}\n"), None)
    }

    /// The grammar of a bare call, or of any text that does not begin like one.
    fn may_call(&self) -> Grammar {
        let calls = if self.single || self.is_list() { "call" } else { "call (SEPARATOR call)*" };
        let rules = format!("start: FREE | {calls}\ncall: {}\nSEPARATOR: /{SPACE};?{SPACE}/\n", self.body());
        self.framed(&format!("{rules}FREE: /(?s:.*)/ & ~/{}(?s:.*)/\n", self.bare_heads()), None)
    }

    /// The grammar of any text without a call.
    fn no_call(&self) -> Grammar {
        let mut free = String::from("FREE: /(?s:.*)/");
        let unopened = self.calls.unopened().map(|named| named.before.as_str());
        for marker in [self.calls.open.as_str()].into_iter().chain(unopened) {
            // Special tokens are never part of a text.
            if let Marker::Text(text) = self.markers.marker(marker) {
                let _ = write!(free, " & ~/(?s:.*){}(?s:.*)/", escaped(&text));
            }
        }
        if self.is_unmarked() {
            let _ = write!(free, " & ~/{}(?s:.*)/", self.bare_heads());
        }
        Grammar::Lark(format!("start: FREE\n{free}\n"))
    }

    /// True if one body holds all calls.
    fn is_list(&self) -> bool {
        match &self.calls.body {
            Body::List(_) => true,
            Body::Python(python) => python.list,
            Body::Object(_) | Body::Named(_) => false,
        }
    }

    fn close(&self) -> String {
        if self.calls.close.is_empty() {
            String::new()
        } else {
            format!("SPACE {}", self.markers.lark(&self.calls.close))
        }
    }

    /// The rule for the body of a call, or of a list of calls.
    fn body(&self) -> &'static str {
        let is_python = matches!(self.calls.body, Body::Python(_));
        let in_group = match &self.calls.body {
            Body::Named(named) => !named.before.is_empty(),
            Body::Python(python) => !python.list,
            Body::Object(_) | Body::List(_) => false,
        };
        match (self.is_list(), self.single) {
            (true, true) if is_python => "first SPACE \"]\"",
            (true, false) if is_python => "first (COMMA object)* SPACE \"]\"",
            (true, true) => "\"[\" SPACE object SPACE \"]\"",
            (true, false) => "\"[\" SPACE object (COMMA object)* SPACE \"]\"",
            (false, false) if in_group => "object (SPACE object)*",
            (false, _) => "object",
        }
    }

    /// Expression for the beginnings of bare calls, up to and including the tool's name.
    fn bare_heads(&self) -> String {
        let names = |quote: fn(&str) -> String| -> String {
            self.known.iter().map(|tool| escaped(&quote(&tool.name))).collect::<Vec<_>>().join("|")
        };
        match &self.calls.body {
            Body::Object(keys) | Body::List(keys) => {
                format!("{SPACE}\\{{{SPACE}{}{SPACE}:{SPACE}({})", escaped(&json(&keys.name)), names(json))
            }
            Body::Python(_) => format!("{SPACE}\\[{SPACE}({})\\(", names(str::to_owned)),
            Body::Named(_) => r"\z".into(),
        }
    }

    /// Completes a frame's rules with those of calls.
    fn framed(&self, rules: &str, answer: Option<&Part>) -> Grammar {
        let mut writer = Writer::new(self.markers, answer);
        writer.line(rules.trim_end());
        let objects = self.tools.iter().enumerate().map(|(index, tool)| match &self.calls.body {
            Body::Object(_) | Body::List(_) => object(&mut writer, index, tool),
            Body::Named(named) => self.named(&mut writer, index, tool, named),
            Body::Python(_) => {
                let arguments = writer.literals(index, tool, None, self.open);
                writer.line(&format!("rest{index}: {arguments} \")\""));
                format!("{} rest{index}", json(&format!("{}(", tool.name)))
            }
        });
        let objects = objects.collect::<Vec<_>>().join("\n  | ");
        match &self.calls.body {
            Body::Object(keys) | Body::List(keys) => {
                let [name, arguments] = [&keys.name, &keys.arguments].map(|key| escaped(&json(key)));
                writer.line(&format!("OPENING: /\\{{{SPACE}{name}{SPACE}:{SPACE}/"));
                writer.line(&format!("MIDDLE: /{SPACE},{SPACE}{arguments}{SPACE}:{SPACE}/"));
                writer.line(&format!("END: /{SPACE}\\}}/\nobject: {objects}"));
            }
            Body::Named(named) => {
                writer.line(&format!("object: {} inner\ninner: {objects}", self.markers.lark(&named.before)));
            }
            Body::Python(_) => {
                // A single terminal, because text that does not begin like a call can match just as far.
                let first = self.tools.iter().enumerate().map(|(index, tool)| {
                    writer.line(&format!("HEAD{index}: /\\[{SPACE}{}\\(/", escaped(&tool.name)));
                    format!("HEAD{index} rest{index}")
                });
                let first = first.collect::<Vec<_>>().join(" | ");
                writer.line(&format!("first: {first}\nobject: {objects}"));
            }
        }
        writer.finish()
    }

    /// Adds a call from the tool's name on.
    fn named(&self, writer: &mut Writer<'_>, index: usize, tool: &Tool, named: &Named) -> String {
        let (name, marker) = (json(&tool.name), self.markers.lark(&named.arguments));
        let id = if named.id.is_empty() {
            String::new()
        } else {
            format!("({} /[A-Za-z0-9_-]{{1,64}}/)?", self.markers.lark(&named.id))
        };
        let after = named.after.trim();
        let space = if after.is_empty() { "" } else { "SPACE" };
        let arguments = match &named.form {
            Arguments::Json => format!("SPACE {} {space}", writer.json(tool)),
            Arguments::Tags(tags) => format!("SPACE {}", writer.tags(index, tool, tags, self.open)),
            Arguments::Quoted { quote } => {
                format!("{} \"}}\" {space}", writer.literals(index, tool, Some(quote), self.open))
            }
        };
        let after = self.markers.lark(after);
        format!("{name} {id} {marker} {arguments} {after}")
    }
}

fn object(writer: &mut Writer<'_>, index: usize, tool: &Tool) -> String {
    let arguments = writer.json(tool);
    writer.line(&format!("HEAD{index}: OPENING /{}/ MIDDLE", escaped(&json(&tool.name))));
    format!("HEAD{index} {arguments} END")
}

fn json(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Escapes a text for a regular expression between slashes.
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
