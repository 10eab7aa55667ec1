//! Qwen2 and Qwen2.5 (arXiv 2407.10671, 2412.15115). candle has one window for all layers, and none while decoding: here no
//! layer has one, and the context ends where those of the checkpoint begin to matter.

use pensieve_sdk::{
    Result,
    bridge::{Parts, Pristine, Shape, Tensor, Wrapped, candle, json, models::qwen2},
    weights::{Checkpoint, Config},
};

#[derive(Clone)]
pub struct Qwen2(qwen2::ModelForCausalLM);

impl Wrapped for Qwen2 {
    const NAME: &'static str = "qwen2";
    const CLASSES: &'static [&'static str] = &["Qwen2ForCausalLM"];

    fn shape(checkpoint: &Checkpoint) -> Result<Shape> {
        let config = checkpoint.config();
        config.only("head_dim", config.usize("hidden_size")? / config.usize("num_attention_heads")?)?;
        Ok(Shape::transformer(config)?.within(window(config)?))
    }

    fn load(parts: &Parts<'_>) -> Result<Pristine<Self>> {
        let defaults = json!({ "tie_word_embeddings": false, "hidden_act": "silu", "rms_norm_eps": 1e-6 });
        let unused = json!({ "use_sliding_window": false, "sliding_window": parts.context(), "max_window_layers": 0 });
        let config = parts.config(defaults, unused)?;
        Ok(Pristine::clones_of(Self(qwen2::ModelForCausalLM::new(&config, parts.tensors(&[]))?)))
    }

    fn together(&self, _: usize, left: usize) -> usize {
        left
    }

    fn forward(&mut self, tokens: &Tensor, past: usize) -> candle::Result<Tensor> {
        self.0.forward(tokens, past)
    }
}

/// The window of a Qwen, which names one also where it has none.
pub fn window(config: &Config) -> Result<Option<usize>> {
    if config.bool_or("use_sliding_window", false)? { config.sliding_window() } else { Ok(None) }
}
