//! The two halves of a Llama's block without their residuals, which the designs add in their own ways.

use pensieve_sdk::{
    Result,
    nn::{Angles, Attention, GatedMlp, Linear, Loader, Qkv, RmsNorm, Sizes, Step, Tensor},
    weights::{Checkpoint, RopeConfig},
};

pub struct Config {
    pub sizes: Sizes,
    pub rope: RopeConfig,
}

impl Config {
    pub fn read(checkpoint: &Checkpoint) -> Result<Self> {
        let config = checkpoint.config();
        Ok(Self { sizes: Sizes::read(config)?, rope: config.rope()? })
    }
}

pub struct Block {
    input_layernorm: RmsNorm,
    qkv_proj: Qkv,
    o_proj: Linear,
    attention: Attention,
    post_attention_layernorm: RmsNorm,
    mlp: GatedMlp,
}

impl Block {
    pub fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        let Sizes { hidden_size, num_attention_heads: heads, num_key_value_heads: kv_heads, head_dim, .. } =
            config.sizes;
        let Sizes { intermediate_size, hidden_act, rms_norm_eps, .. } = config.sizes;
        let attention = Attention::new(layer, heads, kv_heads, head_dim)?;
        let self_attn = loader.at("self_attn");
        Ok(Self {
            input_layernorm: RmsNorm::load(loader, "input_layernorm", hidden_size, rms_norm_eps)?,
            qkv_proj: Qkv::load(&self_attn, hidden_size, &attention)?,
            o_proj: self_attn.linear("o_proj", heads * head_dim, hidden_size)?,
            attention,
            post_attention_layernorm: RmsNorm::load(loader, "post_attention_layernorm", hidden_size, rms_norm_eps)?,
            mlp: GatedMlp::load(&loader.at("mlp"), hidden_size, intermediate_size, hidden_act)?,
        })
    }

    pub fn attend(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let [q, k, v] = self.qkv_proj.forward(&self.input_layernorm.forward(x, step)?, step)?;
        self.o_proj.forward(&self.attention.forward(&q, &k, &v, Some(angles), step)?, step)
    }

    pub fn feed_forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.mlp.forward(&self.post_attention_layernorm.forward(x, step)?, step)
    }

    /// The whole block with plain residuals.
    pub fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let x = step.ops().add(x, &self.attend(x, angles, step)?)?;
        step.ops().add(&x, &self.feed_forward(&x, step)?)
    }
}
