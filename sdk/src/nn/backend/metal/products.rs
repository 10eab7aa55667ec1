//! How products of weights are launched (`products.metal`): the formats that are read, and which kernel suits how many rows.

use bytemuck::{Pod, Zeroable};
use pensieve_kernels::{Activation, Glu};

use super::launch::Launch;
use crate::weights::Dtype;

/// Matrices of one dispatch.
pub(super) const MATRICES: usize = 3;

/// Threads of a threadgroup, and outputs that it makes, by kernel: for one row, for up to eight, and for tiles of many.
pub(super) const ONE_ROW: Group = Group { threads: 64, outputs: 8 };
pub(super) const FEW_ROWS: Group = Group { threads: 64, outputs: 16 };
pub(super) const TILE: Group = Group { threads: 128, outputs: 64 };

/// Rows of a tile.
pub(super) const TILE_ROWS: usize = 32;

/// A tile's activation and weights, which its result replaces.
pub(super) const TILE_BYTES: usize = 8192;

/// Rows of a threadgroup of `product_8`.
const FEW: usize = 8;

/// Up to here reading the weights once for each eight rows costs less than a tile, most of which would be empty.
const FEW_MAX: usize = 2 * FEW;

/// A kernel's threadgroups.
#[derive(Clone, Copy)]
pub(super) struct Group {
    pub(super) threads: usize,
    pub(super) outputs: usize,
}

/// The formats that the kernels read, by their numbers in `formats.metal`.
pub(super) const READ: [Dtype; 18] = [
    Dtype::F32,
    Dtype::F16,
    Dtype::BF16,
    Dtype::Q4_0,
    Dtype::Q4_1,
    Dtype::Q5_0,
    Dtype::Q5_1,
    Dtype::Q8_0,
    Dtype::Q2K,
    Dtype::Q3K,
    Dtype::Q4K,
    Dtype::Q5K,
    Dtype::Q6K,
    Dtype::MXFP4,
    Dtype::IQ4NL,
    Dtype::IQ4XS,
    Dtype::Int4,
    Dtype::Int8,
];

/// The number of a format in `formats.metal`; `None` for those that no kernel reads.
pub(super) fn format_number(dtype: Dtype) -> Option<u32> {
    READ.iter().position(|format| *format == dtype).map(|number| number as u32)
}

/// Bytes that the start of a weight must be a multiple of: what the kernels load from it at once.
pub(super) fn alignment(dtype: Dtype) -> usize {
    match dtype {
        Dtype::Q4K | Dtype::Q5K => 16,
        Dtype::F32 => 4,
        Dtype::MXFP4 | Dtype::Int4 => 1,
        _ => 2,
    }
}

/// The number of an activation in `activations.metal`.
pub(super) fn activation_number(kind: Activation) -> u32 {
    match kind {
        Activation::Silu => 0,
        Activation::GeluErf => 1,
        Activation::GeluTanh => 2,
        Activation::Sigmoid => 4,
        Activation::Softplus => 5,
    }
}

/// `relu(x)²` in `activations.metal`.
pub(super) const SQUARE: u32 = 6;

/// The middle of a gated MLP: its number, and the parameters of a clamped gate.
pub(super) fn glu_numbers(glu: Glu) -> (u32, f32, f32) {
    match glu {
        Glu::Plain(kind) => (activation_number(kind), 0.0, 0.0),
        Glu::Clamped { alpha, limit } => (3, alpha as f32, limit as f32),
        Glu::Square => (SQUARE, 0.0, 0.0),
    }
}

/// A matrix `[outputs, inputs]` of a dispatch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) dtype: Dtype,
    pub(super) outputs: usize,
    pub(super) has_bias: bool,
}

/// How the products are used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Use {
    /// Each is an output.
    Plain,
    /// The only one is added to a residual.
    Added,
    /// The only one is passed through an activation.
    Activated(Activation),
    /// The first gates the second, which has its shape and format.
    Gated(Glu),
}

/// The kernels' tensors are the activation, three weights, three biases and a residual, then come this shape and three outputs.
/// Those that a dispatch does not have are bound to anything, and not touched.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct ProductShape {
    rows: u32,
    inputs: u32,
    matrices: u32,
    is_gated: u32,
    activates: u32,
    activation: u32,
    adds_residual: u32,
    alpha: f32,
    limit: f32,
    formats: [u32; MATRICES],
    outputs: [u32; MATRICES],
    row_bytes: [u32; MATRICES],
    has_bias: [u32; MATRICES],
}

impl ProductShape {
    /// `None` if the kernels do not read one of the formats, or not in this combination.
    pub(super) fn new(rows: usize, inputs: usize, parts: &[Part], used: Use) -> Option<Self> {
        let fits = match (parts, used) {
            ([], _) => false,
            (parts, Use::Plain) => parts.len() <= MATRICES,
            (parts, Use::Added | Use::Activated(_)) => parts.len() == 1,
            ([gate, up], Use::Gated(glu)) => glu != Glu::Square && (gate.dtype, gate.outputs) == (up.dtype, up.outputs),
            (_, Use::Gated(_)) => false,
        };
        if !fits || rows == 0 {
            return None;
        }
        let (activation, alpha, limit) = match used {
            Use::Gated(glu) => glu_numbers(glu),
            Use::Activated(kind) => (activation_number(kind), 0.0, 0.0),
            Use::Plain | Use::Added => (0, 0.0, 0.0),
        };
        let mut shape = Self {
            rows: u32::try_from(rows).ok()?,
            inputs: u32::try_from(inputs).ok()?,
            matrices: parts.len() as u32,
            is_gated: u32::from(matches!(used, Use::Gated(_))),
            activates: u32::from(matches!(used, Use::Activated(_))),
            activation,
            adds_residual: u32::from(used == Use::Added),
            alpha,
            limit,
            ..Self::zeroed()
        };
        for (place, part) in parts.iter().enumerate() {
            shape.formats[place] = format_number(part.dtype)?;
            shape.outputs[place] = u32::try_from(part.outputs).ok()?;
            shape.row_bytes[place] = u32::try_from(part.dtype.row_bytes(inputs)?).ok()?;
            shape.has_bias[place] = u32::from(part.has_bias);
        }
        Some(shape)
    }

    /// Threadgroups that share the outputs, if each makes `outputs` of plain products.
    fn groups(&self, outputs: usize) -> usize {
        match self.is_gated == 1 {
            true => (self.outputs[0] as usize).div_ceil(outputs / 2),
            false => self.outputs.iter().map(|all| (*all as usize).div_ceil(outputs)).sum(),
        }
    }

    pub(super) fn launch(&self) -> Launch {
        let rows = self.rows as usize;
        // Tiles hold weights in f16, which loses too much of single precision.
        let is_single = self.formats[..self.matrices as usize].contains(&0);
        if rows > FEW_MAX && !is_single {
            let groups = [rows.div_ceil(TILE_ROWS), self.groups(TILE.outputs), 1];
            return Launch { kernel: "product_many", groups, threads: TILE.threads, shared_bytes: TILE_BYTES };
        }
        let (kernel, group, each) = match rows {
            1 => ("product_1", ONE_ROW, 1),
            2 => ("product_2", FEW_ROWS, 2),
            3 | 4 => ("product_4", FEW_ROWS, 4),
            _ => ("product_8", FEW_ROWS, FEW),
        };
        let groups = [self.groups(group.outputs), rows.div_ceil(each), 1];
        Launch { kernel, groups, threads: group.threads, shared_bytes: 0 }
    }
}

#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct EmbedShape {
    width: u32,
    format: u32,
    row_bytes: u32,
    tokens: u32,
}

impl EmbedShape {
    /// `None` if no kernel reads the table's format.
    pub(super) fn new(tokens: usize, width: usize, dtype: Dtype) -> Option<Self> {
        Some(Self {
            width: u32::try_from(width).ok()?,
            format: format_number(dtype)?,
            row_bytes: u32::try_from(dtype.row_bytes(width)?).ok()?,
            tokens: u32::try_from(tokens).ok()?,
        })
    }

    /// The kernel's tensors are the table and the ids; behind this shape comes the output.
    pub(super) fn launch(&self) -> Launch {
        let threads = 64;
        let groups = [(self.width as usize).div_ceil(8 * threads), self.tokens as usize, 1];
        Launch { kernel: "embed", groups, threads, shared_bytes: 0 }
    }
}
