//! Steps that only decode, as one launch: the kernels of such a step are captured into a CUDA graph once for a number of
//! rows, and replayed with the next step's numbers in the same buffers.
//!
//! Rows are filled up to a few sizes, so that few graphs serve all batches; rows of padding see no tokens and are not
//! remembered. A graph is captured from a step with made-up numbers, after a run with the real ones: what a model copies to
//! the device in between is the same in both, or candle refuses to capture it. A model that looks at the step's numbers on
//! the host cannot be replayed, and runs launch by launch.

use candle_core::cuda_backend::cudarc::driver::{CudaGraph, CudaSlice, sys};
use std::collections::HashMap;

use super::{CudaKernels, locked, module::failed, not_capturable, splits};
use crate::{Batch, Output, Result, Span, Want, nn::backend::Computed};

/// Numbers of rows that graphs are captured for.
const ROWS: [usize; 20] = [1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256];

/// Graphs that are kept; each holds the memory of its activations.
const GRAPHS_MAX: usize = 40;

/// The graphs of a model.
#[derive(Default)]
pub(super) struct Graphs {
    /// By rows and parts of the longest context.
    captured: HashMap<(usize, usize), Captured>,
    /// Why there are none.
    refused: Option<String>,
    logits: Option<CudaSlice<f32>>,
}

struct Captured(CudaGraph);

// SAFETY: a graph is launched and dropped under the mutex that holds it, by one thread at a time, as its documentation asks.
unsafe impl Send for Captured {}

impl Graphs {
    /// Forgets graphs whose buffers have moved.
    pub(super) fn clear(&mut self) {
        self.captured.clear();
    }
}

/// Computes a step that only decodes. Nothing is done, and `false` returned, where it does more or cannot be captured.
pub(super) fn decode(
    kernels: &CudaKernels,
    batch: &Batch<'_>,
    run: &mut dyn FnMut(&Batch<'_>) -> Result<Computed>,
    logits: &mut [f32],
) -> Result<bool> {
    let decodes =
        |span: &Span<'_>| span.len == 1 && span.want == Want::Last && (span.adapter == 0 || span.adapter_scale == 0.0);
    let rows = ROWS.into_iter().find(|&rows| rows >= batch.tokens.len());
    let Some(rows) = rows.filter(|_| batch.spans.iter().all(decodes)) else { return Ok(false) };
    let mut graphs = locked(&kernels.graphs);
    if graphs.refused.is_some() {
        return Ok(false);
    }
    locked(&kernels.prepared).clear();
    let longest = {
        let mut inputs = locked(&kernels.inputs);
        if !inputs.set(&kernels.module, batch, rows)? {
            graphs.clear();
        }
        inputs.longest
    };
    let key = (rows, splits(longest));
    if !graphs.captured.contains_key(&key) {
        if graphs.captured.len() >= GRAPHS_MAX {
            graphs.clear();
        }
        match capture(kernels, &mut graphs, batch, rows, run) {
            Ok(graph) => {
                graphs.captured.insert(key, graph);
            }
            Err(error) => {
                graphs.refused = Some(error.message);
                return Ok(false);
            }
        }
    }
    let (Some(graph), Some(from)) = (graphs.captured.get(&key), &graphs.logits) else { return Ok(false) };
    graph.0.launch().map_err(failed)?;
    let stream = &kernels.module.stream;
    stream.memcpy_dtoh(&from.slice(..logits.len()), logits).map_err(failed)?;
    stream.synchronize().map_err(failed)?;
    Ok(true)
}

/// Runs the step once, so that everything it needs is loaded, and then captures it.
fn capture(
    kernels: &CudaKernels,
    graphs: &mut Graphs,
    batch: &Batch<'_>,
    rows: usize,
    run: &mut dyn FnMut(&Batch<'_>) -> Result<Computed>,
) -> Result<Captured> {
    let stream = &kernels.module.stream;
    let _cache = kernels.module.device.enable_cuda_graph_htod_cache();
    let padded = |shift: bool| {
        let shifted = |value: u32| {
            if !shift {
                value
            } else if value > 0 {
                value - 1
            } else {
                1
            }
        };
        let fill = |values: &[u32]| {
            let values = values.iter().copied().chain(std::iter::repeat(0)).take(rows);
            values.map(shifted).collect::<Vec<_>>()
        };
        (fill(batch.tokens), fill(batch.positions))
    };
    let spans = (0..rows).map(|start| Span {
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
    });
    let spans: Vec<_> = spans.collect();
    let (tokens, positions) = padded(false);
    let first = run(&Batch { tokens: &tokens, positions: &positions, spans: spans.clone(), top: 0 })?;
    if first.was_read {
        return Err(not_capturable("the model looks at tokens or positions on the host"));
    }
    let count = first.rows.elem_count();
    if graphs.logits.as_ref().is_none_or(|logits| logits.len() < count) {
        graphs.clear();
        graphs.logits = Some(kernels.module.room(count * (32 / rows).max(1))?);
    }
    let Some(logits) = graphs.logits.as_mut() else { return Err(not_capturable("there is no room for logits")) };
    drop(first);
    locked(&kernels.prepared).clear();
    stream.synchronize().map_err(failed)?;

    let (tokens, positions) = padded(true);
    let fake = Batch { tokens: &tokens, positions: &positions, spans, top: 0 };
    stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).map_err(failed)?;
    let mut compute = || -> Result<()> {
        let computed = run(&fake)?;
        let from = kernels.module.tensor::<f32>(&computed.rows)?;
        let bytes = 4 * computed.rows.elem_count();
        // SAFETY: `count` values were computed and have room, and both stay where they are until the stream gets there.
        unsafe {
            sys::cuMemcpyDtoDAsync_v2(kernels.module.address(logits), from, bytes, stream.cu_stream())
                .result()
                .map_err(failed)
        }
    };
    let computed = compute();
    locked(&kernels.prepared).clear();
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let captured = stream.end_capture(flags);
    computed?;
    let graph = captured.map_err(failed)?.ok_or_else(|| not_capturable("nothing was launched"))?;
    graph.upload().map_err(failed)?;
    Ok(Captured(graph))
}
