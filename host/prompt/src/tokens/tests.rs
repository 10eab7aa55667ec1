//! Tokens must equal those of the `tokenizers` crate, except where a client's text looks like special tokens.

use serde_json::{Value, json};
use std::{fs, path::Path};

use super::*;

const TOKENIZERS: [&str; 2] = ["llama/gqa", "scripted"];

fn document(fixture: &str) -> Document {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(fixture).join("tokenizer.json");
    let json = fs::read_to_string(path).unwrap();
    Document { json, vocabulary: 1 << 20, bos: None, add_bos: false, eos: Vec::new() }
}

/// Texts with and without the tokenizer's special tokens, each twice, as the second comes from the cache.
fn texts(tokens: &Tokens) -> Vec<String> {
    let mut texts =
        ["", " ", "a", "Hello, world!", "  two  spaces\n\n\tand more ", "Grüße, 日本 😀 \u{0301}", "x = [1, 23, 456];"]
            .map(str::to_owned)
            .to_vec();
    texts.push(texts.join("\n").repeat(40));
    for (added, _) in tokens.specials().added.clone() {
        texts.push(format!("before {added}after{added} {added}\n"));
    }
    [texts.clone(), texts].concat()
}

#[test]
fn texts_become_the_tokens_that_the_crate_makes_of_them() {
    for fixture in TOKENIZERS {
        let document = self::document(fixture);
        let whole = Tokenizer::from_bytes(document.json.as_bytes()).unwrap();
        let tokens = Tokens::of(&document).unwrap();
        assert!(!tokens.specials().added.is_empty(), "{fixture}");
        for text in texts(&tokens) {
            let expected = whole.encode_fast(text.as_str(), false).unwrap();
            assert_eq!(tokens.encode_text(&text, &[]).unwrap(), expected.get_ids(), "{fixture}: {text:?}");
        }
    }
}

#[test]
fn words_that_look_like_special_tokens_are_words() {
    for fixture in TOKENIZERS {
        let tokens = Tokens::of(&document(fixture)).unwrap();
        for (added, special) in tokens.specials().added.clone() {
            let text = format!("say {added} twice: {added}");
            let places = text.match_indices(&added).map(|(start, found)| start..start + found.len()).collect();
            let rendered = Rendered { text: text.clone(), plain: places, items: Vec::new() };
            let ids = tokens.encode(&rendered, None, &[]).unwrap().tokens;
            let id = tokens.tokenizer.token_to_id(&added).unwrap();
            assert!(!ids.contains(&id), "{fixture}: {added}, special: {special}");
            assert_eq!(tokens.tokenizer.decode(&ids, false).unwrap(), text, "{fixture}");
            assert!(tokens.encode_text(&text, &[]).unwrap().contains(&id));
        }
    }
}

#[test]
fn special_tokens_in_a_clients_part_of_a_text_are_words() {
    for fixture in TOKENIZERS {
        let tokens = Tokens::of(&document(fixture)).unwrap();
        for (added, special) in tokens.specials().added.clone() {
            let id = tokens.tokenizer.token_to_id(&added).unwrap();
            let text = format!("{added} is ours, {added} is not");
            let ours = tokens.encode_piece(&Piece { text: text.clone(), plain: Vec::new() }, &[]).unwrap();
            assert_eq!(ours.iter().filter(|other| **other == id).count(), 2, "{fixture}: {added}");
            let plain = vec![(added.len(), text.len())];
            let ids = tokens.encode_piece(&Piece { text: text.clone(), plain }, &[]).unwrap();
            let count = if special { 1 } else { 2 };
            assert_eq!(ids.iter().filter(|other| **other == id).count(), count, "{fixture}: {added}");
            assert_eq!(tokens.tokenizer.decode(&ids, false).unwrap(), text, "{fixture}");
        }
    }
}

/// A converted SentencePiece tokenizer: byte fallback, `▁` for spaces, and added tokens of all kinds.
fn sentencepiece(normalizer: Value, pre_tokenizer: Value, normalized: bool) -> Document {
    let letters = "▁helowrd,.<>|_sxt".chars().map(String::from);
    let merged = ["▁h", "he", "ll", "hell", "hello", "▁hello", "▁w", "or", "▁wor", "▁▁", "t>"];
    let bytes = (0..=255).map(|byte| format!("<0x{byte:02X}>"));
    let all = ["<unk>", "<s>", "</s>"].map(str::to_owned).into_iter().chain(bytes).chain(letters);
    let all: Vec<String> = all.chain(merged.map(str::to_owned)).collect();
    let vocabulary: serde_json::Map<String, Value> =
        all.iter().enumerate().map(|(id, text)| (text.clone(), json!(id))).collect();
    let merges = [
        ["h", "e"],
        ["l", "l"],
        ["he", "ll"],
        ["hell", "o"],
        ["▁", "hello"],
        ["▁", "h"],
        ["▁", "w"],
        ["o", "r"],
        ["▁w", "or"],
        ["▁", "▁"],
        ["t", ">"],
    ];
    let flags =
        [(false, false, false), (true, false, false), (false, true, false), (true, true, false), (false, false, true)];
    let texts = ["<s>", "<left>", "<right>", "<both>", "word"];
    let added = texts.iter().zip(flags).enumerate().map(|(place, (text, (lstrip, rstrip, single_word)))| {
        let id = if place == 0 { 1 } else { all.len() + place };
        json!({
            "id": id, "content": text, "lstrip": lstrip, "rstrip": rstrip, "single_word": single_word,
            "normalized": normalized, "special": place == 0,
        })
    });
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": null, "decoder": null,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
            "vocab": vocabulary, "merges": merges,
        },
    });
    Document { json: tokenizer.to_string(), ..document("scripted") }
}

#[test]
fn every_kind_of_normalizer_and_added_token_gives_the_crates_tokens() {
    let spaces = json!({ "type": "Replace", "pattern": { "String": " " }, "content": "▁" });
    let prepend = json!({ "type": "Prepend", "prepend": "▁" });
    let metaspace = |scheme: &str, split: bool| json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split });
    let kinds = [
        (json!({ "type": "Sequence", "normalizers": [prepend, spaces] }), Value::Null),
        (spaces.clone(), Value::Null),
        (Value::Null, metaspace("first", false)),
        (Value::Null, metaspace("first", true)),
        (Value::Null, metaspace("always", true)),
        (Value::Null, metaspace("never", false)),
        (json!({ "type": "NFKC" }), metaspace("first", false)),
        (json!({ "type": "Sequence", "normalizers": [{ "type": "Lowercase" }, spaces] }), Value::Null),
    ];
    let pieces = [
        "hello", " hello", "  ", " ", "\n", "<s>", "<left>", "<right>", "<both>", "word", "words", " word ", "é", "ﬁ",
        "WORD", "<S>", "wor", "ld", "<s", ">", "日本", ",",
    ];
    let mut random = fastrand::Rng::with_seed(3);
    for (normalizer, pre_tokenizer) in kinds {
        for normalized in [false, true] {
            let document = sentencepiece(normalizer.clone(), pre_tokenizer.clone(), normalized);
            let whole = Tokenizer::from_bytes(document.json.as_bytes()).unwrap();
            let tokens = Tokens::of(&document).unwrap();
            for _ in 0..400 {
                let count = random.usize(..8);
                let text: String = (0..count).map(|_| pieces[random.usize(..pieces.len())]).collect();
                let expected = whole.encode_fast(text.as_str(), false).unwrap();
                let found = tokens.encode_text(&text, &[]).unwrap();
                assert_eq!(found, expected.get_ids(), "{text:?} with {normalizer}, {pre_tokenizer}, {normalized}");
            }
        }
    }
}

#[test]
fn a_plain_text_is_opened_once() {
    let bos = |add_bos| Document { bos: Some(1), add_bos, ..sentencepiece(Value::Null, Value::Null, false) };
    let ids = |document: &Document, text: &str| Tokens::of(document).unwrap().encode_text(text, &[]).unwrap();
    let hello = ids(&bos(false), "hello");
    assert_eq!(ids(&bos(true), "hello"), [&[1], &hello[..]].concat());
    assert_eq!(ids(&bos(true), "<s>hello"), [&[1], &hello[..]].concat());
    assert_eq!(ids(&bos(true), ""), [1]);
}

#[test]
fn tokens_that_the_model_has_no_row_for_are_told() {
    let document = Document { vocabulary: 100, ..document("scripted") };
    let failure = Tokens::of(&document).unwrap().encode_text("<|im_start|>", &[]).unwrap_err();
    assert_eq!(failure.code, FailureCode::Unsupported);
    assert!(failure.message.contains("'<|im_start|>'") && failure.message.contains("100 tokens"), "{failure}");
    let broken = Document { json: "{".to_owned(), ..document };
    assert!(Tokens::of(&broken).unwrap_err().message.starts_with("the model's tokenizer cannot be used"));
}

/// A vocabulary of which the longest token at each place is taken: all bytes, and some tokens of several.
fn longest() -> Document {
    let alphabet = (0..256_u32).map(|byte| match byte {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => byte,
        0..=0x20 => 0x100 + byte,
        0x7f..=0xa0 => 0x121 + byte - 0x7f,
        _ => 0x143,
    });
    let alphabet: Vec<String> = alphabet.map(|code| char::from_u32(code).unwrap().to_string()).collect();
    let several = ["ab", "abc", "bcd", "Hel", "ello", "ĠĠ", "ort", "wo", "worl", "æĹ"].map(str::to_owned);
    let vocab: serde_json::Map<String, Value> =
        alphabet.into_iter().chain(several).zip(1..).map(|(token, id)| (token, json!(id))).collect();
    let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false });
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [], "pre_tokenizer": bytes, "decoder": bytes,
        "model": {
            "type": "WordPiece", "unk_token": "!", "continuing_subword_prefix": "",
            "max_input_chars_per_word": u32::MAX, "vocab": vocab,
        },
    });
    Document { json: json.to_string(), vocabulary: 1 << 20, bos: None, add_bos: false, eos: Vec::new() }
}

#[test]
fn the_longest_token_at_each_place_is_found_as_the_crate_finds_it() {
    let document = longest();
    let whole = Tokenizer::from_bytes(document.json.as_bytes()).unwrap();
    let tokens = Tokens::of(&document).unwrap();
    for text in texts(&tokens).into_iter().chain(["abcdabcdab".into(), "日旦æ".into(), "hello worort".into()]) {
        let expected = whole.encode_fast(text.as_str(), false).unwrap();
        assert_eq!(tokens.encode_text(&text, &[]).unwrap(), expected.get_ids(), "{text:?}");
    }
    // Two hundred thousand characters, which the crate would search for hours.
    let long = "Hello, world! ".repeat(15_000);
    let once = tokens.encode_text("Hello, world! ", &[]).unwrap();
    assert_eq!(tokens.encode_text(&long, &[]).unwrap(), once.repeat(15_000));
}
