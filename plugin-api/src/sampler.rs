//! Sampling: a chain of stages narrows the candidates until one picks the next token.

use abi_stable::{
    StableAbi, sabi_trait,
    std_types::{RBox, ROption, RResult, RSlice, RSliceMut, RStr},
};

use crate::{Extension, PluginError};

/// The tokens that may still be picked. A stage may reorder, reweigh and drop them; entries beyond `len` are gone.
#[repr(C)]
#[derive(StableAbi, Debug)]
pub struct Candidates<'a> {
    /// Token ids, of which the first `len` are valid.
    pub ids: RSliceMut<'a, u32>,
    /// Their logits, in the same order.
    pub logits: RSliceMut<'a, f32>,
    /// The number left; never grows.
    pub len: usize,
    /// Whether the logits are in descending order.
    pub sorted: bool,
}

/// A sequence's tokens so far.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct History<'a> {
    /// The prompt, then the generated tokens.
    pub tokens: RSlice<'a, u32>,
    /// The number of prompt tokens among them.
    pub prompt: usize,
}

/// A kind of stage, named in the manifest: a factory of its stages.
#[sabi_trait]
pub trait Sampler: Send + Sync {
    /// `[any thread]` Makes a stage for one sequence from a JSON object of parameters. An invalid one is
    /// [`crate::ErrorCode::INVALID`] and named in the message, as it comes from a client. The same seed gives the same picks.
    fn create(&self, parameters: RStr<'_>, vocabulary: u32, seed: u64) -> RResult<StageBox, PluginError>;

    /// `[any thread]` An extension by id. The functions of its table take this object as their first argument.
    #[sabi(last_prefix_field)]
    fn extension(&self, id: RStr<'_>) -> ROption<Extension>;
}

/// One stage of one sequence's chain.
#[sabi_trait]
pub trait Stage: Send {
    /// `[one thread at a time, loaded]` Narrows or reweighs the candidates, or picks one of them, which ends the chain.
    /// A chain that ends without a pick takes the candidate with the highest logit. A stage has a deadline: if it does
    /// not return in time, its sequence fails with an error that names it, and it is never called again, nor dropped.
    /// Different stages of a sampler that offers `concurrent-stages/1` may run concurrently; all others run on one
    /// thread.
    #[sabi(last_prefix_field)]
    fn sample(&mut self, candidates: &mut Candidates<'_>, history: History<'_>) -> RResult<ROption<u32>, PluginError>;
}

/// [`Sampler`] as it crosses the boundary.
pub type SamplerBox = Sampler_TO<'static, RBox<()>>;
/// [`Stage`] as it crosses the boundary.
pub type StageBox = Stage_TO<'static, RBox<()>>;
