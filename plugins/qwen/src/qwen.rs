//! Qwen2 and 2.5 (arXiv 2407.10671, 2412.15115) and Qwen3 (2505.09388), dense and as mixtures of experts: Llama with biases on
//! queries, keys and values, and from Qwen3 on with norms over each head's queries and keys instead.
//!
//! Reference: `modeling_qwen2.py`, `modeling_qwen3.py` and their `_moe` in Hugging Face transformers; layers carry the names that
//! they have in its checkpoints. Of vision-language checkpoints the text model is loaded; its rotations in three sections are plain ones
//! for text.

use pensieve_sdk::{
    Result,
    nn::{
        Angles, Attention, Decoder, Embedding, ExpertNames, Experts, GatedMlp, Glu, Linear, Loader, RmsNorm, Rope,
        Router, Shape, Sizes, Step, Tensor, weighed,
    },
    weights::{Checkpoint, Config as Settings, GgufFamily, RopeConfig},
};

/// What a checkpoint says about its model.
pub struct Config {
    sizes: Sizes,
    /// How far back each layer sees.
    windows: Vec<Option<usize>>,
    rope: RopeConfig,
    moe: Option<Moe>,
}

/// What it says about its experts.
pub struct Moe {
    num_experts: usize,
    num_experts_per_tok: usize,
    moe_intermediate_size: usize,
    shared_expert_intermediate_size: usize,
    norm_topk_prob: bool,
    /// Layers that are dense.
    dense: Vec<bool>,
}

/// Grouped-query attention with rotated queries and keys.
struct SelfAttention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    /// From Qwen3 on.
    norms: Option<(RmsNorm, RmsNorm)>,
    attention: Attention,
}

impl SelfAttention {
    fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        let Sizes {
            hidden_size,
            num_attention_heads: heads,
            num_key_value_heads: kv_heads,
            head_dim,
            rms_norm_eps,
            ..
        } = config.sizes;
        let norm = |name| RmsNorm::load(loader, name, head_dim, rms_norm_eps);
        Ok(Self {
            // The biases come with the layers.
            q_proj: loader.linear("q_proj", hidden_size, heads * head_dim)?,
            k_proj: loader.linear("k_proj", hidden_size, kv_heads * head_dim)?,
            v_proj: loader.linear("v_proj", hidden_size, kv_heads * head_dim)?,
            o_proj: loader.linear("o_proj", heads * head_dim, hidden_size)?,
            norms: if loader.has("q_norm.weight") { Some((norm("q_norm")?, norm("k_norm")?)) } else { None },
            attention: Attention { window: config.windows[layer], ..Attention::new(layer, heads, kv_heads, head_dim)? },
        })
    }

    /// `sum + attention(x)`.
    fn add_to(&self, sum: &Tensor, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let [mut q, mut k, v] = Linear::forward_all([&self.q_proj, &self.k_proj, &self.v_proj], x, step)?;
        if let Some((q_norm, k_norm)) = &self.norms {
            (q, k) = (q_norm.forward_heads(&q, step)?, k_norm.forward_heads(&k, step)?);
        }
        self.o_proj.add_to(sum, &self.attention.forward_rotated(&q, &k, &v, angles, step)?, step)
    }
}

/// The experts that a router chooses, and one that all tokens share as far as a gate lets it.
pub struct SparseMlp {
    gate: Router,
    experts: Experts,
    /// Of Qwen2.
    shared_expert: Option<(GatedMlp, Linear)>,
}

impl SparseMlp {
    fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        let out = self.experts.forward(x, &self.gate.forward(x, step)?, step)?;
        match &self.shared_expert {
            Some((mlp, gate)) => Ok((out + weighed(&mlp.forward(x, step)?, &gate.forward(x, step)?)?)?),
            None => Ok(out),
        }
    }
}

/// The feed-forward block of a layer.
pub enum Mlp {
    Dense(GatedMlp),
    Sparse(SparseMlp),
}

impl Mlp {
    pub fn load(loader: &Loader<'_>, sizes: &Sizes, moe: Option<&Moe>, layer: usize) -> Result<Self> {
        let Sizes { hidden_size, intermediate_size, hidden_act, .. } = *sizes;
        let Some(moe) = moe.filter(|moe| !moe.dense[layer]) else {
            return Ok(Self::Dense(GatedMlp::load(loader, hidden_size, intermediate_size, hidden_act)?));
        };
        let router = Router::load(loader, "gate", hidden_size, moe.num_experts, moe.num_experts_per_tok)?;
        let sizes = (moe.num_experts, hidden_size, moe.moe_intermediate_size);
        let shared_expert = if loader.has("shared_expert_gate.weight") {
            let inner = moe.shared_expert_intermediate_size;
            let mlp = GatedMlp::load(&loader.at("shared_expert"), hidden_size, inner, hidden_act)?;
            Some((mlp, loader.linear("shared_expert_gate", hidden_size, 1)?))
        } else {
            None
        };
        Ok(Self::Sparse(SparseMlp {
            gate: Router { renormalize: moe.norm_topk_prob, ..router },
            experts: Experts::load(&loader.at("experts"), ExpertNames::default(), sizes, Glu::Plain(hidden_act))?,
            shared_expert,
        }))
    }

    /// `sum + mlp(x)`.
    pub fn add_to(&self, sum: &Tensor, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        match self {
            Self::Dense(mlp) => mlp.add_to(sum, x, step),
            Self::Sparse(mlp) => step.ops().add(sum, &mlp.forward(x, step)?),
        }
    }
}

/// One decoder layer.
struct Block {
    input_layernorm: RmsNorm,
    self_attn: SelfAttention,
    post_attention_layernorm: RmsNorm,
    mlp: Mlp,
}

impl Block {
    fn load(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Self> {
        let Sizes { hidden_size, rms_norm_eps, .. } = config.sizes;
        Ok(Self {
            input_layernorm: RmsNorm::load(loader, "input_layernorm", hidden_size, rms_norm_eps)?,
            self_attn: SelfAttention::load(&loader.at("self_attn"), config, index)?,
            post_attention_layernorm: RmsNorm::load(loader, "post_attention_layernorm", hidden_size, rms_norm_eps)?,
            mlp: Mlp::load(&loader.at("mlp"), &config.sizes, config.moe.as_ref(), index)?,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let x = self.self_attn.add_to(x, &self.input_layernorm.forward(x, step)?, angles, step)?;
        let normed = self.post_attention_layernorm.forward(&x, step)?;
        self.mlp.add_to(&x, &normed, step)
    }
}

/// The model.
pub struct Qwen {
    embed_tokens: Embedding,
    layers: Vec<Block>,
    norm: RmsNorm,
    lm_head: Linear,
    rope: Rope,
}

impl Decoder for Qwen {
    const NAME: &'static str = "qwen";
    const GGUF: &'static [&'static str] =
        &["qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe"];
    const CLASSES: &'static [&'static str] = &[
        "Qwen2ForCausalLM",
        "Qwen2MoeForCausalLM",
        "Qwen2VLForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
        "Qwen3VLForConditionalGeneration",
        "Qwen3VLMoeForConditionalGeneration",
    ];

    type Config = Config;

    fn gguf_family(architecture: &str) -> GgufFamily {
        let norm_topk_prob = matches!(architecture, "qwen3moe" | "qwen3vlmoe");
        let pre_tokenizer = if architecture.contains("vl") { None } else { Some("qwen2") };
        GgufFamily { norm_topk_prob, pre_tokenizer, ..GgufFamily::default() }
    }

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        let mut config = checkpoint.config().with_defaults([("max_position_embeddings", 32_768.into())])?;
        if checkpoint.architecture().starts_with("Qwen3") {
            config = config.with_defaults([("head_dim", 128.into())])?;
        }
        if checkpoint.architecture().starts_with("Qwen3VLMoe") {
            config = config.with_defaults([("norm_topk_prob", true.into())])?;
        }
        let sizes = Sizes::read(&config)?;
        // Configurations name a window that they do not use, and leaving the switch out turns it off.
        let is_windowed = config.bool_or("use_sliding_window", false)?;
        let layers = sizes.num_hidden_layers;
        let windows = if is_windowed { config.sliding_windows(layers)? } else { vec![None; layers] };
        let moe = config.experts()?.map(|experts| moe(&config, experts, layers)).transpose()?;
        Ok(Config { sizes, windows, rope: config.rope()?, moe })
    }

    fn shape(config: &Config) -> Shape {
        config.sizes.shape().windowed(|layer| config.windows[layer])
    }

    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        let Sizes { vocab_size, hidden_size, num_hidden_layers, rms_norm_eps, .. } = config.sizes;
        let model = loader.text_model();
        let embed_tokens = model.embedding("embed_tokens", vocab_size, hidden_size)?;
        Ok(Self {
            layers: model.layers(num_hidden_layers, |loader, index| Block::load(loader, config, index))?,
            norm: RmsNorm::load(&model, "norm", hidden_size, rms_norm_eps)?,
            lm_head: loader.lm_head(&embed_tokens, config.sizes.tie_word_embeddings)?,
            rope: Rope::new(&config.rope, config.sizes.head_dim, loader.context())?,
            embed_tokens,
        })
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        let angles = self.rope.angles(step)?;
        let mut x = self.embed_tokens.forward(step)?;
        for layer in &self.layers {
            x = layer.forward(&x, &angles, step)?;
        }
        Ok(x)
    }

    fn logits(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.lm_head.forward(&self.norm.forward(hidden, step)?, step)
    }
}

/// What a configuration says about experts; every `decoder_sparse_step`th layer has them, but for those that it names.
pub fn moe(config: &Settings, num_experts: usize, layers: usize) -> Result<Moe> {
    let (step, only) = (config.usize_or("decoder_sparse_step", 1)?, config.usizes("mlp_only_layers")?);
    let is_dense = |layer: usize| only.contains(&layer) || step == 0 || !(layer + 1).is_multiple_of(step);
    Ok(Moe {
        num_experts,
        num_experts_per_tok: config.usize("num_experts_per_tok")?,
        moe_intermediate_size: config.usize("moe_intermediate_size")?,
        shared_expert_intermediate_size: config.usize_or("shared_expert_intermediate_size", 5632)?,
        norm_topk_prob: config.bool_or("norm_topk_prob", false)?,
        dense: (0..layers).map(is_dense).collect(),
    })
}
