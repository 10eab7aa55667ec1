//! What the author of a sampler writes: a [`Sampler`] makes [`Stage`]s, a chain of stages picks the next token.
//!
//! A stage sees the candidates that the stages before it left over. It narrows them, changes their logits, or picks one,
//! which ends the chain; a chain that ends without a pick takes the candidate with the highest logit. Candidates shrink
//! in place, so that after a cheap first cut the later stages see dozens of tokens instead of a whole vocabulary.

use crate::error::{Error, Result};

/// One kind of stage, by the name that requests and configs use.
pub trait Sampler: Send + Sync + 'static {
    /// The name, such as `top_k`; lowercase, unique in the plugin.
    fn name(&self) -> &'static str;

    /// Makes a stage for one sequence. `parameters` is the JSON object of that name in the request; an unknown key or a
    /// value out of range is an error that names it. The same seed must give the same picks.
    fn create(&self, parameters: &str, vocabulary: u32, seed: u64) -> Result<Box<dyn Stage>>;
}

/// One stage of one sequence's chain; it may keep state from token to token.
pub trait Stage: Send {
    /// Narrows or reweighs the candidates, or picks a token out of them.
    fn sample(&mut self, candidates: &mut Candidates<'_>, history: History<'_>) -> Result<Option<u32>>;
}

/// The tokens of a sequence so far.
#[derive(Clone, Copy, Debug)]
pub struct History<'a> {
    /// Prompt and generated tokens, oldest first.
    pub tokens: &'a [u32],
    /// How many of them are the prompt.
    pub prompt: usize,
}

impl<'a> History<'a> {
    /// The tokens that the model has generated.
    pub fn generated(&self) -> &'a [u32] {
        &self.tokens[self.prompt.min(self.tokens.len())..]
    }
}

/// The tokens that may still be picked, with their logits.
#[derive(Debug)]
pub struct Candidates<'a> {
    ids: &'a mut [u32],
    logits: &'a mut [f32],
    len: usize,
    sorted: bool,
}

impl<'a> Candidates<'a> {
    /// Candidates over two slices of one length. `sorted` says that logits descend.
    pub fn new(ids: &'a mut [u32], logits: &'a mut [f32], sorted: bool) -> Result<Self> {
        if ids.len() != logits.len() {
            return Err(Error::invalid(format!("{} candidate ids for {} logits", ids.len(), logits.len())));
        }
        let len = ids.len();
        Ok(Self { ids, logits, len, sorted })
    }

    /// How many are left.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether none are left.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The ids that are left.
    pub fn ids(&self) -> &[u32] {
        &self.ids[..self.len]
    }

    /// The logits that are left, in the order of [`Self::ids`].
    pub fn logits(&self) -> &[f32] {
        &self.logits[..self.len]
    }

    /// Whether logits descend.
    pub fn is_sorted(&self) -> bool {
        self.sorted
    }

    /// Ids and logits to change in place; the order counts as lost until [`Self::set_sorted`] says otherwise.
    pub fn parts_mut(&mut self) -> (&mut [u32], &mut [f32]) {
        self.sorted = false;
        (&mut self.ids[..self.len], &mut self.logits[..self.len])
    }

    /// States that logits descend.
    pub fn set_sorted(&mut self) {
        self.sorted = true;
    }

    /// Keeps the first `len` candidates; more than are left changes nothing.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}
