//! Adapter formats: they read low-rank pairs out of files. Applying the pairs is the model's work.

use abi_stable::{
    StableAbi, sabi_trait,
    std_types::{RBox, ROption, RResult, RStr, RString, RVec},
};

use crate::{Extension, PluginError};

/// One change of one weight: `W + scale · B·A`.
#[repr(C)]
#[derive(StableAbi, Clone, Debug)]
pub struct LowRankPair {
    /// The weight's name without `.weight`: as in a Hugging Face checkpoint (`model.layers.0.self_attn.q_proj`), or as in
    /// llama.cpp's GGUF files (`blk.0.attn_q`). A format passes on the name that its file has. Checkpoints of one family
    /// fuse or split projections (`qkv_proj`, `gate_up_proj`), so a name may mean one layer of the model, a part of one, or
    /// several one above the other; the model finds out which.
    pub target: RString,
    /// The rank: rows of A, columns of B.
    pub rank: u32,
    /// Columns of A: the weight's inputs.
    pub inputs: u32,
    /// Rows of B: the weight's outputs.
    pub outputs: u32,
    /// The factor, `alpha / rank` or what the format says.
    pub scale: f32,
    /// `rank × inputs` values, row after row.
    pub a: RVec<f32>,
    /// `outputs × rank` values, row after row, in the order that the weight's rows have in the kind of checkpoint that the
    /// name is of. The two differ where llama.cpp's converter reorders the queries and keys of a family, such that values
    /// which rotate together are neighbours; only the model knows the size of its heads, so a format leaves the rows as
    /// they are, and the model reorders them where its own checkpoint is of the other kind. Of an embedding, a row belongs
    /// to a token.
    pub b: RVec<f32>,
}

/// A whole adapter.
#[repr(C)]
#[derive(StableAbi, Clone, Debug)]
pub struct AdapterData {
    /// The base model it was trained on, for a person; may be empty.
    pub base: RString,
    /// Equal for equal content: tells cached states apart.
    pub fingerprint: RString,
    /// Its pairs; no target twice.
    pub pairs: RVec<LowRankPair>,
}

/// One way of writing adapters to disk.
#[sabi_trait]
pub trait AdapterFormat: Send + Sync {
    /// `[any thread]` Whether the file or folder looks like this format. Cheap: looks at names and headers.
    fn claims(&self, path: RStr<'_>) -> bool;

    /// `[control thread]` Reads it. What the format has but pairs cannot express is refused with the reason, never dropped.
    /// [`crate::ErrorCode::DECLINED`] says that it is another format after all: the next one that claims it is asked.
    fn open(&self, path: RStr<'_>) -> RResult<AdapterData, PluginError>;

    /// `[any thread]` An ability beyond contract 1. The functions of its table take this object first.
    #[sabi(last_prefix_field)]
    fn extension(&self, id: RStr<'_>) -> ROption<Extension>;
}

/// An adapter format as it crosses.
pub type AdapterBox = AdapterFormat_TO<'static, RBox<()>>;
