//! The `pensieve` program: command line and configuration on top of the server and worker crates. The binary only calls
//! into this library, so that tests can reach its parts without spawning a process.

pub mod cli;
pub mod config;
pub mod starter;
