//! StableLM 3B and StableLM 2 (arXiv 2402.17834), without the norms over heads and the parallel layers of the 12B
//! model, which candle does not support. candle's model is not `Clone`: each sequence constructs one around the same
//! tensors.

use pensieve_sdk::{
    Result,
    bridge::{Parts, Pristine, Shape, Tensor, Wrapped, candle, json, models::stable_lm},
    weights::Checkpoint,
};

pub struct StableLm(stable_lm::Model);

impl Wrapped for StableLm {
    const NAME: &'static str = "stablelm";
    const CLASSES: &'static [&'static str] = &["StableLmForCausalLM"];

    fn shape(checkpoint: &Checkpoint) -> Result<Shape> {
        let config = checkpoint.config();
        config.only("qk_layernorm", false)?;
        config.only("use_parallel_residual", false)?;
        Shape::transformer(config)
    }

    fn load(parts: &Parts<'_>) -> Result<Pristine<Self>> {
        let defaults = json!({ "partial_rotary_factor": 0.25, "layer_norm_eps": 1e-5, "hidden_act": "silu" });
        let config: stable_lm::Config =
            parts.config(defaults, json!({ "use_cache": true, "use_flash_attn": false }))?;
        let is_tied = parts.checkpoint().config().bool_or("tie_word_embeddings", false)?;
        let tensors = parts.tensors(if is_tied { &[("lm_head.weight", "model.embed_tokens.weight")] } else { &[] });
        Ok(Pristine::made_by(move || Ok(Self(stable_lm::Model::new(&config, tensors.clone())?))))
    }

    fn together(&self, _: usize, left: usize) -> usize {
        left
    }

    fn forward(&mut self, tokens: &Tensor, past: usize) -> candle::Result<Tensor> {
        self.0.forward(tokens, past)
    }
}
