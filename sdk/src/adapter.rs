//! The trait of an adapter format: an [`AdapterFormat`] reads low-rank pairs out of files. `nn::Linear` applies them.

use crate::{Result, abi::Extension};
use std::path::Path;

/// One way of writing adapters to disk.
pub trait AdapterFormat: Send + Sync + 'static {
    /// The format's name, such as `peft`.
    fn name(&self) -> &'static str;

    /// Returns whether the file or folder looks like this format, by names and headers only.
    fn claims(&self, path: &Path) -> bool;

    /// Reads the adapter, or refuses it if it cannot be expressed as low-rank pairs. Returns [`crate::Error::declined`]
    /// for a file that has another format after all, so that the next claimant is asked.
    fn open(&self, path: &Path) -> Result<AdapterData>;

    /// An extension of the author's own ([`extension`](crate::extension)), if the format offers one of this id.
    fn extension(&self, id: &str) -> Option<Extension> {
        let _ = id;
        None
    }
}

/// A whole adapter.
#[derive(Clone, Debug)]
pub struct AdapterData {
    /// The base model it was trained on; may be empty.
    pub base: String,
    /// Equal for equal content.
    pub fingerprint: String,
    /// The pairs; no target occurs twice.
    pub pairs: Vec<LowRankPair>,
}

/// One change of one weight: `W + scale · B·A`.
#[derive(Clone, Debug)]
pub struct LowRankPair {
    /// The weight's name without `.weight`, as in a Hugging Face checkpoint (`model.layers.0.self_attn.q_proj`) or as
    /// in llama.cpp's GGUF files (`blk.0.attn_q`).
    pub target: String,
    /// Rows of A, columns of B.
    pub rank: usize,
    /// Columns of A.
    pub inputs: usize,
    /// Rows of B.
    pub outputs: usize,
    /// The factor of `B·A`, commonly alpha over rank.
    pub scale: f32,
    /// `rank × inputs` values, row by row.
    pub a: Vec<f32>,
    /// `outputs × rank` values, row by row, in the row order of the kind of checkpoint that the name comes from; the
    /// model reorders them if its own checkpoint is of the other kind.
    pub b: Vec<f32>,
}

/// An adapter that becomes part of a model's weights.
#[derive(Clone, Debug)]
pub struct Merged {
    /// The adapter to add.
    pub adapter: AdapterData,
    /// Its strength on top of its own scale; 1 is as trained.
    pub strength: f32,
}
