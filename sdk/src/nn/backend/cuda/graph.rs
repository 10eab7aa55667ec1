//! Decode-only steps as a single launch: the kernels of such a step are captured into a CUDA graph once per number of
//! rows, and replayed with the next step's data in the same buffers.
//!
//! Rows are padded to a few sizes, so that few graphs serve all batches; padding attends to no tokens and is not
//! written to caches. A graph is captured from a step with placeholder data. Before that the step is run once, so that
//! everything it needs is loaded. This run has the real data on the host, because the copies that a model makes to the
//! device must be the same in both runs, or candle refuses to capture them; but it has no sequences on the device,
//! where a recurrent state would otherwise advance twice. A model that reads the step's data on the host cannot be
//! replayed, and runs launch by launch.

use candle_core::cuda_backend::cudarc::driver::{CudaGraph, CudaSlice, sys};
use std::{
    collections::HashMap,
    ops::Deref,
    sync::{Mutex, atomic::Ordering},
};

use super::{
    CudaKernels,
    attention::splits,
    locked,
    memory::{GraphMemory, failed},
};
use crate::{
    Batch, Code, Error, Output, Result, Span, Want,
    nn::backend::{Compute, Taken, best_of_row},
};

/// Row counts that graphs are captured for.
const ROWS: [usize; 20] = [1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256];

/// Up to this many rows a graph keeps its memory, so that its kernels overlap. With more rows that costs more and gains
/// less.
const OVERLAPPED_ROWS_MAX: usize = 8;

/// Number of rows in a model's warm-up step.
const WARM_ROWS: usize = 64;

/// A step without sequences.
const NOTHING: Batch<'static> = Batch { tokens: &[], positions: &[], spans: Vec::new(), top: 0 };

/// Maximum number of cached graphs; each holds the memory of its activations.
const GRAPHS_MAX: usize = 40;

/// The graphs of a model.
#[derive(Default)]
pub(super) struct Graphs {
    /// By number of rows, and of parts of the longest context.
    captured: HashMap<(usize, usize), Captured>,
    /// Why steps are not captured.
    refused: Option<String>,
    /// Number of kernels in the most recently captured graph.
    launches: usize,
    logits: Option<CudaSlice<f32>>,
    /// Length of a row of `logits`.
    width: usize,
}

/// A graph and the memory of its activations.
struct Captured(CudaGraph, #[allow(dead_code, reason = "it lives as long as the graph")] GraphMemory);

// SAFETY: a graph is launched and dropped under the mutex that holds it, by one thread at a time, as its documentation
// requires.
unsafe impl Send for Captured {}

/// Synchronizes the devices of one step.
pub(super) trait Connection {
    /// Makes a device wait for all others.
    fn gather(&self, at: usize) -> Result<()>;

    /// Makes all others wait for a device.
    fn fan_out(&self, from: usize) -> Result<()>;

    /// Forgets the activations that a run has moved.
    fn forget(&self);
}

/// The devices that a step is captured on.
pub(super) struct DeviceGroup<'a> {
    /// Computes the logits; graphs are launched on its stream.
    pub(super) origin: &'a CudaKernels,
    pub(super) others: Vec<&'a CudaKernels>,
    pub(super) graphs: &'a Mutex<Graphs>,
    /// Their interconnect, and the index of the first of these devices in it.
    pub(super) interconnect: Option<(&'a dyn Connection, usize)>,
}

impl<'a> DeviceGroup<'a> {
    /// One device.
    pub(super) fn of(kernels: &'a CudaKernels) -> Self {
        Self { origin: kernels, others: Vec::new(), graphs: &kernels.graphs, interconnect: None }
    }

    fn all(&self) -> impl Iterator<Item = &'a CudaKernels> {
        std::iter::once(self.origin).chain(self.others.iter().copied())
    }

    /// Uploads a batch. Returns true if the buffers have not moved.
    fn set(&self, batch: &Batch<'_>, rows: usize) -> Result<bool> {
        let mut stays = true;
        for kernels in self.all() {
            stays &= locked(&kernels.inputs).set(&kernels.module, batch, rows)?;
        }
        Ok(stays)
    }

    /// Forgets everything that belongs to one run of the model.
    fn forget(&self) {
        self.all().for_each(|kernels| locked(&kernels.prepared).clear());
        if let Some((interconnect, _)) = self.interconnect {
            interconnect.forget();
        }
    }

    fn set_captures(&self, captures: bool) {
        self.all().for_each(|kernels| kernels.captures.store(captures, Ordering::Relaxed));
    }

    /// Makes the origin wait for the others.
    fn gather(&self) -> Result<()> {
        self.interconnect.map_or(Ok(()), |(interconnect, origin)| interconnect.gather(origin))
    }

    /// Makes the others wait for the origin.
    fn fan_out(&self) -> Result<()> {
        self.interconnect.map_or(Ok(()), |(interconnect, origin)| interconnect.fan_out(origin))
    }

    fn launches(&self) -> usize {
        self.all().map(|kernels| kernels.module.launches()).sum()
    }
}

impl Deref for DeviceGroup<'_> {
    type Target = CudaKernels;

    fn deref(&self) -> &CudaKernels {
        self.origin
    }
}

impl Graphs {
    /// How decode steps are launched, for the log.
    pub(super) fn note(&self) -> String {
        match &self.refused {
            Some(why) => format!("launched one by one ({why})"),
            None if self.launches == 0 => "launched one by one".into(),
            None => format!("{} of them in one launch for a step that decodes", self.launches),
        }
    }

    /// Drops all graphs, because their buffers have moved.
    pub(super) fn clear(&mut self) {
        self.captured.clear();
    }
}

/// Runs a step with the length of a short prompt, so that the kernels for many rows are loaded before the first
/// request, and captures a step with one row, so that a model that cannot be captured is reported at load.
pub(super) fn warm_up(kernels: &DeviceGroup<'_>, groups: usize, run: Compute<'_>) -> Result<()> {
    let mut graphs = locked(kernels.graphs);
    kernels.all().for_each(|kernels| locked(&kernels.inputs).groups = groups);
    kernels.set(&NOTHING, WARM_ROWS)?;
    let made_up = [0; WARM_ROWS];
    let spans = (0..WARM_ROWS).map(made_up_span).collect();
    let warm = run(&Batch { tokens: &made_up, positions: &made_up, spans, top: 0 });
    // A model that looks up its sequences' tables fails here, and is then as warm as it can be.
    if let Err(error) = warm
        && error.code == Code::OutOfMemory
    {
        return Err(error);
    }
    kernels.forget();
    kernels.set(&NOTHING, 1)?;
    graph_for(kernels, &mut graphs, &NOTHING, 1, run)?;
    Ok(())
}

/// The span of a placeholder row.
fn made_up_span(start: usize) -> Span<'static> {
    Span {
        sequence: 0,
        start,
        len: 1,
        past: 0,
        want: Want::Last,
        output: Output::Logits,
        mask: &[],
        adapter: 0,
        adapter_scale: 0.0,
        caches: Vec::new(),
    }
}

/// Computes a decode-only step. Does nothing and returns `false` for other steps, or if the step cannot be captured.
pub(super) fn decode(
    kernels: &DeviceGroup<'_>,
    batch: &Batch<'_>,
    run: Compute<'_>,
    taken: &mut Taken<'_>,
) -> Result<bool> {
    let decodes =
        |span: &Span<'_>| span.len == 1 && span.want == Want::Last && (span.adapter == 0 || span.adapter_scale == 0.0);
    let rows = ROWS.into_iter().find(|&rows| rows >= batch.tokens.len());
    let Some(rows) = rows.filter(|_| batch.spans.iter().all(decodes)) else { return Ok(false) };
    if matches!(taken, Taken::Candidates { .. }) {
        return Ok(false);
    }
    let mut graphs = locked(kernels.graphs);
    if graphs.refused.is_some() {
        return Ok(false);
    }
    // If a buffer has moved, or may have before an error, no graph may read it again.
    let stays = kernels.set(batch, rows);
    if !matches!(stays, Ok(true)) {
        graphs.clear();
        stays?;
    }
    let Some(key) = graph_for(kernels, &mut graphs, batch, rows, run)? else { return Ok(false) };
    let (Some(graph), Some(from)) = (graphs.captured.get(&key), &graphs.logits) else { return Ok(false) };
    kernels.gather()?;
    graph.0.launch().map_err(failed)?;
    let stream = &kernels.module.stream;
    match taken {
        Taken::Logits(logits) => stream.memcpy_dtoh(&from.slice(..logits.len()), *logits).map_err(failed)?,
        Taken::Best(best) if !kernels.finds_best => {
            let rows = stream.clone_dtoh(&from.slice(..best.len() * graphs.width)).map_err(failed)?;
            best.iter_mut().zip(rows.chunks_exact(graphs.width)).for_each(|(best, row)| *best = best_of_row(row));
        }
        Taken::Best(best) => {
            let found = kernels.best_of(kernels.module.address(from), best.len(), graphs.width)?;
            stream.memcpy_dtoh(&found, best.as_flattened_mut()).map_err(failed)?;
        }
        // Declined above.
        Taken::Candidates { .. } => return Ok(false),
    }
    stream.synchronize().map_err(failed)?;
    Ok(true)
}

/// Captures or finds the graph for the current batch. `None` if the model cannot be captured.
fn graph_for(
    kernels: &DeviceGroup<'_>,
    graphs: &mut Graphs,
    batch: &Batch<'_>,
    rows: usize,
    run: Compute<'_>,
) -> Result<Option<(usize, usize)>> {
    let key = (rows, splits(locked(&kernels.inputs).longest));
    if graphs.captured.contains_key(&key) {
        return Ok(Some(key));
    }
    if graphs.captured.len() >= GRAPHS_MAX {
        graphs.clear();
    }
    kernels.set_captures(true);
    let captured = capture(kernels, graphs, batch, rows, run);
    kernels.set_captures(false);
    kernels.forget();
    match captured {
        Ok(graph) => {
            graphs.captured.insert(key, graph);
            Ok(Some(key))
        }
        Err(error) if error.code == Code::OutOfMemory => Err(error),
        Err(error) => {
            graphs.refused = Some(error.message);
            Ok(None)
        }
    }
}

/// Runs the step once, so that everything it needs is loaded, and then captures it.
fn capture(
    kernels: &DeviceGroup<'_>,
    graphs: &mut Graphs,
    batch: &Batch<'_>,
    rows: usize,
    run: Compute<'_>,
) -> Result<Captured> {
    let (module, stream) = (&kernels.module, &kernels.module.stream);
    let _cache = module.device.enable_cuda_graph_htod_cache();
    let padded = |shift: bool| {
        let shifted = |value: u32| match (shift, value) {
            (false, value) => value,
            (true, 0) => 1,
            (true, value) => value - 1,
        };
        let fill = |values: &[u32]| {
            let values = values.iter().copied().chain(std::iter::repeat(0)).take(rows);
            values.map(shifted).collect::<Vec<_>>()
        };
        (fill(batch.tokens), fill(batch.positions))
    };
    let spans: Vec<_> = (0..rows).map(made_up_span).collect();
    let (tokens, positions) = padded(false);
    kernels.forget();
    set_again(kernels, &NOTHING, rows)?;
    let first = run(&Batch { tokens: &tokens, positions: &positions, spans: spans.clone(), top: 0 })?;
    if first.was_read {
        return Err(not_capturable("the model looks at tokens or positions on the host"));
    }
    let count = first.rows.elem_count();
    graphs.width = first.rows.dim(1)?;
    if graphs.logits.as_ref().is_none_or(|logits| logits.len() < count) {
        graphs.clear();
        graphs.logits = Some(module.room(count * (32 / rows).max(1))?);
    }
    let Some(logits) = graphs.logits.as_ref() else { return Err(not_capturable("there is no room for logits")) };
    drop(first);
    kernels.forget();
    set_again(kernels, batch, rows)?;
    kernels.gather()?;
    stream.synchronize().map_err(failed)?;

    let (tokens, positions) = padded(true);
    let fake = Batch { tokens: &tokens, positions: &positions, spans, top: 0 };
    let before = kernels.launches();
    stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).map_err(failed)?;
    if rows <= OVERLAPPED_ROWS_MAX {
        kernels.all().for_each(|kernels| kernels.module.memory.begin_capture());
    }
    let mut compute = || -> Result<()> {
        kernels.fan_out()?;
        let computed = run(&fake)?;
        let from = module.tensor::<f32>(&computed.rows)?;
        module.copy(from, module.address(logits), 4 * computed.rows.elem_count())
    };
    let computed = compute();
    // Memory captured in the graph is freed by the graph.
    kernels.forget();
    let gathered = kernels.gather();
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let captured = stream.end_capture(flags);
    // End the capture on every device, as each keeps memory until then.
    let taken: Vec<_> = kernels.all().map(|kernels| kernels.module.memory.end_capture()).collect();
    let memory = taken.into_iter().collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
    computed.and(gathered)?;
    let graph = captured.map_err(failed)?.ok_or_else(|| not_capturable("nothing was launched"))?;
    graph.upload().map_err(failed)?;
    graphs.launches = kernels.launches() - before;
    Ok(Captured(graph, memory))
}

/// Uploads a batch with the same number of rows as before.
fn set_again(kernels: &DeviceGroup<'_>, batch: &Batch<'_>, rows: usize) -> Result<()> {
    if kernels.set(batch, rows)? { Ok(()) } else { Err(not_capturable("the step's numbers have moved")) }
}

/// The error of a step that cannot be captured.
pub(super) fn not_capturable(why: &str) -> Error {
    Error::unsupported(why)
}
