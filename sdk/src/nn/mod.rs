//! Building blocks of models: layers that handle batching, paged caches and adapters without the model file's help, on
//! every device that candle supports.
//!
//! A model file holds its layers, loads them through a [`Loader`], and applies them to a [`Step`]; [`Paged`] turns that
//! [`Decoder`] into an architecture. The modules are ranked, and each imports only from those below it:
//!
//! - `causal_lm`, `sizes`, `encoder`, `paged`, `vision` and `layers` are used by model files,
//! - `plan` and `runtime` are what `paged` is made of, for authors who implement a model themselves; `options` are the
//!   user's settings of a model,
//! - `diagnostics` measures a device for reports about machines,
//! - `loading` moves a checkpoint's weights to their devices, most of them as layers of `linear`,
//! - `step` is one forward pass, with the `adapters` of its rows and the `items` of its sequences,
//! - `ops` validates each call of a layer and passes it to a `backend`: CPU kernels, stock candle ops, or a device's
//!   own kernels,
//! - `memory` is the KV cache and the states, and the only place that knows where a token's keys are,
//! - `spec` is plain data: attention, convolution, recurrence, the shape of caches.

mod adapters;
mod backend;
mod causal_lm;
pub mod device;
pub(crate) mod diagnostics;
mod encoder;
mod items;
mod layers;
mod linear;
mod loading;
mod memory;
mod ops;
mod options;
mod paged;
mod plan;
mod runtime;
mod sizes;
mod spec;
mod step;
pub mod vision;

pub use candle_core::{self as candle, Tensor};
pub use causal_lm::{CausalLm, Norm};
pub use encoder::{Encoder, EncoderShape, Packed};
pub use layers::{
    ActivationFn, Angles, Clip, Expert, ExpertNames, Experts, FeedForward, GateFn, GatedMlp, GatedNorm, Groups,
    HeadLinear, HyperConnections, HyperMix, LayerNorm, Lookup, Mamba, Mamba2, Mamba2Sizes, MambaSizes, MappedTable,
    Mlp, Qkv, RmsNorm, Rope, Router, Routes, Scoring, SparseMlp, weighed,
};
pub use linear::{Embedding, Linear};
pub use loading::loader::Loader;
pub use memory::states::StateWrite;
pub use ops::{Ops, activation};
pub use options::ModelOptions;
pub(crate) use paged::PagedModel;
pub use paged::{Decoder, Paged};
pub use pensieve_kernels::{Activation, Glu, dequantize};
pub use plan::{ModelPlan, Shape};
pub use runtime::Runtime;
pub use sizes::Sizes;
pub use spec::{
    Attention, AttentionCache, BLOCK_TOKENS, Decay, Elementwise, Expr, KvShape, KvType, LayerCache, Positions,
    Recurrence, ShortConv, TextAttention,
};
pub use step::{Rows, Step};

#[cfg(feature = "bridge")]
pub(crate) use {loading::loader::unused, memory::view::copy_to, plan::facts};
