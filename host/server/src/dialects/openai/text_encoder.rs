//! Encodes a choice of the legacy `completions`; chunks and the whole have the same form.

use serde_json::{Value, json};

use super::{
    choice::{ChoiceDelta, end_entry},
    encoder::ChoiceEncoder,
    logprobs::Lists,
};
use crate::chat::TokenLogprob;

#[derive(Debug, Default)]
pub(super) struct TextEncoder {
    /// The prompt to echo, until it is sent.
    echo: Option<String>,
    alternatives: Option<u8>,
    lists: Lists,
    text: String,
    reason: &'static str,
}

impl TextEncoder {
    /// `echo` is the prompt to repeat first; `alternatives` the number of alternatives per token.
    pub(super) fn new(echo: Option<String>, alternatives: Option<u8>) -> Self {
        let mut lists = Lists::default();
        lists.skip(echo.as_deref().unwrap_or_default());
        Self { echo, alternatives, lists, ..Self::default() }
    }

    fn entry(&mut self, index: usize, text: &str, has_logprobs: bool, reason: Option<&str>) -> Value {
        let logprobs = self.alternatives.filter(|_| has_logprobs);
        let logprobs = logprobs.map(|alternatives| self.lists.take(alternatives));
        let mut entry = json!({ "index": index, "text": text, "logprobs": logprobs });
        end_entry(&mut entry, reason);
        entry
    }

    /// The text of a piece. There are no tools here, and reasoning counts as text.
    fn read(piece: ChoiceDelta) -> (String, Vec<TokenLogprob>) {
        match piece {
            ChoiceDelta::Text { text, logprobs } => (text, logprobs),
            ChoiceDelta::Reasoning(text) | ChoiceDelta::Arguments { text, .. } => (text, Vec::new()),
            ChoiceDelta::Call { .. } | ChoiceDelta::End(_) => (String::new(), Vec::new()),
        }
    }
}

impl ChoiceEncoder for TextEncoder {
    fn chunks(&mut self, index: usize, piece: ChoiceDelta) -> Vec<Value> {
        let mut entries = Vec::new();
        if let Some(echo) = self.echo.take() {
            entries.push(self.entry(index, &echo, false, None));
        }
        let reason = if let ChoiceDelta::End(reason) = piece { Some(reason) } else { None };
        let (text, logprobs) = Self::read(piece);
        self.lists.add(&logprobs);
        entries.push(self.entry(index, &text, !logprobs.is_empty(), reason));
        entries
    }

    fn keep(&mut self, piece: ChoiceDelta) {
        if let ChoiceDelta::End(reason) = piece {
            self.reason = reason;
        }
        let (text, logprobs) = Self::read(piece);
        self.text.push_str(&text);
        self.lists.add(&logprobs);
    }

    fn whole(mut self: Box<Self>, index: usize) -> Value {
        let text = self.echo.take().unwrap_or_default() + &self.text;
        let reason = self.reason;
        self.entry(index, &text, true, Some(reason))
    }
}

#[cfg(test)]
mod tests {
    use super::{super::logprobs::tests::token, *};

    fn pieces() -> Vec<ChoiceDelta> {
        let piece =
            |text: &str| ChoiceDelta::Text { text: text.into(), logprobs: vec![token(text.as_bytes(), -0.5, &[])] };
        vec![piece("b"), piece("c"), ChoiceDelta::End("length")]
    }

    fn check(echo: Option<&str>, alternatives: Option<u8>, text: &str, logprobs: &Value) {
        let mut whole = Box::new(TextEncoder::new(echo.map(str::to_owned), alternatives));
        pieces().into_iter().for_each(|piece| whole.keep(piece));
        let expect = json!({"index": 3, "text": text, "logprobs": logprobs, "finish_reason": "length"});
        assert_eq!(whole.whole(3), expect);

        let mut streamed = TextEncoder::new(echo.map(str::to_owned), alternatives);
        let entries: Vec<Value> = pieces().into_iter().flat_map(|piece| streamed.chunks(3, piece)).collect();
        let said: String = entries.iter().map(|entry| entry["text"].as_str().unwrap_or_default()).collect();
        assert_eq!(said, text);
        let reasons: Vec<&Value> = entries.iter().map(|entry| &entry["finish_reason"]).collect();
        assert!(reasons.split_last().is_some_and(|(last, rest)| *last == "length" && rest.iter().all(|x| x.is_null())));
        let offsets: Vec<&Value> =
            entries.iter().filter_map(|entry| entry["logprobs"]["text_offset"].as_array()).flatten().collect();
        assert_eq!(offsets, logprobs["text_offset"].as_array().map_or(Vec::new(), |list| list.iter().collect()));
    }

    #[test]
    fn streamed_or_not_the_text_is_the_same() {
        check(None, None, "bc", &Value::Null);
        check(Some("aé"), None, "aébc", &Value::Null);
    }

    #[test]
    fn offsets_count_the_echo() {
        let lists = |first: usize, top: Value| {
            json!({
                "tokens": ["b", "c"], "token_logprobs": [-0.5, -0.5], "top_logprobs": top,
                "text_offset": [first, first + 1],
            })
        };
        check(None, Some(0), "bc", &lists(0, Value::Null));
        check(Some("aé"), Some(1), "aébc", &lists(2, json!([{"b": -0.5}, {"c": -0.5}])));
    }
}
