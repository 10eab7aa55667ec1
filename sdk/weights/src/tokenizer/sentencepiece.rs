//! SentencePiece BPE with scores, as in Llama 2: `tokenizer.ggml.model = "llama"`.
//!
//! SentencePiece joins the neighbours whose union is the piece with the best score, and needs no merges for that. The
//! `tokenizers` crate does, so they are regenerated: every way to split a piece into two known pieces is a merge, best
//! pieces first. Spaces become `▁`, one is added before each stretch of text, and uncovered characters fall back to
//! bytes.

use std::cmp::Ordering;

use serde_json::{Value, json};

use super::{
    Tokenizer,
    document::{Bpe, Document, Ids, added_tokens, post_processor},
    vocabulary::{Kind, Vocabulary},
};
use crate::{Error, GgufFamily, Result, gguf::Metadata, quote};

pub(super) const SCORES: &str = "tokenizer.ggml.scores";
pub(super) const SPACE: char = '▁';

/// Pieces are split at every position, so their length is bounded; real ones have less than a hundred bytes.
const PIECE_BYTES_MAX: usize = 512;

/// One way to split a piece: `cut` bytes from the left.
struct Cut {
    score: f32,
    id: u32,
    cut: usize,
}

/// Writes the `tokenizer.json` of a SentencePiece vocabulary in GGUF metadata.
pub(super) fn build_from_gguf(
    metadata: &Metadata,
    family: &GgufFamily,
    vocabulary: &mut Vocabulary,
    tokenizer: &Tokenizer,
) -> Result<String> {
    let scores = metadata.f32s(SCORES)?.ok_or_else(|| metadata.missing(SCORES))?;
    if scores.len() != vocabulary.len() {
        return Err(Error::corrupt(format!(
            "metadata '{SCORES}' has {} items for {} tokens",
            scores.len(),
            vocabulary.len()
        )));
    }
    let rewrites_text = metadata.bool("tokenizer.ggml.remove_extra_whitespaces")?.unwrap_or(false)
        || metadata.get("tokenizer.ggml.precompiled_charsmap").is_some_and(|map| map.len() != Some(0));
    if rewrites_text {
        return Err(Error::unsupported(
            "metadata 'tokenizer.ggml.remove_extra_whitespaces', 'tokenizer.ggml.precompiled_charsmap': text that is \
             rewritten before it is tokenized is not read for this kind of tokenizer",
        )
        .help("put the model's own tokenizer.json beside the .gguf file"));
    }
    let prefix = metadata.bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    if (family.strips_behind_special)(metadata)? {
        strip_behind_special(vocabulary);
    }
    build(vocabulary, &scores, prefix, tokenizer).map_err(|error| error.context("metadata 'tokenizer.ggml.tokens'"))
}

/// Writes the `tokenizer.json` of a SentencePiece vocabulary; `prefix` adds a space before text.
pub(super) fn build(
    vocabulary: &mut Vocabulary,
    scores: &[f32],
    prefix: bool,
    tokenizer: &Tokenizer,
) -> Result<String> {
    vocabulary.spell_out_spaces(SPACE)?;
    let vocabulary = &*vocabulary;
    let unknown = vocabulary.iter().find(|(_, _, kind)| *kind == Kind::Unknown).map(|(_, text, _)| text);
    let unknown = unknown.or_else(|| vocabulary.text(tokenizer.unknown?));
    let document = Document {
        version: "1.0",
        truncation: None,
        padding: None,
        added_tokens: added_tokens(vocabulary),
        normalizer: normalizer(prefix),
        pre_tokenizer: Value::Null,
        post_processor: post_processor(tokenizer, |id| vocabulary.text(id).map(str::to_owned)),
        decoder: decoder(prefix),
        model: Bpe {
            kind: "BPE",
            dropout: None,
            unk_token: unknown,
            continuing_subword_prefix: None,
            end_of_word_suffix: None,
            fuse_unk: true,
            byte_fallback: true,
            ignore_merges: false,
            vocab: Ids(vocabulary.texts()),
            merges: merges(vocabulary, scores)?,
        },
    };
    document.text()
}

pub(super) fn normalizer(prefix: bool) -> Value {
    let replace = json!({ "type": "Replace", "pattern": { "String": " " }, "content": SPACE });
    let prepend = json!({ "type": "Prepend", "prepend": SPACE });
    if prefix { json!({ "type": "Sequence", "normalizers": [prepend, replace] }) } else { replace }
}

pub(super) fn decoder(prefix: bool) -> Value {
    let mut steps = vec![
        json!({ "type": "Replace", "pattern": { "String": SPACE }, "content": " " }),
        json!({ "type": "ByteFallback" }),
        json!({ "type": "Fuse" }),
    ];
    if prefix {
        steps.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    }
    json!({ "type": "Sequence", "decoders": steps })
}

/// Returns every way to make a normal piece of two normal pieces, in the order in which SentencePiece would take them.
///
/// Among the ways to make one piece, SentencePiece takes the leftmost in the text, which a fixed order cannot express;
/// the one with the longest left part comes closest, since text is joined from the left.
fn merges<'a>(vocabulary: &'a Vocabulary, scores: &[f32]) -> Result<Vec<(&'a str, &'a str)>> {
    let pieces = vocabulary.ids(|kind| kind == Kind::Normal);
    let mut cuts = Vec::new();
    for ((id, piece, _), score) in vocabulary.iter().zip(scores).filter(|((_, _, kind), _)| *kind == Kind::Normal) {
        if score.is_nan() {
            return Err(Error::corrupt(format!("the score of token {id} ({}) is not a number", quote(piece))));
        }
        if piece.len() > PIECE_BYTES_MAX {
            return Err(Error::corrupt(format!(
                "token {id} ({}) has {} bytes, more than the {PIECE_BYTES_MAX} of a piece",
                quote(piece),
                piece.len()
            )));
        }
        let ways = piece.char_indices().skip(1).filter(|(cut, _)| {
            let (left, right) = piece.split_at(*cut);
            pieces.contains_key(left) && pieces.contains_key(right)
        });
        cuts.extend(ways.map(|(cut, _)| Cut { score: *score, id, cut }));
    }
    cuts.sort_unstable_by(Cut::order);
    Ok(cuts.iter().filter_map(|way| vocabulary.text(way.id)?.split_at_checked(way.cut)).collect())
}

impl Cut {
    fn order(&self, other: &Self) -> Ordering {
        other.score.total_cmp(&self.score).then(self.id.cmp(&other.id)).then(other.cut.cmp(&self.cut))
    }
}

fn strip_behind_special(vocabulary: &mut Vocabulary) {
    const KEEPS: [&str; 3] = ["<unk>", "<s>", "<|endoftext|>"];
    let strips = vocabulary.matched().filter(|(_, text, _)| !KEEPS.contains(text)).map(|(id, _, _)| id);
    let strips: Vec<_> = strips.collect();
    vocabulary.strip_behind(strips);
}
