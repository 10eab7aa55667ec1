//! DeepSeek-V3.2's sparse attention (DSA): a small indexer with a cache of its own chooses the tokens that each token
//! attends to.
//!
//! Reference: `DeepseekV32Indexer` in transformers. The Hadamard rotation of published kernels is left out, as there:
//! it changes no product.

use pensieve_sdk::{
    Result,
    nn::{Angles, LayerNorm, Linear, Loader, Positions, Step, Tensor},
};

use crate::config::Config;

/// Epsilon of the keys' norm, which configurations do not contain.
const KEY_EPS: f64 = 1e-6;
/// Limit on the scores of all heads in memory at once: 64 MB.
const SCORES_MAX: usize = 16 << 20;

/// Sizes of the indexers, from the configuration.
#[derive(Clone, Copy)]
pub struct IndexSizes {
    pub index_topk: usize,
    pub index_n_heads: usize,
    pub index_head_dim: usize,
}

/// Angles of a step.
pub struct StepAngles {
    pub attention: Angles,
    /// Indexers rotate halves where attention rotates pairs.
    pub index: Option<Angles>,
}

pub struct Indexer {
    wq_b: Linear,
    wk: Linear,
    k_norm: LayerNorm,
    weights_proj: Linear,
    sizes: IndexSizes,
    /// The cache of its keys.
    cache: usize,
}

impl Indexer {
    /// `latent` is the width of the queries' latent.
    pub fn load(loader: &Loader<'_>, config: &Config, sizes: IndexSizes, latent: usize, cache: usize) -> Result<Self> {
        let IndexSizes { index_n_heads: heads, index_head_dim: head_dim, .. } = sizes;
        let width = config.sizes.hidden_size;
        Ok(Self {
            wq_b: loader.linear("wq_b", latent, heads * head_dim)?,
            wk: loader.linear("wk", width, head_dim)?,
            k_norm: LayerNorm::load(loader, "k_norm", head_dim, KEY_EPS)?,
            weights_proj: loader.linear("weights_proj", width, heads)?,
            sizes,
            cache,
        })
    }

    /// Chooses the positions for each token from its layer's input and its queries' latent.
    pub fn choose(&self, x: &Tensor, latent: &Tensor, angles: &Angles, step: &mut Step<'_>) -> Result<Positions> {
        let IndexSizes { index_topk, index_n_heads: heads, index_head_dim: head_dim } = self.sizes;
        let keys = self.k_norm.forward(&self.wk.forward(x, step)?, step)?;
        step.remember(self.cache, &angles.rotate(&keys, step)?, None)?;
        let queries = angles.rotate(&self.wq_b.forward(latent, step)?, step)?;
        let weights = self.weights_proj.forward(x, step)?;
        let spans = &step.batch().spans;
        Positions::best(spans, index_topk, |index| {
            let (span, keys) = (&spans[index], step.cached_keys(self.cache, index)?.t()?);
            let at_once = (SCORES_MAX / (heads * keys.dim(1)?)).max(1);
            let mut scores = Vec::new();
            for start in (span.start..span.start + span.len).step_by(at_once) {
                let rows = at_once.min(span.start + span.len - start);
                let queries = queries.narrow(0, start, rows)?.reshape((rows * heads, head_dim))?;
                let of_heads = queries.matmul(&keys)?.relu()?.reshape((rows, heads, ()))?;
                let weights = weights.narrow(0, start, rows)?.force_contiguous()?.unsqueeze(1)?;
                scores.extend(weights.matmul(&of_heads)?.flatten_all()?.to_vec1::<f32>()?);
            }
            Ok(scores)
        })
    }
}
