//! Converts a conversation to the messages that templates know: `role`, `content`, `tool_calls`, `reasoning_content`.
//!
//! Anything that a template cannot express is converted to a form that it can, in place and as text if need be, so that
//! every request can be rendered. The result for a turn depends on that turn and, where a template requires alternating
//! roles, on its neighbours, but never on later turns: the prompt of a conversation extends the previous prompt, as far
//! as the template itself allows.

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::{
    images::ImageParts,
    traits::{Calls, TemplateTraits},
};
use pensieve_protocol::conversation::{Conversation, Part, PlacedImage, Role, Tool};

/// Separates texts that are joined into one.
const GAP: &str = "\n\n";
/// Length of the alphanumeric call ids that some templates require.
const SHORT_ID_CHARS: usize = 9;

/// A message of a conversation, before it is converted for a template.
#[derive(Clone, Debug, PartialEq)]
enum ChatMessage {
    User(String),
    Answer { text: String, thinking: String, calls: Vec<Call> },
    Result { id: String, name: String, text: String },
}

#[derive(Clone, Debug, PartialEq)]
struct Call {
    id: String,
    name: String,
    arguments: Value,
}

/// Converts a conversation for a template with these traits.
pub(super) fn messages(
    conversation: &Conversation,
    tools_in_words: Option<&str>,
    traits: &TemplateTraits,
    images: &mut ImageParts,
) -> Vec<Value> {
    let (leading, steps) = steps(conversation, images);
    let system: Vec<_> = [conversation.system.as_str(), &leading, tools_in_words.unwrap_or_default()]
        .into_iter()
        .filter(|text| !text.is_empty())
        .collect();
    let system = system.join(GAP);
    let mut steps = match &traits.calls {
        Some(calls) => with_calls(steps, calls, traits),
        None => in_words(steps),
    };
    if !system.is_empty() && !traits.takes_system {
        match steps.first_mut() {
            Some(ChatMessage::User(text)) => *text = joined(&system, text),
            _ => steps.insert(0, ChatMessage::User(system.clone())),
        }
    }
    if traits.alternates {
        steps = alternating(steps);
    }
    if traits.user_first && !matches!(steps.first(), Some(ChatMessage::User(_))) {
        steps.insert(0, ChatMessage::User(String::new()));
    }
    let system = (!system.is_empty() && traits.takes_system).then(|| message("system", &system, traits, images));
    system.into_iter().chain(steps.into_iter().map(|step| step.into_message(traits, images))).collect()
}

/// Describes the tools as OpenAI's API does, the form that templates were written for.
pub(super) fn tools(tools: &[Tool]) -> Value {
    if tools.is_empty() {
        return Value::Null;
    }
    let described = tools.iter().map(|tool| {
        let parameters =
            if tool.schema.is_null() { json!({ "type": "object", "properties": {} }) } else { tool.schema.clone() };
        json!({ "type": "function", "function": {
            "name": tool.name, "description": tool.description, "parameters": parameters,
        } })
    });
    described.collect()
}

/// Adds reasoning to an answer under both keys: templates read one or the other.
pub(super) fn think(message: &mut Value, thoughts: &str) {
    message["thinking"] = json!(thoughts);
    message["reasoning_content"] = json!(thoughts);
}

/// Splits a conversation into the leading system text and the messages that follow.
fn steps(conversation: &Conversation, images: &ImageParts) -> (String, Vec<ChatMessage>) {
    let mut leading = String::new();
    let mut steps: Vec<ChatMessage> = Vec::new();
    // System texts in the middle are held back for the next user message.
    let mut waiting = String::new();
    for turn in &conversation.turns {
        match turn.role {
            Role::System if steps.is_empty() && waiting.is_empty() => {
                leading = joined(&leading, &texts(&turn.parts, GAP, images));
            }
            Role::System => waiting = joined(&waiting, &texts(&turn.parts, GAP, images)),
            Role::User => {
                for part in &turn.parts {
                    let Part::ToolResult { id, text, images: placed, is_error } = part else { continue };
                    let name = name_of(&steps, id);
                    let text = outcome(&illustrated(text, placed, images), *is_error);
                    steps.push(ChatMessage::Result { id: id.clone(), name, text });
                }
                let is_result = |part: &Part| matches!(part, Part::ToolResult { .. });
                let text = joined(&std::mem::take(&mut waiting), &texts(&turn.parts, GAP, images));
                if !text.is_empty() || !turn.parts.iter().any(is_result) {
                    steps.push(ChatMessage::User(text));
                }
            }
            Role::Assistant => {
                if !waiting.is_empty() {
                    steps.push(ChatMessage::User(std::mem::take(&mut waiting)));
                }
                let mut answer = (String::new(), Vec::new());
                for part in &turn.parts {
                    match part {
                        Part::Thinking(text) => answer.0 = joined(&answer.0, text),
                        Part::ToolCall { id, name, arguments } => {
                            answer.1.push(Call { id: id.clone(), name: name.clone(), arguments: arguments.clone() });
                        }
                        Part::Text(_) | Part::ToolResult { .. } | Part::Image(_) => {}
                    }
                }
                let (thinking, calls) = answer;
                steps.push(ChatMessage::Answer { text: texts(&turn.parts, "", images), thinking, calls });
            }
        }
    }
    if !waiting.is_empty() {
        steps.push(ChatMessage::User(waiting));
    }
    (leading, steps)
}

/// Joins the texts of parts. Nothing comes between an image and the text around it.
fn texts(parts: &[Part], gap: &str, images: &ImageParts) -> String {
    let mut joined = String::new();
    let mut is_after_text = false;
    for part in parts {
        match part {
            Part::Text(text) if !text.is_empty() => {
                joined += if is_after_text { gap } else { "" };
                joined += text;
                is_after_text = true;
            }
            Part::Image(item) => {
                joined += &images.word(*item);
                is_after_text = false;
            }
            _ => {}
        }
    }
    joined
}

/// The text of a result with its images.
fn illustrated(text: &str, placed: &[PlacedImage], images: &ImageParts) -> String {
    let (mut made, mut done) = (String::new(), 0);
    for image in placed {
        let at = text.floor_char_boundary(image.at as usize).max(done);
        made += &text[done..at];
        made += &images.word(image.item);
        done = at;
    }
    made + &text[done..]
}

fn joined(before: &str, after: &str) -> String {
    let gap = if before.is_empty() || after.is_empty() { "" } else { GAP };
    [before, gap, after].concat()
}

/// Returns the name of the tool that the call with this id went to.
fn name_of(steps: &[ChatMessage], id: &str) -> String {
    let calls = steps.iter().rev().filter_map(|step| match step {
        ChatMessage::Answer { calls, .. } => Some(calls),
        _ => None,
    });
    calls.flatten().find(|call| call.id == id).map(|call| call.name.clone()).unwrap_or_default()
}

fn outcome(text: &str, is_error: bool) -> String {
    let says_so = text.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("error"));
    if is_error && !says_so { format!("Error: {text}") } else { text.to_owned() }
}

/// Converts calls and results to the template's own form.
fn with_calls(steps: Vec<ChatMessage>, form: &Calls, traits: &TemplateTraits) -> Vec<ChatMessage> {
    let mut made: Vec<ChatMessage> = Vec::new();
    let mut steps = steps.into_iter().peekable();
    while let Some(step) = steps.next() {
        match step {
            ChatMessage::Answer { text, mut thinking, calls } if !calls.is_empty() => {
                let mut before = text;
                if form.beside_text && !form.beside_both && !before.is_empty() && !thinking.is_empty() {
                    thinking = joined(&thinking, &std::mem::take(&mut before));
                }
                if !form.beside_text && !before.is_empty() {
                    // Where a separate answer is not accepted, the call matters more than the text.
                    if !traits.alternates {
                        let text = std::mem::take(&mut before);
                        made.push(ChatMessage::Answer { text, thinking: thinking.clone(), calls: Vec::new() });
                    }
                    before = String::new();
                }
                if form.parallel || calls.len() == 1 {
                    made.push(ChatMessage::Answer { text: before, thinking, calls });
                    continue;
                }
                // One call at a time, each followed by its result.
                let mut results = Vec::new();
                while let Some(result) = steps.next_if(|step| matches!(step, ChatMessage::Result { .. })) {
                    results.push(result);
                }
                for (place, call) in calls.into_iter().enumerate() {
                    let id = call.id.clone();
                    let (text, thinking) =
                        if place == 0 { (before.clone(), thinking.clone()) } else { <(String, String)>::default() };
                    made.push(ChatMessage::Answer { text, thinking, calls: vec![call] });
                    let is_its = |step: &ChatMessage| matches!(step, ChatMessage::Result { id: of, .. } if *of == id);
                    if let Some(at) = results.iter().position(is_its) {
                        made.push(results.remove(at));
                    }
                }
                made.extend(results);
            }
            ChatMessage::User(text) if !form.user_after_result => match made.last_mut() {
                Some(ChatMessage::Result { text: result, .. }) => *result = joined(result, &text),
                _ => made.push(ChatMessage::User(text)),
            },
            other => made.push(other),
        }
    }
    made
}

/// Converts calls and results to text: calls as the model's, results as the user's.
fn in_words(steps: Vec<ChatMessage>) -> Vec<ChatMessage> {
    let mut made: Vec<ChatMessage> = Vec::new();
    let mut is_result = false;
    for step in steps {
        let was_result = std::mem::take(&mut is_result);
        match step {
            ChatMessage::Answer { text, thinking, calls } => {
                let calls = calls.iter().map(|call| {
                    let call = json!({ "name": call.name, "arguments": call.arguments });
                    format!("<tool_call>\n{}\n</tool_call>", python_json(&call))
                });
                let parts: Vec<_> = Some(text).filter(|text| !text.is_empty()).into_iter().chain(calls).collect();
                made.push(ChatMessage::Answer { text: parts.join("\n"), thinking, calls: Vec::new() });
            }
            ChatMessage::Result { text, .. } => {
                let told = format!("<tool_response>\n{text}\n</tool_response>");
                is_result = true;
                match made.last_mut() {
                    Some(ChatMessage::User(before)) if was_result => *before = format!("{before}\n{told}"),
                    _ => made.push(ChatMessage::User(told)),
                }
            }
            ChatMessage::User(text) => match made.last_mut() {
                Some(ChatMessage::User(before)) if was_result => *before = joined(before, &text),
                _ => made.push(ChatMessage::User(text)),
            },
        }
    }
    made
}

/// Merges neighbouring messages of the same role.
fn alternating(steps: Vec<ChatMessage>) -> Vec<ChatMessage> {
    let mut made: Vec<ChatMessage> = Vec::new();
    for step in steps {
        match (made.last_mut(), step) {
            (Some(ChatMessage::User(before)), ChatMessage::User(text)) => *before = joined(before, &text),
            (
                Some(ChatMessage::Answer { text: before, thinking: thought, calls: called }),
                ChatMessage::Answer { text, thinking, calls },
            ) if called.is_empty() => {
                *before = joined(before, &text);
                *thought = joined(thought, &thinking);
                *called = calls;
            }
            (_, step) => made.push(step),
        }
    }
    made
}

impl ChatMessage {
    fn into_message(self, traits: &TemplateTraits, images: &mut ImageParts) -> Value {
        match self {
            Self::User(text) => message("user", &text, traits, images),
            Self::Result { id, name, text } => {
                let mut message = message("tool", &text, traits, images);
                message["tool_call_id"] = json!(traits.id(&id));
                message["name"] = json!(name);
                message
            }
            Self::Answer { text, thinking, calls } => {
                let mut message = message("assistant", &text, traits, images);
                if !thinking.is_empty() {
                    think(&mut message, &thinking);
                }
                if !calls.is_empty() {
                    message["tool_calls"] = calls.into_iter().map(|call| call.into_message(traits)).collect();
                }
                message
            }
        }
    }
}

impl Call {
    fn into_message(self, traits: &TemplateTraits) -> Value {
        let as_text = traits.calls.as_ref().is_some_and(|calls| calls.arguments_as_text);
        let arguments = match self.arguments {
            Value::Null => Value::Object(Map::new()),
            arguments => arguments,
        };
        let arguments = if as_text { json!(python_json(&arguments)) } else { arguments };
        json!({
            "id": traits.id(&self.id), "type": "function",
            "function": { "name": self.name, "arguments": arguments },
        })
    }
}

impl TemplateTraits {
    /// Returns a call's id in a form that the template accepts; equal ids stay equal.
    fn id(&self, id: &str) -> String {
        let is_short = id.len() == SHORT_ID_CHARS && id.chars().all(|char| char.is_ascii_alphanumeric());
        if is_short || !self.calls.as_ref().is_some_and(|calls| calls.short_ids) {
            return id.to_owned();
        }
        let digits = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
        let hash = Sha256::digest(id.as_bytes());
        hash.iter().take(SHORT_ID_CHARS).map(|byte| char::from(digits[usize::from(*byte) % digits.len()])).collect()
    }
}

fn message(role: &str, text: &str, traits: &TemplateTraits, images: &mut ImageParts) -> Value {
    json!({ "role": role, "content": images.content(role, text, traits) })
}

/// Writes JSON with Python's spacing, which models saw most in training.
fn python_json(value: &Value) -> String {
    struct Spaced;
    impl serde_json::ser::Formatter for Spaced {
        fn begin_array_value<W: std::io::Write + ?Sized>(&mut self, out: &mut W, first: bool) -> std::io::Result<()> {
            if first { Ok(()) } else { out.write_all(b", ") }
        }
        fn begin_object_key<W: std::io::Write + ?Sized>(&mut self, out: &mut W, first: bool) -> std::io::Result<()> {
            if first { Ok(()) } else { out.write_all(b", ") }
        }
        fn begin_object_value<W: std::io::Write + ?Sized>(&mut self, out: &mut W) -> std::io::Result<()> {
            out.write_all(b": ")
        }
    }
    let mut bytes = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, Spaced);
    match serde::Serialize::serialize(value, &mut serializer) {
        Ok(()) => String::from_utf8(bytes).unwrap_or_default(),
        Err(_) => value.to_string(),
    }
}
