//! The traits of a sampler: a [`Sampler`] creates [`Stage`]s, and a chain of stages picks the next token.
//!
//! A stage sees the candidates that the previous stages left. It narrows them, changes their logits, or picks one,
//! which ends the chain; a chain that ends without a pick takes the candidate with the highest logit. Candidates shrink
//! in place, so that after a cheap first cut the later stages see dozens of tokens instead of a whole vocabulary.

mod candidates;

pub use candidates::{Candidates, rank, unrank};

use crate::{Result, abi::Extension};

/// A kind of stage, under the name that requests and configurations use.
pub trait Sampler: Send + Sync + 'static {
    /// The name, such as `top_k`; lowercase, unique in the plugin.
    fn name(&self) -> &'static str;

    /// Creates a stage for one sequence. `parameters` is the JSON object under that name in the request, or empty text
    /// for no parameters; an unknown key or an out-of-range value is an error that names it. The same seed must give
    /// the same picks. Every stage of a chain gets the same seed, so a stage that draws random numbers mixes its own
    /// name into it.
    fn create(&self, parameters: &str, vocabulary: u32, seed: u64) -> Result<Box<dyn Stage>>;

    /// What it does and which parameters [`Sampler::create`] reads, for people who choose them in an interface: a JSON
    /// object such as `{"text": "keeps the k best", "parameters": [{"name": "k", "type": "integer", "default": 40,
    /// "minimum": 0, "maximum": 1000}]}`, in which a sampler that picks says `"picks": true`. The types are `number`,
    /// `integer`, `tokens`, `biases` and `text`. Empty for no description.
    fn description(&self) -> String {
        String::new()
    }

    /// An extension of the author's own ([`extension`](crate::extension)), if the sampler offers one of this id.
    fn extension(&self, id: &str) -> Option<Extension> {
        let _ = id;
        None
    }
}

/// One stage of one sequence's chain; it may keep state from token to token.
pub trait Stage: Send {
    /// Narrows or reweighs the candidates, or picks one of them.
    ///
    /// Logits may be infinite or NaN; NaN counts as −inf. A narrowing stage leaves at least one candidate above −inf if
    /// it was given one; a picking stage never picks a candidate at −inf, and returns an error if all are.
    fn sample(&mut self, candidates: &mut Candidates<'_>, history: History<'_>) -> Result<Option<u32>>;
}

/// The tokens of a sequence so far.
#[derive(Clone, Copy, Debug)]
pub struct History<'a> {
    /// Prompt and generated tokens, oldest first.
    pub tokens: &'a [u32],
    /// Number of leading tokens that are the prompt.
    pub prompt: usize,
}

impl<'a> History<'a> {
    /// The generated tokens.
    pub fn generated(&self) -> &'a [u32] {
        &self.tokens[self.prompt.min(self.tokens.len())..]
    }
}
