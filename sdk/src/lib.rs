//! What the author of a Pensieve plugin uses.

mod adapter;
mod architecture;
mod error;
#[doc(hidden)]
pub mod export;
#[cfg(feature = "nn")]
pub mod nn;
mod plugin;
pub mod sampler;
mod services;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(feature = "weights")]
pub mod weights;

pub use adapter::{AdapterData, AdapterFormat, LowRankPair};
pub use architecture::{
    Architecture, Batch, Capacity, Card, KvTransfer, LoadRequest, Model, Resident, SequenceState, Source, Span,
    StateKind, Want,
};
pub use error::{Code, Error, Result};
pub use plugin::Plugin;
pub use services::{Level, Services};
