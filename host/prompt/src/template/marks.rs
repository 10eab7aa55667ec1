//! Tells a client's text from a template's.
//!
//! A template writes its special tokens as text, and so can a client: one that writes `<|im_end|>` into a message would
//! end it. Escaping is no way out, as the text would no longer be what the model was trained on. So, where a string of
//! the client holds the text of such a token, the conversation is rendered twice: as it is, which gives the text, byte
//! for byte what transformers gives; and with each such place between two characters that the client does not use,
//! which tells where in the text those places are. They become [`Rendered::plain`], and are tokenized as plain text.
//!
//! The marks are noncharacters of Unicode. They may change what a template does, as where it looks for `</think>` in
//! an answer; then the two renderings differ in more than marks. If they still hold the same tokens in the same order,
//! each place keeps what was found out of it. If not, the marked rendering counts, without its marks: safety first.
//!
//! Not every added token steers a model: some are runs of spaces, or words. Looked for are those that are declared to be
//! special, and those that the template's source writes. In the model's own turns only the former are, because a
//! model's `<think>` that a client sends back is what it says it is.

use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};
use serde_json::Value;

use crate::{rendered::Rendered, tokens::Specials};

/// Characters that stand for nothing in any text.
const NONCHARACTERS: std::ops::RangeInclusive<char> = '\u{fdd0}'..='\u{fdef}';

/// The texts of tokens that steer a model.
#[derive(Debug)]
pub(super) struct Controls {
    texts: AhoCorasick,
    is_special: Vec<bool>,
}

/// Three characters that a conversation does not use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marks {
    open: char,
    close: char,
    /// Where a text to be continued ends.
    pub end: char,
}

/// True if Python's `repr` must leave a character alone.
pub(super) fn is_mark(char: char) -> bool {
    NONCHARACTERS.contains(&char)
}

impl Marks {
    /// Marks for a conversation; none if it uses all noncharacters.
    pub fn absent_from(texts: &[&Value]) -> Option<Self> {
        let mut used = std::collections::HashSet::new();
        texts.iter().for_each(|value| each_text(value, &mut |text| used.extend(text.chars().filter(|c| is_mark(*c)))));
        let mut free = NONCHARACTERS.filter(|char| !used.contains(char));
        Some(Self { open: free.next()?, close: free.next()?, end: free.next()? })
    }

    /// The text without marks, and what stood between them.
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
        Rendered { text, plain }
    }
}

impl Controls {
    /// The tokens to look for in the words of clients of this template.
    pub fn of(specials: &Specials, source: &str) -> Result<Self, aho_corasick::BuildError> {
        let steers = |(text, is_special): &&(String, bool)| {
            // A token of white space or of one character steers nothing.
            text.chars().any(|char| !char.is_whitespace())
                && (*is_special || text.chars().count() > 2 && source.contains(text.as_str()))
        };
        let tokens: Vec<_> = specials.added.iter().filter(steers).collect();
        let texts =
            AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(tokens.iter().map(|(text, _)| text))?;
        Ok(Self { texts, is_special: tokens.iter().map(|(_, is_special)| *is_special).collect() })
    }

    /// True if any string in the value contains such a text.
    pub fn are_in(&self, value: &Value) -> bool {
        let mut found = false;
        each_text(value, &mut |text| found = found || self.texts.is_match(text));
        found
    }

    /// Puts marks around such texts; keys that templates look for, and the values that decide, are never touched as no
    /// token is called `role`.
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

    /// Combines the two renderings.
    pub fn compare(&self, exact: String, marked: &str, marks: Marks) -> Rendered {
        let unmarked = marks.remove(marked);
        if unmarked.text == exact {
            return Rendered { text: exact, plain: unmarked.plain };
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
        Rendered { text: exact, plain }
    }
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
