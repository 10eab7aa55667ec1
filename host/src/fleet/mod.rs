//! The fleet: which models there are, which worker process serves each, and the plugins that workers load.
//!
//! This is the server's half of the process boundary. It knows plugins by what children say of them and models by their
//! cards, and it never maps a plugin nor opens a model's file; whatever goes wrong in foreign code ends a process that is
//! not this one.

mod child;
pub mod plugins;
mod probe;
mod refusal;

pub use refusal::Refusal;
