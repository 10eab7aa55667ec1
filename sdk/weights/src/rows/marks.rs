//! How a `tokenizer.json` changes texts: the tokens that its post-processor puts around one and between the two of a pair,
//! and whether its normalizer lowers their case.

use serde::Deserialize;
use serde_json::Value;

use super::RowsUse;
use crate::{Error, Result};

#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    normalizer: Value,
}

/// Reads the tokens into a description. Processors that add none leave it as it is. Returns whether the tokenizer turns
/// capital letters into small ones.
pub(super) fn read(json: &str, rows: &mut RowsUse) -> Result<bool> {
    let document: Document = serde_json::from_str(json)
        .map_err(|error| Error::corrupt(format!("the tokenizer is not a tokenizer.json: {error}")))?;
    take(&document.post_processor, rows);
    Ok(lowers(&document.normalizer))
}

fn lowers(normalizer: &Value) -> bool {
    match normalizer["type"].as_str() {
        Some("Sequence") => normalizer["normalizers"].as_array().into_iter().flatten().any(lowers),
        Some("Lowercase") => true,
        Some("BertNormalizer") => normalizer["lowercase"].as_bool().unwrap_or(true),
        _ => false,
    }
}

fn take(processor: &Value, rows: &mut RowsUse) {
    match processor["type"].as_str() {
        Some("Sequence") => processor["processors"].as_array().into_iter().flatten().for_each(|one| take(one, rows)),
        Some("TemplateProcessing") => {
            let parts = |form: &str| pieces(&processor[form], &processor["special_tokens"]);
            let [open, close, _] = parts("single");
            let [_, between, last] = parts("pair");
            (rows.open, rows.close, rows.between) = (open, close, if last.is_empty() { Vec::new() } else { between });
        }
        Some(name @ ("BertProcessing" | "RobertaProcessing")) => {
            let id = |key: &str| processor[key][1].as_u64().and_then(|id| u32::try_from(id).ok());
            if let (Some(cls), Some(sep)) = (id("cls"), id("sep")) {
                let between = if name == "RobertaProcessing" { vec![sep; 2] } else { vec![sep] };
                (rows.open, rows.close, rows.between) = (vec![cls], vec![sep], between);
            }
        }
        _ => {}
    }
}

/// The ids before the first text, after it, and after the second.
fn pieces(template: &Value, specials: &Value) -> [Vec<u32>; 3] {
    let (mut found, mut place) = ([Vec::new(), Vec::new(), Vec::new()], 0);
    for piece in template.as_array().into_iter().flatten() {
        if piece.get("Sequence").is_some() {
            place = (place + 1).min(2);
        } else if let Some(name) = piece["SpecialToken"]["id"].as_str() {
            let ids = specials[name]["ids"].as_array().into_iter().flatten();
            found[place].extend(ids.filter_map(Value::as_u64).filter_map(|id| u32::try_from(id).ok()));
        }
    }
    found
}
