//! The server process: HTTP, the dialects of its clients, prompts, and the supervision of workers.
//!
//! This crate cannot name the loader of plugins or the engine, and links neither: what comes out of a plugin or a model
//! reaches it as the plain data of the protocol, from a process that may die without harm.

#![cfg_attr(test, allow(clippy::needless_pass_by_value, reason = "tests hand over what they write down"))]

pub mod answers;
pub mod chat;
mod constraints;
pub mod dialects;
pub mod fleet;
mod formats;
pub mod http;
pub mod hub;
mod ids;
mod rendering;
pub mod requests;
mod shares;
