//! Literals that models break: their ends, and what is mended only because something unexpected follows.

use super::{
    super::pieces::{escape, overlap},
    Escape, Kind, Literal, LiteralState, Progress, WORD_BYTES_MAX, is_number,
};

impl Literal {
    /// Completes the arguments at the end of the answer.
    pub fn complete(&mut self, json: &mut Vec<u8>) {
        match self.at {
            LiteralState::Key | LiteralState::Next => {}
            LiteralState::Separator => json.extend(b": null"),
            LiteralState::Value if self.kind() == Kind::List => {}
            LiteralState::Value => json.extend(b"null"),
            LiteralState::Text { escape, is_key, .. } => {
                if let Escape::Digits(left) = escape {
                    json.extend(std::iter::repeat_n(b'0', left.into()));
                }
                json.extend(if is_key { &b"\": null"[..] } else { b"\"" });
            }
            LiteralState::Quote { .. } => json.push(b'"'),
            LiteralState::Opening => json.extend(b"\"\""),
            LiteralState::Marked => {
                self.flush(json);
                json.push(b'"');
            }
            LiteralState::Word => {
                if self.end_word(json) == Progress::Broken {
                    json.extend(b"null");
                }
            }
        }
        self.held.clear();
        for level in self.levels.drain(..).rev() {
            json.push(if level.kind == Kind::List { b']' } else { b'}' });
        }
    }

    /// Adds what is held back, at the end of an answer that was cut.
    pub fn flush(&mut self, json: &mut Vec<u8>) {
        match self.at {
            LiteralState::Quote { .. } => json.push(b'"'),
            LiteralState::Marked => {
                let text = self.held.len() - overlap(&self.held, self.quote.as_deref().unwrap_or_default());
                escape(&self.held[..text], json);
            }
            LiteralState::Word if is_number(&self.held) => json.extend(&self.held),
            _ => {}
        }
    }

    /// Decides whether a mark has ended its string: only what may come after a value follows it then.
    pub(super) fn after_mark(&mut self, byte: u8, mark: u8, is_odd: bool, json: &mut Vec<u8>) -> Progress {
        if byte.is_ascii_whitespace() && self.held.len() < WORD_BYTES_MAX {
            self.held.push(byte);
            return Progress::Inside;
        }
        let white = std::mem::take(&mut self.held);
        if matches!(byte, b',' | b')' | b']' | b'}' | b'<') {
            // One that was opened within the string, and not closed: `"print("a")"` may end here or later.
            if is_odd {
                return Progress::Broken;
            }
            json.push(b'"');
            self.at = LiteralState::Next;
            return self.next(byte, json);
        }
        escape(&[mark], json);
        escape(&white, json);
        self.at = LiteralState::Text { mark, escape: Escape::None, is_key: false, is_odd: !is_odd };
        self.feed(byte, json)
    }

    /// Closes the containers up to the one that this bracket closes. One that closes none is too many, or closes the list
    /// around the call.
    pub(super) fn close_with(&mut self, byte: u8, json: &mut Vec<u8>) -> Progress {
        if !self.levels.iter().any(|level| level.closer == byte) {
            self.at = LiteralState::Next;
            let ends = byte == b']' && self.quote.is_none() && self.levels.len() == 1;
            return if ends { self.before(json) } else { Progress::Inside };
        }
        while !self.closes(byte) {
            self.close(json);
        }
        self.close(json)
    }

    /// The arguments end before a byte that begins something else.
    pub(super) fn before(&mut self, json: &mut Vec<u8>) -> Progress {
        while self.close(json) == Progress::Inside {}
        Progress::Before
    }
}
