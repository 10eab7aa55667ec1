//! Attention in the shapes of all families, and steps over a cache of any device.

use candle_core::{Device, Tensor};

use super::wave;
use crate::{
    Batch, Output, Result, Span, Table, Want,
    nn::{
        backend::Backend,
        memory::{kv::KvCache, pass::Pass},
        spec::{Attention, BLOCK_TOKENS, KvShape, KvType, Rotation},
    },
    weights::RopeStyle,
};

/// The attention of a family, and how its heads are rotated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) rotated: usize,
    pub(super) style: RopeStyle,
    pub(super) window: Option<usize>,
    pub(super) softcap: Option<f32>,
    pub(super) has_sinks: bool,
    pub(super) kv: KvType,
}

const PLAIN: Case = Case {
    name: "llama",
    heads: 8,
    kv_heads: 2,
    head_dim: 64,
    rotated: 64,
    style: RopeStyle::NeoX,
    window: None,
    softcap: None,
    has_sinks: false,
    kv: KvType::F16,
};

/// The shapes of all families, with fewer heads. Windows end inside of tiles, behind them, and on their borders, which is where
/// a row sees no key of a tile.
pub(super) const CASES: [Case; 14] = [
    PLAIN,
    Case { name: "llama from GGUF, f32", style: RopeStyle::Interleaved, kv: KvType::F32, ..PLAIN },
    Case { name: "mistral", head_dim: 128, rotated: 128, window: Some(24), heads: 4, kv_heads: 1, ..PLAIN },
    Case { name: "window of one", window: Some(1), ..PLAIN },
    Case { name: "window of a tile", window: Some(32), ..PLAIN },
    Case { name: "window of 33, f32", window: Some(33), kv: KvType::F32, ..PLAIN },
    Case { name: "phi", head_dim: 80, rotated: 32, heads: 3, kv_heads: 3, ..PLAIN },
    Case { name: "phi-3, window of 47", head_dim: 96, rotated: 96, heads: 4, kv_heads: 4, window: Some(47), ..PLAIN },
    Case { name: "qwen, odd group", heads: 7, kv_heads: 1, ..PLAIN },
    Case { name: "gemma", head_dim: 256, rotated: 256, heads: 2, kv_heads: 1, softcap: Some(5.0), ..PLAIN },
    Case { name: "gemma 4", head_dim: 512, rotated: 512, heads: 2, kv_heads: 1, ..PLAIN },
    Case { name: "glm", head_dim: 96, rotated: 48, heads: 32, kv_heads: 2, style: RopeStyle::Interleaved, ..PLAIN },
    Case { name: "gpt-oss", heads: 16, window: Some(20), has_sinks: true, ..PLAIN },
    Case { name: "sinks and softcap, f32", softcap: Some(4.0), has_sinks: true, kv: KvType::F32, ..PLAIN },
];

/// New tokens of one sequence, after a past.
pub(super) type Part = (usize, usize);

/// A cache, and the attention over it, on one backend.
pub(super) struct Layer<'a> {
    backend: &'a dyn Backend,
    case: Case,
    cache: KvCache,
    tables: Vec<Vec<u32>>,
}

/// The inputs of a step on a device.
pub(super) struct Activations {
    pub(super) qkv: [Tensor; 3],
    pub(super) rotation: Rotation,
    sinks: Option<Tensor>,
}

impl Activations {
    pub(super) fn of(case: Case, tokens: usize, device: &Device) -> Result<Self> {
        let Case { heads, kv_heads, head_dim, rotated, style, .. } = case;
        let [q, k, v] = [heads, kv_heads, kv_heads].map(|heads| wave(tokens, heads * head_dim, device));
        let (cos, sin) = (wave(tokens, rotated / 2, device)?, (wave(tokens, rotated / 2, device)? * 0.5)?);
        let sinks = case.has_sinks.then(|| Ok::<_, crate::Error>(wave(1, heads, device)?.squeeze(0)?)).transpose()?;
        Ok(Self { qkv: [q?, (k? * 0.7)?, v?], rotation: Rotation { cos, sin, style }, sinks })
    }
}

impl<'a> Layer<'a> {
    /// Room for sequences of these lengths; their blocks lie in descending order, as none may rely on it.
    pub(super) fn new(backend: &'a dyn Backend, case: Case, lengths: &[usize]) -> Result<Self> {
        let mut next = 0;
        let tables: Vec<Vec<u32>> = lengths
            .iter()
            .map(|length| {
                let blocks = length.div_ceil(BLOCK_TOKENS) as u32;
                next += blocks;
                (next - blocks..next).rev().collect()
            })
            .collect();
        let shape = KvShape::uniform(1, case.kv_heads, case.head_dim);
        let cache = KvCache::new(&shape, case.kv, &[next as usize], |_| 0, |_, shape, _| backend.store(shape))?;
        Ok(Self { backend, case, cache, tables })
    }

    /// Attends for new tokens of the sequences; one without any is left out. `times` over, as layers of one step do.
    pub(super) fn step(&mut self, parts: &[Part], x: &Activations, times: u32) -> Result<Tensor> {
        let (mut spans, mut start) = (Vec::new(), 0);
        for (sequence, (&(past, len), table)) in parts.iter().zip(&self.tables).enumerate() {
            if len == 0 {
                continue;
            }
            spans.push(Span {
                sequence: sequence as u64,
                start,
                len,
                past,
                want: Want::Last,
                output: Output::Logits,
                mask: &[],
                adapter: 0,
                adapter_scale: 0.0,
                caches: vec![Table::Blocks(table.as_slice().into())],
            });
            start += len;
        }
        let ids = vec![0; start];
        let batch = Batch { tokens: &ids, positions: &ids, spans, top: 0 };
        let Case { heads, kv_heads, head_dim, window, softcap, .. } = self.case;
        let plain = Attention::new(0, heads, kv_heads, head_dim)?;
        let spec = Attention { window, softcap, sinks: x.sinks.clone(), ..plain };
        self.backend.begin(&batch)?;
        let mut pass = Pass::new(&batch, &mut self.cache);
        let [q, k, v] = &x.qkv;
        for _ in 1..times {
            self.backend.rotated_attention(&spec, [q, k, v], &x.rotation, &mut pass)?;
        }
        self.backend.rotated_attention(&spec, [q, k, v], &x.rotation, &mut pass)
    }
}
