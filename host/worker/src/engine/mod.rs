//! The inference engine of a worker: continuous batching over a paged KV cache. Two state machines make every decision
//! that needs no model: [`blocks`] is the block table for paged attention and the prefix cache ([`states`] for models
//! that keep one state per sequence instead), and [`scheduler`] decides which tokens the next step computes. None of
//! them does I/O, reads a clock or calls a plugin: time and results come in as arguments, so that a test can run a
//! million steps in seconds and replay any of them from its seed. [`stops`] and the crate `pensieve-grammar` decide on
//! bytes what a sequence may say and where it ends.
//!
//! The rest has side effects: [`step`] is one step, [`active_jobs`] owns the running jobs, [`model`] and [`chain`] call
//! plugins, [`adapters`] decides which LoRA adapters are in memory, [`store`] is the prefix cache's tier on disk, and
//! `identity` names it. `items` decides which images of prompts are encoded when, and `pooled` makes one row of a text's
//! hidden rows. `thoughts` decides when reasoning is concluded, `repetition` which answers loop, and `device_failures` when a device is lost;
//! `recorder` keeps the timeline of a job that asks for one.

pub mod blocks;
pub mod scheduler;
pub mod states;

pub mod stops;

pub mod active_job;
pub mod active_jobs;
pub mod adapters;
pub mod chain;
pub mod device_failures;
pub mod failures;
pub mod formats;
pub mod grammars;
pub mod items;
pub mod model;
pub mod step;
pub mod store;
pub mod tier;

mod identity;
mod logits;
mod pooled;
mod recorder;
mod repetition;
mod sampler_thread;
mod thoughts;

#[cfg(test)]
mod simulation;
