//! Filling in the middle: coders are trained with three tokens that mark the text before a gap, the text after it, and
//! the place where the model writes what belongs between. Which ones, the vocabulary says.

use pensieve_protocol::{
    job::{Failure, FailureCode},
    vocabulary::Vocabulary,
};

/// The tokens of a family, in the order of its prompt.
struct Form {
    before_prefix: &'static str,
    before_suffix: &'static str,
    /// Empty if the answer follows the prefix directly.
    last: &'static str,
    /// The suffix comes first.
    suffix_first: bool,
}

const fn form(before_prefix: &'static str, before_suffix: &'static str, last: &'static str) -> Form {
    Form { before_prefix, before_suffix, last, suffix_first: false }
}

const FORMS: [Form; 8] = [
    // Qwen Coder, CodeGemma, Granite 4.
    form("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    // StarCoder and what was trained like it, Granite 3.
    form("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    // SantaCoder.
    form("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    // DeepSeek Coder.
    form("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    // CodeLlama.
    form("▁<PRE>", "▁<SUF>", "▁<MID>"),
    // GLM and CodeGeeX.
    form("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    // Seed Coder.
    Form {
        before_prefix: "<[fim-prefix]>",
        before_suffix: "<[fim-suffix]>",
        last: "<[fim-middle]>",
        suffix_first: true,
    },
    // Codestral.
    Form { before_prefix: "[PREFIX]", before_suffix: "[SUFFIX]", last: "", suffix_first: true },
];
/// Tokens after which the gap is filled, besides the markers themselves.
const ENDS: [&str; 9] = [
    "<|endoftext|>",
    "<|fim_pad|>",
    "<|file_sep|>",
    "<|repo_name|>",
    "<fim_pad>",
    "<file_sep>",
    "<｜end▁of▁sentence｜>",
    "▁<EOT>",
    "<EOT>",
];

/// How a model fills in the middle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Infill {
    before_prefix: &'static str,
    before_suffix: &'static str,
    last: &'static str,
    suffix_first: bool,
    /// Tokens that end the text.
    pub(super) ends: Vec<u32>,
}

impl Infill {
    /// The first form whose tokens are all in the vocabulary.
    pub(super) fn of(vocabulary: &Vocabulary) -> Option<Self> {
        let token = |name: &str| (0..vocabulary.size()).find(|token| vocabulary.bytes(*token) == name.as_bytes());
        let Form { before_prefix, before_suffix, last, suffix_first } = FORMS.into_iter().find(|form| {
            let names = [form.before_prefix, form.before_suffix, form.last];
            names.iter().filter(|name| !name.is_empty()).all(|name| token(name).is_some())
        })?;
        let names = [before_prefix, before_suffix, last].into_iter().filter(|name| !name.is_empty());
        let ends = names.chain(ENDS).filter_map(token).collect();
        Some(Self { before_prefix, before_suffix, last, suffix_first, ends })
    }

    /// The prompt for the text between these two.
    pub(super) fn write(&self, prefix: &str, suffix: &str) -> String {
        let Self { before_prefix, before_suffix, last, .. } = *self;
        if self.suffix_first {
            [before_suffix, suffix, before_prefix, prefix, last].concat()
        } else {
            [before_prefix, prefix, before_suffix, suffix, last].concat()
        }
    }
}

/// Error for a model without such tokens.
pub(super) fn unknown() -> Failure {
    let message = "this model was not trained to fill in the middle: its vocabulary has no tokens for that";
    let help = "ask a coder's base model (Qwen Coder, StarCoder, Codestral, …), or put what comes after the gap into the prompt";
    Failure::new(FailureCode::Invalid, message).at("suffix").with_help(help)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Map, Value, json};

    use super::*;

    fn vocabulary(special: &[&str]) -> Vocabulary {
        let words = ["a", "b"].iter().chain(special);
        let vocab: Map<String, Value> = words.enumerate().map(|(id, word)| ((*word).to_owned(), id.into())).collect();
        let added: Vec<Value> = special
            .iter()
            .enumerate()
            .map(|(place, word)| {
                json!({"id": place + 2, "content": word, "special": true, "single_word": false, "lstrip": false,
                    "rstrip": false, "normalized": false})
            })
            .collect();
        let document = json!({"added_tokens": added, "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": vocab, "merges": []}});
        Vocabulary::new(&document.to_string(), vocab_len(special), &[]).unwrap()
    }

    fn vocab_len(special: &[&str]) -> u32 {
        special.len() as u32 + 2
    }

    #[test]
    fn the_vocabulary_decides_the_form() {
        let written = |special: &[&str]| Infill::of(&vocabulary(special)).map(|infill| infill.write("P", "S"));
        let qwen = ["<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"];
        assert_eq!(written(&qwen).unwrap(), "<|fim_prefix|>P<|fim_suffix|>S<|fim_middle|>");
        let deepseek = ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"];
        assert_eq!(written(&deepseek).unwrap(), "<｜fim▁begin｜>P<｜fim▁hole｜>S<｜fim▁end｜>");
        assert_eq!(written(&["[PREFIX]", "[SUFFIX]"]).unwrap(), "[SUFFIX]S[PREFIX]P");
        assert_eq!(written(&["<fim_prefix>", "<fim_suffix>"]), None);
        assert_eq!(written(&[]), None);
        let ends = Infill::of(&vocabulary(&[qwen.as_slice(), &["<|fim_pad|>"]].concat())).unwrap().ends;
        assert_eq!(ends, [2, 4, 3, 5]);
    }
}
