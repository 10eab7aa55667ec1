//! Finds added tokens in a text by the rules of the `tokenizers` crate: leftmost first, then longest; some only as
//! whole words, some including adjacent white space.

use std::ops::Range;

use aho_corasick::{AhoCorasick, BuildError, MatchKind};
use tokenizers::AddedToken;

/// Added tokens and an automaton over their texts.
pub(super) struct Added {
    texts: Option<AhoCorasick>,
    tokens: Vec<(u32, AddedToken)>,
}

impl Added {
    /// Builds the search from ids, tokens and the texts to look for.
    pub fn new(tokens: Vec<(u32, AddedToken, String)>) -> Result<Self, BuildError> {
        let tokens: Vec<_> = tokens.into_iter().filter(|(.., text)| !text.is_empty()).collect();
        let texts = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(tokens.iter().map(|(.., text)| text.as_bytes()));
        let texts = if tokens.is_empty() { None } else { Some(texts?) };
        Ok(Self { texts, tokens: tokens.into_iter().map(|(id, token, _)| (id, token)).collect() })
    }

    pub fn has(&self, id: u32) -> bool {
        self.tokens.iter().any(|(known, _)| *known == id)
    }

    /// Finds added tokens in a text, except in plain ranges.
    pub fn find(&self, text: &str, is_plain: impl Fn(&Range<usize>) -> bool) -> Vec<(u32, Range<usize>)> {
        let mut found: Vec<(u32, Range<usize>)> = Vec::new();
        for place in self.texts.iter().flat_map(|texts| texts.find_iter(text)) {
            let (id, token) = &self.tokens[place.pattern().as_usize()];
            let mut range = place.range();
            let (before, after) = (&text[..range.start], &text[range.end..]);
            if token.single_word && (before.ends_with(is_word) || after.starts_with(is_word)) || is_plain(&range) {
                continue;
            }
            if token.lstrip {
                let done = found.last().map_or(0, |(_, last)| last.end);
                range.start = before.trim_end().len().max(done);
            }
            if token.rstrip {
                range.end += after.len() - after.trim_start().len();
            }
            found.push((*id, range));
        }
        found
    }
}

fn is_word(char: char) -> bool {
    char.is_alphanumeric() || char == '_'
}
