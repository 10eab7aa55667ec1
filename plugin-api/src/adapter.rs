//! Adapter formats read low-rank pairs from files; models apply the pairs.

use abi_stable::{
    StableAbi, sabi_trait,
    std_types::{RBox, ROption, RResult, RStr, RString, RVec},
};

use crate::{Extension, PluginError};

/// One change of one weight: `W + scale · B·A`.
#[repr(C)]
#[derive(StableAbi, Clone, Debug)]
pub struct LowRankPair {
    /// The weight's name in the file, without `.weight`: as in a Hugging Face checkpoint
    /// (`model.layers.0.self_attn.q_proj`) or as in llama.cpp's GGUF files (`blk.0.attn_q`). Checkpoints of one family
    /// fuse or split projections (`qkv_proj`, `gate_up_proj`), so a name may refer to one layer of the model, a part of
    /// one, or several stacked ones; the model resolves that.
    pub target: RString,
    /// Rows of A, columns of B.
    pub rank: u32,
    /// The weight's inputs: columns of A.
    pub inputs: u32,
    /// The weight's outputs: rows of B.
    pub outputs: u32,
    /// `alpha / rank`, or whatever the format defines.
    pub scale: f32,
    /// `rank × inputs` values, row-major.
    pub a: RVec<f32>,
    /// `outputs × rank` values, row-major, in the row order of the kind of checkpoint that the name comes from. The two
    /// kinds differ where llama.cpp's converter reorders queries and keys so that values which rotate together are
    /// neighbours. Only the model knows its head size, so a format leaves the rows as they are, and the model reorders
    /// them if its own checkpoint is of the other kind. For an embedding, each row belongs to a token.
    pub b: RVec<f32>,
}

/// An adapter, read completely into memory.
#[repr(C)]
#[derive(StableAbi, Clone, Debug)]
pub struct AdapterData {
    /// The base model it was trained on, for display; may be empty.
    pub base: RString,
    /// Equal for equal content; part of the prefix cache's key.
    pub fingerprint: RString,
    /// No target appears twice.
    pub pairs: RVec<LowRankPair>,
}

/// A file format for adapters.
#[sabi_trait]
pub trait AdapterFormat: Send + Sync {
    /// `[any thread]` Returns whether the file or folder looks like this format. Cheap: checks names and headers only.
    fn claims(&self, path: RStr<'_>) -> bool;

    /// `[control thread]` Reads an adapter. Anything that pairs cannot express is refused with the reason, never
    /// dropped. [`crate::ErrorCode::DECLINED`] means that the file has another format after all: the next claimant is
    /// asked.
    fn open(&self, path: RStr<'_>) -> RResult<AdapterData, PluginError>;

    /// `[any thread]` An extension by id. The functions of its table take this object as their first argument.
    #[sabi(last_prefix_field)]
    fn extension(&self, id: RStr<'_>) -> ROption<Extension>;
}

/// [`AdapterFormat`] as it crosses the boundary.
pub type AdapterBox = AdapterFormat_TO<'static, RBox<()>>;
