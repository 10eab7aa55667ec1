//! Gemma 2 (arXiv 2408.00118). candle puts every layer behind the window while it reads a prompt and none while it decodes, so
//! no layer has one here, and the context ends where windows would begin to matter. It scales scores by the size of a
//! head, which is not what the 27 B model wants.

use pensieve_sdk::{
    Error, Result,
    bridge::{Parts, Pristine, Shape, Tensor, Wrapped, candle, json, models::gemma2},
    weights::{Checkpoint, Config},
};

#[derive(Clone)]
pub struct Gemma2(gemma2::Model);

impl Wrapped for Gemma2 {
    const NAME: &'static str = "gemma2";
    const CLASSES: &'static [&'static str] = &["Gemma2ForCausalLM"];

    fn shape(checkpoint: &Checkpoint) -> Result<Shape> {
        let config = checkpoint.config();
        config.only("tie_word_embeddings", true)?;
        config.only("use_bidirectional_attention", false)?;
        config.only("query_pre_attn_scalar", config.usize("head_dim")?)?;
        Ok(Shape::transformer(config)?.within(Some(window(config)?)))
    }

    fn load(parts: &Parts<'_>) -> Result<Pristine<Self>> {
        let defaults = json!({ "attention_bias": false, "hidden_activation": "gelu_pytorch_tanh" });
        let config = parts.config(defaults, json!({ "sliding_window": null }))?;
        Ok(Pristine::clones_of(Self(gemma2::Model::new(false, &config, parts.tensors(&[]))?)))
    }

    fn together(&self, _: usize, left: usize) -> usize {
        left
    }

    fn forward(&mut self, tokens: &Tensor, past: usize) -> candle::Result<Tensor> {
        self.0.forward(tokens, past)
    }
}

/// The window of a Gemma's layers that have one. Through an empty one they would see nothing.
pub fn window(config: &Config) -> Result<usize> {
    match config.usize_or("sliding_window", 4096)? {
        0 => Err(Error::declined("'sliding_window' is 0, through which layers would see nothing")),
        window => Ok(window),
    }
}
