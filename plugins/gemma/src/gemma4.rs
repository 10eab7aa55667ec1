//! Gemma 4: layers with windows have other heads than those that see everything, whose keys may be their values too; scores are not
//! scaled, as queries, keys and values are normed; the last layers read what earlier ones remember. Small models add a vector
//! of a token's own to each layer, large ones experts to each block.
//!
//! Reference: `modeling_gemma4.py` in Hugging Face transformers; layers carry the names that they have in its checkpoints. Of
//! checkpoints that also see or hear, the text model is loaded.

use pensieve_sdk::{
    Error, Result,
    nn::{
        Activation, Angles, Attention, AttentionCache, Decoder, Embedding, ExpertNames, Experts, GatedMlp, Glu,
        KvShape, LayerCache, Linear, Loader, RmsNorm, Rope, Router, Shape, Sizes, Step, Tensor, activation,
    },
    weights::{Checkpoint, Config as Settings, Format, GgufFamily, RopeConfig, RopeScaling, RopeStyle},
};

use crate::gguf;

/// What a checkpoint says about its model.
pub struct Config {
    sizes: Sizes,
    layers: Vec<Layer>,
    /// Whether keys are the values too, in layers that see everything.
    attention_k_eq_v: bool,
    final_logit_softcapping: Option<f64>,
    per_layer_input: Option<PerLayerSizes>,
    moe: Option<Moe>,
    rope: RopeConfig,
    rope_local: RopeConfig,
}

/// What it says about one layer.
#[derive(Clone, Copy)]
struct Layer {
    window: Option<usize>,
    head_dim: usize,
    num_key_value_heads: usize,
    intermediate_size: usize,
    /// The layer whose keys and values it reads, where it has none of its own.
    shares: Option<usize>,
}

/// How many vectors of tokens' own there are, and how wide they are in each layer.
#[derive(Clone, Copy)]
struct PerLayerSizes {
    vocab_size: usize,
    width: usize,
}

/// What it says about experts.
#[derive(Clone, Copy)]
struct Moe {
    num_experts: usize,
    top_k_experts: usize,
    moe_intermediate_size: usize,
}

/// A number that is stored as a tensor, under the one name or the other; 1 where there is none.
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
    /// Of layers that remember something of their own.
    kv: Option<KeysAndValues>,
    o_proj: Linear,
    attention: Attention,
}

struct KeysAndValues {
    k_proj: Linear,
    /// None where keys are the values too.
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
            attention: Attention { scale: 1.0, window, ..Attention::new(index, heads, kv_heads, head_dim)? },
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let q = self.q_norm.forward_heads(&self.q_proj.forward(x, step)?, step)?;
        let Some(KeysAndValues { k_proj, v_proj, k_norm, v_norm }) = &self.kv else {
            let found = self.attention.forward_shared(&angles.rotate(&q, step)?, step)?;
            return self.o_proj.forward(&found, step);
        };
        let k = k_proj.forward(x, step)?;
        let v = match v_proj {
            Some(v_proj) => v_norm.forward_heads(&v_proj.forward(x, step)?, step)?,
            None => v_norm.forward_heads(&k, step)?,
        };
        let k = k_norm.forward_heads(&k, step)?;
        self.o_proj.forward(&self.attention.forward_rotated(&q, &k, &v, angles, step)?, step)
    }
}

/// Experts beside the block that all tokens share, each with norms of its own.
struct SparseMlp {
    /// The norm of the router's input, with its scale.
    norm: RmsNorm,
    router: Router,
    experts: Experts,
    post_feedforward_layernorm_1: RmsNorm,
    post_feedforward_layernorm_2: RmsNorm,
    pre_feedforward_layernorm_2: RmsNorm,
}

impl SparseMlp {
    fn load(loader: &Loader<'_>, config: &Config, moe: Moe) -> Result<Self> {
        let Sizes { hidden_size, hidden_act, rms_norm_eps, .. } = config.sizes;
        let Moe { num_experts, top_k_experts, moe_intermediate_size } = moe;
        let norm = |name| RmsNorm::load(loader, name, hidden_size, rms_norm_eps);
        let is_gguf = loader.format() == Format::Gguf;
        let scale = loader.at("router").vector(if is_gguf { "proj.scale" } else { "scale" }, hidden_size)?;
        let scales =
            loader.vector(if is_gguf { "experts.down_proj.scale" } else { "router.per_expert_scale" }, num_experts)?;
        let router = Router::load(&loader.at("router"), "proj", hidden_size, num_experts, top_k_experts)?;
        let sizes = (num_experts, hidden_size, moe_intermediate_size);
        let glu = Glu::Plain(hidden_act);
        Ok(Self {
            norm: RmsNorm::of((scale * (hidden_size as f64).powf(-0.5))?, rms_norm_eps),
            router: Router { renormalize: true, expert_scale: Some(scales.to_vec1()?.into()), ..router },
            experts: Experts::load(&loader.at("experts"), ExpertNames::default(), sizes, glu)?,
            post_feedforward_layernorm_1: norm("post_feedforward_layernorm_1")?,
            post_feedforward_layernorm_2: norm("post_feedforward_layernorm_2")?,
            pre_feedforward_layernorm_2: norm("pre_feedforward_layernorm_2")?,
        })
    }

    /// What the shared block has made of `x`, and the experts of the same `x`.
    fn forward(&self, x: &Tensor, shared: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        let routes = self.router.forward(&self.norm.forward(x, step)?, step)?;
        let routed = self.experts.forward(&self.pre_feedforward_layernorm_2.forward(x, step)?, &routes, step)?;
        let shared = self.post_feedforward_layernorm_1.forward(shared, step)?;
        Ok((shared + self.post_feedforward_layernorm_2.forward(&routed, step)?)?)
    }
}

/// Adds what a layer makes of the token's own vector.
struct PerLayerInput {
    per_layer_input_gate: Linear,
    per_layer_projection: Linear,
    post_per_layer_input_norm: RmsNorm,
    act: Activation,
}

impl PerLayerInput {
    fn load(loader: &Loader<'_>, config: &Config, width: usize) -> Result<Self> {
        let Sizes { hidden_size, hidden_act, rms_norm_eps, .. } = config.sizes;
        Ok(Self {
            per_layer_input_gate: loader.linear("per_layer_input_gate", hidden_size, width)?,
            per_layer_projection: loader.linear("per_layer_projection", width, hidden_size)?,
            post_per_layer_input_norm: RmsNorm::load(loader, "post_per_layer_input_norm", hidden_size, rms_norm_eps)?,
            act: hidden_act,
        })
    }

    fn forward(&self, x: &Tensor, input: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        let gated = step.ops().gate(&self.per_layer_input_gate.forward(x, step)?, input, self.act)?;
        self.post_per_layer_input_norm.forward(&self.per_layer_projection.forward(&gated, step)?, step)
    }
}

/// One decoder layer.
struct Block {
    input_layernorm: RmsNorm,
    self_attn: SelfAttention,
    post_attention_layernorm: RmsNorm,
    pre_feedforward_layernorm: RmsNorm,
    mlp: GatedMlp,
    moe: Option<SparseMlp>,
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
            moe: config.moe.map(|moe| SparseMlp::load(loader, config, moe)).transpose()?,
            post_feedforward_layernorm: norm("post_feedforward_layernorm")?,
            per_layer_input: per_layer_input.transpose()?,
            layer_scalar: scalar(loader, "layer_scalar")?,
        })
    }

    fn forward(&self, x: &Tensor, input: Option<&Tensor>, angles: &Angles, step: &mut Step<'_>) -> Result<Tensor> {
        let attended = self.self_attn.forward(&self.input_layernorm.forward(x, step)?, angles, step)?;
        let x = (x + self.post_attention_layernorm.forward(&attended, step)?)?;
        let mut transformed = self.mlp.forward(&self.pre_feedforward_layernorm.forward(&x, step)?, step)?;
        if let Some(moe) = &self.moe {
            transformed = moe.forward(&x, &transformed, step)?;
        }
        let mut x = (&x + self.post_feedforward_layernorm.forward(&transformed, step)?)?;
        if let (Some(layer), Some(input)) = (&self.per_layer_input, input) {
            x = (&x + layer.forward(&x, input, step)?)?;
        }
        Ok((x * self.layer_scalar)?)
    }
}

/// The vectors that tokens have in each layer: one of the token's own, and one that is made of its embedding.
struct PerLayerInputs {
    embed_tokens_per_layer: Embedding,
    per_layer_model_projection: Linear,
    per_layer_projection_norm: RmsNorm,
    width: usize,
}

impl PerLayerInputs {
    fn load(loader: &Loader<'_>, config: &Config, sizes: PerLayerSizes) -> Result<Self> {
        let Sizes { hidden_size, num_hidden_layers, rms_norm_eps, .. } = config.sizes;
        let (PerLayerSizes { vocab_size, width }, all) = (sizes, num_hidden_layers * sizes.width);
        Ok(Self {
            embed_tokens_per_layer: loader.embedding("embed_tokens_per_layer", vocab_size, all)?,
            per_layer_model_projection: loader.linear("per_layer_model_projection", hidden_size, all)?,
            per_layer_projection_norm: RmsNorm::load(loader, "per_layer_projection_norm", width, rms_norm_eps)?,
            width,
        })
    }

    /// All of them, layer after layer, for embeddings `x`.
    fn forward(&self, x: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        let own = (self.embed_tokens_per_layer.forward(step)? * (self.width as f64).sqrt())?;
        let made = (self.per_layer_model_projection.forward(x, step)? * (x.dim(1)? as f64).powf(-0.5))?;
        let made = self.per_layer_projection_norm.forward_heads(&made, step)?;
        Ok(((made + own)? * 0.5_f64.sqrt())?)
    }
}

/// The model.
pub struct Gemma4 {
    embed_tokens: Embedding,
    /// The root of the width.
    embed_scale: f64,
    per_layer_inputs: Option<PerLayerInputs>,
    layers: Vec<Block>,
    norm: RmsNorm,
    lm_head: Linear,
    final_logit_softcapping: Option<f64>,
    rope: Rope,
    rope_local: Rope,
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

    type Config = Config;

    fn gguf_family(_: &str) -> GgufFamily {
        gguf::gemma4()
    }

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        let config = with_defaults(checkpoint.config())?;
        if config.find_str("use_bidirectional_attention")?.is_some_and(|of| of != "vision") {
            return Err(Error::declined("the model reads texts in both directions"));
        }
        let hidden_act = activation(config.str_or("hidden_activation", "gelu_pytorch_tanh")?)?;
        let sizes = Sizes { hidden_act, ..Sizes::read(&config)? };
        let (rope, rope_local) = ropes(&config)?;
        let has_experts = config.bool_or("enable_moe_block", false)?;
        let moe = config.experts()?.filter(|_| has_experts);
        let moe = moe.map(|num_experts| -> Result<Moe> {
            let chosen = config.find_usize("top_k_experts")?.or(config.find_usize("num_experts_per_tok")?);
            let top_k_experts = chosen.ok_or_else(|| Error::corrupt("the configuration has no 'top_k_experts'"))?;
            Ok(Moe { num_experts, top_k_experts, moe_intermediate_size: config.usize("moe_intermediate_size")? })
        });
        Ok(Config {
            layers: layers(&config, &sizes)?,
            attention_k_eq_v: config.bool_or("attention_k_eq_v", false)?,
            final_logit_softcapping: config.find_f64("final_logit_softcapping")?,
            per_layer_input: per_layer_sizes(checkpoint, &config, &sizes)?,
            moe: moe.transpose()?,
            rope,
            rope_local,
            sizes,
        })
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
        let Sizes { vocab_size, hidden_size, num_hidden_layers, rms_norm_eps, .. } = config.sizes;
        let model = loader.text_model();
        let embed_tokens = model.embedding("embed_tokens", vocab_size, hidden_size)?;
        let per_layer_inputs = config.per_layer_input.map(|sizes| PerLayerInputs::load(&model, config, sizes));
        let head_dim = |is_full: bool| {
            let layer = config.layers.iter().find(|layer| layer.window.is_none() == is_full);
            layer.map_or(config.sizes.head_dim, |layer| layer.head_dim)
        };
        Ok(Self {
            embed_scale: (hidden_size as f64).sqrt(),
            per_layer_inputs: per_layer_inputs.transpose()?,
            layers: model.layers(num_hidden_layers, |loader, index| Block::load(loader, config, index))?,
            norm: RmsNorm::load(&model, "norm", hidden_size, rms_norm_eps)?,
            lm_head: loader.lm_head(&embed_tokens, config.sizes.tie_word_embeddings)?,
            final_logit_softcapping: config.final_logit_softcapping,
            rope: Rope::new(&config.rope, head_dim(true), loader.context())?,
            rope_local: Rope::new(&config.rope_local, head_dim(false), loader.context())?,
            embed_tokens,
        })
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        let (angles, angles_local) = (self.rope.angles(step)?, self.rope_local.angles(step)?);
        let mut x = (self.embed_tokens.forward(step)? * self.embed_scale)?;
        let inputs =
            self.per_layer_inputs.as_ref().map(|inputs| Ok::<_, Error>((inputs.forward(&x, step)?, inputs.width)));
        let inputs = inputs.transpose()?;
        for (index, layer) in self.layers.iter().enumerate() {
            let angles = if layer.self_attn.attention.window.is_some() { &angles_local } else { &angles };
            let input = inputs.as_ref().map(|(all, width)| step.columns(all, index * width, *width)).transpose()?;
            x = layer.forward(&x, input.as_ref(), angles, step)?;
        }
        Ok(x)
    }

    fn logits(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        let logits = self.lm_head.forward(&self.norm.forward(hidden, step)?, step)?;
        match self.final_logit_softcapping {
            Some(cap) => Ok(((logits / cap)?.tanh()? * cap)?),
            None => Ok(logits),
        }
    }
}

/// What the class of transformers takes for what a configuration leaves out.
fn with_defaults(config: &Settings) -> Result<Settings> {
    let layers = config.usize_or("num_hidden_layers", 30)?;
    let is_full = |layer: usize| (layer + 1).is_multiple_of(6) || layer + 1 == layers;
    let kind = |layer| if is_full(layer) { "full_attention" } else { "sliding_attention" };
    let types: Vec<&str> = (0..layers).map(kind).collect();
    config.with_defaults([
        ("num_hidden_layers", layers.into()),
        ("num_attention_heads", 8.into()),
        ("num_key_value_heads", 4.into()),
        ("head_dim", 256.into()),
        ("rms_norm_eps", 1e-6.into()),
        ("vocab_size", 262_144.into()),
        ("max_position_embeddings", 131_072.into()),
        ("sliding_window", 512.into()),
        ("layer_types", types.into()),
    ])
}

/// The rotations of layers that see everything and of those with a window, also where a configuration says nothing of them.
fn ropes(config: &Settings) -> Result<(RopeConfig, RopeConfig)> {
    let given = &config.value()["rope_parameters"];
    if given.get("full_attention").is_some() || given.get("rope_theta").is_some() {
        return config.ropes();
    }
    let of = |theta, partial_rotary_factor, scaling| RopeConfig {
        theta,
        partial_rotary_factor,
        style: RopeStyle::NeoX,
        scaling,
    };
    Ok((of(1e6, 0.25, RopeScaling::Proportional { factor: 1.0 }), of(1e4, 1.0, RopeScaling::None)))
}

/// What each layer is.
fn layers(config: &Settings, sizes: &Sizes) -> Result<Vec<Layer>> {
    let count = sizes.num_hidden_layers;
    let windows = config.sliding_windows(count)?;
    let takes_keys = config.bool_or("attention_k_eq_v", false)?;
    let full_dim = config.usize_or("global_head_dim", 512)?;
    let full_heads = config.find_usize("num_global_key_value_heads")?.filter(|_| takes_keys);
    // Configurations of newer tools say it layer by layer; from ten layers on their numbers begin with zeros.
    let listed = config.value()["per_layer_config"].as_object();
    let own = |layer: usize, key: &str| -> Option<usize> {
        let mut named = listed?.iter().filter(|(name, _)| name.parse() == Ok(layer));
        let value = named.find_map(|(_, layer)| layer.get(key)?.as_u64())?;
        usize::try_from(value).ok().filter(|value| (1..=4096).contains(value))
    };
    let first_shared = count - config.usize_or("num_kv_shared_layers", 0)?.min(count);
    let is_wide = config.bool_or("use_double_wide_mlp", false)?;
    (0..count)
        .map(|layer| {
            let is_full = windows[layer].is_none() && listed.is_none();
            let head_dim = if is_full { full_dim } else { sizes.head_dim };
            let heads = full_heads.filter(|_| is_full).unwrap_or(sizes.num_key_value_heads);
            let is_shared = layer >= first_shared;
            let alike = |other: &usize| windows[*other].is_some() == windows[layer].is_some();
            let shares = if is_shared { (0..first_shared).rev().find(alike) } else { None };
            if is_shared && shares.is_none() {
                return Err(Error::corrupt(format!("no earlier layer remembers what layer {layer} reads")));
            }
            Ok(Layer {
                window: windows[layer],
                head_dim: own(layer, "head_dim").unwrap_or(head_dim),
                num_key_value_heads: own(layer, "num_key_value_heads").unwrap_or(heads),
                intermediate_size: sizes.intermediate_size * if is_wide && is_shared { 2 } else { 1 },
                shares,
            })
        })
        .collect()
}

/// The sizes of the vectors that tokens have in each layer, where the checkpoint has such.
fn per_layer_sizes(checkpoint: &Checkpoint, config: &Settings, sizes: &Sizes) -> Result<Option<PerLayerSizes>> {
    if !checkpoint.weights().names().any(|name| name.ends_with("embed_tokens_per_layer.weight")) {
        return Ok(None);
    }
    let vocab_size = config.usize_or("vocab_size_per_layer_input", sizes.vocab_size)?;
    if vocab_size < sizes.vocab_size {
        return Err(Error::declined("some tokens have no vectors of their own in the layers"));
    }
    Ok(Some(PerLayerSizes { vocab_size, width: config.usize_or("hidden_size_per_layer_input", 256)? }))
}
