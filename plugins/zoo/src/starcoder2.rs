//! StarCoder 2 (arXiv 2402.19173). candle's windows are one token too wide and end with the prompt, so they are not
//! used, and the context ends where they would begin to matter.

use pensieve_sdk::{
    Result,
    bridge::{Parts, Pristine, Shape, Tensor, Wrapped, candle, json, models::starcoder2},
    weights::Checkpoint,
};

#[derive(Clone)]
pub struct StarCoder2(starcoder2::Model);

impl Wrapped for StarCoder2 {
    const NAME: &'static str = "starcoder2";
    const CLASSES: &'static [&'static str] = &["Starcoder2ForCausalLM"];

    fn shape(checkpoint: &Checkpoint) -> Result<Shape> {
        let config = checkpoint.config();
        config.only("tie_word_embeddings", true)?;
        config.only("head_dim", config.usize("hidden_size")? / config.usize("num_attention_heads")?)?;
        Ok(Shape::transformer(config)?.within(config.sliding_window()?))
    }

    fn load(parts: &Parts<'_>) -> Result<Pristine<Self>> {
        let defaults = json!({ "norm_epsilon": 1e-5, "use_bias": true, "hidden_act": "gelu_pytorch_tanh" });
        let config = parts.config(defaults, json!({ "sliding_window": null }))?;
        Ok(Pristine::clones_of(Self(starcoder2::Model::new(&config, parts.tensors(&[]))?)))
    }

    fn together(&self, _: usize, left: usize) -> usize {
        left
    }

    fn forward(&mut self, tokens: &Tensor, past: usize) -> candle::Result<Tensor> {
        self.0.forward(tokens, past)
    }
}
