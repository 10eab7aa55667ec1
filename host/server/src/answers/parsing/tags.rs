//! Converts arguments between tags to JSON as they stream: `<parameter=a>x</parameter>` is `"a": "x"`. A string streams
//! immediately; any other value is held until its end, as it may turn out to be a string.

use serde_json::Value;

use super::{
    literal::{Literal, Progress},
    pieces::{escape, find, overlap},
};
use crate::formats::{Signature, Tags, Types};

const KEY_BYTES_MAX: usize = 1024;
const VALUE_BYTES_MAX: usize = 1 << 20;

/// Parses the arguments of one call, including the marker after them.
#[derive(Debug)]
pub(super) struct TagReader {
    tags: Tags,
    /// The marker after all arguments.
    after: Vec<u8>,
    signature: Signature,
    at: TagPart,
    held: Vec<u8>,
    types: Types,
    is_begun: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TagPart {
    Between,
    Key,
    Opening,
    /// White space before a string.
    Margin,
    Text,
    Value,
}

impl TagReader {
    pub fn new(tags: &Tags, after: &str, signature: Signature) -> Self {
        let (tags, after) = (tags.clone(), after.trim().as_bytes().to_vec());
        Self { tags, after, signature, at: TagPart::Between, held: Vec::new(), types: Types::ANY, is_begun: false }
    }

    /// Feeds a byte and appends to the JSON, which stays empty until it is certain whether there are arguments.
    pub fn feed(&mut self, byte: u8, json: &mut Vec<u8>) -> Progress {
        if matches!(self.at, TagPart::Between | TagPart::Opening) && self.held.is_empty() && byte.is_ascii_whitespace()
        {
            return Progress::Inside;
        }
        self.held.push(byte);
        match self.at {
            TagPart::Between => return self.between(json),
            TagPart::Key => {
                if let Some(key) = self.held.strip_suffix(self.tags.key_end.as_bytes()) {
                    let key = String::from_utf8_lossy(key).trim().to_owned();
                    self.types = self.signature.types(&key);
                    json.extend(if std::mem::replace(&mut self.is_begun, true) { ", " } else { "{" }.bytes());
                    json.extend(serde_json::Value::from(key).to_string().bytes());
                    json.extend(b": ");
                    self.held.clear();
                    if self.tags.value.is_empty() { self.begin_value(json) } else { self.at = TagPart::Opening }
                } else if self.held.len() > KEY_BYTES_MAX {
                    return Progress::Broken;
                }
            }
            TagPart::Opening if self.held == self.tags.value.as_bytes() => {
                self.held.clear();
                self.begin_value(json);
            }
            TagPart::Opening if self.tags.value.as_bytes().starts_with(&self.held) => {}
            TagPart::Opening => return Progress::Broken,
            TagPart::Margin => {
                let margin = self.tags.margin.as_bytes();
                if self.held == margin {
                    self.held.clear();
                    self.at = TagPart::Text;
                } else if !margin.starts_with(&self.held) {
                    self.at = TagPart::Text;
                    self.text(json);
                }
            }
            TagPart::Text => self.text(json),
            TagPart::Value => {
                let end = self.tags.end.as_bytes();
                if let Some(value) = self.held.strip_suffix(end) {
                    let margin = self.tags.margin.as_bytes();
                    let value = value.strip_prefix(margin).unwrap_or(value);
                    json.extend(value_json(self.types, value.strip_suffix(margin).unwrap_or(value)));
                    self.held.clear();
                    self.at = TagPart::Between;
                } else if self.held.len() > VALUE_BYTES_MAX {
                    return Progress::Broken;
                }
            }
        }
        Progress::Inside
    }

    /// Adds the missing end of arguments when the answer ends.
    pub fn complete(&mut self, json: &mut Vec<u8>) {
        let mut held = std::mem::take(&mut self.held);
        let reach = held.len().min(self.tags.margin.len() + self.after.len());
        if let Some(end) = find(&held[..reach], &self.after) {
            held.truncate(end);
        }
        match self.at {
            TagPart::Between if self.is_begun => {}
            TagPart::Text => {
                let text = held.strip_suffix(self.tags.margin.as_bytes()).unwrap_or(&held);
                escape(text, json);
                json.push(b'"');
            }
            TagPart::Value => json.extend(value_json(self.types, held.trim_ascii())),
            _ => return,
        }
        json.push(b'}');
    }

    fn between(&mut self, json: &mut Vec<u8>) -> Progress {
        if self.held == self.after {
            json.extend(if self.is_begun { "}" } else { "{}" }.bytes());
            return Progress::End;
        }
        let key = self.tags.key.as_bytes();
        if self.held == key {
            self.held.clear();
            self.at = TagPart::Key;
        } else if !key.starts_with(&self.held) && !self.after.starts_with(&self.held) {
            return Progress::Broken;
        }
        Progress::Inside
    }

    fn begin_value(&mut self, json: &mut Vec<u8>) {
        self.at = match self.types {
            Types::TEXT => {
                json.push(b'"');
                if self.tags.margin.is_empty() { TagPart::Text } else { TagPart::Margin }
            }
            _ => TagPart::Value,
        };
    }

    fn text(&mut self, json: &mut Vec<u8>) {
        let (margin, end) = (self.tags.margin.as_bytes(), self.tags.end.as_bytes());
        if let Some(text) = self.held.strip_suffix(end) {
            escape(text.strip_suffix(margin).unwrap_or(text), json);
            json.push(b'"');
            self.held.clear();
            self.at = TagPart::Between;
            return;
        }
        // The marker after all arguments ends this one, too, if the model has forgotten its own; if that comes after
        // all, this was text.
        let ends = [end, &[margin, end].concat(), &self.after, &[margin, &self.after].concat()];
        let begun = ends.iter().map(|marker| overlap(&self.held, marker)).max().unwrap_or(0);
        let reach = self.held.len().min(margin.len() + self.after.len());
        let open = if find(&self.held[..reach], &self.after).is_some() { self.held.len() } else { begun };
        let text = self.held.len() - open;
        escape(&self.held[..text], json);
        self.held.drain(..text);
    }
}

/// Converts a value between tags to JSON of one of these types.
fn value_json(types: Types, raw: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(raw);
    let trimmed = text.trim();
    // If strings are allowed, a quoted text is a string that contains the quotes.
    let fits = |value: &Value| types.has(Types::of_value(value)) && !(value.is_string() && types.has(Types::TEXT));
    let is_json = |text: &str| serde_json::from_str::<Value>(text).is_ok_and(|value| fits(&value));
    if is_json(trimmed) {
        return trimmed.as_bytes().to_vec();
    }
    // Some templates print values in Python's notation, and their models have learned it.
    let python = Literal::python(trimmed).and_then(|json| String::from_utf8(json).ok());
    if let Some(python) = python.filter(|json| is_json(json)) {
        return python.into_bytes();
    }
    let mut json = vec![b'"'];
    escape(raw, &mut json);
    json.push(b'"');
    json
}
