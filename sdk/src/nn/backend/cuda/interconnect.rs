//! Several CUDA devices under one model: tracks the devices of its tensors, moves activations, and launches its steps
//! as one.
//!
//! Each device computes on its own stream. A move waits for the sender's earlier work, and the sender waits for the
//! move, so that the memory is not reused meanwhile. If the devices can read each other's memory, a move is a single
//! copy, which can be captured like a kernel. Peer access is tested at load, as some virtual machines report it
//! although it does not work.

use candle_core::{
    CudaDevice, CudaStorage, Device, DeviceLocation, InplaceOp1, Layout, Storage, Tensor, TensorId,
    backend::{BackendDevice, BackendStorage},
    cuda_backend::{
        CudaStorageSlice,
        cudarc::driver::{CudaSlice, CudaStream, DevicePtr, result, sys},
    },
    op::BackpropOp,
};
use std::{
    cell::RefCell,
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU8, AtomicUsize, Ordering},
    },
};

use super::{
    CudaKernels,
    graph::{self, Connection, DeviceGroup, Graphs},
    locked,
    memory::failed,
};
use crate::{
    Batch, Error, Result,
    nn::backend::{Compute, Interconnect, Taken},
};

/// How data travels between devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Way {
    /// Each device reads the other's memory.
    Direct,
    /// The driver chooses.
    Driver,
    /// Through host memory, synchronizing with both devices.
    Host,
}

const WAYS: [Way; 3] = [Way::Direct, Way::Driver, Way::Host];

/// The devices of a model.
pub(in crate::nn) struct CudaInterconnect {
    ends: Vec<End>,
    /// Index into `WAYS`.
    way: AtomicU8,
    /// Tensors whose memory has moved, in the form in which to read them now: candle still reports the old location for
    /// the originals.
    moved: Mutex<HashMap<TensorId, Tensor>>,
    /// Our kernels on each device, unless formulas are used.
    kernels: Vec<Arc<CudaKernels>>,
    graphs: Mutex<Graphs>,
    /// The device that computes the logits.
    last: AtomicUsize,
}

/// A device as an end point of moves.
struct End {
    device: CudaDevice,
    stream: Arc<CudaStream>,
    /// Recorded on the stream before a move.
    event: sys::CUevent,
}

// SAFETY: events may be used from any thread; a model computes on one at a time.
unsafe impl Send for End {}
// SAFETY: as above.
unsafe impl Sync for End {}

impl End {
    fn new(device: &Device) -> Result<Self> {
        let device = device.as_cuda_device()?.clone();
        let stream = device.cuda_stream();
        stream.context().bind_to_thread().map_err(failed)?;
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING).map_err(failed)?;
        Ok(Self { device, stream, event })
    }

    fn bind(&self) -> Result<()> {
        self.stream.context().bind_to_thread().map_err(failed)
    }

    fn number(&self) -> usize {
        self.stream.context().ordinal()
    }
}

impl Drop for End {
    fn drop(&mut self) {
        if self.bind().is_ok() {
            // SAFETY: the event was created with this context and is not used again.
            let _ = unsafe { result::event::destroy(self.event) };
        }
    }
}

impl CudaInterconnect {
    /// Connects devices; `kernels` are those of each device, if any.
    pub(in crate::nn) fn new(devices: &[Device], kernels: Option<Vec<Arc<CudaKernels>>>) -> Result<Self> {
        let interconnect = Self {
            ends: devices.iter().map(End::new).collect::<Result<_>>()?,
            way: AtomicU8::new(0),
            moved: Mutex::default(),
            kernels: kernels.unwrap_or_default(),
            graphs: Mutex::default(),
            last: AtomicUsize::new(devices.len() - 1),
        };
        let mut opened = Ok(());
        for (first, second) in interconnect.pairs() {
            opened = opened.and_then(|()| interconnect.open(first, second));
        }
        for (index, way) in WAYS.into_iter().enumerate() {
            if way == Way::Direct && opened.is_err() {
                continue;
            }
            interconnect.way.store(index as u8, Ordering::Relaxed);
            if interconnect.pairs().all(|pair| interconnect.arrives(pair).unwrap_or(false)) {
                return Ok(interconnect);
            }
        }
        Err(failed("what is copied between the devices does not arrive").help("name one device"))
    }

    fn pairs(&self) -> impl Iterator<Item = (usize, usize)> {
        let count = self.ends.len();
        (0..count * count).map(move |pair| (pair / count, pair % count)).filter(|(first, second)| first != second)
    }

    fn way(&self) -> Way {
        WAYS.get(usize::from(self.way.load(Ordering::Relaxed))).copied().unwrap_or(Way::Host)
    }

    /// Lets one device read another's memory.
    fn open(&self, reader: usize, owner: usize) -> Result<()> {
        let (reader, owner) = (&self.ends[reader], &self.ends[owner]);
        let number = |end: &End| i32::try_from(end.number()).map_err(failed);
        let (reads, owns) = (number(reader)?, number(owner)?);
        let mut can = 0;
        // SAFETY: the memory that is written is ours.
        unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, reads, owns) }.result().map_err(failed)?;
        if can == 0 {
            return Err(failed("the devices do not see each other's memory"));
        }
        reader.bind()?;
        // SAFETY: both contexts live as long as their devices.
        let enabled = unsafe { sys::cuCtxEnablePeerAccess(owner.stream.context().cu_ctx(), 0) };
        if enabled != sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED {
            enabled.result().map_err(failed)?;
        }
        let mut pool = std::ptr::null_mut();
        let type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        let location = sys::CUmemLocation { type_, id: reads };
        let access =
            sys::CUmemAccessDesc { location, flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
        // SAFETY: the pool is the owner's own, and one description is given.
        unsafe {
            sys::cuDeviceGetDefaultMemPool(&raw mut pool, owns).result().map_err(failed)?;
            sys::cuMemPoolSetAccess(pool, &raw const access, 1).result().map_err(failed)
        }
    }

    /// Tests a transfer between two devices.
    fn arrives(&self, (from, to): (usize, usize)) -> Result<bool> {
        let values: Vec<f32> = (0..100_000).map(|value| (value as f32 * 0.37).sin()).collect();
        let device = Device::Cuda(self.ends[from].device.clone());
        let held = Tensor::from_slice(&values, (1000, 100), &device)?;
        let brought = self.bring(&held, to)?;
        self.clear();
        let is_same = |tensor: &Tensor| Ok::<_, Error>(tensor.flatten_all()?.to_vec1::<f32>()? == values);
        Ok(is_same(&brought)? && is_same(&(held + brought)?.affine(0.5, 0.0)?)?)
    }

    /// Makes a device wait until another has completed the work it was given so far.
    fn after(&self, first: usize, then: usize) -> Result<()> {
        let (first, then) = (&self.ends[first], &self.ends[then]);
        first.bind()?;
        // SAFETY: the event is of the stream's context, and both live.
        unsafe { result::event::record(first.event, first.stream.cu_stream()) }.map_err(failed)?;
        then.bind()?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: a stream may wait for an event of another device.
        unsafe { result::stream::wait_event(then.stream.cu_stream(), first.event, flags) }.map_err(failed)
    }

    /// Returns the index of the device at this location.
    fn of(&self, location: DeviceLocation) -> Result<usize> {
        let found = self.ends.iter().position(|end| end.device.location() == location);
        found.ok_or_else(|| failed(format!("a tensor lies on {location:?}, which is none of the model's devices")))
    }

    /// Returns the index of the device that owns a tensor's memory, whatever candle reports.
    fn memory_of(&self, tensor: &Tensor) -> Result<usize> {
        self.of(tensor.storage_and_layout().0.device().location())
    }

    /// Copies a tensor's memory to a device: all of it, or `count` values from `start` on.
    fn copy<T: Value>(
        &self,
        from: &CudaSlice<T>,
        (start, count): (usize, usize),
        ends: [usize; 2],
    ) -> Result<CudaSlice<T>> {
        let [source, target] = ends.map(|end| &self.ends[end]);
        let (bytes, address) =
            (count * size_of::<T>(), from.device_ptr(from.stream()).0 + (start * size_of::<T>()) as u64);
        if ends[0] != ends[1] && self.way() == Way::Host {
            source.bind()?;
            let values = source.stream.clone_dtoh(&from.slice(start..start + count)).map_err(failed)?;
            source.stream.synchronize().map_err(failed)?;
            return target.stream.clone_htod(&values).map_err(failed);
        }
        let room = match self.kernels.get(ends[1]) {
            Some(kernels) => kernels.module.room::<T>(count)?,
            // SAFETY: the copy writes all of it.
            None => unsafe { target.stream.alloc::<T>(count) }.map_err(failed)?,
        };
        let to = room.device_ptr(&target.stream).0;
        if ends[0] != ends[1] {
            self.after(ends[0], ends[1])?;
        }
        target.bind()?;
        let stream = target.stream.cu_stream();
        // SAFETY: both ranges have the same number of bytes, and live until the stream is done, as their own streams
        // wait for it.
        unsafe {
            match self.way() {
                Way::Driver if ends[0] != ends[1] => {
                    let contexts = [target, source].map(|end| end.stream.context().cu_ctx());
                    sys::cuMemcpyPeerAsync(to, contexts[0], address, contexts[1], bytes, stream)
                }
                _ => sys::cuMemcpyDtoDAsync_v2(to, address, bytes, stream),
            }
        }
        .result()
        .map_err(failed)?;
        if ends[0] != ends[1] {
            self.after(ends[1], ends[0])?;
        }
        Ok(room)
    }

    /// [`Self::copy`] for memory of any type that activations have.
    fn copy_storage(&self, from: &CudaStorage, part: Option<(usize, usize)>, ends: [usize; 2]) -> Result<CudaStorage> {
        let slice = match &from.slice {
            CudaStorageSlice::F32(values) => {
                CudaStorageSlice::F32(self.copy(values, part.unwrap_or((0, values.len())), ends)?)
            }
            CudaStorageSlice::U32(values) => {
                CudaStorageSlice::U32(self.copy(values, part.unwrap_or((0, values.len())), ends)?)
            }
            _ => return Err(Error::unsupported(format!("{:?} does not move between devices", from.dtype()))),
        };
        Ok(CudaStorage { slice, device: self.ends[ends[1]].device.clone() })
    }

    /// Returns a new tensor, located on this device, with the values of one whose memory is there.
    fn fresh(&self, tensor: &Tensor, at: usize) -> Result<Tensor> {
        let copy = {
            let (storage, layout) = tensor.storage_and_layout();
            let Storage::Cuda(storage) = &*storage else { return Err(failed("a tensor lies in the host's memory")) };
            if !layout.is_contiguous() {
                return Err(Error::invalid(format!("a tensor of shape {:?} is not contiguous", tensor.dims())));
            }
            self.copy_storage(storage, Some((layout.start_offset(), tensor.elem_count())), [at, at])?
        };
        let fresh = Tensor::from_storage(Storage::Cuda(copy), tensor.shape(), BackpropOp::none(), false);
        self.keep(at, fresh.clone());
        Ok(fresh)
    }

    /// Keeps memory of a captured step alive.
    fn keep(&self, at: usize, value: impl std::any::Any + Send) {
        if let Some(kernels) = self.kernels.get(at) {
            kernels.module.memory.keep(value);
        }
    }

    /// True if memory was allocated on the stream on which its device computes.
    fn is_in_order(&self, storage: &CudaStorage, at: usize) -> bool {
        let stream = match &storage.slice {
            CudaStorageSlice::F32(values) => values.stream(),
            CudaStorageSlice::U32(values) => values.stream(),
            _ => return false,
        };
        stream.cu_stream() == self.ends[at].stream.cu_stream()
    }

    /// The devices to capture steps on; `None` if there are no kernels that can be captured.
    fn group(&self) -> Option<DeviceGroup<'_>> {
        if self.way() == Way::Host {
            return None;
        }
        let origin = self.last.load(Ordering::Relaxed);
        let others = self.kernels.iter().enumerate().filter(|(at, _)| *at != origin).map(|(_, of)| &**of).collect();
        Some(DeviceGroup {
            origin: self.kernels.get(origin)?,
            others,
            graphs: &self.graphs,
            interconnect: Some((self, origin)),
        })
    }
}

impl Connection for CudaInterconnect {
    fn gather(&self, at: usize) -> Result<()> {
        (0..self.ends.len()).filter(|&end| end != at).try_for_each(|end| self.after(end, at))
    }

    fn fan_out(&self, from: usize) -> Result<()> {
        (0..self.ends.len()).filter(|&end| end != from).try_for_each(|end| self.after(from, end))
    }

    fn forget(&self) {
        self.clear();
    }
}

/// Element types of activations.
trait Value: candle_core::cuda_backend::cudarc::driver::DeviceRepr + Clone + Default {}
impl Value for f32 {}
impl Value for u32 {}

/// Replaces a tensor's memory.
struct Replace<'a> {
    interconnect: &'a CudaInterconnect,
    ends: [usize; 2],
    old: RefCell<Option<CudaStorage>>,
}

impl InplaceOp1 for Replace<'_> {
    fn name(&self) -> &'static str {
        "a move to another device"
    }

    fn cpu_fwd(&self, _: &mut candle_core::CpuStorage, _: &Layout) -> candle_core::Result<()> {
        Err(candle_core::Error::Msg("a tensor lies in the host's memory".into()))
    }

    fn cuda_fwd(&self, storage: &mut CudaStorage, _: &Layout) -> candle_core::Result<()> {
        let moved = self.interconnect.copy_storage(storage, None, self.ends);
        let moved = moved.map_err(|error| candle_core::Error::Msg(error.to_string()))?;
        *self.old.borrow_mut() = Some(std::mem::replace(storage, moved));
        Ok(())
    }
}

impl Interconnect for CudaInterconnect {
    fn place(&self, tensor: &Tensor) -> Result<Option<usize>> {
        self.memory_of(tensor).map(Some)
    }

    fn bring(&self, tensor: &Tensor, to: usize) -> Result<Tensor> {
        let from = self.memory_of(tensor)?;
        if from == to {
            if self.of(tensor.device().location())? == to {
                return Ok(tensor.clone());
            }
            let known = locked(&self.moved).get(&tensor.id()).cloned();
            if let Some(known) = known
                && self.memory_of(&known)? == to
            {
                return Ok(known);
            }
        } else {
            let replace = Replace { interconnect: self, ends: [from, to], old: RefCell::new(None) };
            tensor.inplace_op1(&replace)?;
            // Memory from the computing stream is freed in stream order, after the copy; within a capture it has to be,
            // as the graph then owns it. Other memory is kept for the graph.
            if let Some(old) = replace.old.take()
                && !self.is_in_order(&old, from)
            {
                self.keep(from, old);
            }
            self.keep(to, tensor.clone());
        }
        let fresh = self.fresh(tensor, to)?;
        locked(&self.moved).insert(tensor.id(), fresh.clone());
        Ok(fresh)
    }

    fn clear(&self) {
        locked(&self.moved).clear();
    }

    fn note(&self) -> Option<String> {
        if self.kernels.is_empty() {
            return None;
        }
        let way = match self.way() {
            Way::Direct => "which read each other's memory",
            Way::Driver => "between which the driver copies",
            Way::Host => "between which activations go through the host's memory",
        };
        let (count, graphs) = (self.ends.len(), locked(&self.graphs).note());
        Some(format!("our CUDA kernels on {count} devices, {way}, {graphs}"))
    }

    fn begin(&self, batch: &Batch<'_>) -> Result<bool> {
        for kernels in &self.kernels {
            if !kernels.begin_step(batch)? {
                locked(&self.graphs).clear();
            }
        }
        Ok(!self.kernels.is_empty())
    }

    fn warm_up(&self, groups: usize, run: Compute<'_>) -> Result<()> {
        // The first step shows on which device logits are computed.
        let Some(group) = self.group() else { return Ok(()) };
        let mut place = None;
        graph::warm_up(&group, groups, &mut |batch| {
            let computed = run(batch)?;
            place = Some(self.memory_of(&computed.rows)?);
            Ok(computed)
        })?;
        match place {
            Some(place) if place != self.last.load(Ordering::Relaxed) => {
                self.last.store(place, Ordering::Relaxed);
                *locked(&self.graphs) = Graphs::default();
                self.group().map_or(Ok(()), |group| graph::warm_up(&group, groups, run))
            }
            _ => Ok(()),
        }
    }

    fn decode(&self, batch: &Batch<'_>, run: Compute<'_>, taken: &mut Taken<'_>) -> Result<bool> {
        match self.group() {
            Some(group) => graph::decode(&group, batch, run, taken),
            None => Ok(false),
        }
    }
}
