//! The command line: one file per subcommand.

mod banner;
mod bench;
mod check_plugin;
mod common_args;
mod docs;
mod doctor;
mod error;
mod inspect;
mod keys;
mod launch;
mod laws;
mod list_plugins;
mod log;
mod log_file;
mod logs;
mod media;
mod models;
mod new;
mod packages;
mod plugins;
mod probe;
mod progress;
mod prompt;
mod ps;
mod pull;
mod quality;
mod reference;
mod reply;
mod report;
mod run;
mod serve;
mod server_client;
mod service;
mod setup;
mod shell_integration;
mod space;
mod statusline;
mod terminal;
mod update;
mod worker;

use clap::{Parser, Subcommand};
use std::process::ExitCode;
use tokio::runtime::{Builder, Runtime};

use error::CliError;
use pensieve_server::fleet::Fleet;
use pensieve_worker::process::numa;
use terminal::end;

/// A local inference host: Anthropic's and OpenAI's APIs for models on this machine, whose architectures, samplers and
/// adapter formats are plugins.
#[derive(Parser)]
#[command(name = "pensieve", version, arg_required_else_help = true)]
#[command(after_help = "Examples:
  pensieve serve                                  serve the model that comes with this program
  pensieve serve hf:OWNER/REPO                    serve one from the hub
  pensieve launch claude                          start Claude Code on a local model
  pensieve run \"list all files\"                   ask once, without a server
  pensieve doctor                                 check what works on this machine

'pensieve docs' opens the documentation; 'pensieve docs configuration' prints the settings, 'pensieve docs cli' the exit codes.")]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Serve(Box<serve::Serve>),
    Run(run::Run),
    Launch(launch::Launch),
    Setup(setup::Setup),
    Ps(ps::Ps),
    Stop(ps::Stop),
    Pin(ps::Pin),
    Logs(logs::Logs),
    #[command(name = "statusline")]
    StatusLine(statusline::StatusLine),
    Pull(pull::Pull),
    /// Look at models.
    #[command(subcommand)]
    Models(models::Models),
    /// Look at plugins.
    #[command(subcommand)]
    Plugins(plugins::Plugins),
    New(new::New),
    /// Make keys for the people and programs that share a server.
    #[command(subcommand)]
    Keys(keys::Keys),
    /// Run the server as a service that starts at login.
    #[command(subcommand)]
    Service(service::Service),
    Update(update::UpdateProgram),
    Bench(bench::Bench),
    Doctor(doctor::Doctor),
    Docs(docs::Docs),
    Completions(shell_integration::Completions),
    Man(shell_integration::Man),
    #[command(hide = true)]
    Unpack(update::Unpack),
    /// Answer a server's question about a checkpoint.
    #[command(subcommand, hide = true)]
    Probe(probe::Probe),
    /// Render and tokenize one model's prompts for the server that started this process.
    #[command(hide = true)]
    Prompt(prompt::Prompt),
    /// Decode and prepare one model's pictures for the server that started this process.
    #[command(hide = true)]
    Media(media::Media),
    /// Run one model for the server that started this process.
    #[command(hide = true)]
    Worker(worker::Worker),
}

/// Parses the command line and runs its subcommand.
pub fn run() -> ExitCode {
    let verb = Arguments::parse().verb;
    let socket = if let Verb::Worker(worker) = &verb { Some(worker.socket) } else { None };
    if socket.is_some() {
        // Not within the fence, whose filter leaves these calls to the drivers of GPUs. What stands in the way is doctor's to say.
        let _ = numa::place_memory();
    }
    // In a child process of a server the fence goes up first, while there is one thread and no untrusted file is open.
    if let Err(what) = pensieve_worker::fence::enter_from_environment(socket) {
        return end(Err(CliError::new(error::Exit::Failed, what)));
    }
    match verb {
        Verb::Serve(serve) => end(serve.run()),
        Verb::Run(run) => end(run.run()),
        Verb::Launch(launch) => launch.run(),
        Verb::Setup(setup) => end(setup.run()),
        Verb::Ps(ps) => end(ps.run()),
        Verb::Stop(stop) => end(stop.run()),
        Verb::Pin(pin) => end(pin.run()),
        Verb::Logs(logs) => end(logs.run()),
        Verb::StatusLine(line) => end(line.run()),
        Verb::Pull(pull) => end(pull.run()),
        Verb::Models(models) => end(models.run()),
        Verb::Plugins(plugins) => plugins.run(),
        Verb::New(new) => end(new.run()),
        Verb::Keys(keys) => end(keys.run()),
        Verb::Service(service) => end(service.run()),
        Verb::Update(update) => end(update.run()),
        Verb::Bench(bench) => end(bench.run()),
        Verb::Doctor(doctor) => end(doctor.run()),
        Verb::Docs(docs) => end(docs.run()),
        Verb::Completions(completions) => end(completions.run()),
        Verb::Man(man) => end(man.run()),
        Verb::Unpack(unpack) => end(unpack.run()),
        Verb::Probe(probe) => probe.run(),
        Verb::Prompt(prompt) => prompt.run(),
        Verb::Media(media) => media.run(),
        Verb::Worker(worker) => worker.run(),
    }
}

/// Names of the samplers that the installed plugins provide.
fn sampler_names(fleet: &Fleet) -> Vec<String> {
    fleet.plugins().samplers().into_iter().map(|(name, _)| name).collect()
}

fn runtime() -> Result<Runtime, CliError> {
    Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::system("threads cannot be started", &error))
}
