//! OLMo 2 (arXiv 2501.00656): norms behind attention and MLP instead of before, and over queries and keys as wholes.

use pensieve_sdk::{
    Result,
    bridge::{Parts, Pristine, Shape, Tensor, Wrapped, candle, json, models::olmo2},
    weights::Checkpoint,
};

#[derive(Clone)]
pub struct Olmo2(olmo2::Model);

impl Wrapped for Olmo2 {
    const NAME: &'static str = "olmo2";
    const CLASSES: &'static [&'static str] = &["Olmo2ForCausalLM"];

    fn shape(checkpoint: &Checkpoint) -> Result<Shape> {
        let config = checkpoint.config();
        config.only("clip_qkv", json!(null))?;
        config.only("head_dim", config.usize("hidden_size")? / config.usize("num_attention_heads")?)?;
        Shape::transformer(config)
    }

    fn load(parts: &Parts<'_>) -> Result<Pristine<Self>> {
        let defaults = json!({ "attention_bias": false, "tie_word_embeddings": false, "hidden_act": "silu" });
        let config = parts.config(defaults, json!({}))?;
        Ok(Pristine::clones_of(Self(olmo2::Model::new(&config, parts.tensors(&[]))?)))
    }

    fn together(&self, _: usize, left: usize) -> usize {
        left
    }

    fn forward(&mut self, tokens: &Tensor, past: usize) -> candle::Result<Tensor> {
        self.0.forward(tokens, past)
    }
}
