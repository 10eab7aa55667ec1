//! Tokens must be those that the `tokenizers` crate gives in one go, for every tokenizer of the fixtures.

use std::{fs, path::Path};

use super::*;
use crate::card::State;

fn card(tokenizer: String, vocabulary: u32, bos: Option<u32>, eos: Vec<u32>) -> Card {
    Card {
        architecture: "test".to_owned(),
        vocabulary,
        context: 4096,
        state: State::PerSequence { bytes: 1 },
        token_bytes: 0,
        weight_bytes: 0,
        tokenizer,
        chat_template: None,
        bos,
        add_bos: bos.is_some(),
        eos,
        formats: String::new(),
        facts: String::new(),
        fingerprint: String::new(),
    }
}
