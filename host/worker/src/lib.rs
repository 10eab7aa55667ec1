//! The worker process: the only one that handles plugins, weights and tokens.
//!
//! A worker serves one model for the server that started it. [`plugin`] opens libraries, [`engine`] schedules, runs and
//! samples, and [`process`] is the loop around them, with its socket and its watchdog. This crate and the server's do
//! not know each other: both know the protocol.

pub mod engine;
pub mod fence;
pub mod plugin;
pub mod process;
