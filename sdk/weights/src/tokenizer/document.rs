//! Writes a `tokenizer.json`, whatever the vocabulary came from.
//!
//! The parts that differ between models (normalizer, pre-tokenizer, decoder) are small and held as JSON values; the
//! vocabulary and the merges are borrowed, since copying a quarter of a million strings would cost more than writing
//! them. Merges are written as pairs, because the joined form cannot tell a space inside a token from the separator.

use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::{Tokenizer, vocabulary::Vocabulary};
use crate::{Error, Result};

/// A whole `tokenizer.json`, with a model of one kind.
#[derive(Serialize)]
pub(super) struct Document<'a, M = Bpe<'a>> {
    pub version: &'static str,
    pub truncation: Option<()>,
    pub padding: Option<()>,
    pub added_tokens: Vec<AddedToken<'a>>,
    pub normalizer: Value,
    pub pre_tokenizer: Value,
    pub post_processor: Value,
    pub decoder: Value,
    pub model: M,
}

/// A token that is matched in the text before anything else happens to it.
#[derive(Serialize)]
pub(super) struct AddedToken<'a> {
    pub id: u32,
    pub content: &'a str,
    pub single_word: bool,
    pub lstrip: bool,
    /// The token takes the white space after it.
    pub rstrip: bool,
    pub normalized: bool,
    /// Decoding may skip it.
    pub special: bool,
}

/// BPE, over bytes or over characters with byte fallback.
#[derive(Serialize)]
pub(super) struct Bpe<'a> {
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub dropout: Option<()>,
    pub unk_token: Option<&'a str>,
    pub continuing_subword_prefix: Option<()>,
    pub end_of_word_suffix: Option<()>,
    pub fuse_unk: bool,
    pub byte_fallback: bool,
    /// Emits a word that is in the vocabulary as one token, even if merges would not produce it.
    pub ignore_merges: bool,
    pub vocab: Ids<'a>,
    pub merges: Vec<(&'a str, &'a str)>,
}

/// Token texts, serialized as a map to their ids. An empty text is an id without a token.
pub(super) struct Ids<'a>(pub &'a [String]);

impl Serialize for Ids<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().zip(0u32..).filter(|(text, _)| !text.is_empty()))
    }
}

impl<M: Serialize> Document<'_, M> {
    pub(super) fn text(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|error| Error::corrupt(format!("the tokenizer cannot be written: {error}")))
    }
}

/// Returns the tokens of a vocabulary that are matched in text, in order of their ids.
pub(super) fn added_tokens(vocabulary: &Vocabulary) -> Vec<AddedToken<'_>> {
    let matched = vocabulary.matched();
    matched
        .map(|(id, content, special)| AddedToken {
            id,
            content,
            single_word: false,
            lstrip: false,
            rstrip: vocabulary.strips_behind(id),
            normalized: false,
            special,
        })
        .collect()
}

/// Puts `open` before a text and `close` after it, and `between` times `close` between the two of a pair. The type of the
/// second is 1 in models with one separator, as in BERT.
pub(super) fn pair_template((open_id, open): (u32, &str), (close_id, close): (u32, &str), between: usize) -> Value {
    let special = |text: &str, type_id: u32| json!({ "SpecialToken": { "id": text, "type_id": type_id } });
    let text = |name: &str, type_id: u32| json!({ "Sequence": { "id": name, "type_id": type_id } });
    let second = u32::from(between == 1);
    let single = vec![special(open, 0), text("A", 0), special(close, 0)];
    let mut pair = single.clone();
    pair.extend((1..between).map(|_| special(close, 0)));
    pair.extend([text("B", second), special(close, second)]);
    let token = |id: u32, text: &str| json!({ "id": text, "ids": [id], "tokens": [text] });
    json!({
        "type": "TemplateProcessing",
        "single": single,
        "pair": pair,
        "special_tokens": { open: token(open_id, open), close: token(close_id, close) },
    })
}

/// Adds BOS before and EOS after the text if the model was trained that way; null if there is nothing to add.
pub(super) fn post_processor(tokenizer: &Tokenizer, text_of: impl Fn(u32) -> Option<String>) -> Value {
    let named = |wanted: bool, id: Option<u32>| id.filter(|_| wanted).and_then(|id| Some((id, text_of(id)?)));
    let bos = named(tokenizer.add_bos, tokenizer.bos);
    let eos = named(tokenizer.add_eos, tokenizer.eos.first().copied());
    if bos.is_none() && eos.is_none() {
        return Value::Null;
    }
    let wrapped = |sequence: &str, type_id: u32| -> Vec<Value> {
        let special = |token: &Option<(u32, String)>| {
            token.as_ref().map(|(_, text)| json!({ "SpecialToken": { "id": text, "type_id": type_id } }))
        };
        let text = json!({ "Sequence": { "id": sequence, "type_id": type_id } });
        [special(&bos), Some(text), special(&eos)].into_iter().flatten().collect()
    };
    let tokens: serde_json::Map<_, _> = [&bos, &eos]
        .into_iter()
        .flatten()
        .map(|(id, text)| (text.clone(), json!({ "id": text, "ids": [id], "tokens": [text] })))
        .collect();
    let pair = [wrapped("A", 0), wrapped("B", 1)].concat();
    json!({
        "type": "TemplateProcessing",
        "single": wrapped("A", 0),
        "pair": pair,
        "special_tokens": tokens,
    })
}
