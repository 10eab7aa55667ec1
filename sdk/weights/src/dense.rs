//! Dense layers after pooling: sentence-transformers' folders `2_Dense`, `3_Dense` …, and their tensors in GGUF files.
//!
//! Their weights join the checkpoint's, under the folder's name: `2_Dense.linear.weight`.

use std::path::Path;

use serde_json::Value;

use super::{Weights, json, modules, packed::Entry, quote, safetensors};
use crate::{Error, Result};

const FILE_BYTES_MAX: u64 = 1 << 20;
const LAYERS_MAX: usize = 16;

/// A dense layer that follows pooling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DenseLayer {
    /// Path of its weights: `2_Dense`.
    pub path: String,
    pub inputs: usize,
    pub outputs: usize,
    /// `tanh` after the product; otherwise nothing.
    pub tanh: bool,
}

/// Reads the layers that a folder's `modules.json` lists, with their tensors.
pub(super) fn of_folder(folder: &Path) -> Result<(Vec<DenseLayer>, Vec<Entry>)> {
    let (mut layers, mut entries) = (Vec::new(), Vec::new());
    for module in modules::read(folder)?.unwrap_or_default() {
        if module.kind != "Dense" {
            continue;
        }
        let place = &module.place[..];
        if place.is_empty() || layers.len() == LAYERS_MAX {
            let path = folder.join("modules.json");
            let message = format!("{}: {} is no folder of a dense layer", path.display(), quote(place));
            return Err(Error::corrupt(message));
        }
        layers.push(read(&folder.join(place), place)?);
        let tensors = safetensors::open(&folder.join(place))?.into_iter().flat_map(|shard| shard.tensors);
        let stored = tensors.map(|tensor| Entry::from(tensor).rename(|name| format!("{place}.{name}")));
        entries.extend(stored);
    }
    Ok((layers, entries))
}

fn read(folder: &Path, place: &str) -> Result<DenseLayer> {
    let path = folder.join("config.json");
    let config = json::object(&path, FILE_BYTES_MAX)?;
    let size = |key: &str| {
        let size = config.get(key).and_then(Value::as_u64).and_then(|size| usize::try_from(size).ok());
        size.filter(|size| (1..=1 << 20).contains(size))
            .ok_or_else(|| Error::corrupt(format!("{}: '{key}' is not the width of a layer", path.display())))
    };
    let unsupported = |what: &str| Err(Error::unsupported(format!("{}: {what}", path.display())));
    if config.get("use_residual").and_then(Value::as_bool).unwrap_or(false) {
        return unsupported("'use_residual' is not computed");
    }
    let function =
        config.get("activation_function").and_then(Value::as_str).unwrap_or("torch.nn.modules.activation.Tanh");
    let tanh = match function.rsplit('.').next() {
        Some("Tanh") => true,
        Some("Identity") => false,
        _ => return unsupported("'activation_function' is neither Tanh nor Identity"),
    };
    Ok(DenseLayer { path: place.to_owned(), inputs: size("in_features")?, outputs: size("out_features")?, tanh })
}

/// The layers among the tensors of a GGUF file, which have no activation.
pub(super) fn of_weights(weights: &Weights) -> Vec<DenseLayer> {
    let of = |path: &str| {
        let shape = &weights.find(&format!("{path}.linear.weight"))?.shape;
        let &[outputs, inputs] = shape.as_slice() else { return None };
        Some(DenseLayer { path: path.to_owned(), inputs, outputs, tanh: false })
    };
    ["2_Dense", "3_Dense"].into_iter().filter_map(of).collect()
}
