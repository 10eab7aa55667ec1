//! The caches of a model, layer by layer: keys and values for attention, `[kv_heads, slots, dim]` each, with
//! `BLOCK_TOKENS` slots per block; for recurrent layers each part of the state, `[slots, values]`.
//!
//! Layers with the same kind of cache form a group, and the host allocates the blocks or slots of each group. Token `i`
//! of a sequence is in slot `blocks[i / BLOCK_TOKENS] · BLOCK_TOKENS + i mod BLOCK_TOKENS` of its group's layers. On
//! the CPU the memory is mapped and zeroed lazily, so that blocks cost nothing until they are written.

use candle_core::{DType, Device, Tensor};
use half::f16;
use pensieve_kernels::KvLayout;
use std::{collections::BTreeMap, ops::Range};

use super::store::{Store, StoreShape};
use crate::{
    Cache, Error, KvTransfer, Result, Span, Table,
    nn::spec::{AttentionCache, BLOCK_TOKENS, KvShape, KvType, LayerCache},
};

/// The caches of a model, for all sequences.
pub struct KvCache {
    pub(in crate::nn) kind: KvType,
    groups: Vec<(Cache, usize)>,
    layers: Vec<Layer>,
}

/// The cache of one layer, for all sequences.
struct Layer {
    group: usize,
    /// Index of its device among the model's.
    place: usize,
    memory: Memory,
}

enum Memory {
    Attention(AttentionCache, Box<[Store; 2]>),
    /// The number of values and the memory of each part.
    State(Vec<(usize, Store)>),
    SharedWith(usize),
}

impl Layer {
    /// The layer's stores, each with its heads, its type, and the values of one head per token (or per slot of a
    /// state).
    fn stores(&self, kind: KvType) -> impl Iterator<Item = (&Store, usize, KvType, usize)> {
        let stores: Vec<_> = match &self.memory {
            Memory::Attention(cache, stores) => {
                let [keys, values] = &**stores;
                let (heads, key, value) = (cache.kv_heads, cache.key_dim, cache.value_dim);
                let sized = vec![(keys, heads, kind, key), (values, heads, kind, value)];
                sized.into_iter().filter(|(_, _, _, dim)| *dim > 0).collect()
            }
            Memory::State(parts) => parts.iter().map(|(values, store)| (store, 1, KvType::F32, *values)).collect(),
            Memory::SharedWith(_) => Vec::new(),
        };
        stores.into_iter()
    }
}

impl KvCache {
    /// Allocates `counts` blocks or slots of each group. `places` gives the device of a layer's cache. `make` allocates
    /// a store on a device; its last argument says whether the backend may choose its own form.
    pub(in crate::nn) fn new(
        shape: &KvShape,
        kind: KvType,
        counts: &[usize],
        places: impl Fn(usize) -> usize,
        make: impl Fn(usize, StoreShape, bool) -> Result<Store>,
    ) -> Result<Self> {
        let (groups, group_of) = shape.groups(kind)?;
        let full = |error: &dyn std::fmt::Display| {
            Error::out_of_memory(format!("no memory for {counts:?} KV blocks and states: {error}"))
                .help("lower kv_budget or context")
        };
        let state = |values: usize, count: usize, place: usize| -> Result<(usize, Store)> {
            let shape = StoreShape { kv_heads: 1, slots: count, head_dim: values, kind: KvType::F32 };
            Ok((values, make(place, shape, false).map_err(|error| full(&error.message))?))
        };
        let memory = |layer: &LayerCache, count: usize, place: usize| -> Result<Memory> {
            Ok(match layer {
                LayerCache::SharedWith(other) => Memory::SharedWith(*other),
                LayerCache::State(values) => Memory::State(vec![state(*values, count, place)?]),
                LayerCache::States(parts) => {
                    Memory::State(parts.iter().map(|values| state(*values, count, place)).collect::<Result<_>>()?)
                }
                LayerCache::Attention(cache) => {
                    let AttentionCache { kv_heads, key_dim, value_dim, .. } = *cache;
                    let store = |head_dim: usize| -> Result<Store> {
                        let shape = StoreShape { kv_heads, slots: count * BLOCK_TOKENS, head_dim, kind };
                        if head_dim == 0 {
                            return Ok(Store::Nothing);
                        }
                        make(place, shape, true).map_err(|error| full(&error.message))
                    };
                    Memory::Attention(*cache, Box::new([store(key_dim)?, store(value_dim)?]))
                }
            })
        };
        let layers = shape.layers.iter().zip(group_of).enumerate();
        let layers = layers.map(|(index, (layer, group))| {
            let place = places(index);
            Ok(Layer { group, place, memory: memory(layer, counts[group], place)? })
        });
        let layers = layers.collect::<Result<_>>()?;
        Ok(Self { kind, groups: groups.into_iter().zip(counts.iter().copied()).collect(), layers })
    }

    /// The caches of an encoder: one group of states without size, for as many sequences as there are.
    pub(in crate::nn) fn none(kind: KvType) -> Self {
        Self { kind, groups: vec![(Cache::Opaque { bytes: 0 }, 0)], layers: Vec::new() }
    }

    /// The groups, each with its number of blocks or slots.
    pub(in crate::nn) fn groups(&self) -> &[(Cache, usize)] {
        &self.groups
    }

    /// Bytes of all blocks and slots.
    pub(in crate::nn) fn state_bytes(&self) -> u64 {
        self.groups.iter().enumerate().map(|(group, (_, count))| (self.bytes(group) * count) as u64).sum()
    }

    /// The layer whose cache is read: the layer itself, or the one that it shares with.
    fn owner(&self, layer: usize) -> Result<usize> {
        let count = self.layers.len();
        let missing = || Error::invalid(format!("layer {layer} of a model whose shape has {count}"));
        let mut owner = layer;
        while let Memory::SharedWith(other) = self.layers.get(owner).ok_or_else(missing)?.memory {
            owner = other;
        }
        Ok(owner)
    }

    /// Index of a layer's group.
    pub(in crate::nn) fn group(&self, layer: usize) -> Result<usize> {
        Ok(self.layers[self.owner(layer)?].group)
    }

    /// Index of the device with the cache that a layer reads.
    pub(in crate::nn) fn place(&self, layer: usize) -> Result<usize> {
        Ok(self.layers[self.owner(layer)?].place)
    }

    /// The sizes of an attention layer's cache; an error for layers with a state.
    pub(in crate::nn) fn attention(&self, layer: usize) -> Result<AttentionCache> {
        match self.layers[self.owner(layer)?].memory {
            Memory::Attention(cache, _) => Ok(cache),
            _ => Err(Error::invalid(format!("layer {layer} keeps a state, not keys and values"))),
        }
    }

    /// The layouts of keys and values for the CPU kernels. A `head_dim` of 0 for the values means a view of the keys.
    pub(in crate::nn) fn layouts(&self, layer: usize) -> Result<[KvLayout; 2]> {
        let AttentionCache { kv_heads, key_dim, value_dim, .. } = self.attention(layer)?;
        let slots = self.groups[self.group(layer)?].1 * BLOCK_TOKENS;
        Ok([key_dim, value_dim].map(|head_dim| KvLayout { kv_heads, slots, head_dim, block_len: BLOCK_TOKENS }))
    }

    /// The stores of a layer's keys and values.
    pub(in crate::nn) fn layer(&mut self, layer: usize) -> Result<&mut [Store; 2]> {
        let owner = self.owner(layer)?;
        match &mut self.layers[owner].memory {
            Memory::Attention(_, stores) => Ok(stores),
            _ => Err(Error::invalid(format!("layer {layer} keeps a state, not keys and values"))),
        }
    }

    /// One part of a layer's states: a tensor `[1, slots, values]`.
    pub(in crate::nn) fn states(&self, layer: usize, part: usize) -> Result<&Tensor> {
        match &self.layers[self.owner(layer)?].memory {
            Memory::State(parts) => match parts.get(part) {
                Some((_, store)) => store.tensor(),
                None => Err(Error::invalid(format!("layer {layer} keeps a state of {} parts", parts.len()))),
            },
            _ => Err(Error::invalid(format!("layer {layer} keeps keys and values, not a state"))),
        }
    }

    /// The slots of a range of a sequence's tokens in a group.
    pub(in crate::nn) fn slots_of(span: &Span<'_>, group: usize, tokens: Range<usize>) -> Result<Vec<u32>> {
        let Some(Table::Blocks(blocks)) = span.caches.get(group) else { return Err(no_table()) };
        let slot = |token: usize| {
            let block = blocks.get(token / BLOCK_TOKENS).ok_or_else(no_table)?;
            Ok(block * BLOCK_TOKENS as u32 + (token % BLOCK_TOKENS) as u32)
        };
        tokens.map(slot).collect()
    }

    /// The stores of all layers of a group, as [`Layer::stores`] lists them.
    fn stores(&self, group: usize) -> impl Iterator<Item = (&Store, usize, KvType, usize)> {
        self.layers.iter().filter(move |layer| layer.group == group).flat_map(|layer| layer.stores(self.kind))
    }

    /// Bytes of the caches on each of the model's devices.
    pub(in crate::nn) fn bytes_by_place(&self) -> BTreeMap<usize, u64> {
        let mut sums = BTreeMap::new();
        for layer in &self.layers {
            let (tokens, count) = (self.unit_tokens(layer.group), self.groups[layer.group].1);
            let each = layer.stores(self.kind).map(|(_, heads, kind, dim)| heads * tokens * kind.row_bytes(dim));
            let sum: &mut u64 = sums.entry(layer.place).or_default();
            *sum = sum.saturating_add((each.sum::<usize>() as u64).saturating_mul(count as u64));
        }
        sums
    }

    /// Tokens per unit of a group: per block, or 1 for a slot of a state.
    fn unit_tokens(&self, group: usize) -> usize {
        if matches!(self.groups[group].0, Cache::State { .. }) { 1 } else { BLOCK_TOKENS }
    }
}

/// An exported block or slot consists of each layer's keys, then its values, head by head, in little-endian order.
impl KvTransfer for KvCache {
    fn bytes(&self, group: usize) -> usize {
        let tokens = self.unit_tokens(group);
        self.stores(group).map(|(_, heads, kind, dim)| heads * tokens * kind.row_bytes(dim)).sum()
    }

    fn export(&self, group: usize, id: u32, mut bytes: &mut [u8]) -> Result<()> {
        let (tokens, count) = (self.unit_tokens(group), self.groups[group].1);
        for (store, heads, kind, dim) in self.stores(group) {
            let piece = tokens * kind.row_bytes(dim);
            let (part, rest) = std::mem::take(&mut bytes).split_at_mut(heads * piece);
            bytes = rest;
            match store {
                Store::Mapped(memory) => {
                    for (head, bytes) in part.chunks_exact_mut(piece).enumerate() {
                        let start = (head * count + id as usize) * piece;
                        bytes.copy_from_slice(&memory[start..start + piece]);
                    }
                }
                Store::Shared(_, memory) => {
                    for (head, bytes) in part.chunks_exact_mut(piece).enumerate() {
                        memory.read((head * count + id as usize) * piece, bytes)?;
                    }
                }
                Store::Tensor(tensor) => {
                    // Copying a view to the host would copy its whole storage.
                    let block = tensor.narrow(1, id as usize * tokens, tokens)?;
                    to_bytes(&block.force_contiguous()?, kind, part)?;
                }
                Store::Nothing => {}
            }
        }
        Ok(())
    }

    fn import(&mut self, group: usize, id: u32, mut bytes: &[u8]) -> Result<()> {
        let (tokens, count, kv) = (self.unit_tokens(group), self.groups[group].1, self.kind);
        for layer in self.layers.iter_mut().filter(|layer| layer.group == group) {
            let (stores, heads, kind): (Vec<_>, _, _) = match &mut layer.memory {
                Memory::Attention(cache, stores) => {
                    (stores.iter_mut().zip([cache.key_dim, cache.value_dim]).collect(), cache.kv_heads, kv)
                }
                Memory::State(parts) => {
                    (parts.iter_mut().map(|(values, store)| (store, *values)).collect(), 1, KvType::F32)
                }
                Memory::SharedWith(_) => continue,
            };
            for (store, dim) in stores.into_iter().filter(|(_, dim)| *dim > 0) {
                let piece = tokens * kind.row_bytes(dim);
                let (part, rest) = bytes.split_at(heads * piece);
                bytes = rest;
                match store {
                    Store::Mapped(memory) => {
                        for (head, bytes) in part.chunks_exact(piece).enumerate() {
                            let start = (head * count + id as usize) * piece;
                            memory[start..start + piece].copy_from_slice(bytes);
                        }
                    }
                    Store::Shared(_, memory) => {
                        for (head, bytes) in part.chunks_exact(piece).enumerate() {
                            memory.write((head * count + id as usize) * piece, bytes)?;
                        }
                    }
                    Store::Tensor(tensor) => {
                        let values = from_bytes(part, kind, (heads, tokens, kind.row_elements(dim)), tensor.device())?;
                        tensor.slice_set(&values, 1, id as usize * tokens)?;
                    }
                    Store::Nothing => {}
                }
            }
        }
        Ok(())
    }
}

/// Error for a span without a block table: a host's batches have one per group, but those that a backend creates for
/// graph capture have none.
pub(in crate::nn) fn no_table() -> Error {
    Error::invalid("a sequence has no table for a group of caches")
}

fn to_bytes(tensor: &Tensor, kind: KvType, bytes: &mut [u8]) -> Result<()> {
    let tensor = tensor.flatten_all()?;
    match kind.dtype() {
        DType::U8 => bytes.copy_from_slice(&tensor.to_vec1::<u8>()?),
        DType::F32 => {
            for (value, bytes) in tensor.to_vec1::<f32>()?.iter().zip(bytes.chunks_exact_mut(4)) {
                bytes.copy_from_slice(&value.to_le_bytes());
            }
        }
        _ => {
            for (value, bytes) in tensor.to_vec1::<f16>()?.iter().zip(bytes.chunks_exact_mut(2)) {
                bytes.copy_from_slice(&value.to_le_bytes());
            }
        }
    }
    Ok(())
}

fn from_bytes(bytes: &[u8], kind: KvType, dims: (usize, usize, usize), device: &Device) -> Result<Tensor> {
    let tensor = match kind.dtype() {
        DType::U8 => Tensor::from_slice(bytes, dims, device)?,
        DType::F32 => {
            let values = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect::<Vec<_>>();
            Tensor::from_vec(values, dims, device)?
        }
        _ => {
            let values = bytes.as_chunks().0.iter().map(|bytes| f16::from_le_bytes(*bytes)).collect::<Vec<_>>();
            Tensor::from_vec(values, dims, device)?
        }
    };
    Ok(tensor)
}
