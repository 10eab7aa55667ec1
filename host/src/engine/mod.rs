//! What a worker does with its one model. Two state machines decide everything that can be decided without touching the
//! model: [`blocks`] says which tokens' keys and values lie where and may be used again ([`states`] for models that keep a
//! state per sequence instead), [`scheduler`] says which tokens the next step computes. None of them does I/O, reads a clock or calls a plugin: time and results come in as arguments, so
//! that a test can run a million steps in seconds and replay any of them from its seed. What a sequence may say and where
//! it ends is a matter of bytes: [`vocabulary`], [`stops`], [`constrain`].
//!
//! Around them lies what does touch the world: [`step`] is one turn of the loop, [`model`] and [`chain`] call plugins,
//! [`store`] keeps blocks on disk, and [`worker`] is the process with its socket, its watchdog and its end.

pub mod blocks;
pub mod scheduler;
pub mod states;

pub mod constrain;
pub mod stops;
pub mod vocabulary;

pub mod adapters;
pub mod chain;
pub mod formats;
pub mod grammars;
pub mod model;
pub mod sequence;
pub mod step;
pub mod store;
pub mod tier;
pub mod worker;

mod logits;
mod patterns;

#[cfg(test)]
mod simulation;
