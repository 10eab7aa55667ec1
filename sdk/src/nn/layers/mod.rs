//! The layers that model files are built from.

mod attention;
mod conv;
mod experts;
mod mamba2;
mod mlp;
mod norm;
mod qkv;
mod recurrence;
mod rope;
mod sparse_mlp;

pub use experts::{Expert, ExpertNames, Experts, Groups, Router, Routes, Scoring, weighed};
pub use mamba2::{GatedNorm, Mamba2, Mamba2Sizes};
pub use mlp::{GatedMlp, Mlp};
pub use norm::{LayerNorm, RmsNorm};
pub use qkv::Qkv;
pub use rope::{Angles, Rope};
pub use sparse_mlp::{FeedForward, SparseMlp};
