//! Distinguishes a client's text from the template's.
//!
//! A template writes its special tokens as text, and so can a client: a message that contains `<|im_end|>` would end
//! itself early. Escaping does not help, as the text would no longer be what the model was trained on. So if a client's
//! string contains the text of such a token, the conversation is rendered twice: once as it is, which gives the text,
//! byte for byte as in transformers; and once with each occurrence between two characters that the client does not use,
//! which locates the occurrences in the output. They become [`Rendered::plain`] and are tokenized as plain text.
//!
//! The marks are Unicode noncharacters. They can change what a template does, for example where it searches an answer
//! for `</think>`, and then the two renderings differ in more than the marks. If both still contain the same tokens in
//! the same order, the marks found in one apply to the other. If not, the marked rendering is used, with its marks
//! removed: safety first.
//!
//! Not every added token controls a model: some are runs of spaces, or words. The search covers tokens declared special
//! and tokens that the template's source contains. In the model's own turns only the former count, because a `<think>`
//! that a client sends back really was the model's.

use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};
use serde_json::Value;

use crate::{rendered::Rendered, tokens::Specials};

/// Characters that have no meaning in any text.
const NONCHARACTERS: std::ops::RangeInclusive<char> = '\u{fdd0}'..='\u{fdef}';

/// Texts of the tokens that control a model.
#[derive(Debug)]
pub(super) struct Controls {
    texts: AhoCorasick,
    is_special: Vec<bool>,
}

/// Three characters that do not occur in a conversation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marks {
    pub open: char,
    close: char,
    /// Ends the text that the model continues.
    pub end: char,
}

/// True for characters that Python's `repr` must not escape.
pub(super) fn is_mark(char: char) -> bool {
    NONCHARACTERS.contains(&char)
}

impl Marks {
    /// Picks marks for a conversation; `None` if it uses all noncharacters.
    pub fn absent_from(texts: &[&Value]) -> Option<Self> {
        let mut used = std::collections::HashSet::new();
        texts.iter().for_each(|value| each_text(value, &mut |text| used.extend(text.chars().filter(|c| is_mark(*c)))));
        let mut free = NONCHARACTERS.filter(|char| !used.contains(char));
        Some(Self { open: free.next()?, close: free.next()?, end: free.next()? })
    }

    /// Removes the marks from a text and returns the ranges between them.
    fn remove(self, marked: &str) -> Rendered {
        let mut text = String::with_capacity(marked.len());
        let mut plain: Vec<Range<usize>> = Vec::new();
        let mut opened = None;
        for char in marked.chars() {
            if char == self.open {
                opened = Some(text.len());
            } else if char == self.close {
                plain.extend(opened.take().map(|start| start..text.len()));
            } else {
                text.push(char);
            }
        }
        Rendered { text, plain, items: Vec::new() }
    }
}

impl Controls {
    /// Collects the tokens to search for in the text of this template's clients, and the placeholder of images.
    pub fn of(specials: &Specials, source: &str, placeholder: Option<&str>) -> Result<Self, aho_corasick::BuildError> {
        let steers = |(text, is_special): &&(String, bool)| {
            // A token of white space or of one character controls nothing.
            text.chars().any(|char| !char.is_whitespace())
                && (*is_special || text.chars().count() > 2 && source.contains(text.as_str()))
        };
        let tokens = specials.added.iter().filter(steers).filter(|(text, _)| Some(text.as_str()) != placeholder);
        let tokens = tokens.map(|(text, is_special)| (text.as_str(), *is_special));
        let tokens: Vec<_> = tokens.chain(placeholder.map(|text| (text, true))).collect();
        let texts =
            AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(tokens.iter().map(|(text, _)| text))?;
        Ok(Self { texts, is_special: tokens.iter().map(|(_, is_special)| *is_special).collect() })
    }

    /// True if any string in the value contains such a token text.
    pub fn are_in(&self, value: &Value) -> bool {
        let mut found = false;
        each_text(value, &mut |text| found = found || self.texts.is_match(text));
        found
    }

    /// Puts marks around such texts. Keys and values that templates test are unaffected, as no token is called `role`.
    pub fn mark(&self, value: &mut Value, marks: Marks) {
        let only_special = value["role"] == "assistant";
        self.mark_within(value, marks, only_special);
    }

    fn mark_within(&self, value: &mut Value, marks: Marks, only_special: bool) {
        match value {
            Value::String(text) => {
                if let Some(marked) = self.marked(text, marks, only_special) {
                    *text = marked;
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.mark_within(item, marks, only_special)),
            Value::Object(fields) => {
                if fields.keys().any(|key| self.texts.is_match(key)) {
                    let renamed = std::mem::take(fields).into_iter();
                    *fields = renamed
                        .map(|(key, value)| (self.marked(&key, marks, only_special).unwrap_or(key), value))
                        .collect();
                }
                for (key, value) in fields {
                    if key != "role" {
                        self.mark_within(value, marks, only_special);
                    }
                }
            }
            _ => {}
        }
    }

    fn marked(&self, text: &str, marks: Marks, only_special: bool) -> Option<String> {
        let mut marked = String::new();
        let mut done = 0;
        for found in self.texts.find_iter(text) {
            if only_special && !self.is_special[found.pattern().as_usize()] {
                continue;
            }
            marked += &text[done..found.start()];
            marked.push(marks.open);
            marked += &text[found.range()];
            marked.push(marks.close);
            done = found.end();
        }
        (done > 0).then(|| marked + &text[done..])
    }

    /// Combines the exact and the marked rendering.
    pub fn compare(&self, exact: String, marked: &str, marks: Marks) -> Rendered {
        let unmarked = marks.remove(marked);
        if unmarked.text == exact {
            return Rendered { text: exact, ..unmarked };
        }
        let of = |text: &str| -> Vec<_> {
            self.texts.find_iter(text).map(|found| (found.pattern(), found.range())).collect()
        };
        let (here, there) = (of(&exact), of(&unmarked.text));
        let tokens = |found: &[(_, _)]| found.iter().map(|(token, _)| *token).collect::<Vec<_>>();
        if tokens(&here) != tokens(&there) {
            return unmarked;
        }
        let is_plain = |place: &Range<usize>| unmarked.plain.iter().any(|plain| overlap(plain, place));
        let pairs = here.into_iter().zip(there);
        let plain = pairs.filter(|(_, (_, there))| is_plain(there)).map(|((_, here), _)| here).collect();
        Rendered { text: exact, plain, items: Vec::new() }
    }
}

/// True if a range overlaps one of others, which are in order and disjoint.
pub(super) fn overlaps(ranges: &[Range<usize>], range: &Range<usize>) -> bool {
    let next = ranges.partition_point(|other| other.end <= range.start);
    ranges.get(next).is_some_and(|other| other.start < range.end)
}

fn overlap(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}

fn each_text(value: &Value, see: &mut impl FnMut(&str)) {
    match value {
        Value::String(text) => see(text),
        Value::Array(items) => items.iter().for_each(|item| each_text(item, see)),
        Value::Object(fields) => fields.iter().for_each(|(key, value)| {
            see(key);
            each_text(value, see);
        }),
        _ => {}
    }
}
