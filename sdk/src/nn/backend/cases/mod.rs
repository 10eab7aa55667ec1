//! The cases that kernels are tried with: one table, which the kernels' tests, the proof at load and a report go through: attention in the
//! shapes of all families, attention within whole texts, recurrent layers, and a mixture of experts.

mod mixture;
mod recurrent;
mod texts;

use candle_core::{Device, Tensor};

use crate::{
    Output, Result, Span, Table, Want,
    nn::spec::{Attention, BLOCK_TOKENS, KvType, Rotation},
    weights::RopeStyle,
};

pub(in crate::nn) use super::formulas::wave;
pub(in crate::nn) use mixture::{MIXTURES, Mixture};
pub(in crate::nn) use recurrent::RECURRENT;
#[cfg(feature = "cuda")]
pub(in crate::nn) use recurrent::Recurrent;
pub(in crate::nn) use texts::TEXTS;

/// The attention of a family, and how its heads are rotated.
#[derive(Clone, Copy, Debug)]
pub(in crate::nn) struct Case {
    pub(in crate::nn) name: &'static str,
    pub(in crate::nn) heads: usize,
    pub(in crate::nn) kv_heads: usize,
    pub(in crate::nn) head_dim: usize,
    pub(in crate::nn) rotated: usize,
    pub(in crate::nn) style: RopeStyle,
    pub(in crate::nn) window: Option<usize>,
    pub(in crate::nn) softcap: Option<f32>,
    pub(in crate::nn) has_sinks: bool,
    pub(in crate::nn) kv: KvType,
    /// Tried on a device whenever a model loads; together these have all that attention may have.
    #[cfg_attr(not(any(test, target_os = "macos")), allow(dead_code))]
    pub(in crate::nn) at_load: bool,
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
    at_load: false,
};
const AT_LOAD: Case = Case { at_load: true, ..PLAIN };

/// The shapes of all families, with fewer heads. Windows end inside of tiles, behind them, and on their borders, which is where
/// a row sees no key of a tile.
pub(in crate::nn) const CASES: [Case; 18] = [
    AT_LOAD,
    Case { name: "llama from GGUF, f32", style: RopeStyle::Interleaved, kv: KvType::F32, ..PLAIN },
    Case { name: "mistral", head_dim: 128, rotated: 128, window: Some(24), heads: 4, kv_heads: 1, ..AT_LOAD },
    Case {
        name: "mistral, wide window, f32",
        head_dim: 128,
        rotated: 128,
        window: Some(600),
        heads: 4,
        kv: KvType::F32,
        ..PLAIN
    },
    Case { name: "window of one", window: Some(1), ..PLAIN },
    Case { name: "window of a tile", window: Some(32), ..PLAIN },
    Case { name: "window of 47", window: Some(47), ..PLAIN },
    Case { name: "window of 33, f32", window: Some(33), kv: KvType::F32, ..PLAIN },
    Case { name: "phi", head_dim: 80, rotated: 32, heads: 3, kv_heads: 3, ..AT_LOAD },
    Case { name: "phi-3, window of 47", head_dim: 96, rotated: 96, heads: 4, kv_heads: 4, window: Some(47), ..PLAIN },
    Case { name: "qwen, odd group", heads: 7, kv_heads: 1, ..PLAIN },
    Case { name: "gemma", head_dim: 256, rotated: 256, heads: 2, kv_heads: 1, softcap: Some(5.0), ..AT_LOAD },
    Case { name: "gemma 4", head_dim: 512, rotated: 512, heads: 4, kv_heads: 1, ..AT_LOAD },
    Case { name: "glm", head_dim: 96, rotated: 48, heads: 32, kv_heads: 2, style: RopeStyle::Interleaved, ..AT_LOAD },
    Case { name: "gpt-oss", heads: 16, window: Some(20), has_sinks: true, ..AT_LOAD },
    Case { name: "sinks and softcap, f32", softcap: Some(4.0), has_sinks: true, kv: KvType::F32, ..AT_LOAD },
    Case { name: "deepseek", head_dim: 192, rotated: 64, heads: 2, ..AT_LOAD },
    Case { name: "a head that no matrix kernel takes", head_dim: 72, rotated: 72, heads: 2, ..PLAIN },
];

/// The same with packed keys and values. Heads of 80 and 72 values leave room in their last block, and those of 512 have
/// no kernel on GPUs.
pub(in crate::nn) const PACKED: [Case; 11] = [
    Case { name: "llama, q8", kv: KvType::Q8, ..AT_LOAD },
    Case { name: "llama from GGUF, q4", style: RopeStyle::Interleaved, kv: KvType::Q4, ..AT_LOAD },
    Case { name: "mistral, q4", head_dim: 128, rotated: 128, window: Some(24), heads: 4, kv: KvType::Q4, ..AT_LOAD },
    Case { name: "phi, q8", head_dim: 80, rotated: 32, heads: 3, kv_heads: 3, kv: KvType::Q8, ..PLAIN },
    Case { name: "phi-3, q4", head_dim: 96, rotated: 96, heads: 4, window: Some(47), kv: KvType::Q4, ..PLAIN },
    Case { name: "gemma, q8", head_dim: 256, rotated: 256, heads: 2, softcap: Some(5.0), kv: KvType::Q8, ..AT_LOAD },
    Case { name: "gemma 4, q4", head_dim: 512, rotated: 512, heads: 4, kv_heads: 1, kv: KvType::Q4, ..AT_LOAD },
    Case {
        name: "glm, q8",
        head_dim: 96,
        rotated: 48,
        heads: 32,
        style: RopeStyle::Interleaved,
        kv: KvType::Q8,
        ..PLAIN
    },
    Case { name: "gpt-oss, q8", heads: 16, window: Some(20), has_sinks: true, kv: KvType::Q8, ..PLAIN },
    Case { name: "deepseek, q8", head_dim: 192, rotated: 64, heads: 2, kv: KvType::Q8, ..PLAIN },
    Case {
        name: "heads that no matrix kernel takes, q4",
        head_dim: 72,
        rotated: 72,
        heads: 2,
        kv: KvType::Q4,
        ..AT_LOAD
    },
];

impl Case {
    /// By how much a row of these inputs may differ once it has been packed and read: where the last digits of a sum differ,
    /// a value between two codes may become either. They are a step apart, which the rotation shares among the values.
    pub(in crate::nn) fn packed_step(&self) -> f32 {
        if self.kv == KvType::Q8 { 0.02 } else { 0.3 }
    }
}

/// New tokens of one sequence, after a past.
pub(in crate::nn) type Part = (usize, usize);

/// Block tables for sequences of these lengths; blocks lie in descending order, as none may rely on it.
pub(in crate::nn) fn tables(lengths: impl IntoIterator<Item = usize>) -> Vec<Vec<u32>> {
    let mut next = 0;
    let table = |length: usize| {
        let blocks = length.div_ceil(BLOCK_TOKENS) as u32;
        next += blocks;
        (next - blocks..next).rev().collect()
    };
    lengths.into_iter().map(table).collect()
}

/// The spans of a step; a sequence without new tokens is left out.
pub(in crate::nn) fn spans<'a>(parts: &[Part], tables: &'a [Vec<u32>]) -> Vec<Span<'a>> {
    let mut end = 0;
    let span = |(sequence, (&(past, len), table)): (usize, (&Part, &'a Vec<u32>))| {
        end += len;
        Span {
            sequence: sequence as u64,
            start: end - len,
            len,
            past,
            want: Want::Last,
            output: Output::Logits,
            mask: &[],
            adapter: 0,
            adapter_scale: 0.0,
            caches: vec![Table::Blocks(table.as_slice().into())],
        }
    };
    parts.iter().zip(tables).enumerate().filter(|(_, ((_, len), _))| *len > 0).map(span).collect()
}

/// The inputs of a step on a device.
pub(in crate::nn) struct Activations {
    pub(in crate::nn) qkv: [Tensor; 3],
    pub(in crate::nn) rotation: Rotation,
    pub(in crate::nn) spec: Attention,
}

impl Activations {
    pub(in crate::nn) fn of(case: Case, tokens: usize, device: &Device) -> Result<Self> {
        let Case { heads, kv_heads, head_dim, rotated, style, window, softcap, .. } = case;
        let [q, k, v] = [heads, kv_heads, kv_heads].map(|heads| wave(tokens, heads * head_dim, device));
        let (cos, sin) = (wave(tokens, rotated / 2, device)?, (wave(tokens, rotated / 2, device)? * 0.5)?);
        let sinks = case.has_sinks.then(|| Ok::<_, crate::Error>(wave(1, heads, device)?.squeeze(0)?)).transpose()?;
        let spec = Attention { window, softcap, sinks, ..Attention::new(0, heads, kv_heads, head_dim)? };
        Ok(Self { qkv: [q?, (k? * 0.7)?, v?], rotation: Rotation { cos, sin, style }, spec })
    }
}
