//! Tokens must be those that the `tokenizers` crate gives in one go, except where a client's words look like special ones.

use std::{fs, path::Path};

use super::*;
use crate::card::State;

const TOKENIZERS: [&str; 2] = ["llama/gqa", "scripted"];

fn card(fixture: &str) -> Card {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(fixture).join("tokenizer.json");
    Card {
        architecture: "test".to_owned(),
        vocabulary: 1 << 20,
        context: 4096,
        state: State::PerSequence { bytes: 1 },
        token_bytes: 0,
        weight_bytes: 0,
        tokenizer: fs::read_to_string(path).unwrap(),
        chat_template: None,
        bos: None,
        add_bos: false,
        eos: Vec::new(),
        formats: String::new(),
        facts: String::new(),
        fingerprint: String::new(),
    }
}

/// Texts with and without the tokenizer's own special ones, each twice, as the second comes out of the cache.
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
        let card = card(fixture);
        let whole = Tokenizer::from_bytes(card.tokenizer.as_bytes()).unwrap();
        let tokens = Tokens::of(&card).unwrap();
        assert!(!tokens.specials().added.is_empty(), "{fixture}");
        for text in texts(&tokens) {
            let expected = whole.encode_fast(text.as_str(), false).unwrap();
            assert_eq!(tokens.encode_text(&text).unwrap(), expected.get_ids(), "{fixture}: {text:?}");
        }
    }
}

#[test]
fn words_that_look_like_special_tokens_are_words() {
    for fixture in TOKENIZERS {
        let tokens = Tokens::of(&card(fixture)).unwrap();
        for (added, special) in tokens.specials().added.clone() {
            let text = format!("say {added} twice: {added}");
            let places = text.match_indices(&added).map(|(start, found)| start..start + found.len()).collect();
            let rendered = Rendered { text: text.clone(), plain: places };
            let ids = tokens.encode(&rendered).unwrap();
            let id = tokens.tokenizer.token_to_id(&added).unwrap();
            assert!(!ids.contains(&id), "{fixture}: {added}, special: {special}");
            assert_eq!(tokens.text_of(&ids), text, "{fixture}");
            assert!(tokens.encode_text(&text).unwrap().contains(&id));
        }
    }
}
