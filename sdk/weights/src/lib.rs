//! Opens checkpoints, whatever their format.
//!
//! A plugin sees one set of weights under Hugging Face's names, whether they come from GGUF or safetensors, and one
//! configuration in the same terms. Files are mapped, not read: opening costs the header, and a tensor is a range of
//! the map in the file's own storage format. Files are untrusted, so each number in a header is checked before it is
//! used, and errors describe the problem in terms of that file.

mod bytes;
mod checkpoint;
mod config;
mod dense;
mod dtype;
mod family;
#[cfg(test)]
mod fixture;
pub mod gguf;
mod gguf_config;
mod json;
mod mmproj;
mod modules;
#[doc(hidden)]
pub mod names;
mod packed;
mod parts;
mod pretokenizer;
mod rope;
mod rows;
mod safetensors;
mod tensor;
mod tensors;
mod tokenizer;

pub use self::{
    bytes::Bytes,
    checkpoint::{Checkpoint, Format},
    config::Config,
    dense::DenseLayer,
    dtype::Dtype,
    family::{GgufFamily, GgufRope, GgufTower},
    gguf_config::GgufConfig,
    mmproj::TowerFile,
    names::Names,
    pretokenizer::{PreTokenizer, Split},
    rope::{RopeConfig, RopeScaling, RopeStyle},
    rows::{Pooling, RowsKind, RowsUse, labels},
    tensor::RawTensor,
    tensors::Weights,
    tokenizer::Tokenizer,
};

use pensieve_error::{Code, Error, Result};

/// Shortens and escapes a name from a file for use in a message.
#[doc(hidden)]
pub fn quote(name: &str) -> String {
    const SHOWN_MAX: usize = 96;
    let shown: String = name.chars().take(SHOWN_MAX).flat_map(char::escape_debug).collect();
    let rest = if name.chars().nth(SHOWN_MAX).is_some() { "…" } else { "" };
    format!("'{shown}{rest}'")
}
