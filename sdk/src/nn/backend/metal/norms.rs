//! How norms are launched: shapes in the layout of `norms.metal`, and their dispatches.

use bytemuck::{Pod, Zeroable};

use super::launch::{Launch, THREADS};

#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct NormShape {
    pub(super) width: u32,
    pub(super) eps: f32,
}

impl NormShape {
    /// A threadgroup to a row.
    pub(super) fn launch(rows: usize) -> Launch {
        Launch { kernel: "add_rms_norm", groups: [rows, 1, 1], threads: THREADS, shared_bytes: 0 }
    }
}
