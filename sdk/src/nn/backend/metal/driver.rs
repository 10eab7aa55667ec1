//! The seam between the Metal backend and the driver. Apple's driver stands behind it on a Mac, and a recording one in tests,
//! so that everything above the seam runs on any machine.
//!
//! Dispatches run in the order in which they were encoded, also relative to candle's ops: both go into one command buffer.
//! Nothing runs for certain before [`Driver::finish`].

use candle_core::{DType, Tensor};
use std::sync::Arc;

use super::launch::Launch;
use crate::{Result, weights::Bytes};

/// An argument of a kernel; tensors are contiguous.
pub(super) enum Arg<'a> {
    Read(&'a Tensor),
    Written(&'a Tensor),
    Bytes(&'a [u8]),
}

pub(super) trait Driver: Send + Sync + 'static {
    type Buffer: Send + Sync + 'static;

    /// Allocates exactly `bytes` of memory that host and GPU share, resident as long as it exists.
    fn allocate(&self, bytes: usize) -> Result<Arc<Self::Buffer>>;

    /// The mapped pages of a weight as a tensor of `u8`; the caller keeps them. `None` if they do not begin at a multiple of
    /// `alignment`, or the device does not take them.
    fn mapped(&self, bytes: &Bytes, alignment: usize) -> Result<Option<Tensor>>;

    fn capacity(buffer: &Self::Buffer) -> usize;

    /// A tensor over the beginning of a buffer, which it holds; its values are undefined.
    fn tensor(&self, buffer: &Arc<Self::Buffer>, dtype: DType, dims: &[usize]) -> Result<Tensor>;

    /// About how many cores the GPU has, for which contexts are divided.
    fn cores(&self) -> usize;

    /// True if the kernel has been compiled, and the GPU has registers for that many of its threads.
    fn takes(&self, launch: &Launch) -> bool;

    fn launch(&self, launch: &Launch, args: &[Arg<'_>]) -> Result<()>;

    /// Submits what was encoded and waits for it. The first error of a command buffer since the last call is returned, with
    /// the driver's text.
    fn finish(&self) -> Result<()>;

    /// Copies bytes of a tensor, from the byte `from` on, once the GPU has finished; `false` if the host cannot see its memory.
    fn read(&self, tensor: &Tensor, from: usize, bytes: &mut [u8]) -> Result<bool>;

    /// Overwrites bytes of a tensor that this driver made, while no dispatch uses it.
    fn write(&self, tensor: &Tensor, to: usize, bytes: &[u8]) -> Result<()>;

    /// Fills a tensor that this driver made with zeros, while no dispatch uses it.
    fn zero(&self, tensor: &Tensor) -> Result<()>;
}
