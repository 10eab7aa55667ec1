//! The text models of Gemma 3 (arXiv 2503.19786). Layers with a window keep no more than its width, and candle has no mask
//! for a chunk that reaches beyond it, so from there on a prompt is read token by token; with more than one head of keys,
//! candle takes no chunks at all. Models above 1 B scale RoPE in their other layers, which candle does not.

use pensieve_sdk::{
    Error, Result,
    bridge::{Parts, Pristine, Shape, Tensor, Wrapped, candle, json, models::gemma3},
    weights::{Checkpoint, Config},
};

use crate::gemma2::window;

#[derive(Clone)]
pub struct Gemma3 {
    model: gemma3::Model,
    /// As far as this, tokens may be read together.
    chunked: usize,
}

impl Wrapped for Gemma3 {
    const NAME: &'static str = "gemma3";
    const CLASSES: &'static [&'static str] = &["Gemma3ForCausalLM"];

    fn shape(checkpoint: &Checkpoint) -> Result<Shape> {
        let config = checkpoint.config();
        config.only("tie_word_embeddings", true)?;
        config.only("use_bidirectional_attention", false)?;
        config.only("query_pre_attn_scalar", config.usize("head_dim")?)?;
        let (shape, layers) = (Shape::transformer(config)?, config.usize("num_hidden_layers")?);
        // Both kinds of memory are taken at once, as large as they will be.
        let (layer, full) = (shape.token_bytes / layers, layers / pattern(config)?);
        let fixed_bytes = ((layers - full) * layer).saturating_mul(window(config)?);
        Ok(Shape { token_bytes: full * layer, fixed_bytes, ..shape })
    }

    fn load(parts: &Parts<'_>) -> Result<Pristine<Self>> {
        let fixed = json!({ "sliding_window_pattern": pattern(parts.checkpoint().config())? });
        let defaults = json!({
            "attention_bias": false, "hidden_activation": "gelu_pytorch_tanh", "rope_local_base_freq": 10_000.0,
            "sliding_window": 4096,
        });
        let config: gemma3::Config = parts.config(defaults, fixed)?;
        let model = gemma3::Model::new(false, &config, parts.tensors(&[]))?;
        let chunked = if config.num_key_value_heads == 1 { config.sliding_window } else { 0 };
        Ok(Pristine::clones_of(Self { model, chunked }))
    }

    fn together(&self, past: usize, left: usize) -> usize {
        left.min(self.chunked.saturating_sub(past))
    }

    fn forward(&mut self, tokens: &Tensor, past: usize) -> candle::Result<Tensor> {
        self.model.forward(tokens, past)
    }
}

/// Each layer whose number is a multiple of this sees the whole past.
fn pattern(config: &Config) -> Result<usize> {
    let Some(types) = config.value()["layer_types"].as_array() else {
        return Ok(config.usize_or("sliding_window_pattern", 6)?.max(1));
    };
    let is_full = |kind: &_| *kind == "full_attention";
    let pattern = types.iter().position(is_full).map_or(types.len() + 1, |place| place + 1);
    if types.iter().enumerate().any(|(layer, kind)| is_full(kind) != (layer + 1).is_multiple_of(pattern)) {
        return Err(Error::declined("layers with windows and without take turns irregularly"));
    }
    Ok(pattern)
}
