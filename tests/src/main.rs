//! The integration tests: one binary, so that it links once. A plugin that a test needs is built by the first test that asks
//! for it, so `cargo test` on a fresh clone is the whole command.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![allow(unreachable_pub, reason = "the modules that tests share read as a library of their own")]

mod artifacts;
mod checkpoints;
mod driver;
mod random;
mod reference;

mod batches;
mod conformance;
mod damage;
mod dropped;
mod extensions;
mod fleet;
mod llama;
mod loading;
mod panics;
mod samplers;
mod services;
mod toolchains;
