//! What models are made of: layers that batch many sequences, page their memory and take adapters without the model
//! file's help, on every device that candle has.
//!
//! A model file holds its layers, loads them through a [`Loader`], and applies them to a [`Step`]; [`Paged`] turns that
//! [`Decoder`] into an architecture. Each idea stands once: `backend` is the seam behind which CPU kernels, stock candle
//! ops and a device's own kernels answer the same questions, `kv` the only one that knows where a token's keys lie, `adapters` and `merge` the
//! only ones that know of LoRA.

mod adapters;
mod attention;
mod backend;
mod causal_lm;
mod conv;
pub mod device;
mod experts;
mod kv;
mod kv_shape;
mod layout;
mod linear;
mod loader;
mod mamba2;
mod merge;
mod mlp;
mod norm;
mod ops;
mod paged;
mod pass;
mod qkv;
mod recurrence;
mod registry;
mod resident;
mod rope;
mod sizes;
mod sparse_mlp;
mod states;
mod step;
mod store;
mod view;

pub use attention::Attention;
pub use candle_core::{self as candle, Tensor};
pub use causal_lm::{CausalLm, Norm};
pub use conv::ShortConv;
pub use experts::{Expert, ExpertNames, Experts, Groups, Router, Routes, Scoring, weighed};
pub use kv_shape::{AttentionCache, BLOCK_TOKENS, KvShape, KvType, LayerCache};
pub use linear::{Embedding, Linear};
pub use loader::Loader;
pub use mamba2::{GatedNorm, Mamba2, Mamba2Sizes};
pub use mlp::{GatedMlp, Mlp};
pub use norm::{LayerNorm, RmsNorm};
pub use ops::{Ops, activation};
pub use paged::{Decoder, Paged, Shape};
pub use pensieve_kernels::{Activation, Glu};
pub use qkv::Qkv;
pub use recurrence::Recurrence;
pub use rope::{Angles, Rope};
pub use sizes::Sizes;
pub use sparse_mlp::{FeedForward, SparseMlp};
pub use states::StateWrite;
pub use step::{Rows, Step};

use kv::KvCache;
use pensieve_kernels as cpu;
#[cfg(feature = "bridge")]
pub(crate) use {loader::unused, paged::facts, pensieve_kernels::dequantize, view::copy_to};
