//! Log-probabilities in OpenAI's two formats: a list of tokens for chats, and the parallel lists of legacy completions.

use serde_json::{Map, Value, json};

use crate::chat::TokenLogprob;

/// Replaces -∞, which JSON cannot represent.
const NEVER: f32 = -9999.0;

/// The `content` of a chat's `logprobs`, and the `logprobs` of a response's text.
pub(crate) fn content(tokens: &[TokenLogprob]) -> Vec<Value> {
    let entry = |token: &TokenLogprob| {
        let top: Vec<Value> = token.top.iter().map(entry_alone).collect();
        let mut entry = entry_alone(token);
        entry["top_logprobs"] = top.into();
        entry
    };
    tokens.iter().map(entry).collect()
}

fn entry_alone(token: &TokenLogprob) -> Value {
    let text = String::from_utf8_lossy(&token.bytes);
    json!({ "token": text, "logprob": finite(token.logprob), "bytes": token.bytes })
}

/// The legacy format, with each token's offset in characters.
#[derive(Debug, Default)]
pub(super) struct Lists {
    tokens: Vec<Value>,
    logprobs: Vec<Value>,
    top: Vec<Value>,
    offsets: Vec<Value>,
    offset: usize,
}

impl Lists {
    /// Advances the offset over text without log-probabilities, such as an echoed prompt.
    pub(super) fn skip(&mut self, text: &str) {
        self.offset += text.chars().count();
    }

    pub(super) fn add(&mut self, tokens: &[TokenLogprob]) {
        for token in tokens {
            self.tokens.push(legacy_text(&token.bytes).into());
            self.logprobs.push(finite(token.logprob));
            self.offsets.push(self.offset.into());
            // The chosen token is listed even if it is not among the most likely.
            let listed = token.top.iter().chain([token]);
            let top: Map<String, Value> =
                listed.map(|token| (legacy_text(&token.bytes), finite(token.logprob))).collect();
            self.top.push(top.into());
            // A character counts at its first byte.
            self.offset += token.bytes.iter().filter(|byte| (**byte & 0xc0) != 0x80).count();
        }
    }

    /// Returns and clears the lists. `top_logprobs` is null if no alternatives were requested.
    pub(super) fn take(&mut self, alternatives: u8) -> Value {
        let top = std::mem::take(&mut self.top);
        json!({
            "tokens": std::mem::take(&mut self.tokens),
            "token_logprobs": std::mem::take(&mut self.logprobs),
            "top_logprobs": if alternatives > 0 { Value::from(top) } else { Value::Null },
            "text_offset": std::mem::take(&mut self.offsets),
        })
    }
}

/// A token's text, or `bytes:\\x..` if its bytes are not whole characters, as the legacy format has no other field for
/// them.
fn legacy_text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().fold("bytes:".to_owned(), |text, byte| format!("{text}\\x{byte:02x}")),
    }
}

fn finite(logprob: f32) -> Value {
    // Converted by way of its decimal text, so that -0.1 does not become -0.10000000149.
    let logprob = if logprob.is_finite() { logprob } else { NEVER };
    logprob.to_string().parse::<f64>().unwrap_or(f64::from(NEVER)).into()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn token(bytes: &[u8], logprob: f32, top: &[(&[u8], f32)]) -> TokenLogprob {
        let alone = |bytes: &[u8], logprob| TokenLogprob { id: 0, bytes: bytes.into(), logprob, top: Vec::new() };
        TokenLogprob {
            top: top.iter().map(|(bytes, logprob)| alone(bytes, *logprob)).collect(),
            ..alone(bytes, logprob)
        }
    }

    #[test]
    fn chats_get_one_entry_per_token() {
        let found = content(&[token(b"a", -0.1, &[(b"a", -0.1), (b"\xc3", f32::NEG_INFINITY)])]);
        let expect = json!([{
            "token": "a", "logprob": -0.1, "bytes": [97],
            "top_logprobs": [
                {"token": "a", "logprob": -0.1, "bytes": [97]},
                {"token": "\u{fffd}", "logprob": -9999.0, "bytes": [195]},
            ],
        }]);
        assert_eq!(Value::from(found), expect);
    }

    #[test]
    fn legacy_lists_run_parallel_and_count_characters() {
        let mut lists = Lists::default();
        lists.skip("né");
        lists.add(&[token("é".as_bytes(), -1.0, &[(b"x", -0.5)]), token(b"\xf0\x9f", -2.0, &[])]);
        let expect = json!({
            "tokens": ["é", "bytes:\\xf0\\x9f"],
            "token_logprobs": [-1.0, -2.0],
            "top_logprobs": [{"x": -0.5, "é": -1.0}, {"bytes:\\xf0\\x9f": -2.0}],
            "text_offset": [2, 3],
        });
        assert_eq!(lists.take(1), expect);
        lists.add(&[token(b"\x98\x80", -3.0, &[]), token(b"!", -4.0, &[])]);
        let expect = json!({
            "tokens": ["bytes:\\x98\\x80", "!"], "token_logprobs": [-3.0, -4.0], "top_logprobs": null, "text_offset": [4, 4],
        });
        assert_eq!(lists.take(0), expect);
    }
}
