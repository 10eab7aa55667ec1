//! The parts of a `tokenizer.json` that matter here; the file itself is passed on as it is.
//!
//! The file is the model's own and stays authoritative. Only its tokens are read, to map texts to ids and to check that
//! it has the right vocabulary, and its post-processor, which decides what is added around a text. Two things are
//! changed, as in transformers when it loads such a file: truncation and padding are removed, and the settings beside
//! the file may change how BOS and EOS are added.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{Error, Result};

/// The fields that are read.
#[derive(Deserialize)]
pub(super) struct Outline {
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    truncation: Value,
    #[serde(default)]
    padding: Value,
    model: Model,
}

/// A token that is matched in the text.
#[derive(Deserialize)]
pub(super) struct Added {
    pub id: u32,
    pub content: String,
}

#[derive(Deserialize)]
struct Model {
    vocab: Tokens,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Tokens {
    Ids(HashMap<String, u32>),
    /// Unigram models list their tokens with scores.
    Scores(Vec<(String, f64)>),
}

/// An end of a text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Front,
    Back,
}

impl Outline {
    pub(super) fn read(json: &str) -> Result<Self> {
        serde_json::from_str(json).map_err(|error| {
            Error::corrupt(format!("is not a tokenizer.json: {error}"))
                .help("download the file again, or write it with the 'save_pretrained' of transformers")
        })
    }

    pub(super) fn added_tokens(&self) -> &[Added] {
        &self.added_tokens
    }

    /// The model's tokens, in no particular order.
    pub(super) fn tokens(&self) -> Box<dyn Iterator<Item = (&str, u32)> + '_> {
        match &self.model.vocab {
            Tokens::Ids(ids) => Box::new(ids.iter().map(|(text, id)| (text.as_str(), *id))),
            Tokens::Scores(scores) => Box::new(scores.iter().map(|(text, _)| text.as_str()).zip(0..)),
        }
    }

    /// One more than the highest id.
    pub(super) fn len(&self) -> usize {
        let added = self.added_tokens.iter().map(|token| token.id);
        self.tokens().map(|(_, id)| id).chain(added).max().map_or(0, |id| id as usize + 1)
    }

    pub(super) fn id(&self, text: &str) -> Option<u32> {
        let added = self.added_tokens.iter().find(|token| token.content == text).map(|token| token.id);
        added.or_else(|| match &self.model.vocab {
            Tokens::Ids(ids) => ids.get(text).copied(),
            Tokens::Scores(_) => self.tokens().find(|(known, _)| *known == text).map(|(_, id)| id),
        })
    }

    pub(super) fn text(&self, id: u32) -> Option<&str> {
        let added = self.added_tokens.iter().find(|token| token.id == id).map(|token| token.content.as_str());
        added.or_else(|| self.tokens().find(|(_, known)| *known == id).map(|(text, _)| text))
    }

    /// True if encoding would truncate or pad, a leftover of training in some files.
    pub(super) fn resizes(&self) -> bool {
        !self.truncation.is_null() || !self.padding.is_null()
    }

    /// True if the post-processor adds this token at this end of a text.
    pub(super) fn adds(&self, id: Option<u32>, place: Place) -> bool {
        id.is_some_and(|id| adds(&self.post_processor, id, place))
    }
}

/// Rewrites the file without truncation and padding, and with another post-processor if given; the rest is unchanged.
pub(super) fn rewritten(json: &str, post_processor: Option<Value>) -> Result<String> {
    let mut document: Map<String, Value> =
        serde_json::from_str(json).map_err(|error| Error::corrupt(format!("is not a tokenizer.json: {error}")))?;
    document.insert("truncation".to_owned(), Value::Null);
    document.insert("padding".to_owned(), Value::Null);
    if let Some(post_processor) = post_processor {
        document.insert("post_processor".to_owned(), post_processor);
    }
    Ok(Value::Object(document).to_string())
}

fn adds(processor: &Value, id: u32, place: Place) -> bool {
    match processor.get("type").and_then(Value::as_str) {
        Some("Sequence") => {
            let processors = processor.get("processors").and_then(Value::as_array);
            processors.is_some_and(|processors| processors.iter().any(|processor| adds(processor, id, place)))
        }
        Some("TemplateProcessing") => {
            let items = processor.get("single").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
            let item = if place == Place::Front { items.first() } else { items.last() };
            let text = item.and_then(|item| item.pointer("/SpecialToken/id")).and_then(Value::as_str);
            let token = text.and_then(|text| processor.get("special_tokens")?.get(text));
            let ids = token.and_then(|token| token.get("ids")).and_then(Value::as_array);
            ids.is_some_and(|ids| ids.contains(&Value::from(id)))
        }
        Some("BertProcessing" | "RobertaProcessing") => {
            let pair = processor.get(if place == Place::Front { "cls" } else { "sep" });
            pair.and_then(|pair| pair.get(1)) == Some(&Value::from(id))
        }
        _ => false,
    }
}
