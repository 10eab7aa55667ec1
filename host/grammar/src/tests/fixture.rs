//! Hand-made vocabularies, and a model that writes a given text or random allowed tokens.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};

use crate::{Compiler, Constraint, is_allowed};
use pensieve_protocol::{
    grammar::{Grammar, Rule, Spec, Then, Trigger},
    vocabulary::Vocabulary,
};

/// Multi-byte tokens that split JSON and markers in awkward places.
const PIECES: [&str; 40] = [
    " the",
    " a",
    "he",
    "in",
    "er",
    "\": ",
    "\": \"",
    "\",",
    "\", \"",
    "{\"",
    "\"}",
    "}}",
    "}\n",
    "}]",
    "[{",
    "[]",
    "{}",
    "true",
    "false",
    "null",
    "12",
    "3.",
    "00",
    "<tool",
    "_call>",
    ">{",
    ">\n",
    ">\n{\"",
    "><",
    "</",
    "</tool_call>",
    "think",
    "<think>",
    "</think>",
    "</think>{",
    "é",
    "日本",
    "\\n",
    "\\u00",
    "x</tool_call>y",
];
pub(super) const END: u32 = 0;
pub(super) const SPECIAL: u32 = 1;
pub(super) const PADDING: u32 = 2;

/// Returns a byte-level vocabulary, or a SentencePiece-like one with byte tokens.
pub(super) fn vocabulary(byte_level: bool) -> Arc<Vocabulary> {
    let mut vocab = serde_json::Map::new();
    let mut next = PADDING + 1;
    let mut add = |text: String| {
        if vocab.insert(text, json!(next)).is_none() {
            next += 1;
        }
    };
    for byte in 0..=255u8 {
        add(if byte_level { alphabet(&[byte]) } else { format!("<0x{byte:02X}>") });
    }
    if !byte_level {
        (0x20..0x7fu8).for_each(|byte| add(char::from(byte).to_string().replace(' ', "▁")));
    }
    for piece in PIECES {
        add(if byte_level { alphabet(piece.as_bytes()) } else { piece.replace(' ', "▁") });
    }
    let decoder = if byte_level {
        json!({ "type": "ByteLevel" })
    } else {
        json!({ "type": "Sequence", "decoders": [
            { "type": "Replace", "pattern": { "String": "▁" }, "content": " " }, { "type": "ByteFallback" }, { "type": "Fuse" },
        ] })
    };
    let document = json!({
        "added_tokens": [
            { "id": END, "content": "<|end|>", "special": true },
            { "id": SPECIAL, "content": "[TOOL]", "special": true },
        ],
        "decoder": decoder,
        "model": { "type": "BPE", "vocab": vocab, "merges": [] },
    });
    Arc::new(Vocabulary::new(&document.to_string(), next + 7, &[END]).unwrap())
}

fn alphabet(bytes: &[u8]) -> String {
    let char = |byte: u8| match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => u32::from(byte),
        0..=b' ' => 0x100 + u32::from(byte),
        0xad => 0x143,
        _ => 0x121 + u32::from(byte) - 0x7f,
    };
    bytes.iter().map(|byte| char::from_u32(char(*byte)).unwrap()).collect()
}

pub(super) fn compiler(vocabulary: &Arc<Vocabulary>) -> Compiler {
    let compiler = Compiler::new(vocabulary.clone(), Duration::from_secs(2));
    compiler.prepare().unwrap();
    compiler
}

pub(super) fn rule(trigger: Trigger, grammar: Grammar, then: Then) -> Rule {
    Rule { field: String::new(), trigger, open: None, grammar, close: None, then }
}

pub(super) fn from_start(grammar: Grammar) -> Spec {
    Spec { reasoning: None, rules: vec![rule(Trigger::Start, grammar, Then::Stop)] }
}

pub(super) fn schema(value: &Value) -> Grammar {
    Grammar::json_schema(value.to_string(), false)
}

/// The token with these bytes, special or not.
pub(super) fn token(vocabulary: &Vocabulary, bytes: &str) -> u32 {
    let mut tokens = 0..vocabulary.size();
    tokens.find(|token| vocabulary.bytes(*token) == bytes.as_bytes()).unwrap_or_else(|| panic!("no token {bytes:?}"))
}

/// True if the constraint allows a token now.
pub(super) fn allows(constraint: &mut Constraint, token: u32) -> bool {
    constraint.mask().unwrap().is_none_or(|mask| is_allowed(mask, token))
}

/// Writes tokens, all of which must be allowed.
pub(super) fn write(vocabulary: &Vocabulary, constraint: &mut Constraint, tokens: &[&str]) {
    for text in tokens {
        let token = token(vocabulary, text);
        assert!(allows(constraint, token), "{text:?} of {tokens:?} is not allowed");
        constraint.accept(token).unwrap();
    }
}

/// Writes random allowed tokens until the constraint is complete or the end of the turn is picked; a text that grows
/// long is steered to its end where it has one.
pub(super) fn babble(vocabulary: &Vocabulary, mut constraint: Constraint, random: &mut fastrand::Rng) -> Vec<u8> {
    let mut text = Vec::new();
    for step in 0..3000 {
        let mask = constraint.mask().unwrap().expect("the grammar holds from the start").to_vec();
        let allowed: Vec<u32> = (0..vocabulary.size()).filter(|token| is_allowed(&mask, *token)).collect();
        for token in &allowed {
            assert!(*token == END || (!vocabulary.is_special(*token) && !vocabulary.bytes(*token).is_empty()));
        }
        let enders =
            [END, token(vocabulary, "\""), token(vocabulary, "}"), token(vocabulary, "]"), token(vocabulary, "1")];
        let ender = enders.into_iter().find(|ender| allowed.contains(ender)).filter(|_| step > 60);
        let picked = ender.unwrap_or_else(|| *random.choice(&allowed).unwrap());
        constraint.accept(picked).unwrap();
        if picked != END {
            text.extend_from_slice(vocabulary.bytes(picked));
        }
        if constraint.is_complete() {
            return text;
        }
    }
    panic!("no end in sight: {}", String::from_utf8_lossy(&text));
}
