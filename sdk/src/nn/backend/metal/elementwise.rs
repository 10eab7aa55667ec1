//! How what lies between products is launched: norms (`norms.metal`), single values (`elementwise.metal`) and the best of logits
//! (`logits.metal`).

use bytemuck::{Pod, Zeroable};
use pensieve_kernels::Activation;

use super::{launch::Launch, products::activation_number};
use crate::nn::backend::Columns;

/// Threads of a norm's threadgroup, and heads that one of `rms_norm_heads` takes.
const NORM_THREADS: usize = 256;
const NORM_HEADS: usize = NORM_THREADS / 32;

const BEST_THREADS: usize = 512;
const CANDIDATES_MAX: usize = 512;
const ELEMENT_THREADS: usize = 256;

/// The most ranges of columns that are copied at once.
pub(super) const RANGES: usize = 4;

/// The kernels' tensors are the activation, the weight, and for `layer_norm` the bias; behind this shape comes the norm.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct NormShape {
    pub(super) width: u32,
    pub(super) eps: f32,
}

impl NormShape {
    pub(super) fn launch(norm: Norm, rows: usize) -> Launch {
        let kernel = match norm {
            Norm::Rms => "rms_norm",
            Norm::Layer => "layer_norm",
        };
        Launch { kernel, groups: [rows, 1, 1], threads: NORM_THREADS, shared_bytes: 0 }
    }
}

/// Norms over a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Norm {
    Rms,
    Layer,
}

/// The kernel's tensors are queries, keys and the weights of both; behind this shape come their norms.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct HeadNormShape {
    pub(super) tokens: u32,
    pub(super) heads: u32,
    pub(super) kv_heads: u32,
    pub(super) head_dim: u32,
    pub(super) eps: f32,
}

impl HeadNormShape {
    pub(super) fn launch(&self) -> Launch {
        let heads = self.tokens as usize * (self.heads + self.kv_heads) as usize;
        let groups = [heads.div_ceil(NORM_HEADS), 1, 1];
        Launch { kernel: "rms_norm_heads", groups, threads: NORM_THREADS, shared_bytes: 0 }
    }
}

/// The tensors of `add` and `gate` are their two operands, those of `bias_act_scale` its activation, bias and factor; behind this
/// shape comes the output.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct ElementShape {
    count: u32,
    width: u32,
    has_bias: u32,
    has_factor: u32,
    activates: u32,
    activation: u32,
}

impl ElementShape {
    /// `None` for more values than a kernel counts. Without an activation values pass as they are.
    pub(super) fn new(rows: usize, width: usize, kind: Option<Activation>) -> Option<Self> {
        Some(Self {
            count: u32::try_from(rows.checked_mul(width)?).ok()?,
            width: u32::try_from(width).ok()?,
            activates: u32::from(kind.is_some()),
            activation: kind.map_or(0, activation_number),
            ..Self::zeroed()
        })
    }

    /// With a bias and a factor for each column, as far as there are any.
    pub(super) fn with(self, has_bias: bool, has_factor: bool) -> Self {
        Self { has_bias: u32::from(has_bias), has_factor: u32::from(has_factor), ..self }
    }

    pub(super) fn launch(&self, kernel: &'static str) -> Launch {
        let groups = [(self.count as usize).div_ceil(ELEMENT_THREADS), 1, 1];
        Launch { kernel, groups, threads: ELEMENT_THREADS, shared_bytes: 0 }
    }
}

/// The kernel's tensor is the activation; behind this shape come four outputs. Those that a dispatch does not have are bound to
/// anything, and not touched.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct ColumnsShape {
    rows: u32,
    width: u32,
    parts: u32,
    starts: [u32; RANGES],
    lens: [u32; RANGES],
}

impl ColumnsShape {
    /// `None` for more ranges than the kernel copies.
    pub(super) fn new(rows: usize, width: usize, parts: &[Columns]) -> Option<Self> {
        if parts.len() > RANGES || u32::try_from(rows.checked_mul(width)?).is_err() {
            return None;
        }
        let mut shape = Self { rows: rows as u32, width: width as u32, parts: parts.len() as u32, ..Self::zeroed() };
        for (place, (start, len)) in parts.iter().enumerate() {
            (shape.starts[place], shape.lens[place]) = (*start as u32, *len as u32);
        }
        Some(shape)
    }

    pub(super) fn launch(&self) -> Launch {
        let longest = self.lens.iter().max().map_or(0, |len| *len as usize);
        let groups = [(self.rows as usize * longest).div_ceil(ELEMENT_THREADS), self.parts as usize, 1];
        Launch { kernel: "columns", groups, threads: ELEMENT_THREADS, shared_bytes: 0 }
    }
}

/// The kernel's tensor are rows of logits; behind this shape come three numbers of each row, as `Taken::Best` has them.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct BestShape {
    pub(super) width: u32,
}

impl BestShape {
    pub(super) fn launch(rows: usize) -> Launch {
        Launch { kernel: "best", groups: [rows, 1, 1], threads: BEST_THREADS, shared_bytes: 0 }
    }
}

/// The kernel's tensors are rows of logits and their masks, a bit for each token; behind this shape come `top` ids and scores of each row
/// and its two totals, as `CandidateRows` has them.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct CandidatesShape {
    width: u32,
    top: u32,
    words: u32,
}

impl CandidatesShape {
    /// `None` for more candidates than a threadgroup holds.
    pub(super) fn new(width: usize, top: usize, has_masks: bool) -> Option<Self> {
        let words = if has_masks { width.div_ceil(32) } else { 0 };
        (1..=CANDIDATES_MAX).contains(&top).then_some(Self {
            width: u32::try_from(width).ok()?,
            top: top as u32,
            words: words as u32,
        })
    }

    pub(super) fn launch(rows: usize) -> Launch {
        Launch { kernel: "candidates", groups: [rows, 1, 1], threads: BEST_THREADS, shared_bytes: 0 }
    }
}
