//! The program `pensieve`: its command line and its configuration, around the crates of the server and of the worker. The
//! binary is a thin shell around this library, so that tests reach its parts without a process.

pub mod cli;
pub mod config;
pub mod starter;
