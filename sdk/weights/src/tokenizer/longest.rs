//! Vocabularies of bytes of which the longest token at each place is taken, as RWKV's: `tokenizer.ggml.model = "rwkv"`, or
//! `rwkv_vocab_v20230424.txt` in a folder.
//!
//! In the format of the `tokenizers` crate that is a WordPiece whose continuations have no prefix, over GPT-2's alphabet
//! of bytes and over the whole text as one word.

use serde_json::{Map, Value, json};
use std::collections::HashMap;

use super::{
    Tokenizer,
    document::{added_tokens, post_processor},
    vocabulary::{Kind, Vocabulary},
};
use crate::{Error, Result, quote};

/// The name of the vocabulary's file.
pub(super) const FILE: &str = "rwkv_vocab_v20230424.txt";

/// The token 0 of every such model, which its file omits: the beginning and the end of a text.
const END: &str = "<s>";

/// llama.cpp's name for a template that it has built in: turns that begin with `User:` and `Assistant:`, which is how a
/// conversation without a template is written.
const TEMPLATE: &str = "rwkv-world";

/// Writes the `tokenizer.json` of a GGUF file, whose tokens are written as Python writes bytes.
pub(super) fn build(vocabulary: &Vocabulary, tokenizer: &mut Tokenizer) -> Result<String> {
    tokenizer.chat_template = tokenizer.chat_template.take().filter(|template| template != TEMPLATE);
    let is_text = |kind: Kind| matches!(kind, Kind::Normal | Kind::UserDefined);
    let tokens = vocabulary.iter().filter(|(_, text, kind)| is_text(*kind) && !text.is_empty());
    let tokens = tokens.map(|(id, text, _)| Ok((id, unescaped(text, false)?))).collect::<Result<Vec<_>>>()?;
    write(&tokens, vocabulary, tokenizer)
}

/// Reads a folder's file: on each line an id, a token as Python writes it, and its number of bytes.
pub(super) fn from_file(text: &str) -> Result<(Vocabulary, String)> {
    let mut tokens = Vec::new();
    for (number, line) in (1_usize..).zip(text.lines()) {
        let wrong = || Error::corrupt(format!("line {number} is not an id, a token and its number of bytes"));
        let (id, rest) = line.split_once(' ').ok_or_else(wrong)?;
        let (literal, bytes) = rest.rsplit_once(' ').ok_or_else(wrong)?;
        let (is_bytes, literal) = literal.strip_prefix('b').map_or((false, literal), |literal| (true, literal));
        let quoted = ['\'', '"'].iter().find_map(|mark| literal.strip_prefix(*mark)?.strip_suffix(*mark));
        let token = unescaped(quoted.ok_or_else(wrong)?, !is_bytes)?;
        let (id, bytes): (u32, usize) = (id.parse().map_err(|_| wrong())?, bytes.parse().map_err(|_| wrong())?);
        if token.len() != bytes || id == 0 || id as usize > text.len() {
            return Err(wrong());
        }
        tokens.push((id, token));
    }
    let last = tokens.iter().map(|(id, _)| *id as usize).max().unwrap_or_default();
    let mut texts = vec![String::new(); last + 1];
    texts[0] = END.to_owned();
    let mut kinds = vec![Kind::Unused; texts.len()];
    kinds[0] = Kind::Control;
    let vocabulary = Vocabulary::new(texts, kinds)?;
    let json = write(&tokens, &vocabulary, &Tokenizer::default())?;
    Ok((vocabulary, json))
}

fn write(tokens: &[(u32, Vec<u8>)], vocabulary: &Vocabulary, tokenizer: &Tokenizer) -> Result<String> {
    let mut ids: HashMap<&[u8], u32> = HashMap::with_capacity(tokens.len());
    for (id, bytes) in tokens {
        if let Some(first) = ids.insert(bytes, *id) {
            let text = String::from_utf8_lossy(bytes);
            return Err(Error::corrupt(format!("the token {} has two ids, {first} and {id}", quote(&text))));
        }
    }
    if let Some(missing) = (0..=u8::MAX).find(|byte| !ids.contains_key(&[*byte][..])) {
        return Err(Error::corrupt(format!("no token is the byte {missing}, so some texts have no tokens")));
    }
    let spelled = |bytes: &[u8]| bytes.iter().map(|byte| spelled(*byte)).collect::<String>();
    let mut vocab: Map<String, Value> = ids.iter().map(|(bytes, id)| (spelled(bytes), (*id).into())).collect();
    let matched = added_tokens(vocabulary);
    for token in &matched {
        vocab.entry(token.content).or_insert_with(|| token.id.into());
    }
    let byte_level = |splits: bool| json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": splits });
    let document = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": matched,
        "normalizer": null,
        "pre_tokenizer": byte_level(false),
        "post_processor": post_processor(tokenizer, |id| vocabulary.text(id).map(str::to_owned)),
        "decoder": byte_level(false),
        "model": {
            "type": "WordPiece",
            "unk_token": END,
            "continuing_subword_prefix": "",
            "max_input_chars_per_word": u32::MAX,
            "vocab": vocab,
        },
    });
    Ok(document.to_string())
}

/// GPT-2's character for a byte: printable Latin-1 bytes are themselves, the others the characters from U+0100 on.
fn spelled(byte: u8) -> char {
    let code = u32::from(byte);
    let code = match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => code,
        0..=0x20 => 0x100 + code,
        0x7f..=0xa0 => 0x121 + code - 0x7f,
        _ => 0x143,
    };
    char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The bytes of a Python literal without its quotes. `\xNN` is a character of a text, and otherwise a byte.
fn unescaped(literal: &str, is_text: bool) -> Result<Vec<u8>> {
    let wrong = || Error::corrupt(format!("the token {} is not written as Python writes it", quote(literal)));
    let mut bytes = Vec::with_capacity(literal.len());
    let mut chars = literal.chars();
    while let Some(char) = chars.next() {
        let escaped = if char == '\\' { chars.next() } else { None };
        let digits = match (char, escaped) {
            ('\\', Some('x')) => 2,
            ('\\', Some('u')) if is_text => 4,
            ('\\', Some('U')) if is_text => 8,
            ('\\', Some(escaped)) => {
                bytes.push(match escaped {
                    't' => b'\t',
                    'n' => b'\n',
                    'r' => b'\r',
                    '\\' | '\'' | '"' => escaped as u8,
                    _ => return Err(wrong()),
                });
                continue;
            }
            ('\\', None) => return Err(wrong()),
            (char, _) => {
                bytes.extend(char.encode_utf8(&mut [0; 4]).as_bytes());
                continue;
            }
        };
        let hex: String = chars.by_ref().take(digits).collect();
        let code = u32::from_str_radix(&hex, 16).ok().filter(|_| hex.len() == digits).ok_or_else(wrong)?;
        match char::from_u32(code).filter(|_| is_text) {
            Some(char) => bytes.extend(char.encode_utf8(&mut [0; 4]).as_bytes()),
            None if is_text => return Err(wrong()),
            None => bytes.push(u8::try_from(code).map_err(|_| wrong())?),
        }
    }
    Ok(bytes)
}
