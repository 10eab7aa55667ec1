//! MiniMax M2: a mixture of many small experts, chosen by sigmoids that are corrected for the choice; queries and keys are normed as
//! wholes, and half of each head is rotated.
//!
//! Reference: `modeling_minimax_m2.py` in Hugging Face transformers; layers carry the names that they have in its checkpoints. Heads that
//! predict several tokens are left out.

use pensieve_sdk::{
    Error, Plugin, Result, export,
    nn::{
        Angles, Attention, Decoder, Embedding, ExpertNames, Experts, Glu, Linear, Loader, Paged, RmsNorm, Rope, Router,
        Scoring, Shape, Sizes, Step, Tensor,
    },
    weights::{Checkpoint, GgufFamily, Names, RopeConfig},
};

export!(Plugin::new("minimax", "MiniMax M2").architecture(Paged::<MiniMaxM2>::architecture()));

/// What a checkpoint says about its model.
struct Config {
    sizes: Sizes,
    num_experts: usize,
    num_experts_per_tok: usize,
    /// The inner width of an expert.
    expert_size: usize,
    rope: RopeConfig,
}

/// Grouped-query attention with queries and keys that are normed and rotated.
struct SelfAttention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    q_norm: RmsNorm,
    k_norm: RmsNorm,
    attention: Attention,
}

impl SelfAttention {
    fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        let Sizes { hidden_size, head_dim, rms_norm_eps, .. } = config.sizes;
        let Sizes { num_attention_heads: heads, num_key_value_heads: kv_heads, .. } = config.sizes;
        Ok(Self {
            q_proj: loader.linear("q_proj", hidden_size, heads * head_dim)?,
            k_proj: loader.linear("k_proj", hidden_size, kv_heads * head_dim)?,
            v_proj: loader.linear("v_proj", hidden_size, kv_heads * head_dim)?,
            o_proj: loader.linear("o_proj", heads * head_dim, hidden_size)?,
            q_norm: RmsNorm::load(loader, "q_norm", heads * head_dim, rms_norm_eps)?,
            k_norm: RmsNorm::load(loader, "k_norm", kv_heads * head_dim, rms_norm_eps)?,
            attention: Attention::new(layer, heads, kv_heads, head_dim)?,
        })
    }

    /// `sum + attention(x)`.
    fn add_to(&self, sum: &Tensor, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let [q, k, v] = Linear::forward_all([&self.q_proj, &self.k_proj, &self.v_proj], x, step)?;
        let (q, k) = (self.q_norm.forward(&q, step)?, self.k_norm.forward(&k, step)?);
        self.o_proj.add_to(sum, &self.attention.forward_rotated(&q, &k, &v, angles, step)?, step)
    }
}

/// The experts that a router chooses.
struct SparseMlp {
    gate: Router,
    experts: Experts,
}

impl SparseMlp {
    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        let Sizes { hidden_size, hidden_act, .. } = config.sizes;
        let (count, chosen) = (config.num_experts, config.num_experts_per_tok);
        let router = Router::load(loader, "gate", hidden_size, count, chosen)?;
        let correction = ["e_score_correction_bias", "e_score_correction.bias"];
        let router = router.with_correction(loader, &correction, count)?;
        let names = ExpertNames { gate: "w1", up: "w3", down: "w2", ..ExpertNames::default() };
        let sizes = (count, hidden_size, config.expert_size);
        Ok(Self {
            gate: Router { scoring: Scoring::Sigmoid, renormalize: true, ..router },
            experts: Experts::load(&loader.at("experts"), names, sizes, Glu::Plain(hidden_act))?,
        })
    }

    fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.experts.forward(x, &self.gate.forward(x, step)?, step)
    }
}

/// One decoder layer.
struct Block {
    input_layernorm: RmsNorm,
    self_attn: SelfAttention,
    post_attention_layernorm: RmsNorm,
    block_sparse_moe: SparseMlp,
}

impl Block {
    fn load(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Self> {
        let Sizes { hidden_size, rms_norm_eps, .. } = config.sizes;
        Ok(Self {
            input_layernorm: RmsNorm::load(loader, "input_layernorm", hidden_size, rms_norm_eps)?,
            self_attn: SelfAttention::load(&loader.at("self_attn"), config, index)?,
            post_attention_layernorm: RmsNorm::load(loader, "post_attention_layernorm", hidden_size, rms_norm_eps)?,
            block_sparse_moe: SparseMlp::load(&loader.at("block_sparse_moe"), config)?,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let x = self.self_attn.add_to(x, &self.input_layernorm.forward(x, step)?, angles, step)?;
        let normed = self.post_attention_layernorm.forward(&x, step)?;
        step.ops().add(&x, &self.block_sparse_moe.forward(&normed, step)?)
    }
}

/// The model.
struct MiniMaxM2 {
    embed_tokens: Embedding,
    layers: Vec<Block>,
    norm: RmsNorm,
    lm_head: Linear,
    rope: Rope,
}

/// Tensors of GGUF files.
const GGUF_NAMES: Names = &[
    ("ffn_gate_inp", "block_sparse_moe.gate"),
    ("ffn_gate_exps", "block_sparse_moe.experts.w1"),
    ("ffn_up_exps", "block_sparse_moe.experts.w3"),
    ("ffn_down_exps", "block_sparse_moe.experts.w2"),
    ("exp_probs_b", "block_sparse_moe.e_score_correction"),
];

impl Decoder for MiniMaxM2 {
    const NAME: &'static str = "minimax-m2";
    const GGUF: &'static [&'static str] = &["minimax-m2"];
    const CLASSES: &'static [&'static str] = &["MiniMaxM2ForCausalLM"];

    type Config = Config;

    fn gguf_family(_: &str) -> GgufFamily {
        GgufFamily { names: GGUF_NAMES, ..GgufFamily::default() }
    }

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        let defaults = [("head_dim", 128.into()), ("max_position_embeddings", 196_608.into())];
        let config = checkpoint.config().with_defaults(defaults)?;
        let sizes = Sizes::read(&config)?;
        let mut rope = config.rope()?;
        let is_given = config.value().pointer("/rope_parameters/partial_rotary_factor").is_some();
        // Published checkpoints say how many values of a head are rotated.
        if let Some(rotated) = config.find_usize("rotary_dim")?.filter(|_| !is_given) {
            rope.partial_rotary_factor = rotated as f64 / sizes.head_dim as f64;
        }
        let missing = || Error::corrupt("the configuration names no experts");
        Ok(Config {
            num_experts: config.experts()?.ok_or_else(missing)?,
            num_experts_per_tok: config.usize_or("num_experts_per_tok", 8)?,
            expert_size: config.usize_or("moe_intermediate_size", sizes.intermediate_size)?,
            rope,
            sizes,
        })
    }

    fn shape(config: &Config) -> Shape {
        config.sizes.shape()
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
