//! What the program is told on its command line: one verb, one file.

mod plugins;
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
    /// Look at plugins.
    #[command(subcommand)]
    Plugins(plugins::Plugins),
    /// Run one model for the server that started this process.
    #[command(hide = true)]
    Worker(worker::Worker),
}

/// Does what the command line says.
pub fn run() -> ExitCode {
    match Arguments::parse().verb {
        Verb::Plugins(plugins) => plugins.run(),
        Verb::Worker(worker) => worker.run(),
    }
}
