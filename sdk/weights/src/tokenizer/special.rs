//! Special token ids: BOS, and every token that ends a turn.
//!
//! Files name one EOS and, if they are recent, the end-of-turn and end-of-message tokens. Many chat models end a turn
//! with another token than the named one, and a model whose turn does not end talks to itself until the limit. So known
//! end-of-turn texts are searched for among the special tokens, too, as in llama.cpp.

use super::{
    Tokenizer,
    vocabulary::{Kind, Vocabulary},
};
use crate::{Error, Result, gguf::Metadata, quote};

/// Limit on the length of a chat template.
pub(super) const TEMPLATE_BYTES_MAX: usize = 1 << 20;

/// Texts of tokens that end a turn, or a completion within a file.
const TURN_ENDS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<end_of_turn>",
    "<turn|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<eos>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
    "<|fim_pad|>",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<|file_sep|>",
];

/// In a vocabulary with both tokens of a pair, `<|end|>` closes a message within a turn (gpt-oss, Solar).
const MESSAGE_ENDS: [[&str; 2]; 2] = [["<|return|>", "<|call|>"], ["<|calls|>", "<|flush|>"]];

const BOS: &str = "tokenizer.ggml.bos_token_id";
const EOS: &str = "tokenizer.ggml.eos_token_id";
const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";
const PAD: &str = "tokenizer.ggml.padding_token_id";
const TURN_END_KEYS: [&str; 5] = [
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.eom_token_id",
    "tokenizer.ggml.fim_pad_token_id",
    "tokenizer.ggml.fim_rep_token_id",
    "tokenizer.ggml.fim_sep_token_id",
];
const TEMPLATE: &str = "tokenizer.chat_template";

/// Reads all fields of a tokenizer except `json`, and marks special tokens that the file lists as normal.
pub(super) fn read(metadata: &Metadata, kind: &str, vocabulary: &mut Vocabulary) -> Result<Tokenizer> {
    let is_sentencepiece = kind == "llama";
    // Early SentencePiece files omit the ids that were the same in all of them.
    let usual = |id: u32| (is_sentencepiece && (id as usize) < vocabulary.len()).then_some(id);
    let bos = id(metadata, BOS, vocabulary)?.or(usual(1));
    let eos = id(metadata, EOS, vocabulary)?.or(usual(2));
    let unknown = id(metadata, UNKNOWN, vocabulary)?.or(usual(0));
    let pad = id(metadata, PAD, vocabulary)?;
    let mut ends = vec![];
    ends.extend(eos);
    for key in TURN_END_KEYS {
        ends.extend(id(metadata, key, vocabulary)?);
    }
    mark(vocabulary, bos.iter().chain(&ends).chain(&unknown).copied().collect());
    ends.extend(turn_ends(vocabulary.matched().map(|(id, text, _)| (id, text))));
    let add = |key| metadata.bool(key);
    Ok(Tokenizer {
        json: String::new(),
        chat_template: chat_template(metadata)?,
        add_bos: add("tokenizer.ggml.add_bos_token")?.unwrap_or(is_sentencepiece) && bos.is_some(),
        add_eos: add("tokenizer.ggml.add_eos_token")?.unwrap_or(false) && !ends.is_empty(),
        bos,
        eos: unique(ends),
        pad,
        unknown,
    })
}

/// Returns the ids of special tokens whose text ends a turn.
pub(super) fn turn_ends<'a>(tokens: impl Iterator<Item = (u32, &'a str)>) -> Vec<u32> {
    let mut ends: Vec<_> = tokens.filter(|(_, text)| TURN_ENDS.contains(text)).collect();
    let has = |text: &&str| ends.iter().any(|(_, end)| end == text);
    if MESSAGE_ENDS.iter().any(|together| together.iter().all(has)) {
        ends.retain(|(_, text)| *text != "<|end|>");
    }
    ends.into_iter().map(|(id, _)| id).collect()
}

/// Removes repeated ids, keeping the order.
pub(super) fn unique(mut ids: Vec<u32>) -> Vec<u32> {
    let mut seen = std::collections::HashSet::new();
    ids.retain(|id| seen.insert(*id));
    ids
}

/// Rejects a template that is too long to be one.
pub(super) fn checked_template(template: &str, place: &str) -> Result<String> {
    if template.len() > TEMPLATE_BYTES_MAX {
        return Err(Error::corrupt(format!(
            "{place} has {} bytes, more than the {TEMPLATE_BYTES_MAX} of a chat template",
            template.len()
        )));
    }
    Ok(template.to_owned())
}

fn id(metadata: &Metadata, key: &str, vocabulary: &Vocabulary) -> Result<Option<u32>> {
    match metadata.u32(key)? {
        // Converters write a missing id (−1) unchanged.
        None | Some(u32::MAX) => Ok(None),
        Some(id) if (id as usize) < vocabulary.len() => Ok(Some(id)),
        Some(id) => Err(Error::corrupt(format!(
            "metadata {} is {id}, outside of the vocabulary of {} tokens",
            quote(key),
            vocabulary.len()
        ))),
    }
}

/// Marks tokens that the file calls normal but whose text or role says otherwise, so that they are matched in text.
fn mark(vocabulary: &mut Vocabulary, named: Vec<u32>) {
    let is_bracketed = |text: &str| matches!(text.as_bytes(), [b'<', _, .., b'>'] | [b'[', _, .., b']']);
    let is_unmistakable =
        |text: &str| TURN_ENDS.contains(&text) && (text.starts_with("<|") || text.starts_with("<end"));
    let by_role = named.into_iter().filter(|id| vocabulary.text(*id).is_some_and(is_bracketed));
    let by_text = vocabulary.iter().filter(|(_, text, _)| is_unmistakable(text)).map(|(id, _, _)| id);
    let found: Vec<_> = by_role.chain(by_text).filter(|id| vocabulary.kind(*id) == Kind::Normal).collect();
    found.into_iter().for_each(|id| vocabulary.mark_as_control(id));
}

/// Returns the unnamed template, `default` among several, or the only one.
fn chat_template(metadata: &Metadata) -> Result<Option<String>> {
    let default = format!("{TEMPLATE}.default");
    let mut named = metadata.keys().filter(|key| key.strip_prefix(TEMPLATE).is_some_and(|rest| rest.starts_with('.')));
    let only = named.next().filter(|_| named.next().is_none());
    for key in [Some(TEMPLATE), Some(default.as_str()), only].into_iter().flatten() {
        if let Some(template) = metadata.string(key)? {
            return checked_template(template, &format!("metadata {}", quote(key))).map(Some);
        }
    }
    Ok(None)
}
