//! The shape of a decoder's caches: which layers form a group, the size of each group's blocks or slots, and how a
//! memory budget is divided among the groups.

use candle_core::DType;
use pensieve_kernels::Packing;

use crate::{Cache, Error, Result};

/// Tokens in a block of the paged KV cache.
pub const BLOCK_TOKENS: usize = 16;

/// The type of cached keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvType {
    /// Four bytes per value.
    F32,
    /// Two bytes per value.
    F16,
    /// A byte per value, and a scale for each 32.
    Q8,
    /// Half a byte per value, and a scale for each 32.
    Q4,
}

impl KvType {
    /// All types by their names in a model's options.
    pub(in crate::nn) const NAMED: [(&'static str, Self); 4] =
        [("f16", Self::F16), ("f32", Self::F32), ("q8", Self::Q8), ("q4", Self::Q4)];

    pub(in crate::nn) fn name(self) -> &'static str {
        Self::NAMED.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }

    /// Bytes of a row of so many values.
    pub fn row_bytes(self, values: usize) -> usize {
        match (self.packing(), self) {
            (Some(packing), _) => packing.row_bytes(values),
            (None, Self::F32) => values.saturating_mul(4),
            (None, _) => values.saturating_mul(2),
        }
    }

    /// How rows are packed, if they are.
    pub(in crate::nn) fn packing(self) -> Option<Packing> {
        match self {
            Self::F32 | Self::F16 => None,
            Self::Q8 => Some(Packing::Q8),
            Self::Q4 => Some(Packing::Q4),
        }
    }

    /// The type of a tensor with such rows; packed rows are bytes.
    pub(in crate::nn) fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::F16 => DType::F16,
            Self::Q8 | Self::Q4 => DType::U8,
        }
    }

    /// Elements of a row of so many values in a tensor.
    pub(in crate::nn) fn row_elements(self, values: usize) -> usize {
        self.packing().map_or(values, |packing| packing.row_bytes(values))
    }

    /// An error for packed rows, which nothing on Metal reads.
    pub(in crate::nn) fn check_metal(self) -> Result<()> {
        if self.packing().is_none() {
            return Ok(());
        }
        let message = format!("keys and values in {} are not supported on Metal", self.name());
        Err(Error::unsupported(message).help("take kv = \"f16\" there"))
    }
}

/// The caches of a decoder, layer by layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvShape {
    pub(in crate::nn) layers: Vec<LayerCache>,
}

/// The cache of one layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayerCache {
    /// Keys and values of all tokens, or of a window.
    Attention(AttentionCache),
    /// No cache of its own: it reads the cache of this earlier layer.
    SharedWith(usize),
    /// A recurrent state of this many `f32` values.
    State(usize),
    /// A state in several parts, such as a convolution's last inputs and a recurrence's matrices.
    States(Vec<usize>),
}

/// The sizes of one layer's keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionCache {
    /// Key and value heads.
    pub kv_heads: usize,
    /// Values per key head.
    pub key_dim: usize,
    /// Values per value head; 0 if values are a view of the keys, as with MLA's latents.
    pub value_dim: usize,
    /// Sliding window in tokens, including the token itself; `None` for full attention. The host may free blocks before
    /// it.
    pub window: Option<usize>,
}

impl AttentionCache {
    /// Full attention, with keys and values of the same size.
    pub fn new(kv_heads: usize, head_dim: usize) -> Self {
        Self { kv_heads, key_dim: head_dim, value_dim: head_dim, window: None }
    }

    /// Bytes of one block; `None` on overflow.
    fn block_bytes(&self, kv: KvType) -> Option<usize> {
        let row = kv.row_bytes(self.key_dim).checked_add(kv.row_bytes(self.value_dim))?;
        self.kv_heads.checked_mul(row)?.checked_mul(BLOCK_TOKENS)
    }
}

impl KvShape {
    /// Layers with different caches.
    pub fn new(layers: Vec<LayerCache>) -> Self {
        Self { layers }
    }

    /// Layers whose caches are all the same.
    pub fn uniform(layers: usize, kv_heads: usize, head_dim: usize) -> Self {
        Self { layers: vec![LayerCache::Attention(AttentionCache::new(kv_heads, head_dim)); layers] }
    }

    /// Sets each attention layer's sliding window in tokens, including the token itself; `None` for full attention.
    #[must_use]
    pub fn windowed(mut self, window: impl Fn(usize) -> Option<usize>) -> Self {
        for (place, layer) in self.layers.iter_mut().enumerate() {
            if let LayerCache::Attention(cache) = layer {
                cache.window = window(place);
            }
        }
        self
    }

    /// The cache groups, full attention first and states last, and the group index of each layer.
    pub(in crate::nn) fn groups(&self, kv: KvType) -> Result<(Vec<Cache>, Vec<usize>)> {
        let wrong = |what: &str| Error::corrupt(format!("the model's caches: {what}"));
        let mut kinds: Vec<(usize, Option<usize>)> = Vec::new();
        let mut kind_of = Vec::with_capacity(self.layers.len());
        for (place, layer) in self.layers.iter().enumerate() {
            let kind = match layer {
                LayerCache::Attention(cache) => (usize::from(cache.window.is_some()), cache.window),
                LayerCache::State(_) | LayerCache::States(_) => (2, None),
                LayerCache::SharedWith(other) if *other < place => kind_of[*other],
                LayerCache::SharedWith(_) => return Err(wrong("a layer shares what no earlier one has")),
            };
            kind_of.push(kind);
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        kinds.sort_by_key(|(rank, _)| *rank);
        let group_of: Vec<usize> =
            kind_of.iter().map(|kind| kinds.iter().position(|other| other == kind).unwrap_or(0)).collect();
        let mut bytes = vec![0_usize; kinds.len()];
        for (layer, &group) in self.layers.iter().zip(&group_of) {
            let each = match layer {
                LayerCache::Attention(cache) => cache.block_bytes(kv),
                LayerCache::State(values) => values.checked_mul(size_of::<f32>()),
                LayerCache::States(parts) if parts.contains(&0) => None,
                LayerCache::States(parts) => parts
                    .iter()
                    .try_fold(0_usize, |sum, values| sum.checked_add(*values))
                    .and_then(|values| values.checked_mul(size_of::<f32>())),
                LayerCache::SharedWith(_) => continue,
            };
            let each = each.filter(|&each| each > 0).ok_or_else(|| wrong("a layer without size"))?;
            bytes[group] = bytes[group].checked_add(each).ok_or_else(|| wrong("too large"))?;
        }
        let groups = kinds.iter().zip(bytes).map(|(&(rank, window), bytes)| match (rank, window) {
            (1, Some(window)) => {
                let tokens = u32::try_from(window).ok().filter(|&tokens| tokens > 0);
                let tokens = tokens.ok_or_else(|| wrong("a window of no tokens, or of too many"))?;
                Ok(Cache::Window { tokens, bytes: bytes as u64 })
            }
            (2, _) => Ok(Cache::State { bytes: bytes as u64 }),
            _ => Ok(Cache::Tokens { bytes: bytes as u64 }),
        });
        let groups: Vec<Cache> = groups.collect::<Result<_>>()?;
        if groups.is_empty() {
            return Err(wrong("no layer remembers anything"));
        }
        Ok((groups, group_of))
    }
}

impl KvShape {
    /// Bytes of each layer's cache, for `counts` blocks or slots of each group.
    pub(in crate::nn) fn layer_bytes(&self, kv: KvType, counts: &[usize]) -> Result<Vec<u64>> {
        let (_, group_of) = self.groups(kv)?;
        let bytes = |(layer, group): (&LayerCache, usize)| {
            let each = match layer {
                LayerCache::Attention(cache) => cache.block_bytes(kv).unwrap_or(usize::MAX),
                LayerCache::State(values) => values.saturating_mul(size_of::<f32>()),
                LayerCache::States(parts) => {
                    let values = parts.iter().fold(0_usize, |sum, values| sum.saturating_add(*values));
                    values.saturating_mul(size_of::<f32>())
                }
                LayerCache::SharedWith(_) => 0,
            };
            (each as u64).saturating_mul(counts.get(group).copied().unwrap_or_default() as u64)
        };
        Ok(self.layers.iter().zip(group_of).map(bytes).collect())
    }
}

/// Sequence length for which memory is divided among the groups, unless the context is shorter.
const SEQUENCE_TOKENS: usize = 16_384;
/// Tokens that a step may add to a window: the longest chunk of a prompt.
const CHUNK_TOKENS: usize = 1024;
/// Slots for one sequence: its current state, and copies for the prefix cache.
const SLOTS: usize = 4;

/// Divides a budget in bytes into blocks or slots of each group, in the ratio in which sequences of equal length use
/// them, so that no group runs out long before the others.
pub(in crate::nn) fn divide(budget: u64, groups: &[Cache], context: usize) -> Result<Vec<usize>> {
    let tokens = context.clamp(1, SEQUENCE_TOKENS);
    let blocks = |tokens: usize| tokens.div_ceil(BLOCK_TOKENS);
    // Per group: blocks or slots per sequence, the minimum to work with, and the bytes of each.
    let wants: Vec<(usize, usize, u64)> = groups
        .iter()
        .map(|group| match *group {
            Cache::Tokens { bytes } => (blocks(tokens), 1, bytes),
            Cache::Window { tokens: window, bytes } => {
                let window = window as usize;
                let all = blocks(tokens.min(2 * window + CHUNK_TOKENS));
                (all, blocks(context.min(window + BLOCK_TOKENS)) + 1, bytes)
            }
            Cache::State { bytes } => (SLOTS, 2, bytes),
            Cache::Opaque { bytes } => (1, 1, bytes),
        })
        .collect();
    let least: u64 = wants.iter().map(|(_, least, bytes)| (*least as u64).saturating_mul(*bytes)).sum();
    if let [(_, _, bytes)] = wants[..] {
        let count = budget / bytes.max(1);
        return if count == 0 { Err(too_small(budget, bytes)) } else { Ok(vec![within_u32(count)]) };
    }
    let rest = budget.checked_sub(least).ok_or_else(|| too_small(budget, least))?;
    let each: f64 = wants.iter().map(|(wants, _, bytes)| *wants as f64 * *bytes as f64).sum();
    let share = |(wants, least, _): (usize, usize, u64)| within_u32((rest as f64 / each * wants as f64) as u64) + least;
    Ok(wants.into_iter().map(share).collect())
}

fn too_small(budget: u64, least: u64) -> Error {
    let message = format!("a KV budget of {budget} bytes has no room for one block or state: that takes {least}");
    Error::out_of_memory(message).help("raise kv_budget")
}

/// Slot numbers have 32 bits.
fn within_u32(count: u64) -> usize {
    count.min(u64::from(u32::MAX) / BLOCK_TOKENS as u64 - 1) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gemma 3 4B's shape, with and without windows.
    fn gemma(window: impl Fn(usize) -> Option<usize>) -> Vec<Cache> {
        KvShape::uniform(34, 4, 256).windowed(window).groups(KvType::F16).unwrap().0
    }

    #[test]
    fn five_windows_to_one_full_layer_hold_three_times_the_tokens() {
        let budget = 2 << 30;
        let whole = gemma(|_| None);
        let mixed = gemma(|layer| (layer % 6 != 5).then_some(1024));
        assert!(matches!(mixed[..], [Cache::Tokens { .. }, Cache::Window { tokens: 1024, .. }]));
        let (whole, mixed) = (divide(budget, &whole, 131_072).unwrap(), divide(budget, &mixed, 131_072).unwrap());
        assert!(mixed[0] >= 3 * whole[0], "{mixed:?} blocks against {whole:?}");
        // Windows suffice for as many sequences of `SEQUENCE_TOKENS` as full attention holds.
        let sequences = mixed[0] * BLOCK_TOKENS / SEQUENCE_TOKENS;
        assert!(mixed[1] * BLOCK_TOKENS >= sequences * (1024 + CHUNK_TOKENS), "{mixed:?}");
    }

    #[test]
    fn a_budget_is_divided_to_the_last_block() {
        for groups in [
            vec![Cache::Tokens { bytes: 100 }],
            vec![Cache::Tokens { bytes: 100 }, Cache::State { bytes: 7_000 }],
            vec![Cache::Tokens { bytes: 64 }, Cache::Window { tokens: 24, bytes: 320 }, Cache::State { bytes: 9 }],
        ] {
            for budget in [100_000, 1 << 20, 1 << 34] {
                let counts = divide(budget, &groups, 256).unwrap();
                let bytes_of = |group: &Cache| match *group {
                    Cache::Tokens { bytes } | Cache::Window { bytes, .. } => bytes,
                    Cache::State { bytes } | Cache::Opaque { bytes } => bytes,
                };
                let each: Vec<u64> = groups.iter().map(bytes_of).collect();
                let taken: u64 = counts.iter().zip(&each).map(|(&count, bytes)| count as u64 * bytes).sum();
                assert!(taken <= budget && taken + each.iter().sum::<u64>() > budget, "{counts:?} of {budget}");
            }
            assert!(divide(8, &groups, 256).is_err());
        }
    }

    #[test]
    fn layers_that_remember_alike_form_a_group() {
        let attention = |window| LayerCache::Attention(AttentionCache { window, ..AttentionCache::new(2, 8) });
        let layers = vec![
            LayerCache::State(10),
            attention(Some(32)),
            attention(None),
            LayerCache::SharedWith(1),
            attention(Some(32)),
            LayerCache::States(vec![4, 1, 1]),
        ];
        let (groups, group_of) = KvShape::new(layers).groups(KvType::F16).unwrap();
        let block = 2 * 16 * BLOCK_TOKENS as u64 * 2;
        let expected = [
            Cache::Tokens { bytes: block },
            Cache::Window { tokens: 32, bytes: 2 * block },
            Cache::State { bytes: 16 * 4 },
        ];
        assert_eq!((&groups[..], &group_of[..]), (&expected[..], &[2, 1, 0, 1, 1, 2][..]));
        assert!(KvShape::new(vec![LayerCache::SharedWith(0)]).groups(KvType::F16).is_err());
        assert!(KvShape::new(vec![]).groups(KvType::F16).is_err());
        assert!(KvShape::new(vec![LayerCache::States(vec![4, 0])]).groups(KvType::F16).is_err());
    }
}
