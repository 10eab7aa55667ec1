//! Reads what stands between a call's markers, byte by byte, so that arguments leave while they are generated.
//!
//! Nothing is checked against a schema here; only so much of JSON is understood as is needed to find names, and where
//! arguments begin and end. A call counts from the moment at which its tool is known to be one of those on offer and its
//! arguments have begun; until then it may turn out to be text. A model may write arguments as a string with JSON in it,
//! and fields in any order; both are put right.

use std::sync::Arc;

use super::{Body as Kind, Keys};
use crate::chat::Delta;

const NAME_BYTES_MAX: usize = 1024;
const DEPTH_MAX: usize = 512;

/// A call, or a list of calls, that is being read.
#[derive(Debug)]
pub(super) struct Body {
    reader: Reader,
    tools: Arc<[String]>,
    /// Whether nothing opened it, so that what is no call is found out as early as can be.
    bare: bool,
    calls: usize,
    /// Whether the call at hand counts already.
    is_open: bool,
    /// Arguments that have not left yet.
    arguments: Vec<u8>,
}

/// What became of a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fed {
    /// It belongs to a call that counts; or one has just been completed by it.
    Counted,
    /// It belongs to what may yet turn out to be no call.
    Open,
    /// It completes everything.
    Done,
    /// It does not belong to a call.
    Broken,
}

#[derive(Debug)]
enum Reader {
    Json(Box<Json>),
    Named { id: Vec<u8>, marker: Vec<u8>, head: Vec<u8>, nest: Nest },
}

#[derive(Debug)]
struct Json {
    keys: Keys,
    at: At,
    in_list: bool,
    key: Vec<u8>,
    name: Option<String>,
    /// Arguments that came before the name.
    early: Option<Vec<u8>>,
    /// The string that is being read, without its quotes, and whether a backslash came last.
    text: Vec<u8>,
    escape: bool,
    nest: Nest,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Begin,
    Item,
    ItemEnd,
    Key,
    KeyText,
    Colon,
    Value,
    NameText,
    Arguments,
    ArgumentsText,
    Other,
    OtherText,
    Scalar,
    Field,
}

/// A JSON value with others in it.
#[derive(Debug, Default)]
struct Nest {
    closers: Vec<u8>,
    in_text: bool,
    escape: bool,
}

#[derive(PartialEq, Eq)]
enum Nested {
    Inside,
    End,
    Broken,
}

impl Body {
    pub(super) fn new(kind: &Kind, tools: Arc<[String]>, bare: bool) -> Self {
        let reader = match kind {
            Kind::Object(keys) | Kind::List(keys) => Reader::Json(Box::new(Json::new(keys.clone()))),
            Kind::Named { arguments, id } => Reader::Named {
                id: id.clone().into_bytes(),
                marker: arguments.clone().into_bytes(),
                head: Vec::new(),
                nest: Nest::default(),
            },
        };
        Self { reader, tools, bare, calls: 0, is_open: false, arguments: Vec::new() }
    }

    /// How many calls have counted so far.
    pub(super) fn calls(&self) -> usize {
        self.calls
    }

    /// Takes in a byte.
    pub(super) fn feed(&mut self, byte: u8, out: &mut Vec<Delta>) -> Fed {
        let fed = match &mut self.reader {
            Reader::Named { .. } => self.feed_named(byte, out),
            Reader::Json(_) => self.feed_json(byte, out),
        };
        if matches!(fed, Fed::Broken | Fed::Done) {
            self.flush(out, true);
            self.is_open = false;
        }
        fed
    }

    /// Lets go of the arguments so far; `all` if half a character at their end will not be completed.
    pub(super) fn flush(&mut self, out: &mut Vec<Delta>, all: bool) {
        let whole = if all { self.arguments.len() } else { super::parser::whole(&self.arguments) };
        if whole > 0 && self.is_open {
            let piece: Vec<u8> = self.arguments.drain(..whole).collect();
            out.push(Delta::ToolArguments(String::from_utf8_lossy(&piece).into_owned()));
        }
    }

    fn begin(&mut self, name: &str, out: &mut Vec<Delta>) -> bool {
        if !self.tools.iter().any(|tool| tool == name) {
            return false;
        }
        (self.is_open, self.calls) = (true, self.calls + 1);
        out.push(Delta::ToolCall { id: super::parser::call_id(), name: name.to_owned() });
        true
    }

    fn end(&mut self, out: &mut Vec<Delta>) {
        self.flush(out, true);
        self.is_open = false;
    }

    fn feed_named(&mut self, byte: u8, out: &mut Vec<Delta>) -> Fed {
        let Reader::Named { id, marker, head, nest } = &mut self.reader else { return Fed::Broken };
        if self.is_open {
            return match nest.feed(byte) {
                Nested::Inside => {
                    self.arguments.push(byte);
                    Fed::Counted
                }
                Nested::End => {
                    self.arguments.push(byte);
                    Fed::Done
                }
                Nested::Broken => Fed::Broken,
            };
        }
        head.push(byte);
        if head.len() > NAME_BYTES_MAX {
            return Fed::Broken;
        }
        let Some(place) = find(head, marker) else { return Fed::Open };
        match head[place + marker.len()..].iter().find(|byte| !byte.is_ascii_whitespace()) {
            None => return Fed::Open,
            Some(b'{') => {}
            Some(_) => return Fed::Broken,
        }
        let mut name = &head[..place];
        if let Some(end) = find(name, id) {
            name = &name[..end];
        }
        let name = String::from_utf8_lossy(name).trim().to_owned();
        *nest = Nest::default();
        nest.feed(byte);
        if !self.begin(&name, out) {
            return Fed::Broken;
        }
        self.arguments.push(byte);
        Fed::Counted
    }

    fn feed_json(&mut self, byte: u8, out: &mut Vec<Delta>) -> Fed {
        let Reader::Json(json) = &mut self.reader else { return Fed::Broken };
        match json.at {
            At::Arguments if json.early.is_none() => {
                let nested = json.nest.feed(byte);
                if nested == Nested::Broken {
                    return Fed::Broken;
                }
                if nested == Nested::End {
                    json.at = At::Field;
                }
                self.arguments.push(byte);
                Fed::Counted
            }
            At::Value
                if json.key == json.keys.arguments.as_bytes()
                    && byte == b'{'
                    && json.name.is_some()
                    && !self.is_open =>
            {
                json.at = At::Arguments;
                json.nest = Nest::default();
                json.nest.feed(byte);
                let name = json.name.clone().unwrap_or_default();
                if !self.begin(&name, out) {
                    return Fed::Broken;
                }
                self.arguments.push(byte);
                Fed::Counted
            }
            _ => self.feed_frame(byte, out),
        }
    }

    /// Takes in a byte that is not among arguments on their way out.
    fn feed_frame(&mut self, byte: u8, out: &mut Vec<Delta>) -> Fed {
        let Reader::Json(json) = &mut self.reader else { return Fed::Broken };
        let was_text = matches!(json.at, At::NameText | At::KeyText);
        match json.step(byte) {
            Step::More => {
                // What is no call is text, the sooner the better.
                let unlike = self.bare && was_text && json.at == At::Colon && !json.is_known_key();
                let stranger = json.name.as_ref().is_some_and(|name| !self.tools.iter().any(|tool| tool == name));
                if unlike || stranger { Fed::Broken } else { Fed::Open }
            }
            Step::Broken => Fed::Broken,
            Step::Object => {
                let (name, early) = (json.name.take(), json.early.take());
                if !self.is_open {
                    let begun = name.is_some_and(|name| self.begin(&name, out));
                    if !begun {
                        return Fed::Broken;
                    }
                    self.arguments = early.unwrap_or_else(|| b"{}".to_vec());
                }
                self.end(out);
                let Reader::Json(json) = &mut self.reader else { return Fed::Broken };
                if json.in_list { Fed::Counted } else { Fed::Done }
            }
            Step::List => {
                if self.calls == 0 {
                    Fed::Broken
                } else {
                    Fed::Done
                }
            }
        }
    }
}

enum Step {
    More,
    Broken,
    /// An object is complete.
    Object,
    /// The list is complete.
    List,
}

impl Json {
    fn new(keys: Keys) -> Self {
        Self {
            keys,
            at: At::Begin,
            in_list: false,
            key: Vec::new(),
            name: None,
            early: None,
            text: Vec::new(),
            escape: false,
            nest: Nest::default(),
        }
    }

    fn is_known_key(&self) -> bool {
        let known = [self.keys.name.as_bytes(), self.keys.arguments.as_bytes(), b"type", b"id", b"tool_call_id"];
        known.contains(&self.key.as_slice())
    }

    fn step(&mut self, byte: u8) -> Step {
        let is_space = byte.is_ascii_whitespace();
        match (self.at, byte) {
            (At::KeyText | At::NameText | At::ArgumentsText | At::OtherText, _) => return self.step_text(byte),
            (At::Arguments | At::Other, _) => return self.step_nest(byte),
            (At::Scalar, b',' | b'}') => {
                self.at = At::Field;
                return self.step(byte);
            }
            (At::Scalar, b'-' | b'+' | b'.' | b'0'..=b'9' | b'a'..=b'z' | b'E') => {}
            (At::Scalar, _) if is_space => self.at = At::Field,
            (_, _) if is_space => {}
            (At::Begin, b'[') => (self.in_list, self.at) = (true, At::Item),
            (At::Begin | At::Item, b'{') => self.at = At::Key,
            (At::Item | At::ItemEnd, b']') => return Step::List,
            (At::ItemEnd, b',') => self.at = At::Item,
            (At::Key, b'"') => self.begin_text(At::KeyText),
            (At::Colon, b':') => self.at = At::Value,
            (At::Value, _) => return self.begin_value(byte),
            (At::Field, b',') => self.at = At::Key,
            (At::Field | At::Key, b'}') => {
                self.at = At::ItemEnd;
                return Step::Object;
            }
            _ => return Step::Broken,
        }
        Step::More
    }

    fn begin_text(&mut self, at: At) {
        self.at = at;
        self.text.clear();
        self.escape = false;
    }

    fn begin_value(&mut self, byte: u8) -> Step {
        let (is_name, is_arguments) =
            (self.key == self.keys.name.as_bytes(), self.key == self.keys.arguments.as_bytes());
        match byte {
            b'"' if is_name => self.begin_text(At::NameText),
            b'"' if is_arguments => self.begin_text(At::ArgumentsText),
            b'"' => self.begin_text(At::OtherText),
            _ if is_name => return Step::Broken,
            b'{' | b'[' => {
                if is_arguments && byte == b'[' {
                    return Step::Broken;
                }
                self.at = if is_arguments { At::Arguments } else { At::Other };
                self.early = if is_arguments { Some(Vec::new()) } else { self.early.take() };
                self.nest = Nest::default();
                return self.step_nest(byte);
            }
            // Of scalars only null can stand for no arguments.
            b'n' => self.at = At::Scalar,
            b'-' | b'0'..=b'9' | b't' | b'f' if !is_arguments => self.at = At::Scalar,
            _ => return Step::Broken,
        }
        Step::More
    }

    fn step_nest(&mut self, byte: u8) -> Step {
        let nested = self.nest.feed(byte);
        if self.at == At::Arguments
            && let Some(early) = &mut self.early
        {
            early.push(byte);
        }
        match nested {
            Nested::Inside => {}
            Nested::End => self.at = At::Field,
            Nested::Broken => return Step::Broken,
        }
        Step::More
    }

    fn step_text(&mut self, byte: u8) -> Step {
        if byte != b'"' || self.escape {
            self.escape = byte == b'\\' && !self.escape;
            self.text.push(byte);
            let endless = self.text.len() > NAME_BYTES_MAX && matches!(self.at, At::NameText | At::KeyText);
            return if endless { Step::Broken } else { Step::More };
        }
        let text = std::mem::take(&mut self.text);
        let quoted = [b"\"", text.as_slice(), b"\""].concat();
        let Ok(decoded) = serde_json::from_str::<String>(&String::from_utf8_lossy(&quoted)) else {
            return Step::Broken;
        };
        match self.at {
            At::KeyText => (self.key, self.at) = (decoded.into_bytes(), At::Colon),
            At::NameText => (self.name, self.at) = (Some(decoded), At::Field),
            At::ArgumentsText => {
                let is_object = serde_json::from_str::<serde_json::Map<_, _>>(&decoded).is_ok();
                if !is_object {
                    return Step::Broken;
                }
                (self.early, self.at) = (Some(decoded.trim().as_bytes().to_vec()), At::Field);
            }
            _ => self.at = At::Field,
        }
        Step::More
    }
}

impl Nest {
    fn feed(&mut self, byte: u8) -> Nested {
        if self.in_text {
            match byte {
                _ if self.escape => self.escape = false,
                b'\\' => self.escape = true,
                b'"' => self.in_text = false,
                _ => {}
            }
            return Nested::Inside;
        }
        match byte {
            b'"' => self.in_text = true,
            b'{' | b'[' if self.closers.len() >= DEPTH_MAX => return Nested::Broken,
            b'{' => self.closers.push(b'}'),
            b'[' => self.closers.push(b']'),
            b'}' | b']' if self.closers.pop() != Some(byte) => return Nested::Broken,
            b'}' | b']' if self.closers.is_empty() => return Nested::End,
            b'}' | b']' | b',' | b':' | b'-' | b'+' | b'.' | b'E' | b'0'..=b'9' | b'a'..=b'z' => {}
            _ if byte.is_ascii_whitespace() => {}
            _ => return Nested::Broken,
        }
        Nested::Inside
    }
}

/// Where a text stands in another; an empty one stands nowhere.
pub(super) fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    if wanted.is_empty() { None } else { text.windows(wanted.len()).position(|window| window == wanted) }
}
