//! What a worker does with its one model.

pub mod constrain;
pub mod stops;
pub mod vocabulary;

mod patterns;
