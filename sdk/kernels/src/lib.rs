//! CPU kernels on plain slices: nothing here knows about candle or models.
//!
//! They exist because of two promises that stock operations do not make. Weights are used in place, in the block format
//! and memory map that they come in, so that a model takes the size of its file and not twice that. And an output row
//! depends only on its own input row, to the last bit, whatever else is in the batch: a request gets the same answer
//! alone and among twenty others. So each kernel fixes its summation order, and the batch size only decides how often
//! unpacked weights are reused. Processors with a matrix unit add a border: it computes stretches of many rows, such as
//! prompts, and rounds otherwise than vectors do, so that a row depends on the length of its own stretch as well.
//!
//! Kernels are compiled for each instruction set in `simd` (for those that differ in products of bytes alone, only the ones with such
//! products) and use the one selected by its [`Pool`]. Lengths are
//! the caller's responsibility and asserted; block tables come from the host and are checked in full before use.

mod activation;
mod attention;
mod best;
mod conv;
mod elementwise;
mod experts;
mod feed_forward;
mod float;
mod kv;
mod kv_packed;
mod low_rank;
mod matmul;
mod norm;
mod pool;
mod quant;
mod recurrence;
mod results;
mod rope;
mod simd;
mod tile;
mod timeline;

pub use activation::{Activation, activate, activate_mul};
pub use attention::{Distances, Past, Scores, TextHeads, attention, attention_chosen, attention_within};
pub use best::best;
pub use conv::{Taps, short_conv};
pub use elementwise::{Operand, Step, Values, add, add_row, columns, elementwise, join};
pub use experts::{Expert, ExpertTerms, Glu, combine, experts};
pub use feed_forward::feed_forward;
pub use kv::{Kv, KvLayout, KvMut, Span, load_kv, store_kv};
pub use kv_packed::{Packing, ROTATED_MAX, pack_rows, rotated};
pub use low_rank::{Change, Factors, Input, low_rank};
pub use matmul::{
    FeedForward, Layer, Matrix, dequantize, dequantize_row, each_group, matmul, matmul_all, matmul_heads, matmul_of,
};
pub use norm::{layer_norm, rms_norm};
pub use pool::Pool;
pub use quant::levels;
pub use recurrence::{Decay, Heads, Recurred, Stretch, Update, recurrence};
pub use rope::rope;
pub use simd::Level;
pub use timeline::TimelineSpan;
