//! The layers that model files are built from.

mod attention;
mod clip;
mod conv;
mod elementwise;
mod experts;
mod gate;
mod heads;
mod hyper_connections;
mod lookup;
mod mamba;
mod mamba2;
mod mapped_table;
mod mlp;
mod norm;
mod qkv;
mod recurrence;
mod rope;
mod router;
mod sparse_mlp;

pub use clip::Clip;
pub use experts::{Expert, ExpertNames, Experts, weighed};
pub use gate::{ActivationFn, GateFn};
pub use heads::HeadLinear;
pub use hyper_connections::{HyperConnections, HyperMix};
pub use lookup::Lookup;
pub use mamba::{Mamba, MambaSizes};
pub use mamba2::{GatedNorm, Mamba2, Mamba2Sizes};
pub use mapped_table::MappedTable;
pub use mlp::{GatedMlp, Mlp};
pub use norm::{LayerNorm, RmsNorm};
pub use qkv::Qkv;
pub use rope::{Angles, Rope};
pub use router::{Groups, Router, Routes, Scoring};
pub use sparse_mlp::{FeedForward, SparseMlp};
