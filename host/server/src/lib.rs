//! The server process: HTTP, client APIs, prompts, and the supervision of workers.
//!
//! This crate does not depend on the plugin loader or the engine: data from plugins and models reaches it only as
//! protocol messages, from processes that may crash without harm.

#![cfg_attr(test, allow(clippy::needless_pass_by_value, reason = "test helpers take values by value for brevity"))]

pub mod answers;
pub mod chat;
mod constraints;
pub mod dialects;
mod fetch;
pub mod fleet;
mod formats;
pub mod http;
pub mod hub;
mod ids;
mod keys;
mod rendering;
pub mod requests;
mod shares;
mod upstream;
mod wildcard;
