//! How each kind of byte-level BPE splits text into words before merging.
//!
//! A GGUF file names its pre-tokenizer (`tokenizer.ggml.pre`) but does not describe it. The names are those that
//! llama.cpp's converter assigns; each stands for the definition in the model's own `tokenizer.json`, which is what is
//! written here, and not for the approximation that a reader without a full regex engine has to make. A wrong guess
//! would give ids that look right but are not the ones the model was trained on, so a name found neither in this table
//! nor in the plugin is rejected.

use serde_json::{Value, json};

use crate::{Error, Result, quote};

/// A pre-tokenizer that `tokenizer.ggml.pre` may name.
#[derive(Clone, Copy, Debug)]
pub struct PreTokenizer {
    pub names: &'static [&'static str],
    /// Splits applied in order, each within the pieces of the previous one.
    pub splits: &'static [Split],
    /// Normalizes text to Unicode's composed form (NFC) first.
    pub nfc: bool,
    /// Emits a word that is in the vocabulary as one token, as tiktoken does.
    pub ignore_merges: bool,
    /// Adds BOS if the file does not say.
    pub add_bos: bool,
}

/// A step of a [`PreTokenizer`]. The last one encodes bytes as characters, as byte-level BPE needs: [`Split::Bytes`],
/// or [`Split::Gpt2`], which also splits.
#[derive(Clone, Copy, Debug)]
pub enum Split {
    /// Each match of a regular expression becomes a word, and so does each stretch between two matches.
    Regex(&'static str),
    /// Each digit becomes a word.
    Digits,
    /// Runs of digits become words.
    Numbers,
    /// Runs of punctuation become words.
    Punctuation,
    /// GPT-2's own pattern, then byte encoding.
    Gpt2,
    /// Byte encoding only.
    Bytes,
}

/// Pre-tokenizers shared by checkpoints of several architectures.
const KNOWN: &[PreTokenizer] = &[
    TIKTOKEN
        .named(&["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "lfm2", "midm-2.0", "pixtral"])
        .cut(LLAMA3)
        .with_bos(),
    TIKTOKEN.named(&["tekken"]).cut(TEKKEN).with_bos(),
    PLAIN.named(&["dbrx", "smaug-bpe", "chatglm-bpe", "glm4"]).cut(LLAMA3),
    PLAIN.named(&["gpt-4o", "llama4", "kanana2", "minimax-m2"]).cut(GPT4O),
    PLAIN.named(&["tiny_aya", "cohere2moe"]).cut(TINY_AYA),
    PLAIN.named(&["qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "kormo"]).cut(QWEN2).composed(),
    PLAIN.named(&["qwen35"]).cut(QWEN35).composed(),
    PLAIN
        .named(&[
            "gpt-2",
            "phi-2",
            "jais",
            "trillion",
            "mellum",
            "granite-docling",
            "exaone4",
            "a.x-4.0",
            "roberta-bpe",
        ])
        .cut(&[Split::Gpt2]),
    PLAIN.named(&["olmo", "mpt", "modern-bert"]).cut(&[Split::Gpt2]).composed(),
    PLAIN.named(&["smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b"]).cut(DIGITS),
    PLAIN.named(&["command-r"]).cut(DIGITS).composed(),
    PLAIN.named(&["falcon"]).cut(FALCON),
    PLAIN.named(&["deepseek-llm"]).cut(DEEPSEEK_LLM),
    PLAIN.named(&["deepseek-coder"]).cut(DEEPSEEK_CODER),
    PLAIN.named(&["deepseek-v3"]).cut(DEEPSEEK_V3),
    PLAIN.named(&["bloom", "poro-chat", "gpt3-finnish"]).cut(&[BLOOM, Split::Bytes]),
    PLAIN.named(&["viking"]).cut(&[BLOOM, Split::Digits, Split::Bytes]),
    PLAIN.named(&["seed-coder"]).cut(SEED_CODER),
    PLAIN.named(&["bailingmoe", "bailingmoe2", "llada-moe"]).cut(BAILING),
    PLAIN.named(&["default"]).cut(DEFAULT),
];

const PLAIN: PreTokenizer = PreTokenizer::new(&[], &[]);
const TIKTOKEN: PreTokenizer = PreTokenizer { ignore_merges: true, ..PLAIN };

const LLAMA3: &[Split] = &[
    Split::Regex(concat!(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )),
    Split::Bytes,
];
const QWEN2: &[Split] = &[
    Split::Regex(concat!(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )),
    Split::Bytes,
];
const QWEN35: &[Split] = &[
    Split::Regex(concat!(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}",
        r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )),
    Split::Bytes,
];
const TEKKEN: &[Split] = &[
    Split::Regex(concat!(
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
        r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )),
    Split::Bytes,
];
const GPT4O: &[Split] = &[GPT4O_WORDS, Split::Bytes];
/// Groups of three digits from the right, then as GPT-4o.
const TINY_AYA: &[Split] = &[Split::Regex(r"\d{1,3}(?=(?:\d{3})*\b)"), GPT4O_WORDS, Split::Bytes];
const GPT4O_WORDS: Split = Split::Regex(concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
));
const SEED_CODER: &[Split] = &[
    Split::Regex(concat!(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
        r"| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
    )),
    Split::Bytes,
];
const BAILING: &[Split] = &[
    Split::Regex(concat!(
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}",
        r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
    )),
    Split::Bytes,
];
const DIGITS: &[Split] = &[Split::Digits, Split::Gpt2];
/// Falcon splits off numbers after byte encoding, where some of the encoded characters count as digits too.
const FALCON: &[Split] = &[Split::Punctuation, Split::Gpt2, Split::Numbers, Split::Regex("[0-9][0-9][0-9]")];
const BLOOM: Split = Split::Regex(concat!(r" ?[^(\s|.,!?", "\u{2026}\u{3002}\u{ff0c}\u{3001}\u{964}\u{6d4}\u{60c})]+"));
const DEEPSEEK_LLM: &[Split] = &[
    Split::Regex(r"[\r\n]"),
    Split::Regex(concat!(
        r"\s?[A-Za-z",
        "\u{b5}\u{c0}-\u{d6}\u{d8}-\u{f6}\u{f8}-\u{1ba}\u{1bc}-\u{1bf}\u{1c4}-\u{293}\u{295}-\u{2af}",
        "\u{370}-\u{373}\u{376}\u{377}\u{37b}-\u{37d}\u{37f}\u{386}\u{388}-\u{38a}\u{38c}\u{38e}-\u{3a1}",
        "\u{3a3}-\u{3f5}\u{3f7}-\u{481}\u{48a}-\u{52f}\u{531}-\u{556}\u{10a0}-\u{10c5}\u{13a0}-\u{13f5}",
        "\u{13f8}-\u{13fd}\u{1c90}-\u{1cba}\u{1cbd}-\u{1cbf}\u{1d00}-\u{1d2b}\u{1d6b}-\u{1d77}",
        "\u{1d79}-\u{1d9a}\u{1e00}-\u{1f15}\u{1f18}-\u{1f1d}\u{1f20}-\u{1f45}\u{1f48}-\u{1f4d}",
        "\u{1f50}-\u{1f57}\u{1f59}\u{1f5b}\u{1f5d}\u{1f5f}-\u{1f7d}\u{1f80}-\u{1fb4}\u{1fb6}-\u{1fbc}",
        "\u{1fbe}\u{1fc2}-\u{1fc4}\u{1fc6}-\u{1fcc}\u{1fd0}-\u{1fd3}\u{1fd6}-\u{1fdb}\u{1fe0}-\u{1fec}",
        "\u{1ff2}-\u{1ff4}\u{1ff6}-\u{1ffc}\u{2102}\u{2107}\u{210a}-\u{2113}\u{2115}\u{2119}-\u{211d}",
        "\u{2124}\u{2126}\u{2128}\u{212a}-\u{212d}\u{212f}-\u{2134}\u{2139}\u{213c}-\u{213f}",
        "\u{2145}-\u{2149}\u{214e}\u{2183}\u{2184}\u{2c00}-\u{2c7b}\u{2c7e}-\u{2ce4}\u{2ceb}-\u{2cee}",
        "\u{2cf2}\u{2cf3}\u{a640}-\u{a66d}\u{a680}-\u{a69b}\u{a722}-\u{a76f}\u{a771}-\u{a787}",
        "\u{a78b}-\u{a78e}\u{ab70}-\u{abbf}\u{fb00}-\u{fb06}\u{fb13}-\u{fb17}\u{ff21}-\u{ff3a}",
        "\u{ff41}-\u{ff5a}\u{10400}-\u{1044f}\u{104b0}-\u{104d3}\u{104d8}-\u{104fb}\u{10c80}-\u{10cb2}",
        "\u{10cc0}-\u{10cf2}\u{118a0}-\u{118df}\u{1e900}-\u{1e943}",
        "]+"
    )),
    Split::Regex(concat!(r"\s?[!-/:-~", "\u{ff01}-\u{ff0f}\u{ff1a}-\u{ff5e}\u{2018}-\u{201f}\u{3000}-\u{3002}]+")),
    Split::Regex(r"\s+$"),
    Split::Regex("[\u{4e00}-\u{9fa5}\u{800}-\u{4e00}\u{ac00}-\u{d7ff}]+"),
    Split::Numbers,
    Split::Bytes,
];
const DEEPSEEK_CODER: &[Split] = &[
    Split::Regex(r"[\r\n]"),
    Split::Regex(r"\s?\p{L}+"),
    Split::Regex(r"\s?\p{P}+"),
    Split::Regex("[\u{4e00}-\u{9fa5}\u{800}-\u{4e00}\u{ac00}-\u{d7ff}]+"),
    Split::Digits,
    Split::Bytes,
];
const DEEPSEEK_V3: &[Split] = &[
    Split::Regex(r"\p{N}{1,3}"),
    Split::Regex("[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+"),
    Split::Regex(concat!(
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )),
    Split::Bytes,
];
/// llama.cpp's fallback, for which files that say "default" were made.
const DEFAULT: &[Split] = &[
    Split::Regex(r"[\p{P}\$\+<=>\^~\|]+"),
    Split::Regex(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"),
    Split::Regex(r"\p{N}+"),
    Split::Regex("[0-9][0-9][0-9]"),
    Split::Bytes,
];

impl PreTokenizer {
    /// A pre-tokenizer without normalization, and without BOS unless the file asks for it.
    pub const fn new(names: &'static [&'static str], splits: &'static [Split]) -> Self {
        Self { names, splits, nfc: false, ignore_merges: false, add_bos: false }
    }

    /// Looks a name up, first in `own`, then in the SDK's table.
    pub(super) fn find(name: &str, own: &[Self]) -> Result<Self> {
        let mut known = own.iter().chain(KNOWN);
        known.clone().find(|known| known.names.contains(&name)).copied().ok_or_else(|| {
            let known: Vec<_> = known.by_ref().flat_map(|known| known.names).copied().collect();
            Error::unsupported(format!(
                "metadata 'tokenizer.ggml.pre': the pre-tokenizer {} is not known (known: {})",
                quote(name),
                known.join(", ")
            ))
            .help(
                "put the model's own tokenizer.json beside the .gguf file, or bring the pre-tokenizer with the plugin",
            )
        })
    }

    /// Returns the pre-tokenizer of a file without `tokenizer.ggml.pre`.
    pub(super) fn unnamed(architecture: &str, has_token: impl Fn(&str) -> bool) -> Result<Self> {
        if has_token("<|begin_of_text|>") && has_token("<|start_header_id|>") {
            return Self::find("llama-bpe", &[]);
        }
        Err(Error::unsupported(format!(
            "the metadata has no 'tokenizer.ggml.pre', and models of the architecture {} cut words in different ways",
            quote(architecture)
        ))
        .help("convert or download the model again, or put its own tokenizer.json beside the .gguf file"))
    }

    pub(super) fn normalizer_json(&self) -> Value {
        if self.nfc { json!({ "type": "NFC" }) } else { Value::Null }
    }

    pub(super) fn json(&self) -> Value {
        let steps: Vec<_> = self.splits.iter().map(Split::json).collect();
        match <[Value; 1]>::try_from(steps) {
            Ok([only]) => only,
            Err(steps) => json!({ "type": "Sequence", "pretokenizers": steps }),
        }
    }

    const fn named(self, names: &'static [&'static str]) -> Self {
        Self { names, ..self }
    }

    const fn cut(self, splits: &'static [Split]) -> Self {
        Self { splits, ..self }
    }

    const fn composed(self) -> Self {
        Self { nfc: true, ..self }
    }

    const fn with_bos(self) -> Self {
        Self { add_bos: true, ..self }
    }
}

impl Split {
    fn json(&self) -> Value {
        let bytes = |use_regex: bool| json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex });
        match self {
            Self::Regex(pattern) => {
                json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false })
            }
            Self::Digits => json!({ "type": "Digits", "individual_digits": true }),
            Self::Numbers => json!({ "type": "Digits", "individual_digits": false }),
            Self::Punctuation => json!({ "type": "Punctuation", "behavior": "Contiguous" }),
            Self::Gpt2 => bytes(true),
            Self::Bytes => bytes(false),
        }
    }
}
