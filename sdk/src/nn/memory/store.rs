//! Memory for a layer's keys, values or states, in the form that its device computes with.

use candle_core::Tensor;
use memmap2::MmapMut;
use pensieve_kernels::{Kv, KvMut};

use crate::{Error, Result, nn::spec::KvType};

/// The shape of a store, `[kv_heads, slots, head_dim]`, and its type.
#[derive(Clone, Copy, Debug)]
pub(in crate::nn) struct StoreShape {
    pub(in crate::nn) kv_heads: usize,
    pub(in crate::nn) slots: usize,
    pub(in crate::nn) head_dim: usize,
    pub(in crate::nn) kind: KvType,
}

impl StoreShape {
    /// Size of the store; `None` if it overflows.
    pub(in crate::nn) fn bytes(&self) -> Option<usize> {
        self.kv_heads.checked_mul(self.slots)?.checked_mul(self.head_dim)?.checked_mul(self.kind.bytes())
    }
}

/// Device memory that the host reads and writes in place while no step is running; `from` and `to` are in bytes.
pub(in crate::nn) trait HostMemory: Send + Sync {
    fn read(&self, from: usize, bytes: &mut [u8]) -> Result<()>;
    fn write(&self, to: usize, bytes: &[u8]) -> Result<()>;
}

/// The keys, the values or one part of the states of one layer.
pub(in crate::nn) enum Store {
    Mapped(MmapMut),
    Tensor(Tensor),
    /// A device tensor whose memory is shared with the host.
    #[cfg_attr(not(any(test, target_os = "macos")), allow(dead_code))]
    Shared(Tensor, Box<dyn HostMemory>),
    /// For values that are a view of the keys.
    Nothing,
}

impl Store {
    /// Returns the values for the CPU kernels.
    pub(in crate::nn) fn mapped(&self, kind: KvType) -> Result<Kv<'_>> {
        match (self, kind) {
            (Self::Mapped(memory), KvType::F32) => Ok(Kv::F32(bytemuck::cast_slice(memory))),
            (Self::Mapped(memory), KvType::F16) => Ok(Kv::F16(bytemuck::cast_slice(memory))),
            (Self::Tensor(_) | Self::Shared(..) | Self::Nothing, _) => Err(foreign("the KV cache")),
        }
    }

    /// Returns the values for the CPU kernels to write.
    pub(in crate::nn) fn mapped_mut(&mut self, kind: KvType) -> Result<KvMut<'_>> {
        match (self, kind) {
            (Self::Mapped(memory), KvType::F32) => Ok(KvMut::F32(bytemuck::cast_slice_mut(memory))),
            (Self::Mapped(memory), KvType::F16) => Ok(KvMut::F16(bytemuck::cast_slice_mut(memory))),
            (Self::Tensor(_) | Self::Shared(..) | Self::Nothing, _) => Err(foreign("the KV cache")),
        }
    }

    /// Returns the tensor, for formulas and for kernels on other devices.
    pub(in crate::nn) fn tensor(&self) -> Result<&Tensor> {
        match self {
            Self::Tensor(tensor) | Self::Shared(tensor, _) => Ok(tensor),
            Self::Mapped(_) | Self::Nothing => Err(foreign("the KV cache")),
        }
    }
}

/// Error for a weight, an adapter or a cache of another backend.
pub(in crate::nn) fn foreign(what: &str) -> Error {
    Error::invalid(format!("{what} was made for other kernels"))
}
