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
        self.kv_heads.checked_mul(self.slots)?.checked_mul(self.kind.row_bytes(self.head_dim))
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
        let Self::Mapped(memory) = self else { return Err(foreign("the KV cache")) };
        Ok(match (kind, kind.packing()) {
            (_, Some(packing)) => Kv::Packed(packing, memory),
            (KvType::F32, None) => Kv::F32(bytemuck::cast_slice(memory)),
            (_, None) => Kv::F16(bytemuck::cast_slice(memory)),
        })
    }

    /// Returns the values for the CPU kernels to write.
    pub(in crate::nn) fn mapped_mut(&mut self, kind: KvType) -> Result<KvMut<'_>> {
        let Self::Mapped(memory) = self else { return Err(foreign("the KV cache")) };
        Ok(match (kind, kind.packing()) {
            (_, Some(packing)) => KvMut::Packed(packing, memory),
            (KvType::F32, None) => KvMut::F32(bytemuck::cast_slice_mut(memory)),
            (_, None) => KvMut::F16(bytemuck::cast_slice_mut(memory)),
        })
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
