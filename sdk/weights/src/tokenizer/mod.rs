//! The tokenizer of a checkpoint, as the text of a `tokenizer.json`.
//!
//! The host encodes and decodes with the `tokenizers` crate, which reads exactly one format. Safetensors folders
//! usually include that file; GGUF files have a vocabulary and a few names instead, and the meaning of those names is
//! defined here. The goal is the ids that the model's own tokenizer gives, for every text: a tokenizer that is almost
//! right makes a model slightly worse without a visible cause, so a tokenizer that is not known for certain is
//! rejected.
//!
//! `json`'s post-processor and `add_bos`, `add_eos` always agree: encoding with special tokens adds BOS exactly if
//! `add_bos` is set, and encoding without them, as for a rendered chat template, never does.

mod beside;
mod bpe;
mod document;
mod folder;
mod lines;
mod longest;
mod model_file;
mod outline;
mod sentencepiece;
mod special;
#[cfg(test)]
mod tests;
mod unigram;
mod vocabulary;
mod wordpiece;

use std::path::Path;

use self::vocabulary::Vocabulary;
use super::{
    GgufFamily,
    gguf::{self, Metadata},
    quote,
};
use crate::{Error, Result};

/// Help text for folders without a readable tokenizer.
const HOW_TO_CONVERT: &str = "write a tokenizer.json into the folder with transformers: \
     AutoTokenizer.from_pretrained(folder).save_pretrained(folder)";

/// A tokenizer: how text becomes ids, and which ids are special to the engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tokenizer {
    /// The text of a `tokenizer.json`, for the `tokenizers` crate.
    pub json: String,
    /// A Jinja template that renders a conversation; its output is encoded without special tokens.
    pub chat_template: Option<String>,
    /// Starts every text.
    pub bos: Option<u32>,
    /// All tokens that end a turn, the model's own end of text first.
    pub eos: Vec<u32>,
    /// The padding token.
    pub pad: Option<u32>,
    /// Stands for text that the vocabulary cannot express.
    pub unknown: Option<u32>,
    /// Encoding with special tokens puts `bos` before the text.
    pub add_bos: bool,
    /// Encoding with special tokens puts the first `eos` after the text.
    pub add_eos: bool,
}

impl Tokenizer {
    /// Reads the tokenizer of a `.gguf` file, or of a folder in Hugging Face's layout.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_with(path, &GgufFamily::USUAL)
    }

    /// Like [`Tokenizer::open`], with a plugin's conventions for the file's architecture.
    pub fn open_with(path: &Path, family: &GgufFamily) -> Result<Self> {
        if path.is_dir() {
            return Self::from_folder(path);
        }
        let parts = gguf::open(path)?;
        let first = parts.first().ok_or_else(|| Error::corrupt("the model has no parts").context(path.display()))?;
        Self::from_gguf(path, &first.metadata, family).map_err(|error| error.context(path.display()))
    }

    /// Reads `tokenizer.json` and the files beside it, or `tokenizer.model` if there is none.
    pub fn from_folder(folder: &Path) -> Result<Self> {
        folder::read(folder)
    }

    /// Builds a tokenizer from a GGUF file's metadata. A `tokenizer.json` in the metadata or beside the file is used
    /// instead if it has the same vocabulary: it is the model's own.
    pub fn from_gguf(path: &Path, metadata: &Metadata, family: &GgufFamily) -> Result<Self> {
        let architecture = metadata.string("general.architecture")?.unwrap_or_default();
        let kind = metadata.string("tokenizer.ggml.model")?.ok_or_else(|| metadata.missing("tokenizer.ggml.model"))?;
        if matches!(kind, "none" | "no_vocab") {
            return Err(Error::unsupported("metadata 'tokenizer.ggml.model': the file has no tokenizer")
                .help("convert the model again with its vocabulary, or download another conversion"));
        }
        let mut vocabulary = Vocabulary::read(metadata)?;
        if kind == "bert" {
            wordpiece::respell(&mut vocabulary).map_err(|error| error.context("metadata 'tokenizer.ggml.tokens'"))?;
        }
        let mut tokenizer = special::read(metadata, kind, &mut vocabulary)?;
        let beside = beside::find(path, metadata, &vocabulary)?;
        if let Some(json) = beside.json {
            return tokenizer.with_json(json);
        }
        let mut build = |tokenizer: &mut Self| {
            match kind {
            "gpt2" => bpe::build(metadata, architecture, family, &vocabulary, tokenizer),
            "llama" => sentencepiece::build_from_gguf(metadata, family, &mut vocabulary, tokenizer),
            "gemma4" => lines::build(metadata, &mut vocabulary, tokenizer),
            "bert" => wordpiece::build(metadata, &mut vocabulary, tokenizer),
            "t5" => unigram::build(metadata, &vocabulary, tokenizer),
            "rwkv" => longest::build(&vocabulary, tokenizer),
            _ => Err(Error::unsupported(format!(
                "metadata 'tokenizer.ggml.model': tokenizers of the kind {} cannot be read (known: gpt2, llama, gemma4, bert, t5, rwkv)",
                quote(kind)
            ))
            .help("put the model's own tokenizer.json beside the .gguf file")),
        }
        };
        let json = build(&mut tokenizer).map_err(|error| match beside.refused {
            Some(reason) => error.help(reason),
            None => error,
        })?;
        Ok(Self { json, ..tokenizer })
    }

    /// Returns the id of a token by its text; `None` if there is no such token.
    pub fn id(&self, text: &str) -> Result<Option<u32>> {
        Ok(outline::Outline::read(&self.json)?.id(text))
    }

    /// Adopts a ready `tokenizer.json`, whose post-processor determines BOS and EOS.
    fn with_json(mut self, json: String) -> Result<Self> {
        let outline = outline::Outline::read(&json)?;
        self.add_bos = outline.adds(self.bos, outline::Place::Front);
        self.add_eos = outline.adds(self.eos.first().copied(), outline::Place::Back);
        self.json = if outline.resizes() { outline::rewritten(&json, None)? } else { json };
        Ok(self)
    }
}
