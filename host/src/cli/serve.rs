//! `pensieve serve`: models behind HTTP, until somebody ends it.
//!
//! Standard output gets one line, once the server is ready, so that whoever started it knows where it listens; everything
//! else is in the log. The first signal to end drains, the second one does not wait.

use clap::Args;
use std::{
    fmt::Display,
    future::Future,
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::log;
use crate::{
    fleet::{Config, Fleet, ModelConfig, Refusal},
    http::{Server, Settings},
    prompt::Chats,
};

/// Descriptors that are not connections.
const FILES_RESERVED: u64 = 128;
const CONNECTIONS_MIN: usize = 16;

#[derive(Args)]
pub(super) struct Serve {
    /// Where to listen: an address and a port, 0 for any port that is free.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8000")]
    listen: String,
    /// A folder with plugins, before the usual ones.
    #[arg(long = "plugins", value_name = "DIR")]
    plugins: Vec<PathBuf>,
    /// A model and its checkpoint: a .gguf file, or a folder with safetensors.
    #[arg(long = "model", value_name = "ID=SOURCE", value_parser = model)]
    models: Vec<(String, String)>,
    /// Where models run: auto, cpu, cuda:N or metal:N.
    #[arg(long, default_value = "auto")]
    device: String,
    /// How lines of the log are written.
    #[arg(long, value_enum, default_value_t)]
    log_format: log::Format,
}

impl Serve {
    pub(super) fn run(self) -> ExitCode {
        let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return failed(&format_args!("the server does not start: {error}")),
        };
        if let Err(error) = log::begin(self.log_format, "info") {
            return failed(&error);
        }
        let served = runtime.block_on(self.serve());
        // What still runs has nothing left to say.
        runtime.shutdown_background();
        match served {
            Ok(()) => ExitCode::SUCCESS,
            Err(refusal) => failed(&refusal),
        }
    }

    async fn serve(self) -> Result<(), Refusal> {
        let ended = ended()?;
        tokio::pin!(ended);
        let home = home();
        let mut settings = Settings { listen: self.listen.clone(), ..Settings::default() };
        settings.limits.connections_max = connections(settings.limits.connections_max);
        let server = Server::bind(settings).await?;
        let config = self.fleet(&home)?;
        let starting = Fleet::start(config);
        let fleet = tokio::select! {
            fleet = starting => Arc::new(fleet?),
            () = &mut ended => return Ok(()),
        };
        announce(&server)?;
        server.run(Arc::new(Chats::new(fleet)), ended).await;
        Ok(())
    }

    fn fleet(&self, home: &Path) -> Result<Config, Refusal> {
        let mut config = Config::new(&self.plugins, home);
        for (id, source) in &self.models {
            let source = resolve_source(source)?;
            let model = ModelConfig { id: id.clone(), source, device: self.device.clone(), ..ModelConfig::default() };
            config.models.push(model);
        }
        config.default_model = config.models.first().map(|model| model.id.clone());
        Ok(config)
    }
}

/// The path of a checkpoint.
fn resolve_source(source: &str) -> Result<PathBuf, Refusal> {
    let path = PathBuf::from(source);
    std::path::absolute(&path).ok().filter(|path| path.exists()).ok_or_else(|| {
        let reason = format!("there is no checkpoint at '{}'", path.display());
        Refusal::new("source", reason, "name a .gguf file, or a folder with config.json and safetensors")
    })
}

fn model(argument: &str) -> Result<(String, String), String> {
    match argument.split_once('=') {
        Some((id, source)) if !id.is_empty() && !source.is_empty() => Ok((id.to_owned(), source.to_owned())),
        _ => Err("it has to be ID=SOURCE".into()),
    }
}

/// `$PENSIEVE_HOME`, or `.pensieve` in the user's home.
fn home() -> PathBuf {
    let variable = |name| std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    variable("PENSIEVE_HOME").unwrap_or_else(|| variable("HOME").unwrap_or_default().join(".pensieve"))
}

fn announce(server: &Server) -> Result<(), Refusal> {
    let mut stdout = std::io::stdout().lock();
    let written = writeln!(stdout, "pensieve is listening on http://{}", server.address());
    let written = written.and_then(|()| stdout.flush());
    written.map_err(|error| Refusal::new("stdout", format!("standard output cannot be written to: {error}"), ""))
}

/// As many connections as the system has descriptors for, which it is asked to have more of.
fn connections(wanted: usize) -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let target = limit.maximum.unwrap_or(u64::MAX).min(wanted as u64 * 2 + FILES_RESERVED);
    let current = limit.current.unwrap_or(u64::MAX);
    if current < target {
        // What the system refuses is done without.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(target), maximum: limit.maximum });
    }
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let room = usize::try_from(files.saturating_sub(FILES_RESERVED)).unwrap_or(usize::MAX);
    wanted.min(room.max(CONNECTIONS_MIN))
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

fn failed(error: &dyn Display) -> ExitCode {
    eprintln!("pensieve: {error}");
    ExitCode::FAILURE
}
