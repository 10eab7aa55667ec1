//! Gemma 4: sliding-window and full-attention layers have different head sizes, and in the latter keys may serve as
//! values; scores are not scaled, as queries, keys and values are normalized; the last layers share the caches of
//! earlier ones. Small models have per-layer embeddings, large ones experts.
//!
//! Reference: `modeling_gemma4.py` in Hugging Face transformers; layers are named as in its checkpoints. Sounds and videos
//! are not read.

mod config;
mod experts;
mod per_layer;
mod vision;

use pensieve_sdk::{
    Error, Result,
    nn::{
        Angles, Attention, AttentionCache, CausalLm, Decoder, GatedMlp, KvShape, LayerCache, Linear, Loader, RmsNorm,
        Rope, Shape, Sizes, Step, Tensor,
        vision::{Processor, Tower},
    },
    weights::{Checkpoint, GgufFamily},
};

use crate::gguf;
pub use config::Config;
use config::Layer;
use experts::MixtureOfExperts;
use per_layer::{PerLayerInput, PerLayerInputs};
use vision::Gemma4Vision;
pub use vision::TOWER;

/// Reads a scalar stored as a tensor, in some checkpoints as `….weight`; 1 if absent.
fn scalar(loader: &Loader<'_>, name: &str) -> Result<f64> {
    let names = [name.to_owned(), format!("{name}.weight")];
    let Some(name) = names.iter().find(|name| loader.has(name)) else { return Ok(1.0) };
    let values = loader.values(name)?.unwrap_or_default();
    values.first().map(|value| f64::from(*value)).ok_or_else(|| Error::corrupt(format!("'{name}' holds nothing")))
}

/// Grouped-query attention, within a window in most layers.
struct SelfAttention {
    q_proj: Linear,
    q_norm: RmsNorm,
    /// `None` in layers that share a cache.
    kv: Option<KeysAndValues>,
    o_proj: Linear,
    attention: Attention,
}

struct KeysAndValues {
    k_proj: Linear,
    /// `None` if keys serve as values.
    v_proj: Option<Linear>,
    k_norm: RmsNorm,
    v_norm: RmsNorm,
}

impl SelfAttention {
    fn load(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Self> {
        let Sizes { hidden_size, num_attention_heads: heads, rms_norm_eps, .. } = config.sizes;
        let Layer { window, head_dim, num_key_value_heads: kv_heads, shares, .. } = config.layers[index];
        let is_apart = !config.attention_k_eq_v || window.is_some();
        let kv = || -> Result<KeysAndValues> {
            let v_proj = || loader.linear("v_proj", hidden_size, kv_heads * head_dim);
            Ok(KeysAndValues {
                k_proj: loader.linear("k_proj", hidden_size, kv_heads * head_dim)?,
                v_proj: if is_apart { Some(v_proj()?) } else { None },
                k_norm: RmsNorm::load(loader, "k_norm", head_dim, rms_norm_eps)?,
                v_norm: RmsNorm::without_weight(loader, head_dim, rms_norm_eps)?,
            })
        };
        Ok(Self {
            q_proj: loader.linear("q_proj", hidden_size, heads * head_dim)?,
            q_norm: RmsNorm::load(loader, "q_norm", head_dim, rms_norm_eps)?,
            kv: if shares.is_none() { Some(kv()?) } else { None },
            o_proj: loader.linear("o_proj", heads * head_dim, hidden_size)?,
            attention: Attention {
                scale: 1.0,
                window,
                whole_items: window.is_some() && config.vision.as_ref().is_some_and(|vision| vision.sees_whole),
                ..Attention::new(index, heads, kv_heads, head_dim)?
            },
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let Some(KeysAndValues { k_proj, v_proj, k_norm, v_norm }) = &self.kv else {
            let q = self.q_norm.forward_heads(&self.q_proj.forward(x, step)?, step)?;
            return self.o_proj.forward(&self.attention.forward_shared(&q, Some(angles), step)?, step);
        };
        let [q, k, v] = match v_proj {
            Some(v_proj) => Linear::forward_all([&self.q_proj, k_proj, v_proj], x, step)?,
            None => {
                let [q, k] = Linear::forward_all([&self.q_proj, k_proj], x, step)?;
                [q, k.clone(), k]
            }
        };
        let [q, k] = RmsNorm::forward_both([&self.q_norm, k_norm], [&q, &k], step)?;
        let v = v_norm.forward_heads(&v, step)?;
        self.o_proj.forward(&self.attention.forward(&q, &k, &v, Some(angles), step)?, step)
    }
}

struct Block {
    input_layernorm: RmsNorm,
    self_attn: SelfAttention,
    post_attention_layernorm: RmsNorm,
    pre_feedforward_layernorm: RmsNorm,
    mlp: GatedMlp,
    moe: Option<MixtureOfExperts>,
    post_feedforward_layernorm: RmsNorm,
    per_layer_input: Option<PerLayerInput>,
    layer_scalar: f64,
}

impl Block {
    fn load(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Self> {
        let Sizes { hidden_size, hidden_act, rms_norm_eps, .. } = config.sizes;
        let norm = |name| RmsNorm::load(loader, name, hidden_size, rms_norm_eps);
        let inner = config.layers[index].intermediate_size;
        let per_layer_input = config.per_layer_input.map(|sizes| PerLayerInput::load(loader, config, sizes.width));
        Ok(Self {
            input_layernorm: norm("input_layernorm")?,
            self_attn: SelfAttention::load(&loader.at("self_attn"), config, index)?,
            post_attention_layernorm: norm("post_attention_layernorm")?,
            pre_feedforward_layernorm: norm("pre_feedforward_layernorm")?,
            mlp: GatedMlp::load(&loader.at("mlp"), hidden_size, inner, hidden_act)?,
            moe: config.moe.map(|moe| MixtureOfExperts::load(loader, config, moe)).transpose()?,
            post_feedforward_layernorm: norm("post_feedforward_layernorm")?,
            per_layer_input: per_layer_input.transpose()?,
            layer_scalar: scalar(loader, "layer_scalar")?,
        })
    }

    fn forward(&self, x: &Tensor, input: Option<&Tensor>, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let attn_out = self.self_attn.forward(&self.input_layernorm.forward(x, step)?, angles, step)?;
        let x = self.post_attention_layernorm.add_to(x, &attn_out, step)?;
        let mut mlp_out = self.mlp.forward(&self.pre_feedforward_layernorm.forward(&x, step)?, step)?;
        if let Some(moe) = &self.moe {
            mlp_out = moe.forward(&x, &mlp_out, step)?;
        }
        let mut x = self.post_feedforward_layernorm.add_to(&x, &mlp_out, step)?;
        if let (Some(layer), Some(input)) = (&self.per_layer_input, input) {
            x = layer.add_to(&x, input, step)?;
        }
        Ok((x * self.layer_scalar)?)
    }
}

pub struct Gemma4 {
    model: CausalLm<Block>,
    /// `√hidden_size`, the scale of embeddings.
    embed_scale: f64,
    per_layer_inputs: Option<PerLayerInputs>,
    final_logit_softcapping: Option<f64>,
    rope: Rope,
    rope_local: Rope,
    vision: Option<Gemma4Vision>,
}

impl Decoder for Gemma4 {
    const NAME: &'static str = "gemma4";
    const GGUF: &'static [&'static str] = &["gemma4"];
    const CLASSES: &'static [&'static str] = &[
        "Gemma4ForCausalLM",
        "Gemma4ForConditionalGeneration",
        "Gemma4UnifiedForCausalLM",
        "Gemma4UnifiedForConditionalGeneration",
    ];
    const FEATURES: bool = true;
    const PROCESSOR: Option<&'static dyn Processor> = Some(&vision::Eyes);
    const OPTIONS: &'static [&'static str] = &[vision::MAX_SOFT_TOKENS];

    type Config = Config;

    fn gguf_family(_: &str) -> GgufFamily {
        gguf::gemma4()
    }

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        Config::read(checkpoint)
    }

    fn shape(config: &Config) -> Shape {
        let cache = |layer: &Layer| match layer.shares {
            Some(other) => LayerCache::SharedWith(other),
            None => LayerCache::Attention(AttentionCache {
                window: layer.window,
                ..AttentionCache::new(layer.num_key_value_heads, layer.head_dim)
            }),
        };
        let heads = config.sizes.num_attention_heads;
        let widest = config.layers.iter().map(|layer| layer.intermediate_size.max(heads * layer.head_dim)).max();
        let per_layer = config.per_layer_input.map_or(0, |sizes| sizes.width * config.layers.len());
        Shape {
            vocabulary: config.sizes.vocab_size,
            context: config.sizes.max_position_embeddings,
            widest: widest.unwrap_or_default().max(per_layer),
            kv: KvShape::new(config.layers.iter().map(cache).collect()),
        }
    }

    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        let vision = config.vision.as_ref().filter(|_| loader.reads_items());
        let slots = config.vision.as_ref().map(|vision| (vision.slot, vision.pad));
        let per_layer = |sizes| PerLayerInputs::load(&loader.text_model(), config, sizes, slots);
        let head_dim = |is_full: bool| {
            let layer = config.layers.iter().find(|layer| layer.window.is_none() == is_full);
            layer.map_or(config.sizes.head_dim, |layer| layer.head_dim)
        };
        Ok(Self {
            per_layer_inputs: config.per_layer_input.map(per_layer).transpose()?,
            model: CausalLm::load(loader, &config.sizes, |loader, layer| Block::load(loader, config, layer))?,
            embed_scale: (config.sizes.hidden_size as f64).sqrt(),
            final_logit_softcapping: config.final_logit_softcapping,
            rope: Rope::new(&config.rope, head_dim(true), loader.context())?,
            rope_local: Rope::new(&config.rope_local, head_dim(false), loader.context())?,
            vision: vision.map(|vision| Gemma4Vision::load(loader, vision, config.sizes.hidden_size)).transpose()?,
        })
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        let (angles, angles_local) = (self.rope.angles(step)?, self.rope_local.angles(step)?);
        let x = step.with_items((self.model.embed_tokens.forward(step)? * self.embed_scale)?)?;
        let inputs = self.per_layer_inputs.as_ref();
        let inputs = inputs.map(|inputs| Ok::<_, Error>((inputs.forward(&x, step)?, inputs.width))).transpose()?;
        self.model.hidden_from(x, step, |layer, x, step| {
            let Attention { layer: index, window, .. } = layer.self_attn.attention;
            let input = inputs.as_ref().map(|(all, width)| step.columns(all, index * width, *width)).transpose()?;
            layer.forward(x, input.as_ref(), if window.is_some() { &angles_local } else { &angles }, step)
        })
    }

    fn tower(&self) -> Option<&dyn Tower> {
        self.vision.as_ref().map(|vision| vision as &dyn Tower)
    }

    fn logits(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        let logits = self.model.logits(hidden, step)?;
        match self.final_logit_softcapping {
            Some(cap) => Ok(((logits / cap)?.tanh()? * cap)?),
            None => Ok(logits),
        }
    }

    fn features(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.model.features(hidden, step)
    }
}
