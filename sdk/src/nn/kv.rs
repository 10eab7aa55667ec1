//! The memory of a paged model: for each layer one K and one V, `[kv_heads, slots, head_dim]`, with `BLOCK_TOKENS` slots in
//! a block.
//!
//! The host deals out block ids; token `i` of a sequence lies in slot `blocks[i / BLOCK_TOKENS] · BLOCK_TOKENS + i mod
//! BLOCK_TOKENS`. On the CPU the memory is mapped and zero, so that blocks cost nothing until they are written.

use candle_core::{Device, Tensor};
use half::f16;
use memmap2::MmapMut;
use std::ops::Range;

use super::{
    Ops,
    backend::StoreShape,
    cpu::{Kv, KvLayout, KvMut},
};
use crate::{Error, KvTransfer, Result, Span};

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

/// The shape of a model's keys and values.
#[derive(Clone, Copy, Debug)]
pub struct KvShape {
    /// Layers that remember.
    pub layers: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Values in a head.
    pub head_dim: usize,
}

impl KvShape {
    /// Bytes of one block over all layers; none if that is more than there can be.
    pub fn block_bytes(&self, kv: KvType) -> Option<usize> {
        let values = self.kv_heads.checked_mul(self.head_dim)?.checked_mul(BLOCK_TOKENS)?;
        values.checked_mul(2 * kv.bytes())?.checked_mul(self.layers)
    }
}

/// The keys and values of all sequences.
pub struct KvCache {
    pub(super) shape: KvShape,
    pub(super) kind: KvType,
    blocks: usize,
    layers: Vec<[Store; 2]>,
}

/// The keys or the values of one layer.
pub(super) enum Store {
    Mapped(MmapMut),
    Tensor(Tensor),
}

impl KvCache {
    /// Memory for `blocks` blocks.
    pub(super) fn new(shape: KvShape, kind: KvType, blocks: usize, ops: &Ops) -> Result<Self> {
        let full = |error: &dyn std::fmt::Display| {
            Error::out_of_memory(format!("no memory for {blocks} KV blocks: {error}"))
                .help("lower kv_budget or context")
        };
        let KvShape { kv_heads, head_dim, .. } = shape;
        let store = StoreShape { kv_heads, slots: blocks * BLOCK_TOKENS, head_dim, kind };
        let store = || ops.store(store).map_err(|error| full(&error.message));
        let layers = (0..shape.layers).map(|_| Ok([store()?, store()?])).collect::<Result<_>>()?;
        Ok(Self { shape, kind, blocks, layers })
    }

    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }

    /// The memory's shape as the CPU kernels know it.
    pub(super) fn layout(&self) -> KvLayout {
        let KvShape { kv_heads, head_dim, .. } = self.shape;
        KvLayout { kv_heads, slots: self.blocks * BLOCK_TOKENS, head_dim, block_len: BLOCK_TOKENS }
    }

    /// The keys and the values of a layer.
    pub(super) fn layer(&mut self, layer: usize) -> Result<&mut [Store; 2]> {
        let count = self.layers.len();
        self.layers
            .get_mut(layer)
            .ok_or_else(|| Error::invalid(format!("attention layer {layer} of a model whose shape has {count}")))
    }

    /// The slots of tokens `tokens` of a span's sequence.
    pub(super) fn slots_of(span: &Span<'_>, tokens: Range<usize>) -> impl Iterator<Item = u32> {
        tokens.map(|token| span.blocks[token / BLOCK_TOKENS] * BLOCK_TOKENS as u32 + (token % BLOCK_TOKENS) as u32)
    }

    /// Bytes of one block of one head of one layer's keys or values.
    fn piece_bytes(&self) -> usize {
        BLOCK_TOKENS * self.shape.head_dim * self.kind.bytes()
    }
}

impl Store {
    /// The memory that the CPU kernels read.
    pub(super) fn mapped(&self, kind: KvType) -> Result<Kv<'_>> {
        match (self, kind) {
            (Self::Mapped(memory), KvType::F32) => Ok(Kv::F32(bytemuck::cast_slice(memory))),
            (Self::Mapped(memory), KvType::F16) => Ok(Kv::F16(bytemuck::cast_slice(memory))),
            (Self::Tensor(_), _) => Err(foreign()),
        }
    }

    /// The memory that the CPU kernels write.
    pub(super) fn mapped_mut(&mut self, kind: KvType) -> Result<KvMut<'_>> {
        match (self, kind) {
            (Self::Mapped(memory), KvType::F32) => Ok(KvMut::F32(bytemuck::cast_slice_mut(memory))),
            (Self::Mapped(memory), KvType::F16) => Ok(KvMut::F16(bytemuck::cast_slice_mut(memory))),
            (Self::Tensor(_), _) => Err(foreign()),
        }
    }

    /// The memory of the generic path.
    pub(super) fn tensor(&self) -> Result<&Tensor> {
        match self {
            Self::Tensor(tensor) => Ok(tensor),
            Self::Mapped(_) => Err(foreign()),
        }
    }
}

fn foreign() -> Error {
    Error::invalid("the KV cache was made for other kernels")
}

/// An exported block holds, layer by layer, its keys and then its values, head by head, little-endian.
impl KvTransfer for KvCache {
    fn block_bytes(&self) -> usize {
        2 * self.shape.layers * self.shape.kv_heads * self.piece_bytes()
    }

    fn export(&self, block: u32, bytes: &mut [u8]) -> Result<()> {
        let (piece, heads) = (self.piece_bytes(), self.shape.kv_heads);
        for (store, bytes) in self.layers.iter().flatten().zip(bytes.chunks_exact_mut(heads * piece)) {
            match store {
                Store::Mapped(memory) => {
                    for (head, bytes) in bytes.chunks_exact_mut(piece).enumerate() {
                        let start = (head * self.blocks + block as usize) * piece;
                        bytes.copy_from_slice(&memory[start..start + piece]);
                    }
                }
                Store::Tensor(tensor) => {
                    // A view's copy to the host would take the whole storage along.
                    let block = tensor.narrow(1, block as usize * BLOCK_TOKENS, BLOCK_TOKENS)?;
                    let block = block.force_contiguous()?;
                    to_bytes(&block, self.kind, bytes)?;
                }
            }
        }
        Ok(())
    }

    fn import(&mut self, block: u32, bytes: &[u8]) -> Result<()> {
        let (piece, heads, blocks) = (self.piece_bytes(), self.shape.kv_heads, self.blocks);
        let dims = (heads, BLOCK_TOKENS, self.shape.head_dim);
        for (store, bytes) in self.layers.iter_mut().flatten().zip(bytes.chunks_exact(heads * piece)) {
            match store {
                Store::Mapped(memory) => {
                    for (head, bytes) in bytes.chunks_exact(piece).enumerate() {
                        let start = (head * blocks + block as usize) * piece;
                        memory[start..start + piece].copy_from_slice(bytes);
                    }
                }
                Store::Tensor(tensor) => {
                    let values = from_bytes(bytes, self.kind, dims, tensor.device())?;
                    tensor.slice_set(&values, 1, block as usize * BLOCK_TOKENS)?;
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
