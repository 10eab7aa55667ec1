//! What the author of a Pensieve plugin uses.

mod error;
pub mod sampler;
#[cfg(feature = "weights")]
pub mod weights;

pub use error::{Code, Error, Result};
