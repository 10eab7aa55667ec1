//! Plain descriptions of what a layer computes: sizes, settings and their tensors. Nothing here computes, or knows
//! about devices, caches or checkpoints.

mod attention;
mod conv;
mod elementwise;
pub(super) mod kv_shape;
mod positions;
mod recurrence;
mod rotation;
mod text_attention;

pub use attention::Attention;
pub use conv::ShortConv;
pub(super) use elementwise::Formula;
pub use elementwise::{Elementwise, Expr};
pub use kv_shape::{AttentionCache, BLOCK_TOKENS, KvShape, KvType, LayerCache};
pub use positions::Positions;
pub use recurrence::{Decay, Recurrence};
pub(super) use recurrence::{Inputs, Update};
pub(super) use rotation::Rotation;
pub use text_attention::TextAttention;
