//! Kimi Linear (Moonshot, arXiv 2510.26692): three layers out of four are delta nets whose states fade by key channel
//! (Kimi Delta Attention), the others latent attention without position encoding.
//!
//! Reference: `modeling_kimi_linear.py` in Hugging Face transformers; layers are named as in the published checkpoints.

mod config;

use pensieve_sdk::{
    Error, Result,
    nn::{
        Activation, AttentionCache, CausalLm, Decay, Decoder, FeedForward, KvShape, LayerCache, Linear, Loader,
        Recurrence, RmsNorm, Shape, ShortConv, Sizes, Step, Tensor,
    },
    weights::{Checkpoint, Format, GgufFamily},
};

use crate::{gguf, latents::LatentAttention, mlp::mlp};
use config::{Config, LinearSizes};

/// A delta net whose state fades by key channel.
struct DeltaAttention {
    qkv_proj: [Linear; 3],
    conv1d: ShortConv,
    q_norm: RmsNorm,
    k_norm: RmsNorm,
    f_a_proj: Linear,
    f_b_proj: Linear,
    dt_bias: Tensor,
    /// `−exp(A_log)`, for each channel of a head.
    a: Tensor,
    b_proj: Linear,
    g_a_proj: Linear,
    g_b_proj: Linear,
    recurrence: Recurrence,
    o_norm: RmsNorm,
    o_proj: Linear,
}

impl DeltaAttention {
    fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        let Sizes { hidden_size: width, rms_norm_eps, .. } = config.deepseek.sizes;
        let LinearSizes { num_heads: heads, head_dim, conv_kernel_dim } = config.linear;
        let inner = config.linear.inner();
        let is_gguf = loader.format() == Format::Gguf;
        let name = if is_gguf { "A" } else { "A_log" };
        let missing = || Error::corrupt(format!("no tensor '{}.{name}' of {heads} values", loader.path()));
        let a = loader.values(name)?.filter(|values| values.len() == heads).ok_or_else(missing)?;
        let a = a.into_iter().map(|value| if is_gguf { value } else { -value.exp() });
        let a: Vec<f32> = a.flat_map(|value| std::iter::repeat_n(value, head_dim)).collect();
        let convs = [("q_conv1d", inner), ("k_conv1d", inner), ("v_conv1d", inner)];
        let linear = |name: &str| loader.linear(name, width, inner);
        Ok(Self {
            qkv_proj: [linear("q_proj")?, linear("k_proj")?, linear("v_proj")?],
            conv1d: ShortConv::load_joined(loader, &convs, layer, conv_kernel_dim)?.activated(Activation::Silu),
            q_norm: RmsNorm::to_length(loader, head_dim, (head_dim as f64).powf(-0.5), 1e-6)?,
            k_norm: RmsNorm::to_length(loader, head_dim, 1.0, 1e-6)?,
            f_a_proj: loader.linear("f_a_proj", width, head_dim)?,
            f_b_proj: loader.linear("f_b_proj", head_dim, inner)?,
            dt_bias: loader.vector(if is_gguf { "dt_proj.bias" } else { "dt_bias" }, inner)?,
            a: Tensor::from_vec(a, inner, loader.device())?,
            b_proj: loader.linear("b_proj", width, heads)?,
            g_a_proj: loader.linear("g_a_proj", width, head_dim)?,
            g_b_proj: loader.linear("g_b_proj", head_dim, inner)?,
            recurrence: Recurrence::new(layer, heads, heads, head_dim, head_dim)?,
            o_norm: RmsNorm::load(loader, "o_norm", head_dim, rms_norm_eps)?,
            o_proj: loader.linear("o_proj", inner, width)?,
        })
    }

    /// `residual + net(x)`.
    fn add_to(&self, residual: &Tensor, x: &Tensor, step: &mut Step<'_>) -> Result<Tensor> {
        let [q, k, v] = Linear::forward_all(self.qkv_proj.each_ref(), x, step)?;
        let [f, b, g] = Linear::forward_all([&self.f_a_proj, &self.b_proj, &self.g_a_proj], x, step)?;
        let (f, g) = (self.f_b_proj.forward(&f, step)?, self.g_b_proj.forward(&g, step)?);
        let inner = v.dim(1)?;
        let qkv = self.conv1d.forward(&step.join([&q, &k, &v])?, step)?;
        let [q, k, v] = step.split(&qkv, [inner; 3])?;
        let (q, k) = (self.q_norm.forward_heads(&q, step)?, self.k_norm.forward_heads(&k, step)?);
        let decay = step.ops().bias_act_scale(&f, Some(&self.dt_bias), Some(Activation::Softplus), Some(&self.a))?;
        let beta = step.ops().activate(&b, Activation::Sigmoid)?;
        let core_attn_out = self.recurrence.delta([&q, &k, &v], Decay::Key(decay), &beta, step)?;
        let gated = step.ops().gate(&g, &self.o_norm.forward_heads(&core_attn_out, step)?, Activation::Sigmoid)?;
        self.o_proj.add_to(residual, &gated, step)
    }
}

/// The token mixer of a layer.
enum Mixer {
    Attention(LatentAttention),
    Delta(DeltaAttention),
}

struct Block {
    input_layernorm: RmsNorm,
    mixer: Mixer,
    post_attention_layernorm: RmsNorm,
    block_sparse_moe: FeedForward,
}

impl Block {
    fn load(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Self> {
        let Sizes { hidden_size, rms_norm_eps, .. } = config.deepseek.sizes;
        let self_attn = loader.at("self_attn");
        // Published checkpoints call blocks with experts so, and transformers the dense ones too.
        let moe = loader.at("block_sparse_moe");
        let is_moe = moe.has("gate.weight") || moe.has("gate_proj.weight");
        Ok(Self {
            input_layernorm: RmsNorm::load(loader, "input_layernorm", hidden_size, rms_norm_eps)?,
            mixer: if config.attends[index] {
                Mixer::Attention(LatentAttention::load(&self_attn, &config.deepseek, index)?)
            } else {
                Mixer::Delta(DeltaAttention::load(&self_attn, config, index)?)
            },
            post_attention_layernorm: RmsNorm::load(loader, "post_attention_layernorm", hidden_size, rms_norm_eps)?,
            block_sparse_moe: mlp(&if is_moe { moe } else { loader.at("mlp") }, &config.deepseek, index)?,
        })
    }

    fn forward(&self, x: &Tensor, step: &mut Step<'_>) -> Result<Tensor> {
        let normed = self.input_layernorm.forward(x, step)?;
        let x = match &self.mixer {
            Mixer::Attention(attention) => attention.add_to(x, &normed, None, step)?,
            Mixer::Delta(delta) => delta.add_to(x, &normed, step)?,
        };
        self.block_sparse_moe.add_to(&x, &self.post_attention_layernorm.forward(&x, step)?, step)
    }
}

pub struct KimiLinear(CausalLm<Block>);

impl Decoder for KimiLinear {
    const NAME: &'static str = "kimi-linear";
    const GGUF: &'static [&'static str] = &["kimi-linear"];
    const CLASSES: &'static [&'static str] = &["KimiLinearForCausalLM"];
    const FEATURES: bool = true;

    type Config = Config;

    fn gguf_family(_: &str) -> GgufFamily {
        gguf::kimi()
    }

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        Config::read(checkpoint)
    }

    fn shape(config: &Config) -> Shape {
        let latent = config.deepseek.kv_lora_rank + config.deepseek.qk_rope_head_dim;
        let cache = |attends: &bool| match attends {
            true => LayerCache::Attention(AttentionCache { value_dim: 0, ..AttentionCache::new(1, latent) }),
            false => config.linear.cache(),
        };
        let shape = config.deepseek.sizes.shape();
        let widest = (config.deepseek.sizes.num_attention_heads * latent).max(3 * config.linear.inner());
        Shape {
            widest: shape.widest.max(widest),
            kv: KvShape::new(config.attends.iter().map(cache).collect()),
            ..shape
        }
    }

    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        let block = |loader: &Loader<'_>, layer: usize| Block::load(loader, config, layer);
        CausalLm::load(loader, &config.deepseek.sizes, block).map(Self)
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        self.0.hidden(step, Block::forward)
    }

    fn logits(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.0.logits(hidden, step)
    }

    fn features(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.0.features(hidden, step)
    }
}
