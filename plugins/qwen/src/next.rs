//! Qwen3-Next, Qwen3.5 and 3.6, dense and as mixtures of experts: three layers out of four are gated delta nets (arXiv
//! 2412.06464), the others gated attention with RoPE on a quarter of each head.
//!
//! Reference: `modeling_qwen3_next.py` and `modeling_qwen3_5.py` in Hugging Face transformers; layers are named as in
//! its checkpoints. Qwen3.5 reads images; for text, its RoPE in three sections (mRoPE) equals plain RoPE. Multi-token prediction (`mtp`) layers are not loaded.

mod config;
mod delta_net;

use pensieve_sdk::{
    Result,
    nn::{
        Activation, Angles, Attention, AttentionCache, CausalLm, Decoder, FeedForward, KvShape, LayerCache, Linear,
        Loader, Qkv, RmsNorm, Rope, Shape, Sizes, Step, Tensor,
        vision::{MAX_PIXELS, Processor, Tower},
    },
    weights::{Checkpoint, Format, GgufFamily},
};

use crate::{
    gguf,
    qwen::mlp,
    vision::{Eyes, QwenVision},
};
pub use config::Config;
use delta_net::GatedDeltaNet;

/// Norms multiply by `1 + weight`; GGUF files store the sum.
fn norm(loader: &Loader<'_>, name: &str, width: usize, eps: f64) -> Result<RmsNorm> {
    let norm = RmsNorm::load(loader, name, width, eps)?;
    if loader.format() == Format::Gguf { Ok(norm) } else { norm.plus(1.0) }
}

/// Splits the columns of each group of `x` by `widths`, and joins the parts of all groups.
fn of_groups<const N: usize>(x: &Tensor, groups: usize, widths: [usize; N], step: &Step<'_>) -> Result<[Tensor; N]> {
    let (tokens, width) = x.dims2()?;
    let mut parts = step.split(&x.reshape((tokens * groups, width / groups))?, widths)?;
    for (part, width) in parts.iter_mut().zip(widths) {
        *part = part.reshape((tokens, groups * width))?;
    }
    Ok(parts)
}

/// Grouped-query attention with normalized queries and keys, and a gate for each head's output.
struct GatedAttention {
    /// Each head's query is followed by its gate, so the norms cannot be part of the projection.
    qkv_proj: Qkv,
    o_proj: Linear,
    q_norm: RmsNorm,
    k_norm: RmsNorm,
    attention: Attention,
}

impl GatedAttention {
    fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        let Sizes { hidden_size, head_dim, rms_norm_eps, .. } = config.sizes;
        let Sizes { num_attention_heads: heads, num_key_value_heads: kv_heads, .. } = config.sizes;
        Ok(Self {
            qkv_proj: Qkv::of([
                loader.linear("q_proj", hidden_size, heads * 2 * head_dim)?,
                loader.linear("k_proj", hidden_size, kv_heads * head_dim)?,
                loader.linear("v_proj", hidden_size, kv_heads * head_dim)?,
            ]),
            o_proj: loader.linear("o_proj", heads * head_dim, hidden_size)?,
            q_norm: norm(loader, "q_norm", head_dim, rms_norm_eps)?,
            k_norm: norm(loader, "k_norm", head_dim, rms_norm_eps)?,
            attention: Attention::new(layer, heads, kv_heads, head_dim)?,
        })
    }

    /// `residual + attention(x)`.
    fn add_to(&self, residual: &Tensor, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let Attention { heads, head_dim, .. } = self.attention;
        let [q, k, v] = self.qkv_proj.forward(x, step)?;
        let [q, gate] = of_groups(&q, heads, [head_dim, head_dim], step)?;
        let [q, k] = RmsNorm::forward_both([&self.q_norm, &self.k_norm], [&q, &k], step)?;
        let attn_out = self.attention.forward(&q, &k, &v, Some(angles), step)?;
        self.o_proj.add_to(residual, &step.ops().gate(&gate, &attn_out, Activation::Sigmoid)?, step)
    }
}

/// The token mixer of a layer.
enum Mixer {
    Attention(GatedAttention),
    DeltaNet(GatedDeltaNet),
}

struct Block {
    input_layernorm: RmsNorm,
    mixer: Mixer,
    post_attention_layernorm: RmsNorm,
    mlp: FeedForward,
}

impl Block {
    fn load(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Self> {
        let Sizes { hidden_size, rms_norm_eps, .. } = config.sizes;
        Ok(Self {
            input_layernorm: norm(loader, "input_layernorm", hidden_size, rms_norm_eps)?,
            mixer: if config.attends[index] {
                Mixer::Attention(GatedAttention::load(&loader.at("self_attn"), config, index)?)
            } else {
                Mixer::DeltaNet(GatedDeltaNet::load(loader, config, index)?)
            },
            post_attention_layernorm: norm(loader, "post_attention_layernorm", hidden_size, rms_norm_eps)?,
            mlp: mlp(&loader.at("mlp"), &config.sizes, config.moe.as_ref(), index)?,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let normed = self.input_layernorm.forward(x, step)?;
        let x = match &self.mixer {
            Mixer::Attention(attention) => attention.add_to(x, &normed, angles, step)?,
            Mixer::DeltaNet(net) => net.add_to(x, &normed, step)?,
        };
        self.mlp.add_to(&x, &self.post_attention_layernorm.forward(&x, step)?, step)
    }
}

pub struct QwenNext {
    model: CausalLm<Block>,
    rope: Rope,
    vision: Option<QwenVision>,
}

impl Decoder for QwenNext {
    const NAME: &'static str = "qwen-next";
    const GGUF: &'static [&'static str] = &["qwen3next", "qwen35", "qwen35moe"];
    const CLASSES: &'static [&'static str] = &[
        "Qwen3NextForCausalLM",
        "Qwen3_5ForCausalLM",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeForConditionalGeneration",
    ];
    const FEATURES: bool = true;
    const PROCESSOR: Option<&'static dyn Processor> = Some(&Eyes);
    const OPTIONS: &'static [&'static str] = &[MAX_PIXELS];

    type Config = Config;

    fn gguf_family(architecture: &str) -> GgufFamily {
        gguf::family(architecture)
    }

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        Config::read(checkpoint)
    }

    fn shape(config: &Config) -> Shape {
        let Sizes { num_key_value_heads, head_dim, num_attention_heads, intermediate_size, .. } = config.sizes;
        let cache = |attends: &bool| match attends {
            true => LayerCache::Attention(AttentionCache::new(num_key_value_heads, head_dim)),
            false => config.linear.cache(),
        };
        Shape {
            vocabulary: config.sizes.vocab_size,
            context: config.sizes.max_position_embeddings,
            widest: intermediate_size
                .max(2 * num_attention_heads * head_dim)
                .max(config.linear.channels() + config.linear.value_dim()),
            kv: KvShape::new(config.attends.iter().map(cache).collect()),
        }
    }

    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        let vision = config.vision.as_ref().filter(|_| loader.reads_items());
        let rope = Rope::new(&config.rope, config.sizes.head_dim, loader.context())?;
        Ok(Self {
            model: CausalLm::load_with_norm(
                loader,
                &config.sizes,
                |model| norm(model, "norm", config.sizes.hidden_size, config.sizes.rms_norm_eps),
                |loader, layer| Block::load(loader, config, layer),
            )?,
            rope: if let Some(vision) = vision { vision.rope(rope)? } else { rope },
            vision: vision.map(|vision| QwenVision::load(loader, vision, config.sizes.hidden_size)).transpose()?,
        })
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        let angles = self.rope.angles(step)?;
        self.model.hidden(step, |layer, x, step| layer.forward(x, &angles, step))
    }

    fn tower(&self) -> Option<&dyn Tower> {
        self.vision.as_ref().map(|vision| vision as &dyn Tower)
    }

    fn logits(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.model.logits(hidden, step)
    }

    fn features(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.model.features(hidden, step)
    }
}
