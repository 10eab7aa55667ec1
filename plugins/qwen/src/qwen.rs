//! Qwen2 and 2.5 (arXiv 2407.10671, 2412.15115) and Qwen3 (2505.09388), dense and as mixtures of experts: Llama with
//! biases on queries, keys and values, which Qwen3 replaces by norms of each head's queries and keys.
//!
//! Reference: `modeling_qwen2.py`, `modeling_qwen3.py` and their `_moe` in Hugging Face transformers; layers are named
//! as in its checkpoints. Qwen2.5-VL and Qwen3-VL read images; from Qwen2-VL only the text model is loaded. For text, their
//! RoPE in three sections (mRoPE) equals plain RoPE.

use pensieve_sdk::{
    Result,
    nn::{
        Angles, Attention, CausalLm, Decoder, ExpertNames, Experts, FeedForward, GatedMlp, Glu, Linear, Loader, Qkv,
        RmsNorm, Rope, Router, Shape, Sizes, SparseMlp, Step, Tensor,
        vision::{MAX_PIXELS, Processor, Tower},
    },
    weights::{Checkpoint, Config as Settings, GgufFamily, Names, RopeConfig, RowsUse, Tokenizer},
};

use crate::{
    rerank::{self, Score, Scoring},
    vision::{self, QwenVision},
};

pub struct Config {
    sizes: Sizes,
    /// Each layer's sliding window in tokens; `None` for full attention.
    windows: Vec<Option<usize>>,
    rope: RopeConfig,
    moe: Option<Moe>,
    /// Where the scores of a reranker or a classifier come from.
    scoring: Option<Scoring>,
    vision: Option<vision::Config>,
}

/// Sizes of a mixture and settings of its router.
pub struct Moe {
    num_experts: usize,
    num_experts_per_tok: usize,
    moe_intermediate_size: usize,
    shared_expert_intermediate_size: usize,
    norm_topk_prob: bool,
    /// True for each dense layer.
    dense: Vec<bool>,
}

/// Grouped-query attention; from Qwen3 on, with norms over the heads of queries and keys.
struct SelfAttention {
    qkv_proj: Qkv,
    o_proj: Linear,
    attention: Attention,
}

impl SelfAttention {
    fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        let Sizes { hidden_size, head_dim, rms_norm_eps, .. } = config.sizes;
        let Sizes { num_attention_heads: heads, num_key_value_heads: kv_heads, .. } = config.sizes;
        let attention =
            Attention { window: config.windows[layer], ..Attention::new(layer, heads, kv_heads, head_dim)? };
        let norm = |name| RmsNorm::load(loader, name, head_dim, rms_norm_eps);
        let mut qkv_proj = Qkv::load(loader, hidden_size, &attention)?;
        if loader.has("q_norm.weight") {
            qkv_proj = qkv_proj.with_norms(norm("q_norm")?, norm("k_norm")?);
        }
        Ok(Self { qkv_proj, o_proj: loader.linear("o_proj", heads * head_dim, hidden_size)?, attention })
    }

    /// `residual + attention(x)`.
    fn add_to(&self, residual: &Tensor, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let [q, k, v] = self.qkv_proj.forward(x, step)?;
        self.o_proj.add_to(residual, &self.attention.forward(&q, &k, &v, Some(angles), step)?, step)
    }
}

/// The feed-forward block of a layer: dense, or experts, in Qwen2 with a gated shared expert.
pub fn mlp(loader: &Loader<'_>, sizes: &Sizes, moe: Option<&Moe>, layer: usize) -> Result<FeedForward> {
    let Sizes { hidden_size, intermediate_size, hidden_act, .. } = *sizes;
    let Some(moe) = moe.filter(|moe| !moe.dense[layer]) else {
        return Ok(FeedForward::Dense(GatedMlp::load(loader, hidden_size, intermediate_size, hidden_act)?));
    };
    let router = Router::load(loader, "gate", hidden_size, moe.num_experts, moe.num_experts_per_tok)?;
    let router = Router { renormalize: moe.norm_topk_prob, ..router };
    let sizes = (moe.num_experts, hidden_size, moe.moe_intermediate_size);
    let experts = Experts::load(&loader.at("experts"), ExpertNames::default(), sizes, Glu::Plain(hidden_act))?;
    let mut mlp = SparseMlp::new(router, experts);
    if loader.has("shared_expert_gate.weight") {
        let inner = moe.shared_expert_intermediate_size;
        let shared_expert = GatedMlp::load(&loader.at("shared_expert"), hidden_size, inner, hidden_act)?;
        mlp = mlp.with_gated_shared(shared_expert, loader.linear("shared_expert_gate", hidden_size, 1)?);
    }
    Ok(FeedForward::Sparse(mlp))
}

struct Block {
    input_layernorm: RmsNorm,
    self_attn: SelfAttention,
    post_attention_layernorm: RmsNorm,
    mlp: FeedForward,
}

impl Block {
    fn load(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Self> {
        let Sizes { hidden_size, rms_norm_eps, .. } = config.sizes;
        Ok(Self {
            input_layernorm: RmsNorm::load(loader, "input_layernorm", hidden_size, rms_norm_eps)?,
            self_attn: SelfAttention::load(&loader.at("self_attn"), config, index)?,
            post_attention_layernorm: RmsNorm::load(loader, "post_attention_layernorm", hidden_size, rms_norm_eps)?,
            mlp: mlp(&loader.at("mlp"), &config.sizes, config.moe.as_ref(), index)?,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let x = self.self_attn.add_to(x, &self.input_layernorm.forward(x, step)?, angles, step)?;
        self.mlp.add_to(&x, &self.post_attention_layernorm.forward(&x, step)?, step)
    }
}

pub struct Qwen {
    model: CausalLm<Block>,
    rope: Rope,
    score: Option<Score>,
    vision: Option<QwenVision>,
}

/// The rows of a reranker or a classifier.
const NAMES: Names = &[("cls.output", "score")];

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
        "Qwen3Model",
        "Qwen3ForSequenceClassification",
        "Qwen3MoeForCausalLM",
        "Qwen3VLForConditionalGeneration",
        "Qwen3VLMoeForConditionalGeneration",
    ];
    const FEATURES: bool = true;
    const PROCESSOR: Option<&'static dyn Processor> = Some(&vision::Eyes);
    const OPTIONS: &'static [&'static str] = &[MAX_PIXELS];

    type Config = Config;

    fn gguf_family(architecture: &str) -> GgufFamily {
        let norm_topk_prob = matches!(architecture, "qwen3moe" | "qwen3vlmoe");
        let pre_tokenizer = if architecture.contains("vl") { None } else { Some("qwen2") };
        let tower = match architecture {
            "qwen2vl" => Some(&vision::QWEN2_5_VL),
            "qwen3vl" | "qwen3vlmoe" => Some(&vision::QWEN3_VL),
            _ => None,
        };
        GgufFamily { names: NAMES, norm_topk_prob, pre_tokenizer, tower, ..GgufFamily::default() }
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
        // Configurations give a window even if it is not used; `use_sliding_window` defaults to false.
        let is_windowed = config.bool_or("use_sliding_window", false)?;
        let layers = sizes.num_hidden_layers;
        let windows = if is_windowed { config.sliding_windows(layers)? } else { vec![None; layers] };
        let moe = config.experts()?.map(|experts| moe(&config, experts, layers)).transpose()?;
        Ok(Config {
            sizes,
            windows,
            rope: config.rope()?,
            moe,
            scoring: rerank::scoring(checkpoint)?,
            vision: vision::Config::read(checkpoint)?,
        })
    }

    fn shape(config: &Config) -> Shape {
        config.sizes.shape().windowed(|layer| config.windows[layer])
    }

    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        let vision = config.vision.as_ref().filter(|_| loader.reads_items());
        let rope = Rope::new(&config.rope, config.sizes.head_dim, loader.context())?;
        Ok(Self {
            model: CausalLm::load(loader, &config.sizes, |loader, layer| Block::load(loader, config, layer))?,
            rope: if let Some(vision) = vision { vision.rope(rope)? } else { rope },
            vision: vision.map(|vision| QwenVision::load(loader, vision, config.sizes.hidden_size)).transpose()?,
            score: config.scoring.map(|scoring| Score::load(loader, &config.sizes, scoring)).transpose()?,
        })
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        let angles = self.rope.angles(step)?;
        let mut x = step.with_items(self.model.embed_tokens.forward(step)?)?;
        let taps = self.vision.as_ref().map_or(0, QwenVision::taps);
        for (index, layer) in self.model.layers.iter().enumerate() {
            x = layer.forward(&x, &angles, step)?;
            if index < taps {
                x = step.add_taps(x, index)?;
            }
        }
        Ok(x)
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

    fn rows(checkpoint: &Checkpoint, tokenizer: &Tokenizer, config: &Config) -> Result<RowsUse> {
        match config.scoring {
            Some(scoring) => rerank::rows(checkpoint, tokenizer, scoring),
            None => RowsUse::read(checkpoint, tokenizer),
        }
    }

    fn finish_width(&self) -> usize {
        self.score.as_ref().map_or(0, Score::width)
    }

    fn finish(&self, rows: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.score.as_ref().map_or_else(|| Ok(rows.clone()), |score| score.forward(rows, step))
    }
}

/// Reads the sizes of a mixture; every `decoder_sparse_step`th layer is one, except those in `mlp_only_layers`.
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
