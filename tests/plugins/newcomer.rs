//! A family that nobody but its author has heard of: its GGUF architecture, its pre-tokenizer, its metadata, and the ways in which it
//! writes tool calls and thoughts are in no other model, and all of them come with this file.
//!
//! It is a table that has a row of logits for each token, those of the token that follows. `newcomer-mute` is the same and does
//! not say how it writes calls.

use pensieve_sdk::{
    Plugin, Result, export,
    nn::{Decoder, Embedding, KvShape, Loader, Paged, Shape, Step, Tensor},
    weights::{Checkpoint, GgufFamily, PreTokenizer, Split},
};

export!(
    Plugin::new("newcomer", "a family of its own")
        .architecture(Paged::<Newcomer<true>>::architecture())
        .architecture(Paged::<Newcomer<false>>::architecture())
);

/// Words may have hyphens in them, and are taken whole where the vocabulary has them.
const HYPHENS: PreTokenizer = PreTokenizer {
    ignore_merges: true,
    ..PreTokenizer::new(&["newcomer-hyphens"], &[Split::Regex("[a-z]+(?:-[a-z]+)*"), Split::Bytes])
};

const CALLS_AND_THOUGHTS: &str = r#"{
    "calls": {"open": "<<", "close": ">>", "body": {"named": {
        "before": "ask ", "arguments": " :: {", "form": {"quoted": {"quote": "~"}}}}},
    "reasoning": {"open": "(thinks: ", "close": " :thinks)"}
}"#;

struct Config {
    vocab_size: usize,
    context: usize,
}

struct Newcomer<const TALKS: bool> {
    next: Embedding,
}

impl<const TALKS: bool> Decoder for Newcomer<TALKS> {
    const NAME: &'static str = if TALKS { "newcomer" } else { "newcomer-mute" };
    const GGUF: &'static [&'static str] = &[Self::NAME];
    const CLASSES: &'static [&'static str] = &[];
    const FORMATS: &'static str = if TALKS { CALLS_AND_THOUGHTS } else { "" };

    type Config = Config;

    fn gguf_family(_: &str) -> GgufFamily {
        GgufFamily {
            names: &[("follows", "model.next")],
            keys: &[("memory.reach", "max_position_embeddings")],
            pre_tokenizers: &[HYPHENS],
            ..GgufFamily::default()
        }
    }

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        let config = checkpoint.config();
        Ok(Config { vocab_size: config.usize("vocab_size")?, context: config.usize("max_position_embeddings")? })
    }

    fn shape(config: &Config) -> Shape {
        let kv = KvShape::uniform(1, 1, 16);
        Shape { vocabulary: config.vocab_size, context: config.context, widest: config.vocab_size, kv }
    }

    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        Ok(Self { next: loader.at("model").embedding("next", config.vocab_size, config.vocab_size)? })
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        self.next.forward(step)
    }

    fn logits(&self, hidden: &Tensor, _: &Step<'_>) -> Result<Tensor> {
        Ok(hidden.clone())
    }
}
