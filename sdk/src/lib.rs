//! The SDK for Pensieve plugins: safe Rust, without ABI types.
//!
//! A plugin is a library with `crate-type = ["cdylib"]` that calls [`export!`] once. It holds any number of
//!
//! - [`Architecture`]s, which describe and load checkpoints ([`nn::Decoder`] is the short way to one,
//!   [`nn::Encoder`] to one that embeds, and `bridge` the shortest, if candle-transformers has the model),
//! - [`sampler::Sampler`]s, whose stages pick the next token,
//! - [`AdapterFormat`]s, which read low-rank adapters.
//!
//! Between them and the host, the SDK turns panics into errors, refuses batches that break the contract before an
//! author's code sees them, and provides batching, paged caches, quantized kernels and adapters, so that a model file
//! reads like its paper. `testing` (feature `testing`, on by default) runs the contract's laws on a model.
//!
#![cfg_attr(feature = "nn", doc = include_str!("tutorial.md"))]
//!
//! # Features
//!
//! - `nn` (default): neural-network layers on candle. Samplers do not need them: `default-features = false`.
//! - `weights`: GGUF and safetensors checkpoints and their tokenizers, without candle.
//! - `bridge`: text models of candle-transformers as architectures.
//! - `testing`: the contract's laws as tests.
//! - `cuda`: NVIDIA devices. Metal needs no feature: every build on macOS has it.

mod abi;
mod adapter;
mod architecture;
mod batch;
#[cfg(feature = "bridge")]
pub mod bridge;
#[doc(hidden)]
pub mod export;
mod media;
#[cfg(feature = "nn")]
pub mod nn;
mod outputs;
mod plugin;
pub mod sampler;
mod services;
#[cfg(feature = "testing")]
pub mod testing;

pub use adapter::{AdapterData, AdapterFormat, LowRankPair, Merged};
pub use architecture::{
    Architecture, Cache, Card, Encode, KvTransfer, LoadRequest, Model, Prepare, Resident, SequenceState, Source,
    Timeline, TimelineSpan,
};
pub use batch::{Batch, Output, Span, StateCopy, Table, VACANT, Want};
pub use export::extension;
pub use media::{Measured, MediaItem, MediaKind, MediaSize, Placement};
pub use outputs::{CandidateRows, Outputs};
pub use pensieve_error::{Code, Error, Result};
#[cfg(feature = "weights")]
pub use pensieve_weights as weights;
pub use plugin::Plugin;
pub use services::{Level, Services};
