//! A driver for tests. It records allocations, dispatches, command buffers and read-backs, fails where a test wants it to, and
//! computes each dispatch by the same kernels compiled as C++. What drives it is the code that drives Apple's.
//!
//! It computes at once, into fresh memory for each tensor, so that candle's ops may come between and a value that was never
//! written shows. Or, where a test asks for it and the kernels compute everything, as a GPU does: when the host waits, in the
//! buffers' own memory, so that a buffer that is written or given to another tensor too early shows.

use candle_core::{
    CpuStorage, CustomOp1, DType, Device, InplaceOp1, Layout, Shape, Storage, Tensor, Var, backend::BackendStorage,
};
use half::f16;
use std::{
    cell::RefCell,
    collections::HashMap,
    ops::Range,
    sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError},
};

use super::{
    driver::{Arg, Driver},
    figures::CORES,
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

/// The calls made to the driver.
#[derive(Clone, Debug, Default)]
pub(in crate::nn) struct Record {
    /// Bytes of each buffer.
    pub(in crate::nn) allocations: Vec<usize>,
    /// Bytes of each window on a mapped file.
    pub(in crate::nn) mapped: Vec<usize>,
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
    /// The number of dispatches after which the driver refuses the next one.
    pub(in crate::nn) refuses_after: Option<usize>,
    /// A kernel that computes something else.
    pub(in crate::nn) wrong: Option<&'static str>,
    /// A kernel that the compiler has refused.
    pub(in crate::nn) missing: Option<&'static str>,
    /// Dispatches are recorded and not computed.
    pub(in crate::nn) is_idle: bool,
    /// Dispatches are computed when the host waits, in the memory of buffers.
    pub(in crate::nn) is_deferred: bool,
}

/// A buffer's memory, which tensors over it share.
type Memory = Arc<Mutex<Vec<u8>>>;

/// Of each tensor over a buffer, by the address of its values.
type Memories = Arc<Mutex<HashMap<usize, Memory>>>;

/// A dispatch that has not been computed.
struct Job {
    launch: Launch,
    args: Vec<JobArg>,
}

enum JobArg {
    Memory { memory: Memory, range: Range<usize>, is_written: bool },
    Bytes(Vec<u8>),
}

/// The driver, and what a test sees of it.
#[derive(Clone, Default)]
pub(in crate::nn) struct Double {
    record: Arc<Mutex<Record>>,
    memories: Memories,
    queue: Arc<Mutex<Vec<Job>>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Double {
    pub(in crate::nn) fn record(&self) -> MutexGuard<'_, Record> {
        locked(&self.record)
    }

    /// The backend on this driver, whose kernels have not been tried.
    pub(in crate::nn) fn untried(&self) -> Arc<dyn Backend> {
        Arc::new(MetalKernels::new(self.clone(), Formulas::plain(Device::Cpu)))
    }
}

pub(in crate::nn) struct Buffer(Memory);

/// Makes a tensor that holds its buffer: candle keeps the op of a tensor as long as the tensor, its views, and what candle
/// computes of it, since it could be asked for their gradients.
struct Lease {
    buffer: Arc<Buffer>,
    memories: Memories,
    address: OnceLock<usize>,
    dtype: DType,
    dims: Vec<usize>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(address) = self.address.get() {
            locked(&self.memories).remove(address);
        }
    }
}

/// The libraries, each compiled once.
static PROGRAMS: [OnceLock<Program>; LIBRARIES.len()] = [const { OnceLock::new() }; LIBRARIES.len()];

/// A tensor whose use candle tracks.
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
        let address = bytes_of(&storage)?.as_ptr() as usize;
        locked(&self.memories).insert(address, self.buffer.0.clone());
        self.address.get_or_init(|| address);
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

/// The address of a tensor's values, and its bytes among them.
fn place(tensor: &Tensor) -> Result<(usize, Range<usize>)> {
    let (storage, layout) = tensor.storage_and_layout();
    let (Storage::Cpu(storage), Some((start, end))) = (&*storage, layout.contiguous_offsets()) else {
        return Err(failed(format!("a tensor of shape {:?} is not contiguous", tensor.dims())));
    };
    let size = tensor.dtype().size_in_bytes();
    Ok((bytes_of(storage)?.as_ptr() as usize, start * size..end * size))
}

/// The bytes of a contiguous tensor.
fn bytes(tensor: &Tensor) -> Result<Vec<u8>> {
    let (_, range) = place(tensor)?;
    let (storage, _) = tensor.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else { return Err(failed("a tensor lies on another device")) };
    Ok(bytes_of(storage)?[range].to_vec())
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

/// Every kernel but those of attention, of which a step takes what suits its shape.
pub(in crate::nn) fn kernels_beside_attention() -> impl Iterator<Item = &'static str> {
    LIBRARIES.into_iter().skip(1).flat_map(|library| library.kernels).copied()
}

/// Computes a kernel.
fn run(launch: &Launch, buffers: &[Vec<u8>]) -> Result<Vec<Vec<u8>>> {
    let library = LIBRARIES.iter().position(|library| library.kernels.contains(&launch.kernel));
    let library = library.ok_or_else(|| failed(format!("there is no kernel '{}'", launch.kernel)))?;
    PROGRAMS[library].get_or_init(|| Program::compile(LIBRARIES[library])).run(launch, buffers).map_err(failed)
}

impl Job {
    fn run(self) -> Result<()> {
        let before = |arg: &JobArg| match arg {
            JobArg::Memory { memory, range, .. } => locked(memory)[range.clone()].to_vec(),
            JobArg::Bytes(bytes) => bytes.clone(),
        };
        let results = run(&self.launch, &self.args.iter().map(before).collect::<Vec<_>>())?;
        for (arg, result) in self.args.into_iter().zip(results) {
            if let JobArg::Memory { memory, range, is_written: true } = arg {
                locked(&memory)[range].copy_from_slice(&result);
            }
        }
        Ok(())
    }
}

impl Double {
    /// The memory of the buffer that a tensor of this driver lies in, and its bytes there.
    fn memory_of(&self, tensor: &Tensor) -> Result<Option<(Memory, Range<usize>)>> {
        let (address, range) = place(tensor)?;
        Ok(locked(&self.memories).get(&address).map(|memory| (memory.clone(), range)))
    }

    /// Buffers that others made are read as it is now: weights stay as they are.
    fn job_arg(&self, arg: &Arg<'_>) -> Result<JobArg> {
        let (tensor, is_written) = match arg {
            Arg::Bytes(bytes) => return Ok(JobArg::Bytes(bytes.to_vec())),
            Arg::Read(tensor) => (tensor, false),
            Arg::Written(tensor) => (tensor, true),
        };
        match self.memory_of(tensor)? {
            Some((memory, range)) => Ok(JobArg::Memory { memory, range, is_written }),
            None if is_written => Err(failed("a kernel writes what this driver has not made")),
            None => Ok(JobArg::Bytes(bytes(tensor)?)),
        }
    }

    /// Changes a tensor of this driver, now.
    fn change(&self, tensor: &Tensor, mut to: impl FnMut(&mut [u8])) -> Result<()> {
        if let Some((memory, range)) = self.memory_of(tensor)? {
            to(&mut locked(&memory)[range]);
        }
        change(tensor, to)
    }
}

impl Driver for Double {
    type Buffer = Buffer;

    fn allocate(&self, bytes: usize) -> Result<Arc<Buffer>> {
        self.record().allocations.push(bytes);
        Ok(Arc::new(Buffer(Arc::new(Mutex::new(vec![0xFF; bytes])))))
    }

    fn mapped(&self, bytes: &Bytes, alignment: usize) -> Result<Option<Tensor>> {
        if !(bytes.as_ptr() as usize).is_multiple_of(alignment) {
            return Ok(None);
        }
        self.record().mapped.push(bytes.len());
        Ok(Some(Tensor::from_slice(bytes, bytes.len(), &Device::Cpu)?))
    }

    fn capacity(buffer: &Buffer) -> usize {
        locked(&buffer.0).len()
    }

    fn tensor(&self, buffer: &Arc<Buffer>, dtype: DType, dims: &[usize]) -> Result<Tensor> {
        let bytes = dtype.size_in_bytes() * dims.iter().product::<usize>();
        let capacity = Self::capacity(buffer);
        assert!(bytes <= capacity, "a tensor of {bytes} bytes in a buffer of {capacity}");
        let (memories, address) = (self.memories.clone(), OnceLock::new());
        Ok(TRACKED.apply_op1(Lease { buffer: buffer.clone(), memories, address, dtype, dims: dims.to_vec() })?)
    }

    fn cores(&self) -> usize {
        CORES
    }

    fn takes(&self, launch: &Launch) -> bool {
        self.record().missing != Some(launch.kernel)
    }

    fn launch(&self, launch: &Launch, args: &[Arg<'_>]) -> Result<()> {
        assert!(self.takes(launch), "{} is missing", launch.kernel);
        let (is_idle, is_deferred) = {
            let mut record = self.record();
            match &mut record.refuses_after {
                Some(0) => return Err(failed("the dispatch is refused")),
                Some(left) => *left -= 1,
                None => {}
            }
            record.encoded.push(launch.kernel);
            match &mut record.failure {
                Some((0, words)) => (record.failed, record.failure) = (Some(*words), None),
                Some((left, _)) => *left -= 1,
                None => {}
            }
            (record.is_idle, record.is_deferred)
        };
        let buffers = args.iter().map(|arg| match arg {
            Arg::Read(tensor) | Arg::Written(tensor) => bytes(tensor),
            Arg::Bytes(bytes) => Ok(bytes.to_vec()),
        });
        if is_idle {
            return Ok(());
        }
        if is_deferred {
            let args = args.iter().map(|arg| self.job_arg(arg)).collect::<Result<_>>()?;
            locked(&self.queue).push(Job { launch: *launch, args });
            return Ok(());
        }
        let is_wrong = self.record().wrong == Some(launch.kernel);
        for (arg, mut result) in args.iter().zip(run(launch, &buffers.collect::<Result<Vec<_>>>()?)?) {
            if let Arg::Written(tensor) = arg {
                if is_wrong {
                    // The first value becomes 12 as a number, or two of 1.8 in half precision.
                    result.iter_mut().zip([0x3f, 0x3f, 0x41, 0x41]).for_each(|(byte, wrong)| *byte = wrong);
                }
                change(tensor, |bytes| bytes.copy_from_slice(&result))?;
            }
        }
        Ok(())
    }

    fn finish(&self) -> Result<()> {
        let jobs = std::mem::take(&mut *locked(&self.queue));
        jobs.into_iter().try_for_each(Job::run)?;
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
        if let Some((memory, _)) = self.memory_of(tensor)?.filter(|_| self.record().is_deferred) {
            out.copy_from_slice(&locked(&memory)[from..from + out.len()]);
            return Ok(true);
        }
        let (storage, _) = tensor.storage_and_layout();
        let Storage::Cpu(storage) = &*storage else { return Ok(false) };
        out.copy_from_slice(&bytes_of(storage)?[from..from + out.len()]);
        Ok(true)
    }

    fn write(&self, tensor: &Tensor, to: usize, from: &[u8]) -> Result<()> {
        self.change(tensor, |bytes| bytes[to..to + from.len()].copy_from_slice(from))
    }

    fn zero(&self, tensor: &Tensor) -> Result<()> {
        self.change(tensor, |bytes| bytes.fill(0))
    }
}
