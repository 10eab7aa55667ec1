//! What the author of a Pensieve plugin uses.

mod error;
pub mod sampler;

pub use error::{Code, Error, Result};
