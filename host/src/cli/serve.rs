//! `pensieve serve`: models behind HTTP, until a signal ends it.
//!
//! Standard output gets one line, once the server is ready, so that the program that started it knows the address; everything
//! else is in the log. The first signal to end drains, the second one does not wait.

use clap::Args;
use std::{future::Future, io::Write, sync::Arc};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{
    banner,
    common_args::{Adapters, CommonArgs, ResolvedConfig},
    error::{CliError, CliResult, Exit},
    log,
};
use crate::config;
use pensieve_protocol::refusal::Refusal;
use pensieve_server::{
    fleet::{self, Fleet},
    http::Server,
    prompt::Chats,
};
use pensieve_worker::process;

/// Descriptors that are not connections.
const FILES_RESERVED: u64 = 128;
const CONNECTIONS_MIN: usize = 16;

/// Serve models over HTTP, with Anthropic's and OpenAI's APIs.
///
/// Without any model it serves the starter, which comes with this program. Once it is ready it prints one line to standard
/// output; everything else goes to standard error.
#[derive(Args)]
#[command(after_help = "Examples:
  pensieve serve
  pensieve serve --model coder=./qwen2.5-coder-1.5b-q4_k_m.gguf
  pensieve serve --model me=hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF --listen 127.0.0.1:9000
  pensieve serve --model base=./model.gguf --adapter poet=./poet    (clients ask for base:poet)
  PENSIEVE_API_KEY=secret pensieve serve --config pensieve.toml --listen 0.0.0.0:8000")]
pub(super) struct Serve {
    /// Where to listen: an address and a port, 0 for any port that is free [default: 127.0.0.1:8000].
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// A model and where it comes from: a .gguf file, a folder with safetensors, hf:OWNER/REPO[/FILE] or 'starter'; may be
    /// given again.
    #[arg(long = "model", value_name = "ID=SOURCE", value_parser = model)]
    models: Vec<(String, String)>,
    #[command(flatten)]
    adapters: Adapters,
    /// How lines of the log are written.
    #[arg(long, value_enum)]
    log_format: Option<log::LogFormat>,
    /// For authors of plugins: run models in this process, where a debugger sees them. What would end a worker then ends the
    /// server.
    #[arg(long)]
    in_process: bool,
    #[command(flatten)]
    common: CommonArgs,
}

impl Serve {
    pub(super) fn run(self) -> CliResult {
        let mut resolved = self.common.resolve(&self.models)?;
        self.adapters.add_to(&mut resolved.config, None)?;
        if let Some(listen) = &self.listen {
            config::check_listen(listen).map_err(|what| {
                CliError::new(Exit::Usage, format!("--listen {listen}: {what}; it takes an address and a port"))
            })?;
            resolved.config.server.listen.clone_from(listen);
        }
        let server = &resolved.config.server;
        let format = if server.log_format == "json" { log::LogFormat::Json } else { log::LogFormat::Text };
        log::begin(self.log_format.unwrap_or(format), &server.log).map_err(|what| CliError::new(Exit::Usage, what))?;
        let mut settings = server.http();
        settings.limits.connections_max = connections(settings.limits.connections_max);
        let runtime = super::runtime()?;
        // A port that is taken is known before anything is downloaded, and a download can be interrupted like any other
        // program: signals are listened to only after it.
        let server = runtime.block_on(Server::bind(settings))?;
        let mut fleet = resolved.fleet()?;
        if self.in_process {
            tracing::warn!("models run in this process: a plugin that fails takes the server with it");
            fleet.run_in_process(process::run);
        }
        let served = runtime.block_on(serve(server, fleet, &resolved));
        // What still runs has nothing left to say.
        runtime.shutdown_background();
        served
    }
}

/// Tells of models that no plugin takes, before somebody asks for them.
async fn complain(fleet: Arc<Fleet>) {
    for model in fleet.models() {
        if let Err(failure) = fleet.card(&model.id).await {
            tracing::warn!("model '{}' cannot be served: {failure}", model.id);
        }
    }
}

async fn serve(server: Server, fleet: fleet::Config, resolved: &ResolvedConfig) -> CliResult {
    let ended = ended()?;
    tokio::pin!(ended);
    let starting = Fleet::start(fleet);
    let fleet = tokio::select! {
        fleet = starting => Arc::new(fleet?),
        () = &mut ended => return Ok(()),
    };
    for line in resolved.config.missing_samplers(&super::sampler_names(&fleet)) {
        tracing::warn!("{line}");
    }
    announce(&server)?;
    tokio::spawn(complain(fleet.clone()));
    let banner = tokio::spawn(banner::show(fleet.clone(), server.address(), banner::Facts::of(resolved)));
    server.run(Arc::new(Chats::new(fleet)), ended).await;
    banner.abort();
    Ok(())
}

fn model(argument: &str) -> Result<(String, String), String> {
    match argument.split_once('=') {
        Some((id, source)) if !id.is_empty() && !source.is_empty() => {
            config::check_id(id).map_err(|what| format!("the id {what}; it takes letters, digits and -_./: signs"))?;
            Ok((id.to_owned(), source.to_owned()))
        }
        _ => Err("it has to be ID=SOURCE".into()),
    }
}

fn announce(server: &Server) -> CliResult {
    let mut stdout = std::io::stdout().lock();
    let written = writeln!(stdout, "pensieve is listening on http://{}", server.address());
    let written = written.and_then(|()| stdout.flush());
    written.map_err(|error| CliError::system("standard output cannot be written to", &error))
}

/// As many connections as the system has descriptors for, which it is asked to have more of.
fn connections(artifact: usize) -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let target = limit.maximum.unwrap_or(u64::MAX).min(artifact as u64 * 2 + FILES_RESERVED);
    let current = limit.current.unwrap_or(u64::MAX);
    if current < target {
        // What the system refuses is done without.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(target), maximum: limit.maximum });
    }
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let room = usize::try_from(files.saturating_sub(FILES_RESERVED)).unwrap_or(usize::MAX);
    artifact.min(room.max(CONNECTIONS_MIN))
}

/// Ends with the first signal to end. The second one ends the program.
fn ended() -> Result<impl Future<Output = ()>, Refusal> {
    let listen = |kind| signal(kind).map_err(|error| Refusal::new("signal", format!("no signals: {error}"), ""));
    let (mut interrupt, mut terminate) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
    Ok(async move {
        next(&mut interrupt, &mut terminate).await;
        tokio::spawn(async move {
            let number = next(&mut interrupt, &mut terminate).await;
            tracing::warn!("told to end a second time: ending at once");
            // Workers end with their sockets. A shell expects this code of a program that a signal ended.
            std::process::exit(128 + number);
        });
    })
}

async fn next(interrupt: &mut Signal, terminate: &mut Signal) -> i32 {
    tokio::select! {
        _ = interrupt.recv() => SignalKind::interrupt().as_raw_value(),
        _ = terminate.recv() => SignalKind::terminate().as_raw_value(),
    }
}
