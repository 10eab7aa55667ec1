//! Attention within whole texts and images, packed.

use candle_core::Tensor;

use super::wave;
use crate::{
    Batch, Output, Result, Span, Want,
    nn::{
        backend::Backend,
        memory::{kv::KvCache, pass::Pass},
        spec::{KvShape, KvType, TextAttention},
    },
};

/// Texts of one token, of less than a tile, of a tile, and of several with a rest.
const LENS: [usize; 5] = [70, 1, 64, 200, 17];

/// The attention of an encoder or a tower.
#[derive(Clone, Copy, Debug)]
pub(in crate::nn) struct Texts {
    pub(in crate::nn) name: &'static str,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    reach: Option<usize>,
    /// The distance up to which scores have biases.
    far: Option<usize>,
}

const PLAIN: Texts = Texts { name: "heads of 64", heads: 3, kv_heads: 3, head_dim: 64, reach: None, far: None };

/// The heads of BERT and its kin, of SigLIP and the towers of Qwen, Pixtral and Gemma, and of embedding models.
pub(in crate::nn) const TEXTS: [Texts; 11] = [
    PLAIN,
    Texts { name: "small heads", head_dim: 32, ..PLAIN },
    Texts { name: "SigLIP", head_dim: 72, heads: 2, kv_heads: 2, ..PLAIN },
    Texts { name: "Qwen2.5-VL", head_dim: 80, heads: 2, kv_heads: 2, ..PLAIN },
    Texts { name: "shared keys", head_dim: 88, heads: 4, kv_heads: 2, ..PLAIN },
    Texts { name: "Pixtral", head_dim: 128, heads: 4, kv_heads: 1, ..PLAIN },
    Texts { name: "EmbeddingGemma", head_dim: 256, heads: 3, kv_heads: 1, ..PLAIN },
    Texts { name: "EmbeddingGemma's window", head_dim: 256, heads: 2, kv_heads: 1, reach: Some(20), ..PLAIN },
    Texts { name: "ModernBERT's window", reach: Some(64), ..PLAIN },
    Texts { name: "a reach of nothing", reach: Some(0), ..PLAIN },
    Texts { name: "MPNet's biases", far: Some(33), ..PLAIN },
];

impl Texts {
    /// The output of a step with all texts.
    pub(in crate::nn) fn compute(&self, backend: &dyn Backend) -> Result<Tensor> {
        let Self { heads, kv_heads, head_dim, reach, .. } = *self;
        let (device, tokens) = (backend.device(), LENS.iter().sum());
        let [q, k, v] = [heads, kv_heads, kv_heads].map(|heads| wave(tokens, heads * head_dim, device));
        let biases = self.far.map(|far| wave(heads, 2 * far + 1, device)).transpose()?;
        let spec = TextAttention { reach, ..TextAttention::new(heads, kv_heads, head_dim)? };
        // A cache has layers, but an encoder reads none of them.
        let (ids, shape) = (vec![0; tokens], KvShape::uniform(1, 1, 64));
        let batch = Batch { tokens: &ids, positions: &ids, spans: spans(), top: 0 };
        let mut cache = KvCache::new(&shape, KvType::F16, &[1], |_| 0, |_, shape, _| backend.store(shape))?;
        backend.attention_within(&spec, [&q?, &(k? * 0.7)?, &v?], biases.as_ref(), &Pass::new(&batch, &mut cache))
    }
}

fn spans() -> Vec<Span<'static>> {
    let mut end = 0;
    let span = |len: usize| {
        end += len;
        Span {
            sequence: 0,
            start: end - len,
            len,
            past: 0,
            want: Want::None,
            output: Output::Hidden,
            mask: &[],
            adapter: 0,
            adapter_scale: 0.0,
            caches: Vec::new(),
        }
    };
    LENS.into_iter().map(span).collect()
}
