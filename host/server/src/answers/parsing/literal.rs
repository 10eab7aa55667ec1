//! Converts arguments in Python's or Gemma's notation to JSON as they stream: `a="x", b=[True, None])` and
//! `a:<escape>x<escape>,b:[true,null]}`. The opening bracket has been consumed before; the closing one is consumed
//! here. What models break is mended where it is plain what was meant: the other notation's separators, quotes that are
//! missing, not escaped or of the wrong kind, commas and brackets too many or too few.

mod mended;

use super::pieces::{escape, find, overlap};

const DEPTH_MAX: usize = 128;
const WORD_BYTES_MAX: usize = 1024;

/// Parses literals byte by byte.
#[derive(Debug)]
pub(super) struct Literal {
    /// The marker around strings in Gemma's notation; `None` for quotation marks, as in Python.
    quote: Option<Vec<u8>>,
    /// Nothing is mended.
    is_strict: bool,
    levels: Vec<Level>,
    at: LiteralState,
    /// A key, a word, or the beginning of a marker.
    held: Vec<u8>,
}

#[derive(Debug)]
struct Level {
    kind: Kind,
    closer: u8,
    is_begun: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Fields whose keys have no quotes.
    Fields,
    /// Entries whose keys are strings.
    Dict,
    List,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LiteralState {
    Key,
    Separator,
    Value,
    /// A string in quotation marks, with the state of its escape sequence.
    Text {
        mark: u8,
        escape: Escape,
        is_key: bool,
        /// It has an odd number of marks that were not escaped.
        is_odd: bool,
    },
    /// After a mark in a string: its end, or part of the text if something else follows. `held` has what follows it.
    Quote {
        mark: u8,
        is_odd: bool,
    },
    /// The beginning of a string's opening marker.
    Opening,
    Marked,
    Word,
    Next,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escape {
    None,
    Begun,
    /// Number of missing hexadecimal digits of a character.
    Digits(u8),
}

/// The result of feeding a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Inside,
    End,
    /// The byte does not belong to the arguments, which end before it.
    Before,
    Broken,
}

impl Literal {
    /// Parses arguments in Python's parentheses or, with a `quote` around strings, in braces. The caller writes the
    /// JSON object's opening brace.
    pub fn arguments(quote: Option<&str>) -> Self {
        let closer = if quote.is_some() { b'}' } else { b')' };
        let levels = vec![Level { kind: Kind::Fields, closer, is_begun: false }];
        Self {
            quote: quote.map(|quote| quote.as_bytes().to_vec()),
            is_strict: false,
            levels,
            at: LiteralState::Key,
            held: Vec::new(),
        }
    }

    /// Converts a complete Python literal to JSON.
    pub fn python(text: &str) -> Option<Vec<u8>> {
        let levels = vec![Level { kind: Kind::List, closer: b')', is_begun: false }];
        let mut literal = Self { quote: None, is_strict: true, levels, at: LiteralState::Value, held: Vec::new() };
        let mut json = Vec::new();
        for byte in text.bytes() {
            if literal.feed(byte, &mut json) != Progress::Inside {
                return None;
            }
        }
        let is_complete = literal.feed(b')', &mut json) == Progress::End;
        // Without the closing bracket of the list that was wrapped around it.
        is_complete.then(|| json[..json.len().saturating_sub(1)].to_vec())
    }

    /// Feeds a byte and appends to the JSON.
    pub fn feed(&mut self, byte: u8, json: &mut Vec<u8>) -> Progress {
        match self.at {
            LiteralState::Key => self.key(byte, json),
            LiteralState::Separator if byte.is_ascii_whitespace() => Progress::Inside,
            LiteralState::Separator if byte == b':' => {
                json.extend(b": ");
                self.go(LiteralState::Value)
            }
            LiteralState::Separator => Progress::Broken,
            LiteralState::Value => self.value(byte, json),
            LiteralState::Text { mark, escape, is_key, is_odd } => {
                self.text(byte, (mark, is_key, is_odd), escape, json)
            }
            LiteralState::Quote { mark, is_odd } => self.after_mark(byte, mark, is_odd, json),
            LiteralState::Opening => {
                self.held.push(byte);
                let quote = self.quote.as_deref().unwrap_or_default();
                if !quote.starts_with(&self.held) {
                    return Progress::Broken;
                }
                if quote.len() > self.held.len() {
                    return Progress::Inside;
                }
                self.held.clear();
                json.push(b'"');
                self.go(LiteralState::Marked)
            }
            LiteralState::Marked => self.marked(byte, json),
            LiteralState::Word => self.word(byte, json),
            LiteralState::Next => self.next(byte, json),
        }
    }

    fn go(&mut self, at: LiteralState) -> Progress {
        self.at = at;
        Progress::Inside
    }

    fn kind(&self) -> Kind {
        self.levels.last().map_or(Kind::List, |level| level.kind)
    }

    fn closes(&self, byte: u8) -> bool {
        self.levels.last().is_some_and(|level| level.closer == byte)
    }

    /// Begins another item of the innermost container.
    fn item(&mut self, json: &mut Vec<u8>) {
        if let Some(level) = self.levels.last_mut()
            && std::mem::replace(&mut level.is_begun, true)
        {
            json.extend(b", ");
        }
    }

    fn close(&mut self, json: &mut Vec<u8>) -> Progress {
        let Some(level) = self.levels.pop() else { return Progress::Broken };
        json.push(if level.kind == Kind::List { b']' } else { b'}' });
        if self.levels.is_empty() { Progress::End } else { self.go(LiteralState::Next) }
    }

    fn open(&mut self, kind: Kind, closer: u8, json: &mut Vec<u8>) -> Progress {
        if self.levels.len() >= DEPTH_MAX {
            return Progress::Broken;
        }
        self.levels.push(Level { kind, closer, is_begun: false });
        json.push(if kind == Kind::List { b'[' } else { b'{' });
        self.go(if kind == Kind::List { LiteralState::Value } else { LiteralState::Key })
    }

    fn key(&mut self, byte: u8, json: &mut Vec<u8>) -> Progress {
        let separator = if self.quote.is_some() { b':' } else { b'=' };
        let is_separator = byte == separator || !self.is_strict && matches!(byte, b':' | b'=');
        match byte {
            _ if self.held.is_empty() && byte.is_ascii_whitespace() => Progress::Inside,
            _ if self.held.is_empty() && self.closes(byte) => self.close(json),
            b',' if self.held.is_empty() && !self.is_strict => Progress::Inside,
            b'"' | b'\'' if self.kind() == Kind::Dict && self.held.is_empty() => {
                self.item(json);
                json.push(b'"');
                self.go(LiteralState::Text { mark: byte, escape: Escape::None, is_key: true, is_odd: false })
            }
            _ if self.kind() == Kind::Dict && self.is_strict => Progress::Broken,
            _ if is_separator && !self.held.is_empty() => {
                let held = std::mem::take(&mut self.held);
                self.item(json);
                json.push(b'"');
                escape(self.unquoted(held.trim_ascii_end()), json);
                json.extend(b"\": ");
                self.go(LiteralState::Value)
            }
            _ if self.held.len() >= WORD_BYTES_MAX || self.closes(byte) => Progress::Broken,
            _ => {
                self.held.push(byte);
                Progress::Inside
            }
        }
    }

    /// Strips quotes that some models put around keys although the notation has none.
    fn unquoted<'a>(&self, key: &'a [u8]) -> &'a [u8] {
        let quotes = [self.quote.as_deref().unwrap_or_default(), b"\"", b"'"];
        let mut quotes = quotes.iter().filter(|quote| !quote.is_empty());
        let stripped = quotes.find_map(|quote| key.strip_prefix(*quote)?.strip_suffix(*quote));
        stripped.filter(|stripped| !stripped.is_empty()).unwrap_or(key)
    }

    fn value(&mut self, byte: u8, json: &mut Vec<u8>) -> Progress {
        if byte.is_ascii_whitespace() {
            return Progress::Inside;
        }
        if self.kind() == Kind::List {
            if self.closes(byte) {
                return self.close(json);
            }
            if !self.is_strict && matches!(byte, b',' | b')' | b']' | b'}') {
                return if byte == b',' { Progress::Inside } else { self.close_with(byte, json) };
            }
            self.item(json);
        } else if !self.is_strict && (byte == b',' || self.closes(byte)) {
            // The value is missing.
            json.extend(b"null");
            self.at = LiteralState::Next;
            return self.next(byte, json);
        }
        match byte {
            b'[' => self.open(Kind::List, b']', json),
            b'(' if self.quote.is_none() => self.open(Kind::List, b')', json),
            b'{' => self.open(if self.quote.is_some() { Kind::Fields } else { Kind::Dict }, b'}', json),
            b'"' | b'\'' => {
                json.push(b'"');
                self.go(LiteralState::Text { mark: byte, escape: Escape::None, is_key: false, is_odd: false })
            }
            _ if self.quote.as_ref().is_some_and(|quote| quote.first() == Some(&byte)) => {
                self.at = LiteralState::Opening;
                self.feed(byte, json)
            }
            b',' | b')' | b']' | b'}' | b'=' | b':' => Progress::Broken,
            _ => {
                self.held.push(byte);
                self.go(LiteralState::Word)
            }
        }
    }

    fn text(
        &mut self,
        byte: u8,
        (mark, is_key, is_odd): (u8, bool, bool),
        state: Escape,
        json: &mut Vec<u8>,
    ) -> Progress {
        let mut then = Escape::None;
        match state {
            Escape::None if byte == mark && !is_key && !self.is_strict => {
                return self.go(LiteralState::Quote { mark, is_odd });
            }
            Escape::None if byte == mark => {
                json.push(b'"');
                return self.go(if is_key { LiteralState::Separator } else { LiteralState::Next });
            }
            Escape::None if byte == b'\\' => then = Escape::Begun,
            Escape::None => escape(&[byte], json),
            Escape::Begun => match byte {
                b'n' | b't' | b'r' | b'b' | b'f' | b'\\' | b'"' => json.extend([b'\\', byte]),
                b'\'' | b'/' => json.push(byte),
                b'\n' => {}
                b'x' => {
                    json.extend(br"\u00");
                    then = Escape::Digits(2);
                }
                b'u' => {
                    json.extend(br"\u");
                    then = Escape::Digits(4);
                }
                // Python keeps unknown escapes as they are.
                _ => escape(&[b'\\', byte], json),
            },
            Escape::Digits(left) if byte.is_ascii_hexdigit() => {
                json.push(byte);
                then = if left > 1 { Escape::Digits(left - 1) } else { Escape::None };
            }
            Escape::Digits(_) => return Progress::Broken,
        }
        self.go(LiteralState::Text { mark, escape: then, is_key, is_odd })
    }

    fn marked(&mut self, byte: u8, json: &mut Vec<u8>) -> Progress {
        let quote = self.quote.as_deref().unwrap_or_default();
        self.held.push(byte);
        if let Some(end) = find(&self.held, quote) {
            escape(&self.held[..end], json);
            self.held.clear();
            json.push(b'"');
            return self.go(LiteralState::Next);
        }
        let text = self.held.len() - overlap(&self.held, quote);
        escape(&self.held[..text], json);
        self.held.drain(..text);
        Progress::Inside
    }

    fn word(&mut self, byte: u8, json: &mut Vec<u8>) -> Progress {
        let closes =
            self.levels.iter().rev().take(if self.is_strict { 1 } else { DEPTH_MAX }).any(|level| level.closer == byte);
        let ends = byte == b',' || closes || self.is_strict && byte.is_ascii_whitespace();
        if !ends {
            self.held.push(byte);
            return if self.held.len() > WORD_BYTES_MAX { Progress::Broken } else { Progress::Inside };
        }
        match self.end_word(json) {
            Progress::Inside => self.next(byte, json),
            broken => broken,
        }
    }

    /// Writes a word as what it means, or as text. Code, such as a call of a function, means no value.
    fn end_word(&mut self, json: &mut Vec<u8>) -> Progress {
        let word = std::mem::take(&mut self.held);
        match word.trim_ascii_end() {
            b"True" | b"true" => json.extend(b"true"),
            b"False" | b"false" => json.extend(b"false"),
            b"None" | b"null" => json.extend(b"null"),
            number if is_number(number) => json.extend(number),
            text if self.quote.is_some()
                || !self.is_strict && !text.iter().any(|byte| b"()[]{}=\"'".contains(byte)) =>
            {
                json.push(b'"');
                escape(text, json);
                json.push(b'"');
            }
            _ => return Progress::Broken,
        }
        self.go(LiteralState::Next)
    }

    fn next(&mut self, byte: u8, json: &mut Vec<u8>) -> Progress {
        match byte {
            _ if byte.is_ascii_whitespace() => Progress::Inside,
            b',' => self.go(if self.kind() == Kind::List { LiteralState::Value } else { LiteralState::Key }),
            _ if self.closes(byte) => self.close(json),
            _ if self.is_strict => Progress::Broken,
            b')' | b']' | b'}' => self.close_with(byte, json),
            b'<' if self.kind() != Kind::List || self.quote.is_none() => self.before(json),
            // The comma between two items is missing.
            b'"' | b'\'' | b'<' if self.kind() == Kind::List => self.value(byte, json),
            _ if byte.is_ascii_alphabetic() && self.kind() != Kind::List => {
                self.at = LiteralState::Key;
                self.key(byte, json)
            }
            _ => Progress::Broken,
        }
    }
}

fn is_number(word: &[u8]) -> bool {
    serde_json::from_slice::<serde_json::Number>(word).is_ok()
}
