//! Pensieve's host. The binary `pensieve` is a thin shell around this library, so that tests reach its parts without a
//! process.

#![cfg_attr(test, allow(clippy::needless_pass_by_value, reason = "what a test writes down is handed over"))]

pub mod card;
pub mod chat;
pub mod checkpoint;
pub mod cli;
pub mod config;
pub mod confines;
pub mod dialects;
pub mod engine;
pub mod fleet;
pub mod http;
pub mod hub;
pub mod job;
pub mod plugin;
pub mod prompt;
pub mod starter;
pub mod wire;
