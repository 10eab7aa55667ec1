//! What a worker does with its one model. The two state machines here decide everything that can be decided without
//! touching the model: [`blocks`] says which tokens' keys and values lie where and may be used again, [`scheduler`]
//! says which tokens the next step computes. Neither does I/O, reads a clock or calls a plugin: time and results come
//! in as arguments, so that a test can run a million steps in seconds and replay any of them from its seed.

pub mod blocks;
pub mod scheduler;

#[cfg(test)]
mod simulation;
