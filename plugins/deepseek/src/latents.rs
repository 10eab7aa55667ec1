//! Multi-head latent attention (arXiv 2405.04434, section 2.1.2): one latent per token is cached for the keys and values of all
//! heads, whose up-projections are absorbed into queries and outputs. So adapters on `kv_b_proj` are refused.

use pensieve_sdk::{
    Result,
    nn::{Attention, HeadLinear, Linear, Loader, RmsNorm, Sizes, Step, Tensor, dequantize},
    weights::RawTensor,
};

use crate::{
    config::Config,
    indexer::{Indexer, StepAngles},
};

/// Epsilon of the latents' norms, which configurations do not contain.
const LATENT_EPS: f64 = 1e-6;

/// The projection of queries, direct or low-rank.
enum Queries {
    Direct(Linear),
    Latent { q_a_proj: Linear, q_a_layernorm: RmsNorm, q_b_proj: Linear },
}

/// Multi-head latent attention, with the up-projections absorbed.
pub struct LatentAttention {
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
    pub fn load(loader: &Loader<'_>, config: &Config, layer: usize) -> Result<Self> {
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
            let [keys, values] = absorbed(&both, [heads, nope, value, rank])?;
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
    pub fn add_to(
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

/// Splits `kv_b_proj`, which holds each head's key rows and then its value rows: keys are transposed to `[heads, rank, nope]`,
/// values stay `[heads, value, rank]`.
fn absorbed(both: &RawTensor, [heads, nope, value, rank]: [usize; 4]) -> Result<[RawTensor; 2]> {
    let rows = dequantize(both)?;
    let (mut keys, mut values) = (Vec::with_capacity(heads * nope * rank), Vec::with_capacity(heads * value * rank));
    for rows in rows.chunks_exact((nope + value) * rank) {
        let (of_keys, of_values) = rows.split_at(nope * rank);
        for column in 0..rank {
            keys.extend(of_keys.chunks_exact(rank).map(|row| row[column]));
        }
        values.extend_from_slice(of_values);
    }
    Ok([both.with_values(&keys, vec![heads, rank, nope])?, both.with_values(&values, vec![heads, value, rank])?])
}
