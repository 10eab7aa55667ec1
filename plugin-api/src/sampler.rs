//! How the next token is picked: a chain of stages over candidates that shrink.

use abi_stable::{
    StableAbi, sabi_trait,
    std_types::{RBox, ROption, RResult, RSlice, RSliceMut, RStr},
};

use crate::{Extension, PluginError};

/// The tokens that may still be picked. A stage may reorder, reweigh and shrink them; what lies beyond `len` is lost.
#[repr(C)]
#[derive(StableAbi, Debug)]
pub struct Candidates<'a> {
    /// Token ids, `len` of them valid.
    pub ids: RSliceMut<'a, u32>,
    /// Their logits, in the same order.
    pub logits: RSliceMut<'a, f32>,
    /// How many are left; never grows.
    pub len: usize,
    /// Whether the logits descend.
    pub sorted: bool,
}

/// A sequence's tokens so far.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct History<'a> {
    /// Prompt, then generated tokens.
    pub tokens: RSlice<'a, u32>,
    /// How many of them are the prompt.
    pub prompt: usize,
}

/// One kind of stage, named in the manifest.
#[sabi_trait]
pub trait Sampler: Send + Sync {
    /// `[any thread]` Makes a stage for one sequence out of a JSON object. A wrong parameter is [`crate::ErrorCode::INVALID`] and named
    /// in the message, as it comes from a client. The same seed gives the same picks.
    fn create(&self, parameters: RStr<'_>, vocabulary: u32, seed: u64) -> RResult<StageBox, PluginError>;

    /// `[any thread]` An ability beyond contract 1. The functions of its table take this object first.
    #[sabi(last_prefix_field)]
    fn extension(&self, id: RStr<'_>) -> ROption<Extension>;
}

/// One stage of one sequence's chain.
#[sabi_trait]
pub trait Stage: Send {
    /// `[one thread at a time, loaded]` Narrows or reweighs the candidates, or picks one of them, which ends the chain. A chain that
    /// ends without a pick takes the candidate with the highest logit. A host gives a stage a deadline: one that does not return in
    /// time ends its sequence with its name, is never called again, and is not dropped. Different stages of a sampler that offers
    /// `concurrent-stages/1` may run at once; all others run on one thread.
    #[sabi(last_prefix_field)]
    fn sample(&mut self, candidates: &mut Candidates<'_>, history: History<'_>) -> RResult<ROption<u32>, PluginError>;
}

/// A sampler as it crosses.
pub type SamplerBox = Sampler_TO<'static, RBox<()>>;
/// A stage as it crosses.
pub type StageBox = Stage_TO<'static, RBox<()>>;
