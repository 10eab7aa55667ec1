//! Reads the JSON of arguments as they stream, and mends what models break: quotes that are single or missing, Python's
//! words, line breaks in strings, commas too many, brackets too few. Valid JSON passes through unchanged. Of top-level
//! values it also mends the type (`types`).

mod types;

use super::pieces::escape;
use crate::formats::{Signature, Types};

const DEPTH_MAX: usize = 512;
/// Maximum length of a key or a value that is held until its end.
const HELD_BYTES_MAX: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Mender {
    levels: Vec<Level>,
    at: At,
    /// The bytes of a key, a word, or a value whose type is in doubt.
    held: Vec<u8>,
    /// Types of the next value, if it is a top-level one.
    types: Option<Types>,
    signature: Option<Signature>,
    /// The marker after the call. A string that contains it may have lost its closing quote.
    close: Vec<u8>,
    /// The end of a string from such a marker on.
    doubtful: Vec<u8>,
    /// A comma was read, and is written before the next item.
    comma: Vec<u8>,
}

#[derive(Debug)]
struct Level {
    is_list: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Before a key, or the end of an object.
    Key,
    /// In a key without quotes.
    Word,
    Colon,
    /// Before a value, or the end of a list.
    Value,
    /// In a value without quotes.
    Scalar,
    Text {
        quote: u8,
        escape: bool,
        is_key: bool,
        /// The value is held until its end.
        is_held: bool,
    },
    /// After a quote in a value: its end, or part of the text if something else follows. `held` has what follows it.
    Quote {
        quote: u8,
        is_held: bool,
    },
    /// After a value.
    Next,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mended {
    Inside,
    End,
    /// The byte does not belong to the value, which ends before it.
    Before,
    Broken,
}

impl Mender {
    /// `signature` is the tool's, and `close` the marker after the call, if there is one.
    pub fn new(signature: Option<Signature>, close: &str) -> Self {
        Self {
            levels: Vec::new(),
            at: At::Value,
            held: Vec::new(),
            types: None,
            signature,
            close: close.as_bytes().to_vec(),
            doubtful: Vec::new(),
            comma: Vec::new(),
        }
    }

    /// Feeds a byte and appends to the JSON; the first one opens the object.
    pub fn feed(&mut self, byte: u8, json: &mut Vec<u8>) -> Mended {
        if self.held.len() > HELD_BYTES_MAX || self.doubtful.len() > HELD_BYTES_MAX {
            return Mended::Broken;
        }
        match self.at {
            At::Text { .. } => self.text(byte, json),
            At::Quote { quote, is_held } => self.quote(byte, quote, is_held, json),
            At::Word => self.word(byte, json),
            At::Scalar => self.scalar(byte, json),
            At::Key | At::Colon | At::Value | At::Next => self.between(byte, json),
        }
    }

    /// Completes the value at the end of the answer.
    pub fn complete(&mut self, json: &mut Vec<u8>) {
        match self.at {
            At::Text { is_key, is_held, .. } => {
                self.doubtful.clear();
                if is_key {
                    self.end_key(json);
                } else {
                    self.end_text(is_held, json);
                }
            }
            At::Quote { is_held, .. } => self.end_text(is_held, json),
            At::Scalar => self.end_scalar(json),
            At::Word => drop(self.end_key(json)),
            _ => {}
        }
        self.close_levels(0, json);
    }

    /// Adds what is held back, at the end of an answer that was cut.
    pub fn flush(&mut self, json: &mut Vec<u8>) {
        self.write_comma(json);
        match self.at {
            At::Word | At::Text { is_key: true, .. } => {}
            At::Text { is_held, .. } | At::Quote { is_held, .. } => {
                if is_held {
                    json.push(b'"');
                    json.append(&mut self.held);
                }
                if matches!(self.at, At::Quote { .. }) {
                    json.push(b'"');
                    json.append(&mut self.doubtful);
                }
                escape(&std::mem::take(&mut self.doubtful), json);
            }
            _ => json.append(&mut self.held),
        }
    }

    fn between(&mut self, byte: u8, json: &mut Vec<u8>) -> Mended {
        if byte.is_ascii_whitespace() {
            if self.comma.is_empty() {
                json.push(byte);
            } else {
                self.comma.push(byte);
            }
            return Mended::Inside;
        }
        match (self.at, byte) {
            (_, b'}' | b']') => return self.close_with(byte, json),
            (At::Next | At::Value | At::Key, b',') if !self.levels.is_empty() => {
                // A comma after a comma, or before any item, is one too many.
                if self.at == At::Value && !self.is_list() {
                    json.extend_from_slice(b" null");
                    self.at = At::Next;
                }
                if self.at == At::Next {
                    self.comma.push(byte);
                }
                self.at = if self.is_list() { At::Value } else { At::Key };
            }
            (At::Key, b'"' | b'\'') => self.begin_key(byte, json),
            (At::Key, b'A'..=b'Z' | b'a'..=b'z' | b'_' | b'$') => {
                self.write_comma(json);
                json.extend([b'"', byte]);
                self.held = vec![byte];
                self.at = At::Word;
            }
            (At::Colon, b':' | b'=') => {
                json.push(b':');
                self.at = At::Value;
            }
            (At::Value, _) => return self.value(byte, json),
            // The comma between two items is missing.
            (At::Next, b'"' | b'\'') if !self.levels.is_empty() => {
                self.comma.push(b',');
                self.at = if self.is_list() { At::Value } else { At::Key };
                return self.between(byte, json);
            }
            (_, b'<' | b'`') => return self.before(json),
            _ => return Mended::Broken,
        }
        Mended::Inside
    }

    /// The value ends before a byte that begins something else.
    fn before(&mut self, json: &mut Vec<u8>) -> Mended {
        self.close_levels(0, json);
        Mended::Before
    }

    fn begin_key(&mut self, quote: u8, json: &mut Vec<u8>) {
        self.write_comma(json);
        json.push(b'"');
        self.held.clear();
        self.at = At::Text { quote, escape: false, is_key: true, is_held: false };
    }

    fn value(&mut self, byte: u8, json: &mut Vec<u8>) -> Mended {
        if self.levels.len() >= DEPTH_MAX {
            return Mended::Broken;
        }
        match byte {
            b'{' | b'[' => {
                self.write_comma(json);
                json.push(byte);
                self.levels.push(Level { is_list: byte == b'[' });
                self.types = None;
                self.at = if byte == b'[' { At::Value } else { At::Key };
            }
            _ if self.levels.is_empty() => return Mended::Broken,
            b'"' | b'\'' => {
                self.write_comma(json);
                let is_held = self.types.is_some_and(|types| !types.has(Types::TEXT));
                if !is_held {
                    json.push(b'"');
                }
                self.held.clear();
                self.at = At::Text { quote: byte, escape: false, is_key: false, is_held };
            }
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'+' | b'.' | b'/' | b'~' | b'$' | 0x80.. => {
                self.write_comma(json);
                self.held = vec![byte];
                self.at = At::Scalar;
            }
            _ => return Mended::Broken,
        }
        Mended::Inside
    }

    fn text(&mut self, byte: u8, json: &mut Vec<u8>) -> Mended {
        let At::Text { quote, escape: is_escape, is_key, is_held } = self.at else { return Mended::Broken };
        if !self.doubtful.is_empty() {
            self.doubtful.push(byte);
            let whole = self.doubtful.len() >= self.close.len();
            let is_marker = self.close.starts_with(&self.doubtful) || whole && self.doubtful.starts_with(&self.close);
            if is_marker && byte != quote {
                return Mended::Inside;
            }
            // It was text after all.
            let doubtful = std::mem::take(&mut self.doubtful);
            let close = std::mem::take(&mut self.close);
            let result = doubtful.iter().map(|byte| self.text(*byte, json)).last().unwrap_or(Mended::Inside);
            self.close = close;
            return result;
        }
        if !is_escape && !is_key && byte != quote && self.close.first() == Some(&byte) {
            self.doubtful.push(byte);
            return Mended::Inside;
        }
        let (mut then, begin) = (false, json.len());
        let target = if is_held { &mut self.held } else { &mut *json };
        match byte {
            _ if is_escape => match byte {
                b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' | b'u' => target.extend([b'\\', byte]),
                b'\'' => target.push(byte),
                _ => {
                    target.extend(br"\\");
                    escape(&[byte], target);
                }
            },
            b'\\' => then = true,
            _ if byte == quote => {
                if is_key {
                    return self.end_key(json);
                }
                self.at = At::Quote { quote, is_held };
                return Mended::Inside;
            }
            _ => escape(&[byte], target),
        }
        if is_key {
            self.held.extend_from_slice(&json[begin..]);
        }
        self.at = At::Text { quote, escape: then, is_key, is_held };
        Mended::Inside
    }

    /// Decides whether a quote has ended its text: only what may come after a value follows it then.
    fn quote(&mut self, byte: u8, quote: u8, is_held: bool, json: &mut Vec<u8>) -> Mended {
        if byte.is_ascii_whitespace() {
            self.doubtful.push(byte);
            return Mended::Inside;
        }
        let white = std::mem::take(&mut self.doubtful);
        if matches!(byte, b',' | b'}' | b']' | b'<' | b'`') {
            self.end_text(is_held, json);
            for byte in white {
                self.between(byte, json);
            }
            return self.between(byte, json);
        }
        let target = if is_held { &mut self.held } else { &mut *json };
        escape(&[quote], target);
        escape(&white, target);
        self.at = At::Text { quote, escape: false, is_key: false, is_held };
        self.text(byte, json)
    }

    /// Ends a key, of which `held` is the inside of a JSON string.
    fn end_key(&mut self, json: &mut Vec<u8>) -> Mended {
        json.push(b'"');
        if let ([_], Some(signature)) = (self.levels.as_slice(), &self.signature) {
            let key = [b"\"", self.held.as_slice(), b"\""].concat();
            let key = serde_json::from_slice::<String>(&key).unwrap_or_default();
            self.types = Some(signature.types(&key));
        }
        self.held.clear();
        self.at = At::Colon;
        Mended::Inside
    }

    fn end_text(&mut self, is_held: bool, json: &mut Vec<u8>) {
        if is_held {
            types::of_text(&self.held, self.types, json);
        } else {
            json.push(b'"');
        }
        self.end_value();
    }

    fn word(&mut self, byte: u8, json: &mut Vec<u8>) -> Mended {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'$') {
            json.push(byte);
            self.held.push(byte);
            return Mended::Inside;
        }
        self.end_key(json);
        self.between(byte, json)
    }

    fn scalar(&mut self, byte: u8, json: &mut Vec<u8>) -> Mended {
        let ends = matches!(byte, b',' | b'}' | b']' | b'\n' | b'<');
        let is_json = types::is_known(self.held.trim_ascii_end());
        if ends || byte.is_ascii_whitespace() && is_json {
            self.end_scalar(json);
            return self.between(byte, json);
        }
        self.held.push(byte);
        Mended::Inside
    }

    fn end_scalar(&mut self, json: &mut Vec<u8>) {
        let held = std::mem::take(&mut self.held);
        types::of_word(held.trim_ascii_end(), self.types, json);
        self.end_value();
    }

    fn end_value(&mut self) {
        self.held.clear();
        self.types = None;
        self.at = At::Next;
    }

    fn is_list(&self) -> bool {
        self.levels.last().is_some_and(|level| level.is_list)
    }

    fn write_comma(&mut self, json: &mut Vec<u8>) {
        json.append(&mut self.comma);
    }

    /// Handles a closing bracket: closes what was forgotten within it, and ignores one that nothing has opened.
    fn close_with(&mut self, byte: u8, json: &mut Vec<u8>) -> Mended {
        let Some(upto) = self.levels.iter().rposition(|level| level.is_list == (byte == b']')) else {
            return Mended::Inside;
        };
        self.close_levels(upto, json);
        if self.levels.is_empty() { Mended::End } else { Mended::Inside }
    }

    /// Closes all levels from `upto` on.
    fn close_levels(&mut self, upto: usize, json: &mut Vec<u8>) {
        // A comma before the end is one too many; the white space after it may stay.
        let comma = std::mem::take(&mut self.comma);
        json.extend(comma.into_iter().filter(|byte| *byte != b','));
        while self.levels.len() > upto {
            if matches!(self.at, At::Colon | At::Value) && !self.is_list() {
                json.extend_from_slice(if self.at == At::Colon { b": null" } else { b" null" });
            }
            json.push(if self.is_list() { b']' } else { b'}' });
            self.levels.pop();
            self.at = At::Next;
        }
        self.types = None;
    }
}
