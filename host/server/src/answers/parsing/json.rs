//! Parses calls in JSON: an object with a name and arguments, or a list of such objects.
//!
//! Only as much JSON is parsed as is needed to find names and the boundaries of arguments. A model may write arguments
//! as a string that contains JSON, and fields in any order; both are normalised.

use super::{
    call::{Call, Fed},
    mend::{Mended, Mender},
};
use crate::{chat::Delta, formats::Keys};

const NAME_BYTES_MAX: usize = 1024;
const DEPTH_MAX: usize = 512;

#[derive(Debug)]
pub(super) struct JsonReader {
    keys: Keys,
    bare: bool,
    at: Expecting,
    in_list: bool,
    key: Vec<u8>,
    name: Option<String>,
    /// Arguments that came before the name.
    early: Option<Vec<u8>>,
    /// The string being read, without its quotes, and whether the last character was a backslash.
    text: Vec<u8>,
    escape: bool,
    /// The mark that ends it.
    quote: u8,
    nest: Nest,
    mender: Mender,
    /// The marker after the call.
    close: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expecting {
    Begin,
    /// In the fence that some models put around a call.
    Fence,
    Item,
    ItemEnd,
    Key,
    KeyText,
    /// A key without quotes.
    KeyWord,
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

/// Tracks the end of a nested JSON value.
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

enum Framed {
    More,
    Broken,
    Object,
    List,
    /// An object without its closing bracket has ended before the byte.
    Before,
}

impl JsonReader {
    /// Creates a parser of a call with these keys. `bare`: there was no opener, so text must be recognised as early as
    /// possible.
    pub fn new(keys: Keys, close: &str, bare: bool) -> Self {
        Self {
            keys,
            bare,
            at: Expecting::Begin,
            in_list: false,
            key: Vec::new(),
            name: None,
            early: None,
            text: Vec::new(),
            escape: false,
            quote: b'"',
            nest: Nest::default(),
            mender: Mender::new(None, close),
            close: close.to_owned(),
        }
    }

    pub fn feed(&mut self, byte: u8, call: &mut Call, out: &mut Vec<Delta>) -> Fed {
        match self.at {
            Expecting::Arguments if self.early.is_none() => {
                match self.mender.feed(byte, &mut call.arguments) {
                    Mended::Inside => {}
                    Mended::End => self.at = Expecting::Field,
                    Mended::Broken => return Fed::Broken,
                    Mended::Before => {
                        self.at = Expecting::Field;
                        return self.feed_frame(byte, call, out);
                    }
                }
                Fed::Counted
            }
            Expecting::Value if self.key == self.keys.arguments.as_bytes() && byte == b'{' && !call.is_open() => {
                let Some(name) = self.name.clone() else { return self.feed_frame(byte, call, out) };
                self.at = Expecting::Arguments;
                if !call.begin(&name, out) {
                    return Fed::Broken;
                }
                self.mender = Mender::new(call.tool(&name).cloned(), &self.close);
                self.mender.feed(byte, &mut call.arguments);
                Fed::Counted
            }
            _ => self.feed_frame(byte, call, out),
        }
    }

    /// Feeds a byte outside of streamed arguments.
    fn feed_frame(&mut self, byte: u8, call: &mut Call, out: &mut Vec<Delta>) -> Fed {
        let was_text = matches!(self.at, Expecting::NameText | Expecting::KeyText);
        match self.step(byte) {
            Framed::More => {
                // Text should be recognised as early as possible.
                let unlike = self.bare && was_text && self.at == Expecting::Colon && !self.is_known_key();
                let stranger = self.name.as_ref().is_some_and(|name| call.tool(name).is_none());
                if unlike || stranger { Fed::Broken } else { Fed::Open }
            }
            Framed::Before if call.is_open() => Fed::Ended,
            Framed::Broken | Framed::Before => Fed::Broken,
            Framed::Object => {
                let (name, early) = (self.name.take(), self.early.take());
                if !call.is_open() {
                    let begun = name.is_some_and(|name| call.begin(&name, out));
                    if !begun {
                        return Fed::Broken;
                    }
                    call.arguments = early.unwrap_or_else(|| b"{}".to_vec());
                }
                call.end(out);
                if self.in_list { Fed::Counted } else { Fed::Done }
            }
            Framed::List if call.count() == 0 => Fed::Broken,
            Framed::List => Fed::Done,
        }
    }

    /// Completes the arguments at the end of the answer.
    pub fn complete(&mut self, json: &mut Vec<u8>) {
        if self.at == Expecting::Arguments {
            self.mender.complete(json);
        }
    }

    /// Adds what is held back, at the end of an answer that was cut.
    pub fn flush(&mut self, json: &mut Vec<u8>) {
        if self.at == Expecting::Arguments {
            self.mender.flush(json);
        }
    }

    fn is_known_key(&self) -> bool {
        let known = [self.keys.name.as_bytes(), self.keys.arguments.as_bytes(), b"type", b"id", b"tool_call_id"];
        known.contains(&self.key.as_slice())
    }

    fn step(&mut self, byte: u8) -> Framed {
        let is_space = byte.is_ascii_whitespace();
        match (self.at, byte) {
            (Expecting::KeyText | Expecting::NameText | Expecting::ArgumentsText | Expecting::OtherText, _) => {
                return self.step_text(byte);
            }
            (Expecting::Arguments | Expecting::Other, _) => return self.step_nest(byte),
            (Expecting::Scalar, b',' | b'}') => {
                self.at = Expecting::Field;
                return self.step(byte);
            }
            (Expecting::Scalar, b'-' | b'+' | b'.' | b'0'..=b'9' | b'a'..=b'z' | b'E') => {}
            (Expecting::Scalar, _) if is_space => self.at = Expecting::Field,
            (_, _) if is_space => {}
            (Expecting::Begin, b'`') if !self.bare => self.at = Expecting::Fence,
            (Expecting::Fence, b'`' | b'a'..=b'z') => {}
            (Expecting::Fence, b'{' | b'[') => {
                self.at = Expecting::Begin;
                return self.step(byte);
            }
            (Expecting::Begin, b'[') => (self.in_list, self.at) = (true, Expecting::Item),
            (Expecting::Begin | Expecting::Item, b'{') => self.at = Expecting::Key,
            (Expecting::Item | Expecting::ItemEnd, b']') => return Framed::List,
            (Expecting::ItemEnd, b',') => self.at = Expecting::Item,
            (Expecting::Key, b'"' | b'\'') => self.begin_text(Expecting::KeyText, byte),
            (Expecting::Key, b'A'..=b'Z' | b'a'..=b'z') if !self.bare => {
                (self.key, self.at) = (vec![byte], Expecting::KeyWord);
            }
            (Expecting::KeyWord, b':') => self.at = Expecting::Value,
            (Expecting::KeyWord, b'A'..=b'Z' | b'a'..=b'z' | b'_') if self.key.len() < NAME_BYTES_MAX => {
                self.key.push(byte);
            }
            // A comma is missing.
            (Expecting::Field, b'"') => self.begin_text(Expecting::KeyText, byte),
            (Expecting::Colon, b':') => self.at = Expecting::Value,
            (Expecting::Value, _) => return self.begin_value(byte),
            (Expecting::Field, b',') => self.at = Expecting::Key,
            (Expecting::Field | Expecting::Key, b'}') => {
                self.at = Expecting::ItemEnd;
                return Framed::Object;
            }
            // The closing bracket of a call is missing.
            (Expecting::Field, b'<' | b'`' | b']') => return Framed::Before,
            _ => return Framed::Broken,
        }
        Framed::More
    }

    fn begin_text(&mut self, at: Expecting, quote: u8) {
        (self.at, self.quote) = (at, quote);
        self.text.clear();
        self.escape = false;
    }

    fn begin_value(&mut self, byte: u8) -> Framed {
        let (is_name, is_arguments) =
            (self.key == self.keys.name.as_bytes(), self.key == self.keys.arguments.as_bytes());
        match byte {
            b'"' | b'\'' if is_name => self.begin_text(Expecting::NameText, byte),
            b'"' | b'\'' if is_arguments => self.begin_text(Expecting::ArgumentsText, byte),
            b'"' | b'\'' => self.begin_text(Expecting::OtherText, byte),
            _ if is_name => return Framed::Broken,
            b'{' | b'[' => {
                if is_arguments && byte == b'[' {
                    return Framed::Broken;
                }
                self.at = if is_arguments { Expecting::Arguments } else { Expecting::Other };
                if is_arguments {
                    (self.early, self.mender) = (Some(Vec::new()), Mender::new(None, &self.close));
                }
                self.nest = Nest::default();
                return self.step_nest(byte);
            }
            // Among scalars, only null can stand for absent arguments.
            b'n' => self.at = Expecting::Scalar,
            b'-' | b'0'..=b'9' | b't' | b'f' if !is_arguments => self.at = Expecting::Scalar,
            _ => return Framed::Broken,
        }
        Framed::More
    }

    fn step_nest(&mut self, byte: u8) -> Framed {
        if let (Expecting::Arguments, Some(early)) = (self.at, &mut self.early) {
            match self.mender.feed(byte, early) {
                Mended::Inside => {}
                Mended::End => self.at = Expecting::Field,
                Mended::Before | Mended::Broken => return Framed::Broken,
            }
            return Framed::More;
        }
        match self.nest.feed(byte) {
            Nested::Inside => {}
            Nested::End => self.at = Expecting::Field,
            Nested::Broken => return Framed::Broken,
        }
        Framed::More
    }

    fn step_text(&mut self, byte: u8) -> Framed {
        if byte != self.quote || self.escape {
            self.escape = byte == b'\\' && !self.escape;
            self.text.push(byte);
            let endless =
                self.text.len() > NAME_BYTES_MAX && matches!(self.at, Expecting::NameText | Expecting::KeyText);
            return if endless { Framed::Broken } else { Framed::More };
        }
        let text = std::mem::take(&mut self.text);
        let quoted = [b"\"", text.as_slice(), b"\""].concat();
        let Ok(decoded) = serde_json::from_str::<String>(&String::from_utf8_lossy(&quoted)) else {
            return Framed::Broken;
        };
        match self.at {
            Expecting::KeyText => (self.key, self.at) = (decoded.into_bytes(), Expecting::Colon),
            Expecting::NameText => (self.name, self.at) = (Some(decoded), Expecting::Field),
            Expecting::ArgumentsText => {
                let Some(object) = mended(&decoded) else { return Framed::Broken };
                (self.early, self.at) = (Some(object), Expecting::Field);
            }
            _ => self.at = Expecting::Field,
        }
        Framed::More
    }
}

/// Returns the object that a text consists of, mended.
fn mended(text: &str) -> Option<Vec<u8>> {
    let (mut mender, mut json) = (Mender::new(None, ""), Vec::new());
    let text = text.trim();
    if !text.starts_with('{') {
        return None;
    }
    let ended = text.bytes().map(|byte| mender.feed(byte, &mut json)).find(|mended| *mended != Mended::Inside);
    if ended.is_none() {
        mender.complete(&mut json);
    }
    serde_json::from_slice::<serde_json::Map<_, _>>(&json).is_ok().then_some(json)
}

impl Nest {
    /// Feeds a byte; the first one opens the value.
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
