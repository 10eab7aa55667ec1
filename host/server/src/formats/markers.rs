//! Special tokens within an answer. The worker sends no bytes for them, since most must never be shown, but a format's
//! markers may be such tokens. Those are put back into the text, by name and in their original position.

use std::collections::{HashMap, VecDeque};

use super::OutputFormat;
use pensieve_protocol::{grammar::Marker, job::Tokens, vocabulary::Vocabulary};

/// The special tokens of a vocabulary that occur in a format's markers.
#[derive(Clone, Debug, Default)]
pub struct Markers {
    tokens: HashMap<u32, String>,
}

/// Puts markers back into the bytes of one answer, which may arrive later than its tokens.
#[derive(Debug, Default)]
pub struct MarkerWeaver {
    /// Number of bytes of all tokens so far, and of those that have arrived.
    generated: u64,
    arrived: u64,
    waiting: VecDeque<(u64, u32)>,
}

impl Markers {
    pub fn of(format: &OutputFormat, vocabulary: &Vocabulary) -> Self {
        let texts: Vec<&str> = format.markers().into_iter().map(|(text, _)| text).collect();
        let named = |token: u32| {
            let name = std::str::from_utf8(vocabulary.bytes(token)).ok().filter(|name| !name.is_empty())?;
            texts.iter().any(|text| text.contains(name)).then(|| (token, name.to_owned()))
        };
        let special = (0..vocabulary.size()).filter(|token| vocabulary.is_special(*token));
        Self { tokens: special.filter_map(named).collect() }
    }

    /// Restricts the markers to those of `format`, which must be part of the original format.
    #[must_use]
    pub fn within(&self, format: &OutputFormat) -> Self {
        let texts = format.markers();
        let stands = |(_, name): &(&u32, &String)| texts.iter().any(|(text, _)| text.contains(name.as_str()));
        let tokens = self.tokens.iter().filter(stands);
        Self { tokens: tokens.map(|(token, name)| (*token, name.clone())).collect() }
    }

    /// Converts a text to a marker for the engine: a token if it is one.
    pub fn marker(&self, text: &str) -> Marker {
        match self.tokens.iter().find(|(_, name)| *name == text) {
            Some((token, _)) => Marker::Token(*token),
            None => Marker::Text(text.to_owned()),
        }
    }

    /// Converts a text to Lark: strings, and special tokens by id.
    pub fn lark(&self, text: &str) -> String {
        let mut parts = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let found = self.tokens.iter().filter_map(|(token, name)| Some((rest.find(name)?, name.len(), token)));
            let (start, length, token) = match found.min_by_key(|(start, length, _)| (*start, usize::MAX - length)) {
                Some((start, length, token)) => (start, length, Some(token)),
                None => (rest.len(), 0, None),
            };
            if start > 0 {
                parts.push(serde_json::Value::from(&rest[..start]).to_string());
            }
            parts.extend(token.map(|token| format!("<[{token}]>")));
            rest = &rest[start + length..];
        }
        parts.join(" ")
    }
}

impl MarkerWeaver {
    /// Returns the bytes of an event with the markers inserted.
    pub fn push(&mut self, tokens: &Tokens, markers: &Markers, vocabulary: &Vocabulary) -> Vec<u8> {
        for token in &tokens.ids {
            if !vocabulary.is_special(*token) {
                self.generated += vocabulary.bytes(*token).len() as u64;
            } else if markers.tokens.contains_key(token) {
                self.waiting.push_back((self.generated, *token));
            }
        }
        let mut woven = Vec::with_capacity(tokens.bytes.len());
        let mut bytes = tokens.bytes.as_slice();
        loop {
            let place = self.waiting.front().map_or(u64::MAX, |(place, _)| *place);
            let before = usize::try_from(place.saturating_sub(self.arrived)).unwrap_or(usize::MAX).min(bytes.len());
            woven.extend_from_slice(&bytes[..before]);
            bytes = &bytes[before..];
            self.arrived += before as u64;
            if self.arrived < place {
                return woven;
            }
            if let Some((_, token)) = self.waiting.pop_front() {
                woven.extend_from_slice(markers.tokens[&token].as_bytes());
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn markers_stand_where_their_tokens_did_however_late_the_bytes_are() {
        let tokenizer = r#"{"decoder": {"type": "ByteFallback"}, "added_tokens": [
            {"id": 3, "content": "[A]", "special": true}, {"id": 4, "content": "[B]", "special": true}],
            "model": {"vocab": {"x": 0, "yy": 1, "zzz": 2}}}"#;
        let vocabulary = Vocabulary::new(tokenizer, 5, &[]).unwrap();
        let format = r#"{"calls": {"open": "[A]", "body": {"object": {}}}}"#;
        let format = OutputFormat::of(format, None, |_| false).unwrap();
        let markers = Markers::of(&format, &vocabulary);
        let check = |events: &[(&[u32], &str)], expect: &str| {
            let mut weave = MarkerWeaver::default();
            let mut woven = Vec::new();
            for (ids, bytes) in events {
                let tokens = Tokens { ids: ids.to_vec(), bytes: bytes.as_bytes().to_vec(), ..Tokens::default() };
                woven.extend(weave.push(&tokens, &markers, &vocabulary));
            }
            assert_eq!(String::from_utf8(woven).unwrap(), expect, "{events:?}");
        };
        check(&[(&[0], "x"), (&[3], ""), (&[4], ""), (&[1], "yy")], "x[A]yy");
        // Bytes are held back for a stop string, whether or not it follows.
        check(&[(&[0], ""), (&[3], ""), (&[1], "x"), (&[2], "yyzzz")], "x[A]yyzzz");
        check(&[(&[0, 3, 3, 1], "xy"), (&[3], "y")], "x[A][A]yy[A]");
        check(&[(&[0], ""), (&[3], ""), (&[], "")], "");
        assert!(markers.within(&OutputFormat::default()).tokens.is_empty());
    }
}
