//! WordPiece as in BERT: `tokenizer.ggml.model = "bert"`.
//!
//! A vocabulary marks pieces that continue a word (`##ing`). The file marks those that begin one instead, with `▁`, and
//! says neither whether text is lowercased, in most files, nor what is put around it: both follow from the vocabulary.

use serde::Serialize;
use serde_json::json;

use super::{
    Tokenizer,
    document::{Document, Ids, added_tokens, pair_template},
    sentencepiece::SPACE,
    vocabulary::{Kind, Vocabulary},
};
use crate::{Error, Result, gguf::Metadata};

const CONTINUES: &str = "##";

#[derive(Serialize)]
struct WordPiece<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    unk_token: &'a str,
    continuing_subword_prefix: &'static str,
    max_input_chars_per_word: u32,
    vocab: Ids<'a>,
}

/// Spells the pieces of a file as the vocabulary does.
pub(super) fn respell(vocabulary: &mut Vocabulary) -> Result<()> {
    vocabulary.respell(|text, kind| match text.strip_prefix(SPACE) {
        _ if matches!(kind, Kind::Control | Kind::Unknown) => text.to_owned(),
        Some(word) => word.to_owned(),
        None if text.is_empty() || is_special(text) => text.to_owned(),
        None => format!("{CONTINUES}{text}"),
    })
}

/// Writes the `tokenizer.json` of a WordPiece vocabulary.
pub(super) fn build(metadata: &Metadata, vocabulary: &mut Vocabulary, tokenizer: &mut Tokenizer) -> Result<String> {
    let role = |key: &str, text: &str| -> Result<u32> {
        let id = metadata.u32(&format!("tokenizer.ggml.{key}"))?.filter(|id| vocabulary.text(*id).is_some());
        id.or_else(|| vocabulary.find(text)).ok_or_else(|| {
            Error::unsupported(format!("metadata 'tokenizer.ggml.tokens': the WordPiece vocabulary has no {text}"))
                .help("put the model's own tokenizer.json beside the .gguf file")
        })
    };
    let (cls, sep) = (role("cls_token_id", "[CLS]")?, role("seperator_token_id", "[SEP]")?);
    let unknown = role("unknown_token_id", "[UNK]")?;
    [cls, sep, unknown].into_iter().for_each(|id| vocabulary.mark_as_control(id));
    let vocabulary = &*vocabulary;
    let is_cased = || vocabulary.iter().any(|(_, text, kind)| kind == Kind::Normal && has_capitals(text));
    let lowercase = metadata.bool("tokenizer.ggml.normalizer.lowercase")?.unwrap_or_else(|| !is_cased());
    let strip_accents = metadata.bool("tokenizer.ggml.normalizer.strip_accents")?;
    tokenizer.add_bos = tokenizer.bos == Some(cls);
    tokenizer.add_eos = tokenizer.eos.first() == Some(&sep);
    let text_of = |id: u32| vocabulary.text(id).unwrap_or_default();
    let document = Document {
        version: "1.0",
        truncation: None,
        padding: None,
        added_tokens: added_tokens(vocabulary),
        normalizer: json!({ "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": strip_accents, "lowercase": lowercase }),
        pre_tokenizer: json!({ "type": "BertPreTokenizer" }),
        post_processor: pair_template((cls, text_of(cls)), (sep, text_of(sep)), 1),
        decoder: json!({ "type": "WordPiece", "prefix": CONTINUES, "cleanup": true }),
        model: WordPiece {
            kind: "WordPiece",
            unk_token: text_of(unknown),
            continuing_subword_prefix: CONTINUES,
            max_input_chars_per_word: 100,
            vocab: Ids(vocabulary.texts()),
        },
    };
    document.text()
}

/// `[CLS]` and `[unused7]`, which converters leave as they are in some files.
fn is_special(text: &str) -> bool {
    text.len() > 2 && text.starts_with('[') && text.ends_with(']')
}

/// Vocabularies without lowercasing have capitals in their words; all have them in `[CLS]` and its like.
fn has_capitals(text: &str) -> bool {
    !is_special(text) && text.bytes().any(|byte| byte.is_ascii_uppercase())
}
