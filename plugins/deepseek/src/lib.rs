//! DeepSeek-V2 (arXiv 2405.04434), V3 (2412.19437) and V3.2 (2512.02556), and GLM-4.7-Flash: multi-head latent
//! attention, which caches one latent per token for the keys and values of all heads, sparse in V3.2, and mixtures with
//! shared experts. Kimi Linear has both beside layers of its own.
//!
//! Reference: `modeling_deepseek_v2.py`, `modeling_deepseek_v3.py`, `modeling_deepseek_v32.py` and
//! `modeling_glm4_moe_lite.py` in Hugging Face transformers; layers are named as in its checkpoints. The up-projections
//! from latents to keys and values are absorbed into queries and outputs (2405.04434, section 2.1.2), so adapters on
//! `kv_b_proj` are refused.

mod config;
mod gguf;
mod indexer;
mod kimi;
mod mlp;

use pensieve_sdk::{
    Plugin, Result, export,
    nn::{
        Attention, AttentionCache, CausalLm, Decoder, FeedForward, HeadLinear, KvShape, LayerCache, Linear, Loader,
        Paged, RmsNorm, Rope, Shape, Sizes, Step, Tensor,
    },
    weights::{Checkpoint, GgufFamily, RawTensor},
};

use config::Config;
use indexer::{Indexer, StepAngles};
use mlp::mlp;

export!(
    Plugin::new("deepseek", "DeepSeek-V2, V3 and V3.2, GLM-4.7-Flash, Kimi Linear")
        .architecture(Paged::<DeepSeek>::architecture())
        .architecture(Paged::<kimi::KimiLinear>::architecture())
);

/// Epsilon of the latents' norms, which configurations do not contain.
const LATENT_EPS: f64 = 1e-6;

/// The projection of queries, direct or low-rank.
enum Queries {
    Direct(Linear),
    Latent { q_a_proj: Linear, q_a_layernorm: RmsNorm, q_b_proj: Linear },
}

/// Multi-head latent attention, with the up-projections absorbed.
struct LatentAttention {
    queries: Queries,
    kv_a_proj_with_mqa: Linear,
    kv_a_layernorm: RmsNorm,
    /// Maps a head's query to the latent space.
    absorb_k: HeadLinear,
    /// Maps a head's latent output to values.
    absorb_v: HeadLinear,
    o_proj: Linear,
    attention: Attention,
    /// In V3.2.
    indexer: Option<Indexer>,
    nope: usize,
    rotated: usize,
}

impl LatentAttention {
    fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
        let Sizes { hidden_size: width, num_attention_heads: heads, .. } = config.sizes;
        let (rank, nope, rotated) = (config.kv_lora_rank, config.qk_nope_head_dim, config.qk_rope_head_dim);
        let (value, of_queries) = (config.v_head_dim, heads * (nope + rotated));
        let queries = match config.q_lora_rank {
            Some(rank) => Queries::Latent {
                q_a_proj: loader.linear("q_a_proj", width, rank)?,
                q_a_layernorm: RmsNorm::load(loader, "q_a_layernorm", rank, LATENT_EPS)?,
                q_b_proj: loader.linear("q_b_proj", rank, of_queries)?,
            },
            None => Queries::Direct(loader.linear("q_proj", width, of_queries)?),
        };
        // GGUF files have the two parts as separate tensors, with the keys' part transposed.
        let (absorb_k, absorb_v) = if loader.has("k_b_proj.weight") {
            let keys = HeadLinear::load(loader, "k_b_proj", [heads, rank, nope])?;
            (keys, HeadLinear::load(loader, "v_b_proj", [heads, value, rank])?)
        } else {
            let both = loader.raw("kv_b_proj.weight", &[heads * (nope + value), rank])?;
            let [keys, values] = absorbed(&both, &loader.unpacked(&both)?, [heads, nope, value, rank])?;
            (HeadLinear::of(loader, &keys)?, HeadLinear::of(loader, &values)?)
        };
        // A layer's caches are neighbours, so that several devices divide them as they divide the layers.
        let cache = if config.index.is_some() { 2 * layer } else { layer };
        let indexer = match (config.index, config.q_lora_rank) {
            (Some(sizes), Some(latent)) => {
                Some(Indexer::load(&loader.at("indexer"), config, sizes, latent, 2 * layer + 1)?)
            }
            _ => None,
        };
        Ok(Self {
            queries,
            indexer,
            kv_a_proj_with_mqa: loader.linear("kv_a_proj_with_mqa", width, rank + rotated)?,
            kv_a_layernorm: RmsNorm::load(loader, "kv_a_layernorm", rank, LATENT_EPS)?,
            absorb_k,
            absorb_v,
            o_proj: loader.linear("o_proj", heads * value, width)?,
            attention: Attention {
                value_dim: rank,
                scale: config.scale as f32,
                ..Attention::new(cache, heads, 1, rank + rotated)?
            },
            nope,
            rotated,
        })
    }

    /// `residual + attention(x)`, rotated by `angles` if there are any.
    fn add_to(
        &self,
        residual: &Tensor,
        x: &Tensor,
        angles: Option<&StepAngles>,
        step: &mut Step<'_>,
    ) -> Result<Tensor> {
        let rotate = |x: &Tensor, step: &Step<'_>| match angles {
            Some(angles) => angles.attention.rotate(x, step),
            None => Ok(x.clone()),
        };
        let mut chosen = None;
        let q = match &self.queries {
            Queries::Direct(q_proj) => q_proj.forward(x, step)?,
            Queries::Latent { q_a_proj, q_a_layernorm, q_b_proj } => {
                let latent = q_a_layernorm.forward(&q_a_proj.forward(x, step)?, step)?;
                if let (Some(indexer), Some(angles)) = (&self.indexer, angles.and_then(|angles| angles.index.as_ref()))
                {
                    chosen = Some(indexer.choose(x, &latent, angles, step)?);
                }
                q_b_proj.forward(&latent, step)?
            }
        };
        let (tokens, heads, rank) = (x.dim(0)?, self.attention.heads, self.attention.value_dim);
        let q = q.reshape((tokens * heads, self.nope + self.rotated))?;
        let [q, rotated] = step.split(&q, [self.nope, self.rotated])?;
        let rotated = rotate(&rotated.reshape((tokens, heads * self.rotated))?, step)?;
        let q = self.absorb_k.forward(&q.reshape((tokens, heads * self.nope))?, step)?;
        let of_heads = [&q.reshape((tokens * heads, rank))?, &rotated.reshape((tokens * heads, self.rotated))?];
        let q = step.join(of_heads)?.reshape((tokens, heads * (rank + self.rotated)))?;

        let latent = self.kv_a_proj_with_mqa.forward(x, step)?;
        let [latent, rotated] = step.split(&latent, [rank, self.rotated])?;
        let (latent, rotated) = (self.kv_a_layernorm.forward(&latent, step)?, rotate(&rotated, step)?);
        let k = step.join([&latent, &rotated])?;

        let out = match chosen {
            Some(chosen) => self.attention.forward_chosen(&q, &k, None, &chosen, step)?,
            None => self.attention.forward_latent(&q, &k, step)?,
        };
        self.o_proj.add_to(residual, &self.absorb_v.forward(&out, step)?, step)
    }
}

/// Takes the up-projections of `kv_b_proj` apart, whose rows are of each head those of its keys and then of its values: the
/// first transposed to `[heads, rank, nope]`, the others `[heads, value, rank]`.
fn absorbed(both: &RawTensor, rows: &[f32], [heads, nope, value, rank]: [usize; 4]) -> Result<[RawTensor; 2]> {
    let of_heads = || rows.chunks_exact((nope + value) * rank).map(|rows| rows.split_at(nope * rank));
    let transposed =
        |keys: &[f32]| -> Vec<f32> { (0..rank * nope).map(|at| keys[at % nope * rank + at / nope]).collect() };
    let keys: Vec<f32> = of_heads().flat_map(|(keys, _)| transposed(keys)).collect();
    let values: Vec<f32> = of_heads().flat_map(|(_, values)| values).copied().collect();
    Ok([both.with_values(&keys, vec![heads, rank, nope])?, both.with_values(&values, vec![heads, value, rank])?])
}

struct Block {
    input_layernorm: RmsNorm,
    self_attn: LatentAttention,
    post_attention_layernorm: RmsNorm,
    mlp: FeedForward,
}

impl Block {
    fn load(loader: &Loader<'_>, config: &Config, index: usize) -> Result<Self> {
        let Sizes { hidden_size, rms_norm_eps, .. } = config.sizes;
        Ok(Self {
            input_layernorm: RmsNorm::load(loader, "input_layernorm", hidden_size, rms_norm_eps)?,
            self_attn: LatentAttention::load(&loader.at("self_attn"), config, index)?,
            post_attention_layernorm: RmsNorm::load(loader, "post_attention_layernorm", hidden_size, rms_norm_eps)?,
            mlp: mlp(&loader.at("mlp"), config, index)?,
        })
    }

    fn forward(&self, x: &Tensor, angles: &StepAngles, step: &mut Step<'_>) -> Result<Tensor> {
        let x = self.self_attn.add_to(x, &self.input_layernorm.forward(x, step)?, Some(angles), step)?;
        self.mlp.add_to(&x, &self.post_attention_layernorm.forward(&x, step)?, step)
    }
}

struct DeepSeek {
    model: CausalLm<Block>,
    rope: Rope,
    index_rope: Option<Rope>,
}

impl Decoder for DeepSeek {
    const NAME: &'static str = "deepseek";
    const GGUF: &'static [&'static str] = &["deepseek2"];
    const CLASSES: &'static [&'static str] =
        &["DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "Glm4MoeLiteForCausalLM"];
    const FEATURES: bool = true;

    type Config = Config;

    fn gguf_family(_: &str) -> GgufFamily {
        gguf::family()
    }

    fn config(checkpoint: &Checkpoint) -> Result<Config> {
        Config::read(checkpoint)
    }

    fn shape(config: &Config) -> Shape {
        let cache =
            AttentionCache { value_dim: 0, ..AttentionCache::new(1, config.kv_lora_rank + config.qk_rope_head_dim) };
        let (heads, layers) = (config.sizes.num_attention_heads, config.sizes.num_hidden_layers);
        let keys =
            config.index.map(|index| AttentionCache { value_dim: 0, ..AttentionCache::new(1, index.index_head_dim) });
        let of_layer = || [Some(cache), keys].into_iter().flatten().map(LayerCache::Attention);
        let caches = (0..layers).flat_map(|_| of_layer()).collect();
        let shape = config.sizes.shape();
        Shape {
            widest: shape.widest.max(heads * (config.kv_lora_rank + config.qk_rope_head_dim)),
            kv: KvShape::new(caches),
            ..shape
        }
    }

    fn load(loader: &Loader<'_>, config: &Config) -> Result<Self> {
        Ok(Self {
            model: CausalLm::load(loader, &config.sizes, |loader, layer| Block::load(loader, config, layer))?,
            rope: Rope::new(&config.rope, config.qk_rope_head_dim, loader.context())?,
            index_rope: config.index_rope(loader.context())?,
        })
    }

    fn hidden(&self, step: &mut Step<'_>) -> Result<Tensor> {
        let index = self.index_rope.as_ref().map(|rope| rope.angles(step)).transpose()?;
        let angles = StepAngles { attention: self.rope.angles(step)?, index };
        self.model.hidden(step, |layer, x, step| layer.forward(x, &angles, step))
    }

    fn logits(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.model.logits(hidden, step)
    }

    fn features(&self, hidden: &Tensor, step: &Step<'_>) -> Result<Tensor> {
        self.model.features(hidden, step)
    }
}
