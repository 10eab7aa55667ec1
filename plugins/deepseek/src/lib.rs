//! DeepSeek-V2 (arXiv 2405.04434), V3 (2412.19437) and V3.2 (2512.02556), and GLM-4.7-Flash: multi-head latent
//! attention, which caches one latent per token for the keys and values of all heads, sparse in V3.2, and mixtures with
//! shared experts. Kimi Linear has both beside layers of its own.
//!
//! Reference: `modeling_deepseek_v2.py`, `modeling_deepseek_v3.py`, `modeling_deepseek_v32.py` and
//! `modeling_glm4_moe_lite.py` in Hugging Face transformers; layers are named as in its checkpoints.

mod config;
mod gguf;
mod indexer;
mod kimi;
mod latents;
mod mlp;

use pensieve_sdk::{
    Plugin, Result, export,
    nn::{
        AttentionCache, CausalLm, Decoder, FeedForward, KvShape, LayerCache, Loader, Paged, RmsNorm, Rope, Shape,
        Sizes, Step, Tensor,
    },
    weights::{Checkpoint, GgufFamily},
};

use config::Config;
use indexer::StepAngles;
use latents::LatentAttention;
use mlp::mlp;

export!(
    Plugin::new("deepseek", "DeepSeek-V2, V3 and V3.2, GLM-4.7-Flash, Kimi Linear")
        .architecture(Paged::<DeepSeek>::architecture())
        .architecture(Paged::<kimi::KimiLinear>::architecture())
);

struct Block {
    input_layernorm: RmsNorm,
    self_attn: LatentAttention,
    post_attention_layernorm: RmsNorm,
    mlp: FeedForward,
}

impl Block {
    fn load(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Self> {
        let Sizes { hidden_size, rms_norm_eps, .. } = config.sizes;
        Ok(Self {
            input_layernorm: RmsNorm::load(loader, "input_layernorm", hidden_size, rms_norm_eps)?,
            self_attn: LatentAttention::load(&loader.at("self_attn"), config, index)?,
            post_attention_layernorm: RmsNorm::load(loader, "post_attention_layernorm", hidden_size, rms_norm_eps)?,
            mlp: mlp(&loader.at("mlp"), config, index)?,
        })
    }

    fn forward(&self, x: &Tensor, angles: &StepAngles, step: &mut Step<'_>) -> Result<Tensor> {
        let x = self.self_attn.add_to(x, &self.input_layernorm.forward(x, step)?, Some(angles), step)?;
        self.mlp.add_to(&x, &self.post_attention_layernorm.forward(&x, step)?, step)
    }
}

struct DeepSeek {
    model: CausalLm<Block>,
    rope: Rope,
    index_rope: Option<Rope>,
}

impl Decoder for DeepSeek {
    const NAME: &'static str = "deepseek";
    const GGUF: &'static [&'static str] = &["deepseek2"];
    const CLASSES: &'static [&'static str] =
        &["DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "Glm4MoeLiteForCausalLM"];
    const FEATURES: bool = true;

    type Config = Config;

    fn gguf_family(_: &str) -> GgufFamily {
        gguf::family()
    }

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        Config::read(checkpoint)
    }

    fn shape(config: &Config) -> Shape {
        let cache =
            AttentionCache { value_dim: 0, ..AttentionCache::new(1, config.kv_lora_rank + config.qk_rope_head_dim) };
        let (heads, layers) = (config.sizes.num_attention_heads, config.sizes.num_hidden_layers);
        let keys =
            config.index.map(|index| AttentionCache { value_dim: 0, ..AttentionCache::new(1, index.index_head_dim) });
        let of_layer = || [Some(cache), keys].into_iter().flatten().map(LayerCache::Attention);
        let caches = (0..layers).flat_map(|_| of_layer()).collect();
        let shape = config.sizes.shape();
        Shape {
            widest: shape.widest.max(heads * (config.kv_lora_rank + config.qk_rope_head_dim)),
            kv: KvShape::new(caches),
            ..shape
        }
    }

    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        Ok(Self {
            model: CausalLm::load(loader, &config.sizes, |loader, layer| Block::load(loader, config, layer))?,
            rope: Rope::new(&config.rope, config.qk_rope_head_dim, loader.context())?,
            index_rope: config.index_rope(loader.context())?,
        })
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        let index = self.index_rope.as_ref().map(|rope| rope.angles(step)).transpose()?;
        let angles = StepAngles { attention: self.rope.angles(step)?, index };
        self.model.hidden(step, |layer, x, step| layer.forward(x, &angles, step))
    }

    fn logits(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.model.logits(hidden, step)
    }

    fn features(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.model.features(hidden, step)
    }
}
