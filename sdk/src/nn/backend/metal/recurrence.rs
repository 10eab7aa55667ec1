//! How recurrent layers are launched (`recurrence.metal`), and the index data by which they find a step's states.

use bytemuck::{Pod, Zeroable};
use candle_core::Tensor;
use std::sync::Arc;

use super::{launch::Launch, products::activation_number};
use crate::{
    Batch, Table,
    nn::spec::{Recurrence, ShortConv},
};

/// Taps that `short_conv` can take.
const TAPS_MAX: usize = 8;

/// Columns of a threadgroup of `recurrence`, and lanes that share each.
const COLUMNS: usize = 32;
const LANES: usize = 4;

const CONV_THREADS: usize = 256;

/// Stands for no slot: a new sequence has no state.
const NO_SLOT: u32 = u32::MAX;

/// Where a step's sequences have their states, on the device.
#[derive(Clone)]
pub(super) struct StepStates {
    pub(super) sequence_of: Tensor,
    pub(super) sequences: Tensor,
    pub(super) tables: Tensor,
    pub(super) host: Arc<Sequences>,
}

/// A step's sequences in a group of states.
#[derive(Debug, Default)]
pub(super) struct Sequences {
    /// Of each token.
    pub(super) sequence_of: Vec<u32>,
    /// Of each sequence its first row, its rows, the slot that it goes on from, and where its states in `tables` begin and how many
    /// there are.
    pub(super) sequences: Vec<[u32; 5]>,
    /// For each state that is kept the first row that is not in it, and its slot.
    pub(super) tables: Vec<u32>,
    /// Every sequence has one row.
    pub(super) is_single_rows: bool,
}

impl Sequences {
    /// `None` for a group without states.
    pub(super) fn of(batch: &Batch<'_>, group: usize) -> Option<Self> {
        let mut of = Self { is_single_rows: batch.spans.iter().all(|span| span.len == 1), ..Self::default() };
        for (index, span) in batch.spans.iter().enumerate() {
            let Some(Table::Slots { read, write, copies }) = span.caches.get(group) else { return None };
            let first = of.tables.len();
            for copy in copies {
                of.tables.extend([(span.start + copy.after - span.past) as u32, copy.slot]);
            }
            of.tables.extend([(span.start + span.len) as u32, *write]);
            let kept = (of.tables.len() - first) / 2;
            let rows = [span.start as u32, span.len as u32, read.unwrap_or(NO_SLOT), first as u32, kept as u32];
            of.sequences.push(rows);
            of.sequence_of.extend(std::iter::repeat_n(index as u32, span.len));
        }
        Some(of)
    }
}

/// The tensors of `short_conv` are the activation, each token's sequence, the sequences and their tables, taps and bias; behind this
/// shape come the states, which it changes, and the output. Those of `keep_inputs` are the activation, the sequences and their
/// tables, and behind the shape the states.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct ConvShape {
    tokens: u32,
    sequences: u32,
    channels: u32,
    before: u32,
    keeps: u32,
    has_bias: u32,
    activates: u32,
    activation: u32,
}

impl ConvShape {
    /// `None` for more taps than the kernel takes.
    pub(super) fn new(conv: &ShortConv, step: &Sequences) -> Option<Self> {
        let (taps, channels) = conv.taps.dims2().ok()?;
        (1..=TAPS_MAX).contains(&taps).then(|| Self {
            tokens: step.sequence_of.len() as u32,
            sequences: step.sequences.len() as u32,
            channels: channels as u32,
            before: taps as u32 - 1,
            keeps: u32::from(step.is_single_rows),
            has_bias: u32::from(conv.bias.is_some()),
            activates: u32::from(conv.activation.is_some()),
            activation: conv.activation.map_or(0, activation_number),
        })
    }

    /// The convolution, and behind it what keeps the states of sequences with several rows, if there are any.
    pub(super) fn launches(&self) -> (Launch, Option<Launch>) {
        let blocks = (self.channels as usize).div_ceil(CONV_THREADS);
        let over = |kernel, count: u32| Launch {
            kernel,
            groups: [blocks, count as usize, 1],
            threads: CONV_THREADS,
            shared_bytes: 0,
        };
        (over("short_conv", self.tokens), (self.keeps == 0).then(|| over("keep_inputs", self.sequences)))
    }
}

/// The kernels' tensors are queries, keys, values, decay, beta, skip, the sequences and their tables; behind this shape come the
/// states, which they change, and the output.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct RecurrenceShape {
    heads: u32,
    key_heads: u32,
    interleaved_heads: u32,
    key_dim: u32,
    value_dim: u32,
    corrects: u32,
    has_skip: u32,
}

impl RecurrenceShape {
    pub(super) fn new(spec: &Recurrence, corrects: bool, has_skip: bool) -> Self {
        Self {
            heads: spec.heads as u32,
            key_heads: spec.key_heads as u32,
            interleaved_heads: u32::from(spec.interleaved_heads),
            key_dim: spec.key_dim as u32,
            value_dim: spec.value_dim as u32,
            corrects: u32::from(corrects),
            has_skip: u32::from(has_skip),
        }
    }

    /// For so many sequences. `None` for keys that are too wide for a lane.
    pub(super) fn launch(&self, sequences: usize) -> Option<Launch> {
        // The rows of a column that a lane has.
        let kernel = match (self.key_dim as usize).div_ceil(LANES) {
            0..=4 => "recurrence_4",
            5..=8 => "recurrence_8",
            9..=16 => "recurrence_16",
            17..=32 => "recurrence_32",
            33..=64 => "recurrence_64",
            _ => return None,
        };
        let groups = [(self.value_dim as usize).div_ceil(COLUMNS), self.heads as usize, sequences];
        Some(Launch { kernel, groups, threads: COLUMNS * LANES, shared_bytes: 0 })
    }
}
