//! The traits of a sampler: a [`Sampler`] makes [`Stage`]s, and a chain of stages picks the next token.
//!
//! A stage sees the candidates that the stages before it left over. It narrows them, changes their logits, or picks one,
//! which ends the chain; a chain that ends without a pick takes the candidate with the highest logit. Candidates shrink
//! in place, so that after a cheap first cut the later stages see dozens of tokens instead of a whole vocabulary.

mod candidates;

pub use candidates::{Candidates, rank, unrank};

use crate::Result;

/// One kind of stage, by the name that requests and configs use.
pub trait Sampler: Send + Sync + 'static {
    /// The name, such as `top_k`; lowercase, unique in the plugin.
    fn name(&self) -> &'static str;

    /// Makes a stage for one sequence. `parameters` is the JSON object of that name in the request, and empty text means
    /// no parameters; an unknown key or a value out of range is an error that names it. The same seed must give the same
    /// picks. Every stage of a chain gets the same seed, so a stage that draws mixes its own name into it.
    fn create(&self, parameters: &str, vocabulary: u32, seed: u64) -> Result<Box<dyn Stage>>;
}

/// One stage of one sequence's chain; it may keep state from token to token.
pub trait Stage: Send {
    /// Narrows or reweighs the candidates, or picks a token out of them.
    ///
    /// Logits may be infinite or NaN: NaN counts as −inf. A stage that narrows leaves at least one candidate above −inf
    /// if it was given one; a stage that picks never picks a candidate at −inf, and returns an error if all are.
    fn sample(&mut self, candidates: &mut Candidates<'_>, history: History<'_>) -> Result<Option<u32>>;
}

/// The tokens of a sequence so far.
#[derive(Clone, Copy, Debug)]
pub struct History<'a> {
    /// Prompt and generated tokens, oldest first.
    pub tokens: &'a [u32],
    /// Number of them that are the prompt.
    pub prompt: usize,
}

impl<'a> History<'a> {
    /// The tokens that the model has generated.
    pub fn generated(&self) -> &'a [u32] {
        &self.tokens[self.prompt.min(self.tokens.len())..]
    }
}
