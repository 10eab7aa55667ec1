//! Byte-level BPE as in GPT-2: `tokenizer.ggml.model = "gpt2"`.
//!
//! Tokens are bytes encoded as printable characters, and an ordered list of merges joins two tokens into a third. The
//! file has both; it only names how text is split before merging, see [`PreTokenizer`].

use std::collections::HashSet;

use serde_json::json;

use super::{
    Tokenizer,
    document::{Bpe, Document, Ids, added_tokens, post_processor},
    vocabulary::Vocabulary,
};
use crate::{Error, GgufFamily, PreTokenizer, Result, gguf::Metadata, quote};

const MERGES: &str = "tokenizer.ggml.merges";
const MERGES_MAX: usize = 8 << 20;

/// Writes the `tokenizer.json` of a byte-level BPE.
pub(super) fn build(
    metadata: &Metadata,
    architecture: &str,
    family: &GgufFamily,
    vocabulary: &Vocabulary,
    tokenizer: &mut Tokenizer,
) -> Result<String> {
    let pre_tokenizer = pre_tokenizer(metadata, architecture, family, vocabulary)?;
    if metadata.bool("tokenizer.ggml.add_bos_token")?.is_none() {
        tokenizer.add_bos = pre_tokenizer.add_bos && tokenizer.bos.is_some();
    }
    let merges = merges_of(metadata, vocabulary)?;
    // Converters of tiktoken files write every way to make a token, which is more merges than there are tokens. These
    // tokenizers look up whole words in the vocabulary first, as tiktoken does.
    let ignore_merges = pre_tokenizer.ignore_merges || merges.len() > vocabulary.len();
    let document = Document {
        version: "1.0",
        truncation: None,
        padding: None,
        added_tokens: added_tokens(vocabulary),
        normalizer: pre_tokenizer.normalizer_json(),
        pre_tokenizer: pre_tokenizer.json(),
        post_processor: post_processor(tokenizer, |id| vocabulary.text(id).map(str::to_owned)),
        decoder: json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true }),
        model: Bpe {
            kind: "BPE",
            dropout: None,
            unk_token: None,
            continuing_subword_prefix: None,
            end_of_word_suffix: None,
            fuse_unk: false,
            byte_fallback: false,
            ignore_merges,
            vocab: Ids(vocabulary.texts()),
            merges,
        },
    };
    document.text()
}

/// Reads a file's merges.
pub(super) fn merges_of<'a>(metadata: &'a Metadata, vocabulary: &Vocabulary) -> Result<Vec<(&'a str, &'a str)>> {
    let lines = metadata.strings(MERGES)?.ok_or_else(|| metadata.missing(MERGES))?;
    merges(&lines, vocabulary).map_err(|error| error.context(format!("metadata '{MERGES}'")))
}

fn pre_tokenizer(
    metadata: &Metadata,
    architecture: &str,
    family: &GgufFamily,
    vocabulary: &Vocabulary,
) -> Result<PreTokenizer> {
    match metadata.string("tokenizer.ggml.pre")?.or(family.pre_tokenizer) {
        Some(name) => PreTokenizer::find(name, family.pre_tokenizers),
        None => PreTokenizer::unnamed(architecture, |text| vocabulary.find(text).is_some()),
    }
}

/// Parses merges, each two tokens separated by a space; of equal ones the first counts.
fn merges<'a>(lines: &[&'a str], vocabulary: &Vocabulary) -> Result<Vec<(&'a str, &'a str)>> {
    if lines.len() > MERGES_MAX {
        return Err(Error::corrupt(format!("has {} merges, more than the {MERGES_MAX} that are read", lines.len())));
    }
    let ids = vocabulary.ids(|_| true);
    let mut merges = Vec::with_capacity(lines.len());
    let mut seen = HashSet::with_capacity(lines.len());
    let mut product = String::new();
    for (line, number) in lines.iter().zip(0u32..) {
        let cut = line.char_indices().skip(1).find(|(_, char)| *char == ' ').map(|(at, _)| at);
        let (left, right) = cut.and_then(|at| Some((line.get(..at)?, line.get(at + 1..)?))).ok_or_else(|| {
            Error::corrupt(format!("merge {number} ({}) is not two tokens with a space between", quote(line)))
        })?;
        product.clear();
        product.extend([left, right]);
        let id = |token: &str| {
            ids.get(token).copied().ok_or_else(|| {
                let (line, token) = (quote(line), quote(token));
                Error::corrupt(format!(
                    "merge {number} ({line}) needs the token {token}, which is not in the vocabulary"
                ))
            })
        };
        let pair = (id(left)?, id(right)?);
        id(&product)?;
        if seen.insert(pair) {
            merges.push((left, right));
        }
    }
    Ok(merges)
}
