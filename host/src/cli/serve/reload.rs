//! The configuration of a running server: read again on SIGHUP, and when the file has changed. A file with errors changes
//! nothing. Models, their names, keys and the fleet's limits take effect at once; what needs a restart is said.

use rustix::process::{Signal, getpid, kill_process};
use std::{
    fs,
    future::pending,
    io::{self, IsTerminal},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    signal::unix::{Signal as Signals, SignalKind, signal},
    time::{Interval, MissedTickBehavior, interval},
};

use super::Serve;
use crate::{
    cli::{common_args::ResolvedConfig, error::CliError},
    config::{self, Config, ServerSettings, Source},
};
use pensieve_protocol::outside::Outside;
use pensieve_server::{
    fleet,
    http::{DialectSettings, Keyring, Limits},
    requests::Chats,
};

/// How often the file is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Tells two states of a file apart without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stamp(Vec<(PathBuf, u64, u64, i64, i64)>);

/// Watches the configuration until it is dropped.
pub(super) async fn watch(serve: Arc<Serve>, chats: Arc<Chats>, keyring: Arc<Keyring>, resolved: ResolvedConfig) {
    let mut hangup = signal(SignalKind::hangup())
        .inspect_err(|error| tracing::warn!("SIGHUP is not heard ({error}); the configuration's file is still watched"))
        .ok();
    let sources = config::candidates(serve.common.file().as_deref(), &resolved.config.home);
    let mut candidates = watched(&sources, &resolved.config);
    let had_terminal = io::stderr().is_terminal();
    let (mut seen, mut state) = (Stamp::of(&candidates), State::new(resolved.config));
    // The state of the file that was read last. An editor writes in several steps, so a change is read once it rests.
    let mut read = seen.clone();
    let mut look: Interval = interval(LOOK_EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let is_asked = tokio::select! {
            () = heard(&mut hangup) => true,
            _ = look.tick() => false,
        };
        if is_asked && had_terminal && !io::stderr().is_terminal() {
            // The signal came because the terminal was closed, and the server with it.
            let _ = kill_process(getpid(), Signal::TERM);
            return;
        }
        let now = Stamp::of(&candidates);
        let rests = now == seen;
        seen = now;
        if !is_asked && (seen == read || !rests) {
            continue;
        }
        read = seen.clone();
        let serve = serve.clone();
        let resolving = tokio::task::spawn_blocking(move || serve.resolve().and_then(|new| Ok((new.fleet()?, new))));
        match resolving.await {
            Ok(Ok((config, new))) => {
                candidates = watched(&sources, &new.config);
                state.apply(&chats, &keyring, config, &new, is_asked);
            }
            Ok(Err(error)) => state.refuse(&error),
            Err(_) => tracing::error!("the configuration could not be read again; it stays as it is"),
        }
    }
}

/// The files that the configuration is read from, with those in which upstreams have keys and certificates.
fn watched(sources: &[PathBuf], config: &Config) -> Vec<PathBuf> {
    let upstreams = config.models.iter().filter_map(|model| match &model.source {
        Source::Upstream(source) => Some(source),
        _ => None,
    });
    let secrets = upstreams.flat_map(|source| source.files().map(Path::to_path_buf));
    sources.iter().cloned().chain(secrets).collect()
}

/// Waits for the next signal; for ever if there is no handler, or none any more.
async fn heard(signals: &mut Option<Signals>) {
    if let Some(signals) = signals
        && signals.recv().await.is_some()
    {
        return;
    }
    pending::<()>().await;
}

/// The configuration that the server runs with, and the problems it has reported already.
struct State {
    /// As the server started; sections that need a restart are compared with it.
    started: Config,
    /// Changed settings that take effect at the next start.
    waiting: Vec<&'static str>,
    /// The last file had errors.
    is_refused: bool,
}

impl State {
    fn new(started: Config) -> Self {
        Self { started, waiting: Vec::new(), is_refused: false }
    }

    fn apply(&mut self, chats: &Chats, keyring: &Keyring, config: fleet::Config, new: &ResolvedConfig, is_asked: bool) {
        let mut lines = chats.reconfigure(config);
        match keyring.replace(&new.config.server.own_keys(), &new.config.server.named_keys) {
            Ok(changes) => lines.extend(changes),
            Err(refusal) => tracing::error!("configuration: the keys stay as they are: {refusal}"),
        }
        for line in new.config.missing_samplers(&crate::cli::sampler_names(chats.fleet())) {
            tracing::warn!("{line}");
        }
        if std::mem::take(&mut self.is_refused) {
            lines.insert(0, "the file has no errors any more, and is applied".to_owned());
        }
        for line in &lines {
            tracing::info!("configuration: {line}");
        }
        let is_heard = self.follow(&new.config);
        if lines.is_empty() && !is_heard && is_asked {
            let file = new.file.as_ref().map_or_else(|| "no file".to_owned(), |file| Outside::path(&file).to_string());
            tracing::info!("configuration: nothing has changed ({file})");
        }
    }

    /// Says which settings wait for a restart if these are others than before; false if they are not.
    fn follow(&mut self, new: &Config) -> bool {
        let waiting = needing_restart(&self.started, new);
        let before = std::mem::replace(&mut self.waiting, waiting);
        if self.waiting == before {
            return false;
        }
        if self.waiting.is_empty() {
            tracing::info!("configuration: {} as at the start again; no restart is needed", before.join(", "));
        } else {
            let names = self.waiting.join(", ");
            tracing::warn!("configuration: {names} changed, which takes effect at the next start");
        }
        true
    }

    fn refuse(&mut self, error: &CliError) {
        self.is_refused = true;
        for line in &error.lines {
            tracing::error!("configuration: {line}");
        }
        tracing::error!("configuration: not applied because of the above; the server goes on with the one it has");
    }
}

/// Settings that are read at the start alone, by their keys. Structures are taken apart field by field, so that a new
/// setting does not compile until it is here.
fn needing_restart(old: &Config, new: &Config) -> Vec<&'static str> {
    let ServerSettings {
        listen,
        // The keyring takes these over at once.
        keys: _,
        named_keys: _,
        hosts,
        origins,
        // The fleet takes these over at once.
        adapter_folders: _,
        adapter_downloads: _,
        open_schemas: _,
        log,
        log_format,
        limits,
        dialects,
    } = &new.server;
    let Limits {
        connections_max,
        requests_max,
        streams_max,
        // No key sets these.
        headers_max: _,
        header_bytes_max: _,
        body_bytes_max,
        bodies_bytes_max,
        header_timeout,
        body_timeout,
        write_stall,
        drain,
    } = limits;
    let DialectSettings {
        reject_attachments,
        max_tokens,
        claude_prefix,
        model_downloads,
        images,
        fetch_images,
        response_store_bytes,
    } = dialects;
    let (server, was, api) = (&old.server, &old.server.limits, &old.server.dialects);
    let settings = [
        ("server.listen", server.listen != *listen),
        ("server.hosts", server.hosts != *hosts),
        ("server.origins", server.origins != *origins),
        ("server.log", server.log != *log),
        ("server.log_format", server.log_format != *log_format),
        ("server.connections_max", was.connections_max != *connections_max),
        ("server.requests_max", was.requests_max != *requests_max),
        ("server.streams_max", was.streams_max != *streams_max),
        ("server.body_max", was.body_bytes_max != *body_bytes_max),
        ("server.bodies_max", was.bodies_bytes_max != *bodies_bytes_max),
        ("server.header_timeout", was.header_timeout != *header_timeout),
        ("server.body_timeout", was.body_timeout != *body_timeout),
        ("server.stall_timeout", was.write_stall != *write_stall),
        ("server.drain", was.drain != *drain),
        ("server.attachments", api.reject_attachments != *reject_attachments),
        ("server.max_tokens", api.max_tokens != *max_tokens),
        ("server.claude_prefix", api.claude_prefix != *claude_prefix),
        ("server.model_downloads", api.model_downloads != *model_downloads),
        ("server.images_max", api.images.count != images.count),
        ("server.image_pixels_max", api.images.pixels != images.pixels),
        ("server.fetch_images", api.fetch_images != *fetch_images),
        ("server.response_store", api.response_store_bytes != *response_store_bytes),
        ("[plugins]", old.plugins != new.plugins),
    ];
    settings.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
}

impl Stamp {
    fn of(candidates: &[PathBuf]) -> Self {
        let stamp = |path: &Path| {
            let file = fs::metadata(path).ok()?;
            Some((path.to_path_buf(), file.ino(), file.len(), file.mtime(), file.mtime_nsec()))
        };
        Self(candidates.iter().filter_map(|path| stamp(path)).collect())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn says_what_needs_a_restart() {
        let read = |text: &str| Config::read(text, Path::new("/x/pensieve.toml"), Path::new("/home")).unwrap();
        let check = |old: &str, new: &str, expected: &[&str]| {
            assert_eq!(needing_restart(&read(old), &read(new)), expected, "{old} {new}");
        };
        check("", "[fleet]\nmemory = \"4GiB\"", &[]);
        check(
            "[server]\nlisten = \"127.0.0.1:8001\"",
            "[server]\nlisten = \"127.0.0.1:8002\"\nkey = \"k\"",
            &["server.listen"],
        );
        check("", "[server]\nmax_tokens = 7\n[plugins]\nfolders = [\"a\"]", &["server.max_tokens", "[plugins]"]);
        check("", "[server]\nlog = \"debug\"\nrequests_max = 5", &["server.log", "server.requests_max"]);
    }

    #[test]
    fn what_waits_for_a_restart_is_said_once_and_withdrawn_when_it_is_as_at_the_start() {
        let read = |text: &str| Config::read(text, Path::new("/x/pensieve.toml"), Path::new("/home")).unwrap();
        let moved = read("[server]\nlisten = \"127.0.0.1:8002\"");
        let mut state = State::new(read(""));
        for (config, is_heard, waiting) in [
            (read("[fleet]\nmemory = \"4GiB\""), false, &[][..]),
            (moved.clone(), true, &["server.listen"]),
            (moved, false, &["server.listen"]),
            (read(""), true, &[]),
            (read(""), false, &[]),
        ] {
            assert_eq!((state.follow(&config), &state.waiting[..]), (is_heard, waiting));
        }
    }

    #[test]
    fn a_file_that_was_replaced_is_another_one() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pensieve.toml");
        let candidates = [folder.path().join("other.toml"), file.clone()];
        let none = Stamp::of(&candidates);
        fs::write(&file, "a").unwrap();
        let first = Stamp::of(&candidates);
        fs::write(folder.path().join("new"), "b").unwrap();
        fs::rename(folder.path().join("new"), &file).unwrap();
        let second = Stamp::of(&candidates);
        assert!(none != first && first != second && second == Stamp::of(&candidates));
    }
}
