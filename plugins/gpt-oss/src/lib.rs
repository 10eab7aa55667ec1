//! gpt-oss 20B and 120B (arXiv 2508.10925): experts with biases and a clamped SwiGLU, sliding windows in every other
//! layer, and attention sinks.
//!
//! Reference: `modeling_gpt_oss.py` in Hugging Face transformers; layers are named as in its checkpoints. GGUF files
//! have the experts in MXFP4, as they were trained.

use pensieve_sdk::{
    Plugin, Result, export,
    nn::{
        Angles, Attention, CausalLm, Decoder, Expert, ExpertNames, Experts, Glu, Linear, Loader, Paged, Qkv, RmsNorm,
        Rope, Router, Shape, Sizes, SparseMlp, Step, Tensor,
    },
    weights::{Checkpoint, GgufConfig, GgufFamily, Names, RawTensor, RopeConfig},
};

export!(Plugin::new("gpt-oss", "gpt-oss").architecture(Paged::<GptOss>::architecture()));

struct Config {
    sizes: Sizes,
    num_local_experts: usize,
    num_experts_per_tok: usize,
    glu: Glu,
    /// Each layer's sliding window in tokens; `None` for full attention.
    windows: Vec<Option<usize>>,
    rope: RopeConfig,
}

/// Grouped-query attention with biases and one sink per head.
struct SelfAttention {
    qkv_proj: Qkv,
    o_proj: Linear,
    attention: Attention,
}

impl SelfAttention {
    fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        let Sizes { hidden_size, num_attention_heads: heads, num_key_value_heads: kv_heads, head_dim, .. } =
            config.sizes;
        let sinks = loader.vector(if loader.has("sinks") { "sinks" } else { "sinks.weight" }, heads)?;
        let attention = Attention {
            window: config.windows[layer],
            sinks: Some(sinks),
            ..Attention::new(layer, heads, kv_heads, head_dim)?
        };
        Ok(Self {
            qkv_proj: Qkv::load(loader, hidden_size, &attention)?,
            o_proj: loader.linear("o_proj", heads * head_dim, hidden_size)?,
            attention,
        })
    }

    /// `residual + attention(x)`.
    fn add_to(&self, residual: &Tensor, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let [q, k, v] = self.qkv_proj.forward(x, step)?;
        self.o_proj.add_to(residual, &self.attention.forward(&q, &k, &v, Some(angles), step)?, step)
    }
}

/// Routed experts, whose weights are renormalized.
fn mlp(loader: &Loader<'_>, config: &Config) -> Result<SparseMlp> {
    let Sizes { hidden_size, intermediate_size, .. } = config.sizes;
    let count = config.num_local_experts;
    let router = Router::load(loader, "router", hidden_size, count, config.num_experts_per_tok)?;
    let (loader, sizes) = (loader.at("experts"), (count, hidden_size, intermediate_size));
    let experts = if loader.has("gate_up_proj_bias") {
        experts_of_folder(&loader, sizes, config.glu)?
    } else {
        Experts::load(&loader, ExpertNames::default(), sizes, config.glu)?
    };
    Ok(SparseMlp::new(Router { renormalize: true, ..router }, experts))
}

/// Loads the experts of a safetensors folder, where the rows of gate and up are interleaved, and dense weights are
/// transposed.
fn experts_of_folder(loader: &Loader<'_>, (count, width, inner): (usize, usize, usize), glu: Glu) -> Result<Experts> {
    let (loader, host) = loader.for_experts();
    let is_packed = loader.has("gate_up_proj.weight");
    let stack = |name: &str, outputs: usize, inputs: usize| match is_packed {
        true => loader.raw(&format!("{name}.weight"), &[count, outputs, inputs]),
        false => loader.raw(name, &[count, inputs, outputs]),
    };
    let (gate_ups, downs) = (stack("gate_up_proj", 2 * inner, width)?, stack("down_proj", width, inner)?);
    let gate_up_biases = loader.raw("gate_up_proj_bias", &[count, 2 * inner])?;
    let down_biases = loader.raw("down_proj_bias", &[count, width])?;
    let part = |stack: &RawTensor, index| if is_packed { stack.part(index) } else { stack.part(index)?.transposed() };
    let expert = |index: usize| -> Result<Expert> {
        let linear = |name: &str, weight: &RawTensor, bias: &RawTensor| -> Result<Linear> {
            Ok(loader.at(index).linear_of(name, weight)?.with_bias(Some(loader.vector_of(bias)?)))
        };
        let (both, biases) = (part(&gate_ups, index)?, gate_up_biases.part(index)?);
        Ok(Expert {
            gate: linear("gate_proj", &both.every(0, 2)?, &biases.every(0, 2)?)?,
            up: linear("up_proj", &both.every(1, 2)?, &biases.every(1, 2)?)?,
            down: linear("down_proj", &part(&downs, index)?, &down_biases.part(index)?)?,
        })
    };
    Ok(Experts::new((0..count).map(expert).collect::<Result<_>>()?, glu).computed_by(host))
}

struct Block {
    input_layernorm: RmsNorm,
    self_attn: SelfAttention,
    post_attention_layernorm: RmsNorm,
    mlp: SparseMlp,
}

impl Block {
    fn load(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Self> {
        let Sizes { hidden_size, rms_norm_eps, .. } = config.sizes;
        Ok(Self {
            input_layernorm: RmsNorm::load(loader, "input_layernorm", hidden_size, rms_norm_eps)?,
            self_attn: SelfAttention::load(&loader.at("self_attn"), config, index)?,
            post_attention_layernorm: RmsNorm::load(loader, "post_attention_layernorm", hidden_size, rms_norm_eps)?,
            mlp: mlp(&loader.at("mlp"), config)?,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let x = self.self_attn.add_to(x, &self.input_layernorm.forward(x, step)?, angles, step)?;
        self.mlp.add_to(&x, &self.post_attention_layernorm.forward(&x, step)?, step)
    }
}

struct GptOss {
    model: CausalLm<Block>,
    rope: Rope,
}

/// GGUF tensor names and transformers' names.
const GGUF_NAMES: Names = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("attn_sinks", "self_attn.sinks"),
    ("ffn_gate_inp", "mlp.router"),
];

/// Settings that GGUF files omit: every second layer has a window, and YaRN's ramp is not rounded to whole dimensions.
fn complete(config: &mut GgufConfig<'_>) -> Result<()> {
    config.windows(2)?;
    if let Some(rope) = config.rope() {
        rope.insert("truncate".to_owned(), false.into());
    }
    Ok(())
}

impl Decoder for GptOss {
    const NAME: &'static str = "gpt-oss";
    const GGUF: &'static [&'static str] = &["gpt-oss"];
    const CLASSES: &'static [&'static str] = &["GptOssForCausalLM"];
    const FEATURES: bool = true;

    type Config = Config;

    fn gguf_family(_: &str) -> GgufFamily {
        GgufFamily { names: GGUF_NAMES, norm_topk_prob: true, complete, ..GgufFamily::default() }
    }

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        let config = checkpoint.config();
        let mut sizes = Sizes { rms_norm_eps: config.f64_or("rms_norm_eps", 1e-5)?, ..Sizes::read(config)? };
        sizes.intermediate_size = config.usize_or("moe_intermediate_size", sizes.intermediate_size)?;
        let (alpha, limit) = (config.f64_or("swiglu_alpha", 1.702)?, config.f64_or("swiglu_limit", 7.0)?);
        Ok(Config {
            num_local_experts: config.experts()?.unwrap_or(128),
            num_experts_per_tok: config.usize_or("num_experts_per_tok", 4)?,
            glu: Glu::Clamped { alpha, limit },
            windows: config.sliding_windows(sizes.num_hidden_layers)?,
            rope: config.rope()?,
            sizes,
        })
    }

    fn shape(config: &Config) -> Shape {
        config.sizes.shape().windowed(|layer| config.windows[layer])
    }

    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        Ok(Self {
            model: CausalLm::load(loader, &config.sizes, |loader, layer| Block::load(loader, config, layer))?,
            rope: Rope::new(&config.rope, config.sizes.head_dim, loader.context())?,
        })
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        let angles = self.rope.angles(step)?;
        self.model.hidden(step, |layer, x, step| layer.forward(x, &angles, step))
    }

    fn logits(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.model.logits(hidden, step)
    }

    fn features(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.model.features(hidden, step)
    }
}
