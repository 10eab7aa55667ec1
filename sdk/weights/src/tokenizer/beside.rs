//! A `tokenizer.json` that comes with a GGUF file, in its metadata or in the same folder.
//!
//! Such a file is the model's own and better than any reconstruction, and the fallback for tokenizers that cannot be
//! reconstructed. But folders collect files of several models, so it is only used if its tokens match the GGUF file's.

use std::path::Path;

use super::{
    folder::read_text,
    outline::Outline,
    vocabulary::{Kind, Vocabulary},
};
use crate::{Result, gguf::Metadata, quote};

const EMBEDDED: &str = "tokenizer.huggingface.json";

/// The result of the search.
#[derive(Default)]
pub(super) struct Beside {
    /// A `tokenizer.json` for this vocabulary.
    pub json: Option<String>,
    /// Why an existing one was rejected.
    pub refused: Option<String>,
}

/// Looks for a matching `tokenizer.json`.
pub(super) fn find(path: &Path, metadata: &Metadata, vocabulary: &Vocabulary) -> Result<Beside> {
    let mut refused = None;
    let neighbour = path.with_file_name("tokenizer.json");
    let file = neighbour.is_file().then(|| read_text(&neighbour)).transpose()?.flatten();
    let embedded = metadata.string(EMBEDDED)?.map(str::to_owned);
    let places =
        [(file, "the tokenizer.json beside the file".to_owned()), (embedded, format!("metadata '{EMBEDDED}'"))];
    for (json, place) in places {
        let Some(json) = json else { continue };
        match Outline::read(&json).map_err(|error| error.message).and_then(|outline| check(&outline, vocabulary)) {
            Ok(()) => return Ok(Beside { json: Some(json), refused: None }),
            Err(reason) => refused = Some(format!("{place} was not taken: {reason}")),
        }
    }
    Ok(Beside { json: None, refused })
}

/// Returns the first difference between the two vocabularies as an error. Special tokens may be spelled differently,
/// since converters rewrite some.
fn check(outline: &Outline, vocabulary: &Vocabulary) -> std::result::Result<(), String> {
    if outline.len() > vocabulary.len() {
        return Err(format!("it has {} tokens, the model {}", outline.len(), vocabulary.len()));
    }
    let mut same = 0;
    for (text, id) in outline.tokens().filter(|(_, id)| vocabulary.kind(*id) == Kind::Normal) {
        let expected = vocabulary.text(id).unwrap_or_default();
        if text != expected {
            return Err(format!("its token {id} is {}, the model's is {}", quote(text), quote(expected)));
        }
        same += 1;
    }
    let normal = vocabulary.iter().filter(|(_, _, kind)| *kind == Kind::Normal).count();
    // Converters pad the vocabulary up to the rows of the embedding, not always with unused tokens.
    if same < normal - normal / 10 {
        return Err(format!("it has {same} of the model's {normal} tokens"));
    }
    Ok(())
}
