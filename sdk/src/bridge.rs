//! Any text model of candle-transformers as an architecture, in about forty lines.
//!
//! Such a model computes one sequence at a time and keeps its state to itself, each in its own way. The bridge gives
//! every sequence its own instance of the model, with shared weights, so that it looks batched, and declares opaque
//! caches: they cannot be paged, and a step costs the sum of its sequences. Defaults are the safe ones: prompts are
//! computed token by token, scaled RoPE is declined, and sequences cannot be copied, unless the author enables it.
//!
#![doc = include_str!("bridge/example.md")]

mod gguf;
mod model;
mod parts;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value};
use std::marker::PhantomData;

pub use candle_core::{self as candle, Device, Tensor};
pub use candle_nn::VarBuilder;
pub use candle_transformers::{self, models};
pub use gguf::GgufReader;
pub use parts::Parts;
pub use serde_json::json;

use crate::{
    Architecture, Cache, Card, Error, Level, LoadRequest, Model, Resident, Result, Services, Source,
    nn::{
        BLOCK_TOKENS,
        device::{self, Chosen},
        facts,
    },
    weights::{Checkpoint, Config, Format, RopeScaling},
};
use model::Bridged;

/// Maximum number of tokens per call: enough to keep a CPU busy, and few enough that attention scores, which candle's
/// models materialize, stay small.
const CHUNK_TOKENS_MAX: usize = 64;
/// A longer context is considered a mistake, as candle's models create rotation tables for all of it.
const CONTEXT_MAX: usize = 1 << 20;
/// Bytes of an activation's value.
const VALUE_BYTES: usize = 4;

/// A model of candle-transformers with the state of a single sequence.
pub trait Wrapped: Sized + Send + 'static {
    /// The architecture's name.
    const NAME: &'static str;
    /// Values of `general.architecture` in the GGUF files that it claims.
    const GGUF: &'static [&'static str] = &[];
    /// Values of `architectures` in the `config.json` files that it claims.
    const CLASSES: &'static [&'static str];
    /// The model applies `rope_scaling`. Most of candle's models ignore it, so by default such checkpoints are
    /// declined.
    const SCALES_ROPE: bool = false;

    /// Reads the sizes, and declines checkpoints that the model would compute wrongly; see [`Config::only`].
    fn shape(checkpoint: &Checkpoint) -> Result<Shape>;

    /// Loads a model in its initial state.
    fn load(parts: &Parts<'_>) -> Result<Pristine<Self>>;

    /// How many of the next `left` tokens a single call may take, after `past` tokens. Some models are correct only for
    /// the first chunk of a prompt, or up to the width of a window.
    fn together(&self, past: usize, left: usize) -> usize {
        let _ = (past, left);
        1
    }

    /// Computes tokens of shape `[1, n]` after `past` others, and returns the logits of the last one in any shape.
    fn forward(&mut self, tokens: &Tensor, past: usize) -> candle_core::Result<Tensor>;

    /// The whole state except the number of tokens, if candle exposes it: sequences can then be copied
    /// (`sequence-state/1`). Must be in `f32`, and always in the same shapes.
    fn state(&self) -> Vec<Tensor> {
        Vec::new()
    }

    /// Restores a state that [`Wrapped::state`] returned.
    fn set_state(&mut self, state: Vec<Tensor>) {
        let _ = state;
    }
}

/// Creates models in their initial state. If candle updates a state in place, clones share it, so the model that is
/// cloned never computes anything.
pub struct Pristine<W>(Box<dyn Fn() -> Result<W> + Send>);

impl<W: Send + 'static> Pristine<W> {
    /// Clones one model, for those that are `Clone`.
    pub fn clones_of(model: W) -> Self
    where
        W: Clone,
    {
        Self(Box::new(move || Ok(model.clone())))
    }

    /// Constructs each model anew; tensors from [`Parts::tensors`] are shared.
    pub fn made_by(make: impl Fn() -> candle_core::Result<W> + Send + 'static) -> Self {
        Self(Box::new(move || make().map_err(Error::from)))
    }

    fn make(&self) -> Result<W> {
        (self.0)()
    }
}

/// The sizes by which memory is planned.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Logits per token.
    pub vocabulary: usize,
    /// The longest sequence for which the model computes correctly.
    pub context: usize,
    /// The widest activation of a token, such as an MLP's inner width.
    pub widest: usize,
    /// Attention heads, each of which scores the whole past; 0 without attention.
    pub heads: usize,
    /// State bytes per token of a sequence.
    pub token_bytes: usize,
    /// State bytes of a sequence independent of its length.
    pub fixed_bytes: usize,
}

impl Shape {
    /// The sizes of a transformer with keys and values in `f32`, read under the usual names of a configuration.
    pub fn transformer(config: &Config) -> Result<Self> {
        let (heads, width) = (config.usize("num_attention_heads")?, config.usize("hidden_size")?);
        let head_dim = config.usize_or("head_dim", width / heads)?;
        let kv_heads = config.usize_or("num_key_value_heads", heads)?;
        Ok(Self {
            vocabulary: config.usize("vocab_size")?,
            context: config.usize("max_position_embeddings")?,
            widest: config.usize("intermediate_size")?,
            heads,
            token_bytes: 2 * VALUE_BYTES * config.usize("num_hidden_layers")? * kv_heads * head_dim,
            fixed_bytes: 0,
        })
    }

    /// Limits the context to the window, for candle models that do not implement windows: up to that length full
    /// attention is equivalent.
    #[must_use]
    pub fn within(self, window: Option<usize>) -> Self {
        Self { context: self.context.min(window.unwrap_or(usize::MAX)), ..self }
    }

    /// State bytes of a sequence of `context` tokens.
    fn state_bytes(&self, context: usize) -> u64 {
        (self.fixed_bytes as u64).saturating_add((self.token_bytes as u64).saturating_mul(context as u64))
    }

    /// Scratch memory per token of a step: logits, activations, and attention scores.
    fn scratch_bytes(&self) -> u64 {
        const STEP_TOKENS: usize = 1024;
        let scores = 3 * self.heads * self.context * CHUNK_TOKENS_MAX / STEP_TOKENS;
        (VALUE_BYTES * (self.vocabulary + 4 * self.widest + scores)) as u64
    }
}

/// The architecture of a [`Wrapped`] model.
pub struct Bridge<W>(PhantomData<fn() -> W>);

impl<W: Wrapped> Bridge<W> {
    /// Returns the architecture, to be added to a plugin.
    pub fn architecture() -> Self {
        Self(PhantomData)
    }
}

/// Opens a checkpoint that the model supports.
fn open<W: Wrapped>(source: &Source) -> Result<(Checkpoint, Shape)> {
    let options = source.options.trim();
    let is_empty = options.is_empty() || serde_json::from_str::<Map<_, Value>>(options).is_ok_and(|map| map.is_empty());
    if !is_empty {
        return Err(Error::invalid(format!("the model's options: {} has none", W::NAME)).help("remove them"));
    }
    let checkpoint = Checkpoint::open(&source.path)?;
    let architecture = checkpoint.architecture();
    if !W::GGUF.contains(&architecture) && !W::CLASSES.contains(&architecture) {
        return Err(Error::declined(format!("'{architecture}' is not an architecture that {} knows", W::NAME)));
    }
    let shape = W::shape(&checkpoint)?;
    if !W::SCALES_ROPE {
        plain_rope(checkpoint.config())?;
    }
    if shape.vocabulary == 0 || shape.context == 0 {
        return Err(Error::corrupt("the configuration has a vocabulary or a context of 0 tokens"));
    }
    let context = shape.context.min(CONTEXT_MAX);
    Ok((checkpoint, Shape { context, ..shape }))
}

/// Declines checkpoints with scaled or unknown RoPE in any layer.
fn plain_rope(config: &Config) -> Result<()> {
    let ropes = match config.rope() {
        Ok(alike) => vec![Ok(alike)],
        Err(_) => ["full_attention", "sliding_attention"].map(|kind| config.rope_for(kind)).into(),
    };
    for rope in ropes {
        let scaling = rope.map_err(|error| Error::declined(error.message))?.scaling;
        if scaling != RopeScaling::None {
            return Err(Error::declined(format!("scaled RoPE ({scaling:?}) is not computed")));
        }
    }
    Ok(())
}

/// Bytes of the loaded weights: `f32`, or quantized as they are, with a second copy in the order that candle's kernels
/// require and the embedding table in `f32`.
fn weight_bytes(checkpoint: &Checkpoint) -> u64 {
    let values = |shape: &[usize]| shape.iter().fold(1_u64, |product, &size| product.saturating_mul(size as u64));
    let widened = |shape: &[usize]| values(shape).saturating_mul(VALUE_BYTES as u64);
    let weights = checkpoint.weights();
    match checkpoint.format() {
        Format::Safetensors => weights.iter().map(|tensor| widened(&tensor.shape)).sum(),
        Format::Gguf => {
            let embeddings = weights.find("model.embed_tokens.weight");
            2 * weights.bytes() + embeddings.map_or(0, |tensor| widened(&tensor.shape))
        }
    }
}

impl<W: Wrapped> Architecture for Bridge<W> {
    fn name(&self) -> &'static str {
        W::NAME
    }

    fn gguf(&self) -> &'static [&'static str] {
        W::GGUF
    }

    fn classes(&self) -> &'static [&'static str] {
        W::CLASSES
    }

    fn describe(&self, source: &Source) -> Result<Card> {
        let (checkpoint, shape) = open::<W>(source)?;
        let tokenizer = checkpoint.tokenizer()?;
        let fingerprint = checkpoint.fingerprint(&tokenizer)?;
        let narrow = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        let mut facts = facts(&checkpoint);
        facts["state_bytes_per_token"] = shape.token_bytes.into();
        facts["state_bytes_besides"] = shape.fixed_bytes.into();
        Ok(Card {
            architecture: W::NAME.into(),
            vocabulary: narrow(shape.vocabulary),
            context: narrow(shape.context),
            block_tokens: BLOCK_TOKENS as u32,
            caches: vec![Cache::Opaque { bytes: shape.state_bytes(shape.context) }],
            hidden: 0,
            token_bytes: shape.scratch_bytes(),
            weight_bytes: weight_bytes(&checkpoint),
            tokenizer: tokenizer.json,
            chat_template: tokenizer.chat_template,
            bos: tokenizer.bos,
            add_bos: tokenizer.add_bos,
            eos: tokenizer.eos,
            formats: String::new(),
            facts: facts.to_string(),
            fingerprint,
        })
    }

    fn load(&self, request: &LoadRequest, services: &Services) -> Result<Box<dyn Model>> {
        let (checkpoint, shape) = open::<W>(&request.source)?;
        let chosen = device::choose(&request.device)?.alone()?;
        let (context, sequences) = room(request, &shape)?;
        if context < shape.context && context != request.context as usize {
            let budget = request.state_bytes;
            services.log(Level::Warn, format!("a state of {budget} bytes holds {context} tokens: that is the context"));
        }
        let parts = Parts::new(&checkpoint, &chosen.device, context, services);
        let pristine = W::load(&parts)?;
        if let Some(names) = parts.unused() {
            services.log(Level::Warn, format!("{} does not use {names}", W::NAME));
        }
        let resident = resident(&chosen, &shape, context, sequences, weight_bytes(&checkpoint));
        let model = Bridged::new(pristine, resident, chosen.device, request.threads as usize, services.clone())?;
        Ok(Box::new(model))
    }
}

/// Returns the context, and the number of sequences of that length that fit. If not even one fits, the context is as
/// long as the budget allows.
fn room(request: &LoadRequest, shape: &Shape) -> Result<(usize, u32)> {
    let (budget, asked) = (request.state_bytes, request.context as usize);
    let wished = if asked == 0 { shape.context } else { asked.min(shape.context) };
    let left = budget.saturating_sub(shape.fixed_bytes as u64);
    let held = left.checked_div(shape.token_bytes as u64).unwrap_or(u64::MAX);
    let context = wished.min(usize::try_from(held).unwrap_or(usize::MAX));
    let sequences = budget.checked_div(shape.state_bytes(context)).unwrap_or(u64::MAX);
    if context == 0 || sequences == 0 {
        let needed = shape.state_bytes(1);
        let message = format!("a budget of {budget} bytes for states has no room for one of {needed}");
        return Err(Error::out_of_memory(message).help("raise kv_budget"));
    }
    Ok((context, u32::try_from(sequences).unwrap_or(u32::MAX)))
}

fn resident(chosen: &Chosen, shape: &Shape, context: usize, sequences: u32, weight_bytes: u64) -> Resident {
    Resident {
        device: chosen.name.clone(),
        note: format!("{}; candle-transformers in f32, one sequence after the other", chosen.note),
        weight_bytes,
        state_bytes: shape.state_bytes(context).saturating_mul(u64::from(sequences)),
        vocabulary: u32::try_from(shape.vocabulary).unwrap_or(u32::MAX),
        context: u32::try_from(context).unwrap_or(u32::MAX),
        hidden: 0,
        block_tokens: BLOCK_TOKENS as u32,
        caches: vec![(Cache::Opaque { bytes: shape.state_bytes(context) }, sequences)],
    }
}
