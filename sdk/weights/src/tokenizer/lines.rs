//! BPE over the characters of whole lines, as in Gemma 4: `tokenizer.ggml.model = "gemma4"`.
//!
//! The file has tokens and merges, as for byte-level BPE. But tokens are text with `▁` for spaces, uncovered characters
//! fall back to bytes, and text is split only at line breaks. Runs of line breaks that are tokens are matched whole.

use serde_json::json;

use super::{
    Tokenizer,
    bpe::merges_of,
    document::{Bpe, Document, Ids, added_tokens, post_processor},
    sentencepiece::{SPACE, decoder, normalizer},
    vocabulary::{Kind, Vocabulary},
};
use crate::{Result, gguf::Metadata};

/// Writes the `tokenizer.json` of such a BPE.
pub(super) fn build(metadata: &Metadata, vocabulary: &mut Vocabulary, tokenizer: &mut Tokenizer) -> Result<String> {
    if metadata.bool("tokenizer.ggml.add_bos_token")?.is_none() {
        tokenizer.add_bos = tokenizer.bos.is_some();
    }
    let merges = merges_of(metadata, vocabulary)?;
    let merges: Vec<(String, String)> = merges.into_iter().map(|(a, b)| (a.to_owned(), b.to_owned())).collect();
    vocabulary.spell_out_spaces(SPACE)?;
    let vocabulary = &*vocabulary;
    let unknown = vocabulary.iter().find(|(_, _, kind)| *kind == Kind::Unknown).map(|(_, text, _)| text);
    let document = Document {
        version: "1.0",
        truncation: None,
        padding: None,
        added_tokens: added_tokens(vocabulary),
        normalizer: normalizer(false),
        pre_tokenizer: json!({
            "type": "Split", "pattern": { "Regex": r"[^\n]+|\n+" }, "behavior": "Isolated", "invert": false,
        }),
        post_processor: post_processor(tokenizer, |id| vocabulary.text(id).map(str::to_owned)),
        decoder: decoder(false),
        model: Bpe {
            kind: "BPE",
            dropout: None,
            unk_token: unknown.or_else(|| vocabulary.text(tokenizer.unknown?)),
            continuing_subword_prefix: None,
            end_of_word_suffix: None,
            fuse_unk: true,
            byte_fallback: true,
            ignore_merges: true,
            vocab: Ids(vocabulary.texts()),
            merges: merges.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect(),
        },
    };
    document.text()
}
