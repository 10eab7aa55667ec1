//! GLM-4-0414 (arXiv 2406.12793 and its successors): four norms around each layer, and half of each head rotated, neighbour with
//! neighbour.

use pensieve_sdk::{
    Error, Result,
    bridge::{
        Parts, Pristine, Shape, Tensor, Wrapped,
        candle::{self, DType},
        json,
        models::{glm4_new, quantized_glm4},
    },
    weights::{Checkpoint, Format},
};

/// candle's cache grows by so many tokens at a time.
const CACHE_TOKENS: usize = 512;

#[derive(Clone)]
pub enum Glm4 {
    Dense(glm4_new::ModelForCausalLM),
    Quantized(quantized_glm4::ModelWeights),
}

impl Wrapped for Glm4 {
    const NAME: &'static str = "glm4";
    const GGUF: &'static [&'static str] = &["glm4"];
    const CLASSES: &'static [&'static str] = &["Glm4ForCausalLM"];

    fn shape(checkpoint: &Checkpoint) -> Result<Shape> {
        let config = checkpoint.config();
        if checkpoint.format() == Format::Gguf && config.rope()?.partial_rotary_factor != 0.5 {
            return Err(Error::declined("not half of each head is rotated"));
        }
        let shape = Shape::transformer(config)?;
        Ok(Shape { fixed_bytes: CACHE_TOKENS * shape.token_bytes, ..shape })
    }

    fn load(parts: &Parts<'_>) -> Result<Pristine<Self>> {
        if parts.checkpoint().format() == Format::Gguf {
            let (content, mut reader) = parts.gguf()?;
            let model = quantized_glm4::ModelWeights::from_gguf(content, &mut reader, parts.device(), DType::F32)?;
            return Ok(Pristine::clones_of(Self::Quantized(model)));
        }
        let defaults = json!({ "tie_word_embeddings": false, "partial_rotary_factor": 0.5, "hidden_act": "silu" });
        // The default for a configuration that does not say so has changed.
        let has_bias = parts.checkpoint().weights().contains("model.layers.0.self_attn.q_proj.bias");
        let config = parts.config(defaults, json!({ "attention_bias": has_bias }))?;
        Ok(Pristine::clones_of(Self::Dense(glm4_new::ModelForCausalLM::new(&config, parts.tensors(&[]))?)))
    }

    fn together(&self, _: usize, left: usize) -> usize {
        left
    }

    fn forward(&mut self, tokens: &Tensor, past: usize) -> candle::Result<Tensor> {
        match self {
            Self::Dense(model) => model.forward(tokens, past),
            Self::Quantized(model) => model.forward(tokens, past),
        }
    }
}
