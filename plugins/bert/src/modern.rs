//! ModernBERT (arXiv 2412.13663): rotated positions, norms before each block, gated MLPs, and attention within a window
//! around each token in two layers of three.
//!
//! Reference: `modeling_modernbert.py` in Hugging Face transformers; layers are named as in its checkpoints.

use pensieve_sdk::{
    Result,
    nn::{
        Activation, Angles, Embedding, Encoder, EncoderShape, ExpertNames, GatedMlp, LayerNorm, Linear, Loader, Qkv,
        Rope, Sizes, Step, Tensor, TextAttention, activation,
    },
    weights::{Checkpoint, Config as Settings, GgufFamily, Pooling, RopeConfig, RopeScaling, RowsUse, Tokenizer},
};

use crate::{
    gguf,
    head::{self, Head},
};

pub struct Config {
    sizes: Sizes,
    norm_eps: f64,
    /// How far each layer's tokens see to either side; `None` for the whole text.
    reach: Vec<Option<usize>>,
    global_rope: RopeConfig,
    local_rope: RopeConfig,
    /// Labels of the head, if there is one.
    labels: Option<usize>,
    classifier_act: Activation,
    classifier_pooling: Pooling,
}

struct SelfAttention {
    qkv: Qkv,
    attention: TextAttention,
    out: Linear,
}

impl SelfAttention {
    fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        let Sizes { hidden_size, num_attention_heads: heads, head_dim, .. } = config.sizes;
        let parts = [("q_proj", hidden_size), ("k_proj", hidden_size), ("v_proj", hidden_size)];
        let attention = TextAttention { reach: config.reach[layer], ..TextAttention::new(heads, heads, head_dim)? };
        Ok(Self {
            qkv: Qkv::of(loader.stacked("Wqkv", hidden_size, parts)?),
            attention,
            out: loader.linear("Wo", hidden_size, hidden_size)?,
        })
    }

    /// `residual + attention(x)`.
    fn add_to(&self, residual: &Tensor, x: &Tensor, angles: &Angles, step: &Step<'_>) -> Result<Tensor> {
        let [q, k, v] = self.qkv.forward(x, step)?;
        self.out.add_to(residual, &self.attention.forward([&q, &k, &v], Some(angles), step)?, step)
    }
}

struct Block {
    /// `None` in the first layer, whose input is normed already.
    attn_norm: Option<LayerNorm>,
    attn: SelfAttention,
    mlp_norm: LayerNorm,
    mlp: GatedMlp,
}

impl Block {
    fn load(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Self> {
        let Sizes { hidden_size, intermediate_size, hidden_act, .. } = config.sizes;
        let norm = |name| LayerNorm::load(loader, name, hidden_size, config.norm_eps);
        let names = ExpertNames { gate_up: "Wi", down: "Wo", ..ExpertNames::default() };
        let mlp = GatedMlp::load_named(&loader.at("mlp"), names, hidden_size, intermediate_size, hidden_act)?;
        Ok(Self {
            attn_norm: if loader.has("attn_norm.weight") { Some(norm("attn_norm")?) } else { None },
            attn: SelfAttention::load(&loader.at("attn"), config, index)?,
            mlp_norm: norm("mlp_norm")?,
            mlp,
        })
    }

    fn forward(&self, x: &Tensor, angles: &Angles, step: &Step<'_>) -> Result<Tensor> {
        let normed = self.attn_norm.as_ref().map(|norm| norm.forward(x, step)).transpose()?;
        let x = self.attn.add_to(x, normed.as_ref().unwrap_or(x), angles, step)?;
        self.mlp.add_to(&x, &self.mlp_norm.forward(&x, step)?, step)
    }
}

pub struct ModernBert {
    tok_embeddings: Embedding,
    norm: LayerNorm,
    layers: Vec<Block>,
    final_norm: LayerNorm,
    global_rope: Rope,
    local_rope: Rope,
    head: Option<Head>,
}

impl Encoder for ModernBert {
    const NAME: &'static str = "modern-bert";
    const GGUF: &'static [&'static str] = &["modern-bert"];
    const CLASSES: &'static [&'static str] =
        &["ModernBertModel", "ModernBertForMaskedLM", "ModernBertForSequenceClassification"];

    type Config = Config;

    fn gguf_family(_: &str) -> GgufFamily {
        gguf::modern()
    }

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        let config = checkpoint.config();
        let hidden_act = activation(config.str_or("hidden_activation", "gelu")?)?;
        let sizes = Sizes { hidden_act, ..Sizes::read(config)? };
        let (global_rope, local_rope) = ropes(config)?;
        Ok(Config {
            norm_eps: config.f64_or("norm_eps", config.f64_or("layer_norm_eps", 1e-5)?)?,
            reach: reach(config, sizes.num_hidden_layers)?,
            global_rope,
            local_rope,
            labels: head::labels(checkpoint),
            classifier_act: activation(config.str_or("classifier_activation", "gelu")?)?,
            classifier_pooling: match config.str_or("classifier_pooling", "cls")? {
                "mean" => Pooling::Mean,
                _ => Pooling::First,
            },
            sizes,
        })
    }

    fn shape(config: &Config) -> EncoderShape {
        let Sizes { vocab_size, hidden_size, intermediate_size, max_position_embeddings, .. } = config.sizes;
        EncoderShape {
            vocabulary: vocab_size,
            context: max_position_embeddings,
            widest: (2 * intermediate_size).max(3 * hidden_size),
            width: hidden_size,
        }
    }

    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        let Sizes { vocab_size, hidden_size, head_dim, num_hidden_layers, .. } = config.sizes;
        let is_bare = loader.has("embeddings.tok_embeddings.weight");
        let model = if is_bare { loader.clone() } else { loader.at("model") };
        Ok(Self {
            tok_embeddings: model.embedding("embeddings.tok_embeddings", vocab_size, hidden_size)?,
            norm: LayerNorm::load(&model, "embeddings.norm", hidden_size, config.norm_eps)?,
            layers: model.layers(num_hidden_layers, |loader, layer| Block::load(loader, config, layer))?,
            final_norm: LayerNorm::load(&model, "final_norm", hidden_size, config.norm_eps)?,
            global_rope: Rope::new(&config.global_rope, head_dim, loader.context())?,
            local_rope: Rope::new(&config.local_rope, head_dim, loader.context())?,
            head: config
                .labels
                .map(|labels| Head::load_normed(loader, (hidden_size, labels), config.classifier_act, config.norm_eps))
                .transpose()?,
        })
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        let (global, local) = (self.global_rope.angles(step)?, self.local_rope.angles(step)?);
        let x = self.norm.forward(&self.tok_embeddings.forward(step)?, step)?;
        let x = self.layers.iter().try_fold(x, |x, layer| {
            let angles = if layer.attn.attention.reach.is_some() { &local } else { &global };
            layer.forward(&x, angles, step)
        })?;
        self.final_norm.forward(&x, step)
    }

    fn rows(checkpoint: &Checkpoint, tokenizer: &Tokenizer, config: &Config) -> Result<Option<RowsUse>> {
        config.labels.map(|labels| head::rows(checkpoint, tokenizer, config.classifier_pooling, labels)).transpose()
    }

    fn finish_width(&self) -> usize {
        self.head.as_ref().map_or(0, Head::labels)
    }

    fn finish(&self, rows: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.head.as_ref().map_or_else(|| Ok(rows.clone()), |head| head.forward(rows, step))
    }
}

/// RoPE of layers that see the whole text, and of those that see a window.
fn ropes(config: &Settings) -> Result<(RopeConfig, RopeConfig)> {
    if config.value().pointer("/rope_parameters/full_attention").is_some() {
        return config.ropes();
    }
    let rope = RopeConfig { scaling: RopeScaling::None, ..config.rope()? };
    let theta = |key, default| config.f64_or(key, default);
    let global = RopeConfig { theta: theta("global_rope_theta", 160_000.0)?, ..rope.clone() };
    Ok((global, RopeConfig { theta: theta("local_rope_theta", 10_000.0)?, ..rope }))
}

/// Half the window around a token in each layer, by `layer_types` or by every how many layers the whole text is seen.
fn reach(config: &Settings, layers: usize) -> Result<Vec<Option<usize>>> {
    let half = config.usize_or("local_attention", 128)? / 2;
    let every = config.usize_or("global_attn_every_n_layers", 3)?.max(1);
    let types = config.layer_types("layer_types", layers)?;
    let is_local = |layer: usize| match types {
        Some(types) => types.get(layer).and_then(|kind| kind.as_str()) == Some("sliding_attention"),
        None => !layer.is_multiple_of(every),
    };
    Ok((0..layers).map(|layer| is_local(layer).then_some(half)).collect())
}
