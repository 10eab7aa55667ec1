//! What the program is told on its command line: one verb, one file.

mod answer;
mod log;
pub(crate) mod plugins;
pub(crate) mod probe;
mod serve;
mod worker;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A local inference host whose model architectures, samplers and adapter formats are plugins.
#[derive(Parser)]
#[command(name = "pensieve", version)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Serve models over HTTP.
    Serve(serve::Serve),
    /// Look at plugins.
    #[command(subcommand)]
    Plugins(plugins::Plugins),
    /// Answer a server's question about a checkpoint.
    #[command(subcommand, hide = true)]
    Probe(probe::Probe),
    /// Run one model for the server that started this process.
    #[command(hide = true)]
    Worker(worker::Worker),
}

/// Does what the command line says.
pub fn run() -> ExitCode {
    match Arguments::parse().verb {
        Verb::Serve(serve) => serve.run(),
        Verb::Plugins(plugins) => plugins.run(),
        Verb::Probe(probe) => probe.run(),
        Verb::Worker(worker) => worker.run(),
    }
}
