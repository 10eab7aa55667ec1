//! A driver for tests. It records allocations, dispatches, command buffers and read-backs, fails where a test wants it to, and
//! computes each dispatch at once by the same kernels compiled as C++. What drives it is the code that drives Apple's.

use candle_core::{
    CpuStorage, CustomOp1, DType, Device, InplaceOp1, Layout, Shape, Storage, Tensor, Var, backend::BackendStorage,
};
use half::f16;
use std::{
    cell::RefCell,
    sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError},
};

use super::{
    driver::{Arg, Driver},
    kernels::{MetalKernels, failed},
    launch::Launch,
    libraries::LIBRARIES,
    program::Program,
};
use crate::{
    Result,
    nn::backend::{Backend, Formulas},
    weights::Bytes,
};

/// What was asked of the driver.
#[derive(Clone, Debug, Default)]
pub(in crate::nn) struct Record {
    /// Bytes of each buffer.
    pub(in crate::nn) allocations: Vec<usize>,
    /// The kernels of each command buffer that was waited for.
    pub(in crate::nn) command_buffers: Vec<Vec<&'static str>>,
    /// Bytes of each read-back.
    pub(in crate::nn) reads: Vec<usize>,
    /// The kernels of the present command buffer.
    pub(in crate::nn) encoded: Vec<&'static str>,
    /// The dispatch of a command buffer that fails, counted from the next on, and the driver's words.
    pub(in crate::nn) failure: Option<(usize, &'static str)>,
    /// The words of a command buffer that has failed.
    failed: Option<&'static str>,
    /// A kernel that the compiler has refused.
    pub(in crate::nn) missing: Option<&'static str>,
    /// Dispatches are recorded and not computed.
    pub(in crate::nn) is_idle: bool,
}

/// The driver, and what a test sees of it.
#[derive(Clone, Default)]
pub(in crate::nn) struct Double(Arc<Mutex<Record>>);

impl Double {
    pub(in crate::nn) fn record(&self) -> MutexGuard<'_, Record> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The backend on this driver, whose kernels have not been tried.
    pub(in crate::nn) fn untried(&self) -> Arc<dyn Backend> {
        Arc::new(MetalKernels::new(self.clone(), Formulas::plain(Device::Cpu)))
    }
}

pub(in crate::nn) struct Buffer(usize);

/// Makes a tensor that holds its buffer: candle keeps the op of a tensor as long as the tensor, its views, and what candle
/// computes of it, since it could be asked for their gradients.
struct Lease {
    _buffer: Arc<Buffer>,
    dtype: DType,
    dims: Vec<usize>,
}

/// The libraries, each compiled once.
static PROGRAMS: [OnceLock<Program>; LIBRARIES.len()] = [const { OnceLock::new() }; LIBRARIES.len()];

/// What candle tracks the use of.
static TRACKED: LazyLock<Tensor> = LazyLock::new(|| {
    let one = Tensor::ones(1, DType::F32, &Device::Cpu).unwrap();
    Var::from_tensor(&one).unwrap().into_inner()
});

impl CustomOp1 for Lease {
    fn name(&self) -> &'static str {
        "a buffer's tensor"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let shape = Shape::from(self.dims.clone());
        let count = shape.elem_count();
        // NaN, so that a value that was never written shows.
        let storage = match self.dtype {
            DType::F32 => CpuStorage::F32(vec![f32::NAN; count]),
            DType::F16 => CpuStorage::F16(vec![f16::NAN; count]),
            DType::U32 => CpuStorage::U32(vec![u32::MAX; count]),
            DType::U8 => CpuStorage::U8(vec![0xFF; count]),
            other => return Err(candle_core::Error::Msg(format!("no buffer of {other:?}"))),
        };
        Ok((storage, shape))
    }
}

fn bytes_of(storage: &CpuStorage) -> candle_core::Result<&[u8]> {
    Ok(match storage {
        CpuStorage::F32(values) => bytemuck::cast_slice(values),
        CpuStorage::F16(values) => bytemuck::cast_slice(values),
        CpuStorage::U32(values) => bytemuck::cast_slice(values),
        CpuStorage::U8(values) => values,
        _ => return Err(candle_core::Error::Msg("a tensor of another type".into())),
    })
}

/// The bytes of a contiguous tensor.
fn bytes(tensor: &Tensor) -> Result<Vec<u8>> {
    let (storage, layout) = tensor.storage_and_layout();
    let (Storage::Cpu(storage), Some((start, end))) = (&*storage, layout.contiguous_offsets()) else {
        return Err(failed(format!("a tensor of shape {:?} is not contiguous", tensor.dims())));
    };
    let size = tensor.dtype().size_in_bytes();
    Ok(bytes_of(storage)?[start * size..end * size].to_vec())
}

/// Changes the bytes of a tensor in place.
struct Change<F>(RefCell<F>);

impl<F: FnMut(&mut [u8])> InplaceOp1 for Change<F> {
    fn name(&self) -> &'static str {
        "a change of bytes"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let size = storage.dtype().size_in_bytes();
        let bytes: &mut [u8] = match storage {
            CpuStorage::F32(values) => bytemuck::cast_slice_mut(values),
            CpuStorage::F16(values) => bytemuck::cast_slice_mut(values),
            CpuStorage::U32(values) => bytemuck::cast_slice_mut(values),
            CpuStorage::U8(values) => values,
            _ => return Err(candle_core::Error::Msg("a tensor of another type".into())),
        };
        let range = layout.contiguous_offsets().map(|(start, end)| start * size..end * size);
        let bytes = range.and_then(|range| bytes.get_mut(range));
        (self.0.borrow_mut())(bytes.ok_or_else(|| candle_core::Error::Msg("a tensor is not contiguous".into()))?);
        Ok(())
    }
}

fn change(tensor: &Tensor, change: impl FnMut(&mut [u8])) -> Result<()> {
    Ok(tensor.inplace_op1(&Change(RefCell::new(change)))?)
}

impl Driver for Double {
    type Buffer = Buffer;

    fn allocate(&self, bytes: usize) -> Result<Arc<Buffer>> {
        self.record().allocations.push(bytes);
        Ok(Arc::new(Buffer(bytes)))
    }

    fn weight(&self, bytes: &Bytes, _: usize) -> Result<Tensor> {
        Ok(Tensor::from_slice(bytes, bytes.len(), &Device::Cpu)?)
    }

    fn capacity(buffer: &Buffer) -> usize {
        buffer.0
    }

    fn tensor(&self, buffer: &Arc<Buffer>, dtype: DType, dims: &[usize]) -> Result<Tensor> {
        let bytes = dtype.size_in_bytes() * dims.iter().product::<usize>();
        assert!(bytes <= buffer.0, "a tensor of {bytes} bytes in a buffer of {}", buffer.0);
        Ok(TRACKED.apply_op1(Lease { _buffer: buffer.clone(), dtype, dims: dims.to_vec() })?)
    }

    fn takes(&self, launch: &Launch) -> bool {
        self.record().missing != Some(launch.kernel)
    }

    fn launch(&self, launch: &Launch, args: &[Arg<'_>]) -> Result<()> {
        assert!(self.takes(launch), "{} is missing", launch.kernel);
        let is_idle = {
            let mut record = self.record();
            record.encoded.push(launch.kernel);
            match &mut record.failure {
                Some((0, words)) => (record.failed, record.failure) = (Some(*words), None),
                Some((left, _)) => *left -= 1,
                None => {}
            }
            record.is_idle
        };
        let buffers = args.iter().map(|arg| match arg {
            Arg::Read(tensor) | Arg::Written(tensor) => bytes(tensor),
            Arg::Bytes(bytes) => Ok(bytes.to_vec()),
        });
        if is_idle {
            return Ok(());
        }
        let library = LIBRARIES.iter().position(|library| library.kernels.contains(&launch.kernel));
        let library = library.ok_or_else(|| failed(format!("there is no kernel '{}'", launch.kernel)))?;
        let program = PROGRAMS[library].get_or_init(|| Program::compile(LIBRARIES[library]));
        let results = program.run(launch, &buffers.collect::<Result<Vec<_>>>()?).map_err(failed)?;
        for (arg, result) in args.iter().zip(results) {
            if let Arg::Written(tensor) = arg {
                change(tensor, |bytes| bytes.copy_from_slice(&result))?;
            }
        }
        Ok(())
    }

    fn finish(&self) -> Result<()> {
        let mut record = self.record();
        let encoded = std::mem::take(&mut record.encoded);
        if !encoded.is_empty() {
            record.command_buffers.push(encoded);
        }
        record.failed.take().map_or(Ok(()), |words| Err(failed(words)))
    }

    fn read(&self, tensor: &Tensor, from: usize, out: &mut [u8]) -> Result<bool> {
        assert!(self.record().encoded.is_empty(), "the host reads what is not computed yet");
        self.record().reads.push(out.len());
        let (storage, _) = tensor.storage_and_layout();
        let Storage::Cpu(storage) = &*storage else { return Ok(false) };
        out.copy_from_slice(&bytes_of(storage)?[from..from + out.len()]);
        Ok(true)
    }

    fn write(&self, tensor: &Tensor, to: usize, from: &[u8]) -> Result<()> {
        change(tensor, |bytes| bytes[to..to + from.len()].copy_from_slice(from))
    }

    fn zero(&self, tensor: &Tensor) -> Result<()> {
        change(tensor, |bytes| bytes.fill(0))
    }
}
