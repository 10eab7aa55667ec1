//! ERNIE 4.5 (Baidu), dense and as mixtures of experts: Llama that rotates neighbours; its experts are chosen by scores that are
//! corrected for the choice, beside experts that all tokens share.
//!
//! Reference: `modeling_ernie4_5.py` and `modeling_ernie4_5_moe.py` in Hugging Face transformers; layers carry the names that they
//! have in its checkpoints.

use pensieve_sdk::{
    Plugin, Result, export,
    nn::{
        Angles, Attention, Decoder, Embedding, ExpertNames, Experts, GatedMlp, Glu, Linear, Loader, Paged, RmsNorm,
        Rope, Router, Shape, Sizes, Step, Tensor,
    },
    weights::{Checkpoint, Config as Settings, Format, GgufFamily, GgufRope, Names, RopeConfig, RopeStyle},
};

export!(Plugin::new("ernie", "ERNIE 4.5").architecture(Paged::<Ernie>::architecture()));

/// What a checkpoint says about its model.
struct Config {
    sizes: Sizes,
    moe: Option<Moe>,
    rope: RopeConfig,
}

/// What it says about its experts.
struct Moe {
    num_experts: usize,
    top_k: usize,
    intermediate_size: usize,
    num_shared_experts: usize,
    /// Layers that are dense.
    dense: Vec<bool>,
}

/// Grouped-query attention with rotated queries and keys.
struct SelfAttention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    attention: Attention,
}

impl SelfAttention {
    fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        let Sizes { hidden_size, num_attention_heads: heads, num_key_value_heads: kv_heads, head_dim, .. } =
            config.sizes;
        Ok(Self {
            q_proj: loader.linear("q_proj", hidden_size, heads * head_dim)?,
            k_proj: loader.linear("k_proj", hidden_size, kv_heads * head_dim)?,
            v_proj: loader.linear("v_proj", hidden_size, kv_heads * head_dim)?,
            o_proj: loader.linear("o_proj", heads * head_dim, hidden_size)?,
            attention: Attention::new(layer, heads, kv_heads, head_dim)?,
        })
    }

    /// `sum + attention(x)`.
    fn add_to(&self, sum: &Tensor, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let [q, k, v] = Linear::forward_all([&self.q_proj, &self.k_proj, &self.v_proj], x, step)?;
        self.o_proj.add_to(sum, &self.attention.forward_rotated(&q, &k, &v, angles, step)?, step)
    }
}

/// The experts that a router chooses, and those that all tokens share.
struct SparseMlp {
    gate: Router,
    experts: Experts,
    shared_experts: Option<GatedMlp>,
}

impl SparseMlp {
    fn load(loader: &Loader<'_>, sizes: &Sizes, moe: &Moe) -> Result<Self> {
        let Sizes { hidden_size, hidden_act, .. } = *sizes;
        let router = Router::load(loader, "gate", hidden_size, moe.num_experts, moe.top_k)?;
        let names = ["moe_statics.e_score_correction_bias", "moe_statics.e_score_correction.bias"];
        let router = router.with_correction(loader, &names, moe.num_experts)?;
        let shared = moe.num_shared_experts * moe.intermediate_size;
        let shared_experts = loader.at("shared_experts");
        let has_shared = moe.num_shared_experts > 0;
        let sizes = (moe.num_experts, hidden_size, moe.intermediate_size);
        Ok(Self {
            gate: Router { renormalize: true, ..router },
            experts: Experts::load(&loader.at("experts"), ExpertNames::default(), sizes, Glu::Plain(hidden_act))?,
            shared_experts: if has_shared {
                Some(GatedMlp::load(&shared_experts, hidden_size, shared, hidden_act)?)
            } else {
                None
            },
        })
    }

    fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        let routed = self.experts.forward(x, &self.gate.forward(x, step)?, step)?;
        match &self.shared_experts {
            Some(shared) => shared.add_to(&routed, x, step),
            None => Ok(routed),
        }
    }
}

/// The feed-forward block of a layer.
enum Mlp {
    Dense(GatedMlp),
    Sparse(SparseMlp),
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
        let Sizes { hidden_size, intermediate_size, hidden_act, rms_norm_eps, .. } = config.sizes;
        let mlp = loader.at("mlp");
        Ok(Self {
            input_layernorm: RmsNorm::load(loader, "input_layernorm", hidden_size, rms_norm_eps)?,
            self_attn: SelfAttention::load(&loader.at("self_attn"), config, index)?,
            post_attention_layernorm: RmsNorm::load(loader, "post_attention_layernorm", hidden_size, rms_norm_eps)?,
            mlp: match config.moe.as_ref().filter(|moe| !moe.dense[index]) {
                Some(moe) => Mlp::Sparse(SparseMlp::load(&mlp, &config.sizes, moe)?),
                None => Mlp::Dense(GatedMlp::load(&mlp, hidden_size, intermediate_size, hidden_act)?),
            },
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let x = self.self_attn.add_to(x, &self.input_layernorm.forward(x, step)?, angles, step)?;
        let normed = self.post_attention_layernorm.forward(&x, step)?;
        match &self.mlp {
            Mlp::Dense(mlp) => mlp.add_to(&x, &normed, step),
            Mlp::Sparse(mlp) => step.ops().add(&x, &mlp.forward(&normed, step)?),
        }
    }
}

/// The model.
struct Ernie {
    embed_tokens: Embedding,
    layers: Vec<Block>,
    norm: RmsNorm,
    lm_head: Linear,
    rope: Rope,
}

/// Tensors of GGUF files.
const GGUF_NAMES: Names = &[
    ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
    ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
    ("exp_probs_b", "mlp.moe_statics.e_score_correction"),
];

impl Decoder for Ernie {
    const NAME: &'static str = "ernie4_5";
    const GGUF: &'static [&'static str] = &["ernie4_5", "ernie4_5-moe"];
    const CLASSES: &'static [&'static str] =
        &["Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM", "Ernie4_5_MoeForCausalLM"];

    type Config = Config;

    fn gguf_family(_: &str) -> GgufFamily {
        GgufFamily { names: GGUF_NAMES, rope: GgufRope::Interleaved, ..GgufFamily::default() }
    }

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        let is_moe = checkpoint.architecture().to_lowercase().contains("moe");
        let defaults = [("rms_norm_eps", 1e-5.into()), ("max_position_embeddings", 131_072.into())];
        let mut config = checkpoint.config().with_defaults(defaults)?;
        if !is_moe {
            config = config.with_defaults([("head_dim", 128.into())])?;
        }
        let sizes = Sizes::read(&config)?;
        Ok(Config {
            moe: if is_moe { Some(moe(checkpoint, &config, sizes.num_hidden_layers)?) } else { None },
            rope: RopeConfig { style: RopeStyle::Interleaved, ..config.rope()? },
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

/// What a configuration says about experts, under its own names or GGUF's.
fn moe(checkpoint: &Checkpoint, config: &Settings, layers: usize) -> Result<Moe> {
    let first = config.usize_or("moe_layer_start_index", config.usize_or("first_k_dense_replace", 1)?)?;
    // The last layer that has them; -1 for the last of all.
    let last = config.value()["moe_layer_end_index"].as_u64().map_or(layers, |last| last as usize);
    let interval = config.usize_or("moe_layer_interval", 1)?.max(1);
    let is_gguf = checkpoint.format() == Format::Gguf;
    let is_sparse = |layer: usize| match is_gguf {
        // Files in GGUF do not say where experts end.
        true => checkpoint.weights().contains(&format!("model.layers.{layer}.mlp.gate.weight")),
        false => layer >= first && layer <= last && (layer + 1).is_multiple_of(interval),
    };
    let gguf = |key: &str, name: &str, default: usize| -> Result<usize> {
        Ok(config.find_usize(key)?.or(config.find_usize(name)?).unwrap_or(default))
    };
    Ok(Moe {
        num_experts: gguf("moe_num_experts", "num_local_experts", 64)?,
        top_k: gguf("moe_k", "num_experts_per_tok", 6)?,
        intermediate_size: config.usize_or("moe_intermediate_size", 1536)?,
        num_shared_experts: gguf("moe_num_shared_experts", "n_shared_experts", 2)?,
        dense: (0..layers).map(|layer| !is_sparse(layer)).collect(),
    })
}
