//! Reads reference results of another implementation.

use pensieve_laws::Reference;
use safetensors::{Dtype, SafeTensors};
use std::{fs, path::Path};

use super::super::error::{CliError, Exit};
use pensieve_protocol::{card::Card, outside::Outside};

/// 1000 rows of f32 logits over a vocabulary of 256k.
const REFERENCE_BYTES_MAX: u64 = 1 << 30;
/// Default tolerance as a fraction of the range of the reference's values. For scale: rounding activations to 8 bits
/// moves the starter's logits by 2 %, a wrong rotary embedding by 50 %.
const REFERENCE_TOLERANCE: f32 = 0.05;

/// Reads `tokens`, integers, and for each a row of F32 `logits`, or of `hidden` values, `hidden` in a row, or of both.
pub(super) fn read(file: &Path, tolerance: Option<f32>, card: &Card, hidden: usize) -> Result<Reference, CliError> {
    let wrong = |what: String| {
        let help = "docs/writing-a-plugin.md has a script that writes one";
        CliError::new(Exit::Usage, format!("the reference '{}' {what}; {help}", Outside::path(&file)))
    };
    let unread =
        |error: std::io::Error| CliError::system(format_args!("the reference '{}'", Outside::path(&file)), &error);
    let metadata = file.metadata().map_err(unread)?;
    if !metadata.is_file() {
        return Err(wrong("is not a file".into()));
    }
    let bytes = metadata.len();
    if bytes > REFERENCE_BYTES_MAX {
        return Err(wrong(format!("has {bytes} bytes, more than {REFERENCE_BYTES_MAX}")));
    }
    let bytes = fs::read(file).map_err(unread)?;
    let tensors =
        SafeTensors::deserialize(&bytes).map_err(|error| wrong(format!("is not a safetensors file: {error}")))?;
    let find = |name: &str| tensors.tensor(name).map_err(|_| wrong(format!("has no tensor '{name}'")));
    let tokens = find("tokens")?;
    let has = |name| tensors.names().contains(&name);
    let names: &[_] = match (has("logits"), has("hidden")) {
        (true, true) => &["logits", "hidden"],
        (true, false) => &["logits"],
        (false, true) => &["hidden"],
        (false, false) => return Err(wrong("has neither 'logits' nor 'hidden' beside 'tokens'".into())),
    };
    let ids: Option<Vec<u32>> = match tokens.dtype() {
        Dtype::U32 => Some(numbers(tokens.data(), u32::from_le_bytes)),
        Dtype::I32 => numbers(tokens.data(), i32::from_le_bytes).into_iter().map(|id| id.try_into().ok()).collect(),
        Dtype::I64 => numbers(tokens.data(), i64::from_le_bytes).into_iter().map(|id| id.try_into().ok()).collect(),
        other => return Err(wrong(format!("has 'tokens' of {other:?}; they are I64, I32 or U32"))),
    };
    let Some(ids) = ids.filter(|ids| ids.iter().all(|&id| id < card.vocabulary)) else {
        return Err(wrong(format!("has 'tokens' that are not all ids below the vocabulary size {}", card.vocabulary)));
    };
    let mut reference = Reference { tokens: ids, ..Reference::default() };
    for name in names {
        let (tensor, rows) = (find(name)?, reference.tokens.len());
        let width = if *name == "hidden" { hidden } else { card.vocabulary as usize };
        let expected = [rows, width];
        if rows == 0 || tensor.dtype() != Dtype::F32 || tensor.shape() != expected {
            let actual = format!("{:?} of {:?}", tensor.dtype(), tensor.shape());
            return Err(wrong(format!(
                "has '{name}' that are {actual}, not F32 of {expected:?}, a row for each token"
            )));
        }
        let values = numbers(tensor.data(), f32::from_le_bytes);
        if let Some(index) = values.iter().position(|value| !value.is_finite()) {
            let (value, row, column) = (values[index], index / width, index % width);
            return Err(wrong(format!("has {value} among its '{name}', in row {row}, column {column}")));
        }
        let (low, high) = values.iter().fold((f32::MAX, f32::MIN), |(low, high), &x| (low.min(x), high.max(x)));
        let derived = tolerance.unwrap_or((high - low) * REFERENCE_TOLERANCE);
        if !(derived.is_finite() && derived > 0.0) {
            let what = format!("has '{name}' from {low} to {high}, from which no tolerance can be derived");
            return Err(wrong(format!("{what}: set --tolerance")));
        }
        // Of both, the logits' range decides.
        reference.tolerance = if reference.tolerance > 0.0 { reference.tolerance } else { derived };
        *(if *name == "hidden" { &mut reference.hidden } else { &mut reference.logits }) = values;
    }
    Ok(reference)
}

fn numbers<T, const N: usize>(bytes: &[u8], read: fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks().0.iter().map(|bytes| read(*bytes)).collect()
}
