//! What layers ask for, as plain data: sizes and settings, and the tensors that they come with. Nothing here computes or knows a
//! device, a cache or a checkpoint.

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
