//! The real program over real sockets: access, refusals, and shutdown.

pub mod client;
pub mod server;

mod adapters;
mod auth;
mod crowds;
mod disconnects;
mod ends;
mod in_process;
mod limits;
mod lists;
mod logged;
mod overflow;
mod pulled;
mod restart;
mod streams;
