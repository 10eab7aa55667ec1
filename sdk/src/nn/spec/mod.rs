//! Plain descriptions of what a layer computes: sizes, settings and their tensors. Nothing here computes, or knows
//! about devices, caches or checkpoints.

mod attention;
mod conv;
pub(super) mod kv_shape;
mod recurrence;
mod rotation;

pub use attention::Attention;
pub use conv::ShortConv;
pub use kv_shape::{AttentionCache, BLOCK_TOKENS, KvShape, KvType, LayerCache};
pub(super) use recurrence::Inputs;
pub use recurrence::Recurrence;
pub(super) use rotation::Rotation;
