//! The memory of a model, layer by layer: for attention one K and one V, `[kv_heads, slots, dim]`, with `BLOCK_TOKENS` slots in
//! a block; for a recurrent layer its state, `[slots, values]`.
//!
//! Layers that remember alike form a group, and the host deals out the ids of each group's blocks or slots. Token `i` of a
//! sequence lies in slot `blocks[i / BLOCK_TOKENS] · BLOCK_TOKENS + i mod BLOCK_TOKENS` of its group's layers. On the CPU the
//! memory is mapped and zero, so that blocks cost nothing until they are written.

use candle_core::{Device, Tensor};
use half::f16;
use memmap2::MmapMut;
use std::ops::Range;

use super::{
    backend::{StoreShape, foreign},
    cpu::{Kv, KvLayout, KvMut},
    ops::Ops,
};
use crate::{Cache, Error, KvTransfer, Result, Span, Table};

/// Tokens in a block.
pub const BLOCK_TOKENS: usize = 16;

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvType {
    /// Four bytes a value.
    F32,
    /// Two bytes a value.
    F16,
}

impl KvType {
    /// Bytes of one value.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
        }
    }
}

/// What a decoder remembers, layer by layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvShape {
    layers: Vec<LayerCache>,
}

/// What one layer remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerCache {
    /// Keys and values of all tokens, or of a window.
    Attention(AttentionCache),
    /// Nothing of its own: it reads what an earlier layer remembers.
    SharedWith(usize),
    /// A state of this many values in single precision, which is the whole past up to a token.
    State(usize),
}

/// The keys and values of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionCache {
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Values in a head of keys.
    pub key_dim: usize,
    /// Values in a head of values; 0 where the values are a view of the keys, as of a latent that serves as both.
    pub value_dim: usize,
    /// How many tokens a token reads, itself included; none for all. The blocks before them are free for other sequences.
    pub window: Option<usize>,
}

impl AttentionCache {
    /// Heads of one size that read all tokens.
    pub fn new(kv_heads: usize, head_dim: usize) -> Self {
        Self { kv_heads, key_dim: head_dim, value_dim: head_dim, window: None }
    }

    /// Bytes of one block; none if that is more than there can be.
    fn block_bytes(&self, kv: KvType) -> Option<usize> {
        let dims = self.key_dim.checked_add(self.value_dim)?;
        self.kv_heads.checked_mul(dims)?.checked_mul(BLOCK_TOKENS)?.checked_mul(kv.bytes())
    }
}

impl KvShape {
    /// Layers that may each remember something else.
    pub fn new(layers: Vec<LayerCache>) -> Self {
        Self { layers }
    }

    /// Layers that all have keys and values of one shape.
    pub fn uniform(layers: usize, kv_heads: usize, head_dim: usize) -> Self {
        Self { layers: vec![LayerCache::Attention(AttentionCache::new(kv_heads, head_dim)); layers] }
    }

    /// The same with a window on every layer that keeps keys and values.
    #[must_use]
    pub fn windowed(mut self, tokens: Option<usize>) -> Self {
        for layer in &mut self.layers {
            if let LayerCache::Attention(cache) = layer {
                cache.window = tokens;
            }
        }
        self
    }

    /// The groups that the layers form, those that keep all tokens first and states last, and which group each layer is in.
    pub(super) fn groups(&self, kv: KvType) -> Result<(Vec<Cache>, Vec<usize>)> {
        let wrong = |what: &str| Error::corrupt(format!("the model's caches: {what}"));
        let mut kinds: Vec<(usize, Option<usize>)> = Vec::new();
        let mut kind_of = Vec::with_capacity(self.layers.len());
        for (place, layer) in self.layers.iter().enumerate() {
            let kind = match *layer {
                LayerCache::Attention(cache) => (usize::from(cache.window.is_some()), cache.window),
                LayerCache::State(_) => (2, None),
                LayerCache::SharedWith(other) if other < place => kind_of[other],
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

/// The longest sequence that memory is divided for: longer ones take from others.
const SEQUENCE_TOKENS: usize = 16_384;
/// Tokens that a step may add to a window.
const CHUNK_TOKENS: usize = 512;
/// Slots for one sequence: its own, and copies of its state at the ends of its last turns.
const SLOTS: usize = 4;

/// How many blocks or slots of each group a budget holds: as many as equally long sequences take of each, so that no group
/// is used up while another has room. One group gets all.
pub(super) fn divide(budget: u64, groups: &[Cache], context: usize) -> Result<Vec<usize>> {
    let tokens = context.clamp(1, SEQUENCE_TOKENS);
    let blocks = |tokens: usize| tokens.div_ceil(BLOCK_TOKENS);
    // What a sequence takes of each group, the least that a group works with, and the bytes of each.
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

/// Slots are numbered in 32 bits.
fn within_u32(count: u64) -> usize {
    count.min(u64::from(u32::MAX) / BLOCK_TOKENS as u64 - 1) as usize
}

/// What a model remembers of all sequences.
pub struct KvCache {
    pub(super) kind: KvType,
    groups: Vec<(Cache, usize)>,
    layers: Vec<Layer>,
}

/// What one layer remembers of all sequences.
struct Layer {
    group: usize,
    memory: Memory,
}

enum Memory {
    Attention(AttentionCache, Box<[Store; 2]>),
    State(usize, Store),
    SharedWith(usize),
}

/// The keys or the values, or the states, of one layer.
pub(super) enum Store {
    Mapped(MmapMut),
    Tensor(Tensor),
    /// Values that are a view of the keys.
    Nothing,
}

impl KvCache {
    /// Memory for so many blocks and slots of each group.
    pub(super) fn new(shape: &KvShape, kind: KvType, counts: &[usize], ops: &Ops) -> Result<Self> {
        let (groups, group_of) = shape.groups(kind)?;
        let full = |error: &dyn std::fmt::Display| {
            Error::out_of_memory(format!("no memory for {counts:?} KV blocks and states: {error}"))
                .help("lower kv_budget or context")
        };
        let memory = |layer: &LayerCache, count: usize| -> Result<Memory> {
            Ok(match *layer {
                LayerCache::SharedWith(other) => Memory::SharedWith(other),
                LayerCache::State(values) => {
                    let shape = StoreShape { kv_heads: 1, slots: count, head_dim: values, kind: KvType::F32 };
                    Memory::State(values, ops.state_store(shape).map_err(|error| full(&error.message))?)
                }
                LayerCache::Attention(cache) => {
                    let AttentionCache { kv_heads, key_dim, value_dim, .. } = cache;
                    // Kernels of our own want heads of one size.
                    let plain = key_dim == value_dim;
                    let store = |head_dim: usize| -> Result<Store> {
                        let shape = StoreShape { kv_heads, slots: count * BLOCK_TOKENS, head_dim, kind };
                        let made = match (head_dim, plain) {
                            (0, _) => return Ok(Store::Nothing),
                            (_, true) => ops.store(shape),
                            (_, false) => ops.state_store(shape),
                        };
                        made.map_err(|error| full(&error.message))
                    };
                    Memory::Attention(cache, Box::new([store(key_dim)?, store(value_dim)?]))
                }
            })
        };
        let layers = shape.layers.iter().zip(group_of);
        let layers = layers.map(|(layer, group)| Ok(Layer { group, memory: memory(layer, counts[group])? }));
        let layers = layers.collect::<Result<_>>()?;
        Ok(Self { kind, groups: groups.into_iter().zip(counts.iter().copied()).collect(), layers })
    }

    /// The groups and how many blocks or slots of each there are.
    pub(super) fn groups(&self) -> &[(Cache, usize)] {
        &self.groups
    }

    /// The layer whose memory a layer reads.
    fn owner(&self, layer: usize) -> Result<usize> {
        let count = self.layers.len();
        let missing = || Error::invalid(format!("layer {layer} of a model whose shape has {count}"));
        let mut owner = layer;
        while let Memory::SharedWith(other) = self.layers.get(owner).ok_or_else(missing)?.memory {
            owner = other;
        }
        Ok(owner)
    }

    /// The group of a layer.
    pub(super) fn group(&self, layer: usize) -> Result<usize> {
        Ok(self.layers[self.owner(layer)?].group)
    }

    /// What an attention layer keeps.
    pub(super) fn attention(&self, layer: usize) -> Result<AttentionCache> {
        match self.layers[self.owner(layer)?].memory {
            Memory::Attention(cache, _) => Ok(cache),
            _ => Err(Error::invalid(format!("layer {layer} keeps a state, not keys and values"))),
        }
    }

    /// The memory's shape as the CPU kernels know it.
    pub(super) fn layout(&self, layer: usize) -> Result<KvLayout> {
        let AttentionCache { kv_heads, key_dim, .. } = self.attention(layer)?;
        let slots = self.groups[self.group(layer)?].1 * BLOCK_TOKENS;
        Ok(KvLayout { kv_heads, slots, head_dim: key_dim, block_len: BLOCK_TOKENS })
    }

    /// The keys and the values of a layer.
    pub(super) fn layer(&mut self, layer: usize) -> Result<&mut [Store; 2]> {
        let owner = self.owner(layer)?;
        match &mut self.layers[owner].memory {
            Memory::Attention(_, stores) => Ok(stores),
            _ => Err(Error::invalid(format!("layer {layer} keeps a state, not keys and values"))),
        }
    }

    /// The states of a layer: a tensor `[1, slots, values]`.
    pub(super) fn states(&self, layer: usize) -> Result<&Tensor> {
        match &self.layers[self.owner(layer)?].memory {
            Memory::State(_, store) => store.tensor(),
            _ => Err(Error::invalid(format!("layer {layer} keeps keys and values, not a state"))),
        }
    }

    /// The slots of tokens `tokens` of a span's sequence in a group.
    pub(super) fn slots_of<'a>(
        span: &'a Span<'_>,
        group: usize,
        tokens: Range<usize>,
    ) -> impl Iterator<Item = u32> + 'a {
        let blocks = match &span.caches[group] {
            Table::Blocks(blocks) => &**blocks,
            _ => &[],
        };
        tokens.map(|token| blocks[token / BLOCK_TOKENS] * BLOCK_TOKENS as u32 + (token % BLOCK_TOKENS) as u32)
    }

    /// The stores of a group, with heads and bytes of a block or slot of one head.
    fn stores(&self, group: usize) -> impl Iterator<Item = (&Store, usize, KvType, usize)> {
        self.layers.iter().filter(move |layer| layer.group == group).flat_map(|layer| match &layer.memory {
            Memory::Attention(cache, stores) => {
                let [keys, values] = &**stores;
                let (heads, key, value) = (cache.kv_heads, cache.key_dim, cache.value_dim);
                let sized = vec![(keys, heads, self.kind, key), (values, heads, self.kind, value)];
                sized.into_iter().filter(|(_, _, _, dim)| *dim > 0).collect()
            }
            Memory::State(values, store) => vec![(store, 1, KvType::F32, *values)],
            Memory::SharedWith(_) => Vec::new(),
        })
    }

    /// Tokens in a place of a group: of a block, or one for a slot.
    fn place_tokens(&self, group: usize) -> usize {
        if matches!(self.groups[group].0, Cache::State { .. }) { 1 } else { BLOCK_TOKENS }
    }
}

impl Store {
    /// The memory that the CPU kernels read.
    pub(super) fn mapped(&self, kind: KvType) -> Result<Kv<'_>> {
        match (self, kind) {
            (Self::Mapped(memory), KvType::F32) => Ok(Kv::F32(bytemuck::cast_slice(memory))),
            (Self::Mapped(memory), KvType::F16) => Ok(Kv::F16(bytemuck::cast_slice(memory))),
            (Self::Tensor(_) | Self::Nothing, _) => Err(foreign("the KV cache")),
        }
    }

    /// The memory that the CPU kernels write.
    pub(super) fn mapped_mut(&mut self, kind: KvType) -> Result<KvMut<'_>> {
        match (self, kind) {
            (Self::Mapped(memory), KvType::F32) => Ok(KvMut::F32(bytemuck::cast_slice_mut(memory))),
            (Self::Mapped(memory), KvType::F16) => Ok(KvMut::F16(bytemuck::cast_slice_mut(memory))),
            (Self::Tensor(_) | Self::Nothing, _) => Err(foreign("the KV cache")),
        }
    }

    /// The memory of the generic path.
    pub(super) fn tensor(&self) -> Result<&Tensor> {
        match self {
            Self::Tensor(tensor) => Ok(tensor),
            Self::Mapped(_) | Self::Nothing => Err(foreign("the KV cache")),
        }
    }
}

/// An exported block or slot holds, layer by layer, its keys and then its values, head by head, little-endian.
impl KvTransfer for KvCache {
    fn bytes(&self, group: usize) -> usize {
        let tokens = self.place_tokens(group);
        self.stores(group).map(|(_, heads, kind, dim)| heads * tokens * dim * kind.bytes()).sum()
    }

    fn export(&self, group: usize, id: u32, mut bytes: &mut [u8]) -> Result<()> {
        let (tokens, count) = (self.place_tokens(group), self.groups[group].1);
        for (store, heads, kind, dim) in self.stores(group) {
            let piece = tokens * dim * kind.bytes();
            let (part, rest) = std::mem::take(&mut bytes).split_at_mut(heads * piece);
            bytes = rest;
            match store {
                Store::Mapped(memory) => {
                    for (head, bytes) in part.chunks_exact_mut(piece).enumerate() {
                        let start = (head * count + id as usize) * piece;
                        bytes.copy_from_slice(&memory[start..start + piece]);
                    }
                }
                Store::Tensor(tensor) => {
                    // A view's copy to the host would take the whole storage along.
                    let block = tensor.narrow(1, id as usize * tokens, tokens)?;
                    to_bytes(&block.force_contiguous()?, kind, part)?;
                }
                Store::Nothing => {}
            }
        }
        Ok(())
    }

    fn import(&mut self, group: usize, id: u32, mut bytes: &[u8]) -> Result<()> {
        let (tokens, count, kv) = (self.place_tokens(group), self.groups[group].1, self.kind);
        for layer in self.layers.iter_mut().filter(|layer| layer.group == group) {
            let (stores, heads, kind, dims) = match &mut layer.memory {
                Memory::Attention(cache, stores) => {
                    (&mut stores[..], cache.kv_heads, kv, vec![cache.key_dim, cache.value_dim])
                }
                Memory::State(values, store) => (std::slice::from_mut(store), 1, KvType::F32, vec![*values]),
                Memory::SharedWith(_) => continue,
            };
            for (store, dim) in stores.iter_mut().zip(dims).filter(|(_, dim)| *dim > 0) {
                let piece = tokens * dim * kind.bytes();
                let (part, rest) = bytes.split_at(heads * piece);
                bytes = rest;
                match store {
                    Store::Mapped(memory) => {
                        for (head, bytes) in part.chunks_exact(piece).enumerate() {
                            let start = (head * count + id as usize) * piece;
                            memory[start..start + piece].copy_from_slice(bytes);
                        }
                    }
                    Store::Tensor(tensor) => {
                        let values = from_bytes(part, kind, (heads, tokens, dim), tensor.device())?;
                        tensor.slice_set(&values, 1, id as usize * tokens)?;
                    }
                    Store::Nothing => {}
                }
            }
        }
        Ok(())
    }
}

fn to_bytes(tensor: &Tensor, kind: KvType, bytes: &mut [u8]) -> Result<()> {
    let tensor = tensor.flatten_all()?;
    match kind {
        KvType::F32 => {
            for (value, bytes) in tensor.to_vec1::<f32>()?.iter().zip(bytes.chunks_exact_mut(4)) {
                bytes.copy_from_slice(&value.to_le_bytes());
            }
        }
        KvType::F16 => {
            for (value, bytes) in tensor.to_vec1::<f16>()?.iter().zip(bytes.chunks_exact_mut(2)) {
                bytes.copy_from_slice(&value.to_le_bytes());
            }
        }
    }
    Ok(())
}

fn from_bytes(bytes: &[u8], kind: KvType, dims: (usize, usize, usize), device: &Device) -> Result<Tensor> {
    let tensor = match kind {
        KvType::F32 => {
            let values = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect::<Vec<_>>();
            Tensor::from_vec(values, dims, device)?
        }
        KvType::F16 => {
            let values = bytes.as_chunks().0.iter().map(|bytes| f16::from_le_bytes(*bytes)).collect::<Vec<_>>();
            Tensor::from_vec(values, dims, device)?
        }
    };
    Ok(tensor)
}
