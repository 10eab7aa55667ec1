//! Hand-written tokenizers, valid and invalid, and the expected bytes of their tokens.

use serde_json::{Value, json};

use super::*;

/// The characters of GPT-2's alphabet, computed as GPT-2 does.
fn alphabet() -> Vec<char> {
    let mut next = 0x100;
    (0u8..=255)
        .map(|byte| match byte {
            b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
            _ => {
                next += 1;
                char::from_u32(next - 1).unwrap()
            }
        })
        .collect()
}

fn byte_level() -> Value {
    let letters = alphabet();
    let mut vocab: serde_json::Map<_, _> = (0..256).map(|id| (letters[id].to_string(), json!(id))).collect();
    vocab.insert("Ġcafé".chars().map(|c| if c == 'é' { "Ã©".to_owned() } else { c.to_string() }).collect(), json!(256));
    vocab.insert("日".to_owned(), json!(257));
    json!({
        "added_tokens": [
            { "id": 258, "content": "<|end|>", "special": true },
            { "id": 259, "content": "<tool_call>", "special": false },
            { "id": 4_000_000, "content": "beyond", "special": true },
        ],
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": [
            { "type": "Split", "pattern": { "Regex": "x" }, "behavior": "Isolated", "invert": false },
            { "type": "ByteLevel", "add_prefix_space": false },
        ] },
        "decoder": { "type": "ByteLevel" },
        "model": { "type": "BPE", "vocab": vocab, "merges": [["a", "b"]] },
    })
}

fn sentencepiece() -> Value {
    let mut vocab = serde_json::Map::from_iter([("<unk>".to_owned(), json!(0)), ("</s>".to_owned(), json!(1))]);
    vocab.extend((0..256).map(|byte| (format!("<0x{byte:02X}>"), json!(byte + 2))));
    vocab.extend(
        ["▁", "▁the", "a▁b", "<0xZZ>", "é"].iter().zip(258..).map(|(text, id)| ((*text).to_owned(), json!(id))),
    );
    json!({
        "added_tokens": [
            { "id": 0, "content": "<unk>", "special": true },
            { "id": 1, "content": "</s>", "special": true },
        ],
        "pre_tokenizer": null,
        "decoder": { "type": "Sequence", "decoders": [
            { "type": "Replace", "pattern": { "String": "▁" }, "content": " " },
            { "type": "ByteFallback" }, { "type": "Fuse" },
            { "type": "Strip", "content": " ", "start": 1, "stop": 0 },
        ] },
        "model": { "type": "BPE", "byte_fallback": true, "vocab": vocab, "merges": [] },
    })
}

fn read(document: &Value, size: u32, ends: &[u32]) -> Result<Vocabulary, VocabularyError> {
    Vocabulary::new(&document.to_string(), size, ends)
}

#[test]
fn maps_every_character_of_the_byte_level_alphabet_to_its_byte() {
    let vocabulary = read(&byte_level(), 260, &[258]).unwrap();
    for byte in 0u8..=255 {
        assert_eq!(vocabulary.bytes(u32::from(byte)), [byte]);
    }
    assert_eq!(vocabulary.bytes(256), " café".as_bytes());
    assert_eq!(vocabulary.bytes(257), "日".as_bytes(), "a character outside the alphabet is meant as it stands");
}

#[test]
fn reads_sentencepiece_spaces_and_bytes() {
    let vocabulary = read(&sentencepiece(), 263, &[1]).unwrap();
    let tokens: Vec<&[u8]> = [2, 12, 257, 258, 259, 260, 261, 262].iter().map(|id| vocabulary.bytes(*id)).collect();
    let wanted: [&[u8]; 8] = [b"\0", b"\n", b"\xff", b" ", b" the", b"a b", b"<0xZZ>", "é".as_bytes()];
    assert_eq!(tokens, wanted);
}

#[test]
fn reads_unigram_lists_and_metaspace() {
    let document = json!({
        "decoder": { "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always" },
        "model": { "type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["▁a", -1.5], ["<0x41>", -2]] },
    });
    let vocabulary = read(&document, 3, &[]).unwrap();
    assert_eq!([vocabulary.bytes(1), vocabulary.bytes(2)], [b" a".as_slice(), b"<0x41>"]);
}

#[test]
fn takes_the_alphabet_from_the_pre_tokenizer_where_there_is_no_decoder() {
    let mut document = byte_level();
    document["decoder"] = Value::Null;
    assert_eq!(read(&document, 260, &[]).unwrap().bytes(256), " café".as_bytes());
    document["pre_tokenizer"] = json!({ "type": "Whitespace" });
    assert!(read(&document, 260, &[]).unwrap_err().to_string().contains("has no decoder"));
}

#[test]
fn special_and_end_of_turn_tokens_are_not_text() {
    let vocabulary = read(&byte_level(), 300, &[259]).unwrap();
    assert!(vocabulary.is_special(258) && !vocabulary.ends_turn(258));
    assert!(
        vocabulary.is_special(259) && vocabulary.ends_turn(259),
        "what ends a turn is special, whatever the file says"
    );
    assert!(!vocabulary.is_special(97) && !vocabulary.is_special(u32::MAX));
    assert_eq!(vocabulary.bytes(258), b"<|end|>");
    assert_eq!((vocabulary.bytes(299), vocabulary.bytes(u32::MAX)), (b"".as_slice(), b"".as_slice()));
}

#[test]
fn a_text_has_at_least_as_many_tokens_as_its_bytes_over_the_longest_one() {
    let vocabulary = read(&byte_level(), 260, &[258]).unwrap();
    let longest = (0..260).map(|token| vocabulary.bytes(token).len()).max().unwrap();
    assert_eq!(longest, "<tool_call>".len());
    assert_eq!(vocabulary.tokens_min(TEXT_BYTES_MIN), 0, "a short text is counted by its tokens alone");
    assert_eq!(vocabulary.tokens_min(longest << 20), 1 << 20);
    let mut document = byte_level();
    document["normalizer"] = json!({ "type": "NFC" });
    let vocabulary = read(&document, 260, &[258]).unwrap();
    assert_eq!(vocabulary.tokens_min(longest << 20), (1 << 20) / NORMALIZED_FACTOR, "it may become shorter");
}

#[test]
fn word_pieces_continue_a_word_or_begin_one() {
    let words = json!({"[SEP]": 0, "play": 1, "##ing": 2, "-ing": 3, "##": 4});
    let added = json!([{"id": 0, "content": "[SEP]", "special": true}]);
    let read_with = |decoder: Value| {
        let document = json!({"added_tokens": added, "model": {"vocab": words}, "decoder": decoder});
        let vocabulary = read(&document, 5, &[]).unwrap();
        (0..5).map(|id| vocabulary.text_of(&[id])).collect::<Vec<_>>()
    };
    assert_eq!(read_with(json!({"type": "WordPiece"})), ["[SEP]", " play", "ing", " -ing", ""]);
    assert_eq!(read_with(json!({"type": "WordPiece", "prefix": "-"})), ["[SEP]", " play", " ##ing", "ing", " ##"]);
}

#[test]
fn refuses_documents_that_do_not_define_bytes() {
    let cases = [
        ("{", "is not a valid tokenizer.json"),
        ("[]", "is not a valid tokenizer.json"),
        (r#"{"model":{"vocab":{"a":-1}}}"#, "is not a valid tokenizer.json"),
        (r#"{"model":{"vocab":{"a":1.5}}}"#, "is not a valid tokenizer.json"),
        (r#"{"model":{"vocab":7}}"#, "is not a valid tokenizer.json"),
        (r#"{"model":{"vocab":{}},"decoder":{"type":"CTC"}}"#, "decoder of type 'CTC'"),
        (r#"{"model":{"vocab":{}},"decoder":7}"#, "decoder of type ''"),
        (
            r#"{"model":{"vocab":{}},"decoder":{"type":"Replace","pattern":{"Regex":"a"},"content":""}}"#,
            "fixed strings",
        ),
    ];
    for (document, wanted) in cases {
        let error = Vocabulary::new(document, 10, &[]).unwrap_err().to_string();
        assert!(error.contains(wanted), "{document}: {error}");
    }
    let good = byte_level().to_string();
    assert!(Vocabulary::new(&good, 0, &[]).is_err());
    assert!(Vocabulary::new(&good, TOKENS_MAX + 1, &[]).is_err());
    assert!(Vocabulary::new(&good, 260, &[260]).unwrap_err().to_string().contains("token 260 cannot end a turn"));
}

#[test]
fn survives_truncated_and_altered_documents() {
    let mut random = fastrand::Rng::with_seed(3);
    let text = sentencepiece().to_string();
    for _ in 0..500 {
        let mut bytes = text.clone().into_bytes();
        if random.bool() {
            bytes.truncate(random.usize(..bytes.len()));
        }
        for _ in 0..random.usize(1..20) {
            let at = random.usize(..bytes.len().max(1));
            if let Some(byte) = bytes.get_mut(at) {
                *byte = *random.choice(b"\"{}[],:0919.eE-\\utrue ").unwrap();
            }
        }
        if let Ok(vocabulary) = Vocabulary::new(&String::from_utf8_lossy(&bytes), 263, &[1]) {
            assert_eq!(vocabulary.size(), 263);
        }
    }
}

#[test]
fn an_alphabet_has_the_single_bytes_the_special_tokens_and_those_that_are_asked_for() {
    let whole = Vocabulary::new(&byte_level().to_string(), 300, &[258]).unwrap();
    let thin = Vocabulary::try_from(whole.alphabet(&[257])).unwrap();
    assert_eq!((thin.size(), thin.end_of_turn()), (300, &[258][..]));
    for token in 0..310 {
        let kept = token < 256 || [257, 258].contains(&token);
        assert_eq!(thin.bytes(token), if kept { whole.bytes(token) } else { &[] }, "token {token}");
        assert_eq!(thin.is_special(token), token == 258, "token {token}");
    }
    let frame = |alphabet: &Alphabet| crate::wire::encode(alphabet).unwrap().len();
    let large = Vocabulary::new(&byte_level().to_string(), 260_000, &[]).unwrap();
    assert!(frame(&large.alphabet(&[])) < 2048, "tokens that no grammar needs cost nothing");
}

#[test]
fn an_alphabet_that_makes_no_sense_is_refused() {
    let token = |id: u32| (id, vec![b'a'], false);
    for (size, tokens) in [
        (2, vec![token(0), token(2)]),
        (2, vec![token(1), token(0)]),
        (2, vec![token(1), token(1)]),
        (TOKENS_MAX + 1, vec![token(0)]),
    ] {
        assert!(Vocabulary::try_from(Alphabet { size, tokens, end_of_turn: Vec::new() }).is_err());
    }
    let thin = Vocabulary::try_from(Alphabet { size: 2, tokens: vec![token(1)], end_of_turn: vec![1, 7] }).unwrap();
    assert_eq!((thin.bytes(0), thin.bytes(1), thin.end_of_turn()), (&b""[..], &b"a"[..], &[1][..]));
}
