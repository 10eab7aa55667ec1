//! SentencePiece Unigram as in XLM-RoBERTa: `tokenizer.ggml.model = "t5"`.
//!
//! Each piece has a log-probability, and a text is split into the pieces whose product is the most probable. Text is
//! rewritten first by a compiled table of characters, which the file brings along.

use serde::Serialize;
use serde_json::{Value, json};

use super::{
    Tokenizer,
    document::{Document, added_tokens, pair_template, post_processor},
    sentencepiece::{SCORES, SPACE},
    vocabulary::{Kind, Vocabulary},
};
use crate::{Error, Result, gguf::Metadata};

const CHARACTERS: &str = "tokenizer.ggml.precompiled_charsmap";

#[derive(Serialize)]
struct Unigram {
    #[serde(rename = "type")]
    kind: &'static str,
    unk_id: Option<u32>,
    vocab: Vec<(String, f64)>,
    byte_fallback: bool,
}

/// Writes the `tokenizer.json` of a Unigram vocabulary.
pub(super) fn build(metadata: &Metadata, vocabulary: &Vocabulary, tokenizer: &Tokenizer) -> Result<String> {
    let scores = metadata.f32s(SCORES)?.ok_or_else(|| metadata.missing(SCORES))?;
    if scores.len() != vocabulary.len() || scores.iter().any(|score| !score.is_finite()) {
        let (scores, tokens) = (scores.len(), vocabulary.len());
        return Err(Error::corrupt(format!(
            "metadata '{SCORES}' has not one number for each token ({scores}, {tokens})"
        )));
    }
    let is_byte = |kind: Kind| kind == Kind::Byte;
    let pieces = vocabulary.iter().zip(&scores).map(|((id, text, kind), score)| match kind {
        // Never made of text: they are matched before, or stand for rows that no token uses.
        Kind::Control | Kind::UserDefined => (text.to_owned(), 0.0),
        _ if text.is_empty() => (format!("<unused {id}>"), f64::from(*score)),
        _ => (text.to_owned(), f64::from(*score)),
    });
    let prefix = metadata.bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let scheme = if prefix { "always" } else { "never" };
    let spaces = json!({ "type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": true });
    let trims = metadata.bool("tokenizer.ggml.remove_extra_whitespaces")?.unwrap_or(false);
    let words = json!({ "type": "Sequence", "pretokenizers": [{ "type": "WhitespaceSplit" }, &spaces] });
    let text_of = |id: u32| vocabulary.text(id).map(str::to_owned);
    let ends = tokenizer.bos.filter(|_| tokenizer.add_bos).zip(tokenizer.eos.first().filter(|_| tokenizer.add_eos));
    let ends = ends.and_then(|(bos, eos)| Some(((bos, vocabulary.text(bos)?), (*eos, vocabulary.text(*eos)?))));
    let document = Document {
        version: "1.0",
        truncation: None,
        padding: None,
        added_tokens: added_tokens(vocabulary),
        normalizer: normalizer(metadata)?,
        pre_tokenizer: if trims { words } else { spaces.clone() },
        post_processor: match ends {
            // Between the two of a pair, RoBERTa and its like have two separators.
            Some((bos, eos)) => pair_template(bos, eos, 2),
            None => post_processor(tokenizer, text_of),
        },
        decoder: spaces,
        model: Unigram {
            kind: "Unigram",
            unk_id: tokenizer.unknown,
            vocab: pieces.collect(),
            byte_fallback: vocabulary.iter().any(|(_, _, kind)| is_byte(kind)),
        },
    };
    document.text()
}

/// The compiled table, if the file has one.
fn normalizer(metadata: &Metadata) -> Result<Value> {
    let map = metadata.i32s(CHARACTERS)?.unwrap_or_default();
    if map.is_empty() {
        return Ok(Value::Null);
    }
    // Some converters write the bytes as signed.
    let bytes: Vec<u8> = map.iter().map(|value| value.rem_euclid(256) as u8).collect();
    Ok(json!({ "type": "Precompiled", "precompiled_charsmap": base64(&bytes) }))
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let digit = char::from(DIGITS[(word >> (18 - 6 * place)) as usize & 63]);
            text.push(if place <= chunk.len() { digit } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn base64_pads_to_whole_words() {
        for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob\u{7f}", "Zm9vYn8=")] {
            assert_eq!(super::base64(bytes.as_bytes()), text);
        }
    }
}
