//! `pensieve serve`: models behind HTTP, until a signal ends it.
//!
//! Standard output gets one line, once the server is ready, which tells the parent process the address; everything else
//! goes to the log. The first SIGINT or SIGTERM drains, the second one exits at once.

mod reload;

use clap::Args;
use std::{collections::HashSet, future::Future, io::IsTerminal, net::SocketAddr, path::PathBuf, sync::Arc};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    task::JoinSet,
};

use super::{
    banner,
    common_args::{AdapterArgs, CommonArgs, ResolvedConfig},
    error::{CliError, CliResult, Exit},
    log,
    log_file::LogFile,
    space,
};
use crate::config;
use pensieve_protocol::{
    job::{Failure, FailureCode},
    outside::Outside,
    refusal::{Refusal, RefusalKind},
};
use pensieve_server::{
    fleet::{
        self, Fleet, Upstream,
        plugins::{NO_SPACE_HELP, Status},
    },
    http::{self, Server},
    requests::Chats,
};
use pensieve_worker::process;

/// File descriptors set aside for everything but connections.
const FILES_RESERVED: u64 = 128;
const CONNECTIONS_MIN: usize = 16;
/// The file with the usage of keys, in the home.
const LEDGER: &str = "usage/keys.txt";

/// Serve models over HTTP, with Anthropic's and OpenAI's APIs.
///
/// Without any model it serves the starter, which comes with this program. Once it is ready it prints one line to
/// standard output; everything else goes to standard error.
#[derive(Args)]
#[command(after_help = "Examples:
  pensieve serve
  pensieve serve ./qwen2.5-coder-1.5b-q4_k_m.gguf
  pensieve serve hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF --listen 8123 --listen 127.0.0.1:11434
  pensieve serve --model coder=./qwen2.5-coder-1.5b-q4_k_m.gguf --model base=./model.gguf
  pensieve serve --model base=./model.gguf --adapter poet=./poet    (clients ask for base:poet)
  PENSIEVE_API_KEY=secret pensieve serve --config pensieve.toml --listen 0.0.0.0:8000")]
pub(super) struct Serve {
    /// Models to serve: a .gguf file, a folder with safetensors, hf:OWNER/REPO[/FILE] or 'starter'. Each gets the name
    /// of its file, folder or repository as its id.
    #[arg(value_name = "SOURCE")]
    sources: Vec<String>,
    /// Where to listen: ADDRESS:PORT, or a port on loopback, 0 for any free one; may be repeated
    /// [default: 127.0.0.1:8000].
    #[arg(long, value_name = "ADDRESS", alias = "port")]
    listen: Vec<String>,
    /// A model with an id of your choice; may be repeated.
    #[arg(long = "model", value_name = "ID=SOURCE", value_parser = model)]
    models: Vec<(String, String)>,
    #[command(flatten)]
    adapters: AdapterArgs,
    /// Format of the log.
    #[arg(long, value_enum)]
    log_format: Option<log::LogFormat>,
    /// For plugin authors: run models in this process, where a debugger can attach. A crash that would end a worker
    /// then ends the server.
    #[arg(long)]
    in_process: bool,
    #[command(flatten)]
    common: CommonArgs,
}

impl Serve {
    pub(super) fn run(self) -> CliResult {
        let resolved = self.resolve()?;
        let server = &resolved.config.server;
        let format = if server.log_format == "json" { log::LogFormat::Json } else { log::LogFormat::Text };
        let log_file = LogFile::expected();
        log::begin(self.log_format.unwrap_or(format), &server.log, log_file.clone())
            .map_err(|what| CliError::new(Exit::Usage, what))?;
        let runtime = super::runtime()?;
        // Bind first, so that a taken port is reported before anything is downloaded. Signal handlers come after the
        // downloads, so that Ctrl-C interrupts those as usual.
        let ledger = resolved.config.home.join(LEDGER);
        let server = runtime.block_on(bind(&resolved, Some(ledger)))?;
        if let Err(error) = log_file.open(&resolved.config.home, server.address().port()) {
            tracing::warn!("this log is not kept in a file: {error}");
        }
        space::warn(&resolved.config.home);
        for folder in self.common.missing_plugin_folders() {
            tracing::warn!("--plugins: there is no folder '{}'", Outside::path(&folder));
        }
        let mut fleet = resolved.fleet()?;
        if self.in_process {
            tracing::warn!("models run in this process: a plugin that fails takes the server with it");
            fleet.run_in_process(process::run);
        }
        let served = runtime.block_on(serve(server, fleet, resolved, self));
        // The remaining tasks do not matter to the user.
        runtime.shutdown_background();
        served
    }

    /// The configuration, with the variables and flags that take precedence over it.
    fn resolve(&self) -> Result<ResolvedConfig, CliError> {
        let mut resolved = self.common.resolve(&self.all_models()?)?;
        self.adapters.add_to(&mut resolved.config, None)?;
        if !self.listen.is_empty() {
            let address = |listen: &String| {
                config::listen_address(listen).map_err(|what| {
                    CliError::new(Exit::Usage, format!("--listen {listen}: {what}; it takes an address and a port"))
                })
            };
            resolved.config.server.listen = self.listen.iter().map(address).collect::<Result<_, _>>()?;
        }
        Ok(resolved)
    }

    /// Id and source of every model: those of `--model`, and positional sources under their default ids.
    fn all_models(&self) -> Result<Vec<(String, String)>, CliError> {
        let mut models = self.models.clone();
        for source in &self.sources {
            let id = config::Source::parse(source, std::path::Path::new(""))
                .map_err(|what| CliError::new(Exit::Usage, what))?
                .id();
            if models.iter().any(|(known, _)| *known == id) {
                let line = format!("two models have the id '{id}'; rename one with --model ID={source}");
                return Err(CliError::new(Exit::Usage, line));
            }
            models.push((id, source.clone()));
        }
        Ok(models)
    }
}

/// Binds the addresses, and limits connections to what the descriptor limit allows.
/// The usage of keys is kept in the file `ledger`, if there is to be one.
pub(super) async fn bind(resolved: &ResolvedConfig, ledger: Option<PathBuf>) -> Result<Server, Refusal> {
    let mut settings = http::Settings { ledger, ..resolved.config.server.http() };
    settings.limits.connections_max = connections(settings.limits.connections_max);
    Server::bind(settings).await
}

async fn serve(server: Server, fleet: fleet::Config, resolved: ResolvedConfig, arguments: Serve) -> CliResult {
    let images = resolved.config.server.dialects.images;
    let ended = ended()?;
    tokio::pin!(ended);
    let starting = async {
        let fleet = Arc::new(Fleet::start(fleet).await?);
        check_models(&fleet, &resolved).await.map(|()| fleet)
    };
    let fleet = tokio::select! {
        fleet = starting => fleet?,
        () = &mut ended => return Ok(()),
    };
    for address in server.addresses() {
        super::terminal::say(&format!("pensieve is listening on http://{address}"))?;
        if server.addresses().count() > 1 {
            tracing::info!("listening on http://{address}");
        }
    }
    tokio::spawn(log_missing_fence(fleet.clone()));
    tokio::spawn(log_plugins(fleet.clone(), server.address()));
    let banner = tokio::spawn(banner::show(fleet.clone(), server.address(), banner::BannerInfo::new(&resolved)));
    let chats = Arc::new(Chats::new(fleet, images));
    // A worker in this process runs with the settings that it was started with.
    let reloading = if arguments.in_process {
        tokio::spawn(async {})
    } else {
        tokio::spawn(reload::watch(Arc::new(arguments), chats.clone(), server.keyring().clone(), resolved))
    };
    server.run(chats, ended).await;
    banner.abort();
    reloading.abort();
    Ok(())
}

/// Logs for a server without a terminal what the banner shows on one: that it is ready, and each plugin that is refused,
/// now and later.
async fn log_plugins(fleet: Arc<Fleet>, address: SocketAddr) {
    let mut catalogue = fleet.plugins().subscribe();
    let mut told = HashSet::new();
    let mut is_ready = false;
    loop {
        let states = catalogue.borrow_and_update().states().to_vec();
        for state in &states {
            let Status::Rejected(refusal) = &state.status else { continue };
            if told.insert((state.file.clone(), refusal.kind.as_str().to_owned())) {
                tracing::warn!("plugin '{}' is refused: {refusal}", Outside::path(&state.file));
            }
        }
        if !std::mem::replace(&mut is_ready, true) && !std::io::stderr().is_terminal() {
            let ready = states.iter().filter(|state| matches!(state.status, Status::Ready { .. })).count();
            tracing::info!("ready on http://{address}; models: {}, plugins: {ready}", fleet.models().len());
        }
        told.retain(|(file, _)| states.iter().any(|state| state.file == *file));
        if catalogue.changed().await.is_err() {
            return;
        }
    }
}

/// Warns about sandbox features that this machine lacks; models run without them.
async fn log_missing_fence(fleet: Arc<Fleet>) {
    for what in &fleet.fenced().await.missing {
        tracing::warn!("children run without: {what}");
    }
}

/// Checks every model and logs the result; returns at the first that can be served. Fails if none ever can. A model
/// that only lacks a plugin counts as servable, since plugins may be dropped in while the server runs.
pub(super) async fn check_models(fleet: &Arc<Fleet>, resolved: &ResolvedConfig) -> CliResult {
    for line in resolved.config.missing_samplers(&super::sampler_names(fleet)) {
        tracing::warn!("{line}");
    }
    let mut checks = JoinSet::new();
    for model in fleet.models() {
        let (fleet, id) = (fleet.clone(), model.id.clone());
        if let Some(handover) = &model.handover {
            tracing::info!("model '{id}' {}", handover.told());
        }
        if let Some(upstream) = &model.upstream {
            log_upstream(&id, upstream);
            checks.spawn(async { Ok(()) });
            continue;
        }
        checks.spawn(async move {
            let card = fleet.target(&id).await.map(|target| target.card);
            match &card {
                Ok(_) if std::io::stderr().is_terminal() => {}
                Ok(card) => tracing::info!(
                    "serving model '{id}': {}, {} of weights, context {}, loads on first request",
                    card.architecture,
                    config::units::bytes(card.weight_bytes),
                    card.context
                ),
                Err(_) => {}
            }
            card.map(drop).map_err(|failure| (id, failure))
        });
    }
    let line = |(id, failure): &(String, Failure)| format!("model '{id}' cannot be served: {failure}");
    let mut failed = Vec::new();
    while let Some(checked) = checks.join_next().await {
        let Ok(checked) = checked else { continue };
        let servable = checked.as_ref().err().is_none_or(|(_, failure)| waits_for_a_plugin(failure));
        failed.extend(checked.err());
        if servable {
            failed.iter().for_each(|failed| tracing::error!("{}", line(failed)));
            // The rest is checked only for the log.
            tokio::spawn(async move {
                while let Some(checked) = checks.join_next().await {
                    if let Ok(Err(failed)) = checked {
                        tracing::error!("{}", line(&failed));
                    }
                }
            });
            return Ok(());
        }
    }
    let Some((_, first)) = failed.first() else { return Ok(()) };
    let exit = CliError::from(first.clone()).exit;
    Err(CliError { exit, lines: failed.iter().map(line).collect() })
}

/// Says where a model is computed, and what leaves this machine for it. Its servers may come later, so they are not asked.
fn log_upstream(id: &str, upstream: &Upstream) {
    tracing::info!("model '{id}' {}", upstream.told());
    if upstream.shows_key() {
        tracing::warn!("model '{id}': its upstream's key can be read on the way; use https://");
    }
}

/// True if the model can be served once a plugin for it is dropped in, or finds room for its copy.
fn waits_for_a_plugin(failure: &Failure) -> bool {
    let comes_later = failure.help.ends_with("into plugins/") || failure.help == NO_SPACE_HELP;
    failure.code == FailureCode::Unsupported && comes_later
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

/// Raises the soft descriptor limit where possible, and returns how many connections fit it.
fn connections(wanted: usize) -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let target = limit.maximum.unwrap_or(u64::MAX).min(wanted as u64 * 2 + FILES_RESERVED);
    let current = limit.current.unwrap_or(u64::MAX);
    if current < target {
        // If this fails, the current limit remains.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(target), maximum: limit.maximum });
    }
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let available = usize::try_from(files.saturating_sub(FILES_RESERVED)).unwrap_or(usize::MAX);
    wanted.min(available.max(CONNECTIONS_MIN))
}

/// Resolves at the first SIGINT or SIGTERM. A second one exits the process.
fn ended() -> Result<impl Future<Output = ()>, Refusal> {
    let handler = |kind| {
        signal(kind).map_err(|error| {
            Refusal::new(RefusalKind::Signal, format!("signal handlers cannot be installed: {error}"), "")
        })
    };
    let (mut interrupt, mut terminate) = (handler(SignalKind::interrupt())?, handler(SignalKind::terminate())?);
    Ok(async move {
        next(&mut interrupt, &mut terminate).await;
        tracing::info!("shutting down: running answers may finish; a second signal (Ctrl-C) ends them at once");
        tokio::spawn(async move {
            let number = next(&mut interrupt, &mut terminate).await;
            tracing::warn!("second signal: ending at once");
            // Workers end when their sockets close. 128 + N is what shells expect of a program ended by signal N.
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
