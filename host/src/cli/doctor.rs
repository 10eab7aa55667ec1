//! `pensieve doctor`: finds out what works on this machine by trying it.

use clap::Args;
use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    common_args::{CommonArgs, ResolvedConfig},
    error::{CliError, CliResult, Exit},
    report,
};
use crate::config::{Config, Model, Source, UpstreamSource, units};
use pensieve_protocol::{
    job::{Event, Failure, Job},
    outside::Outside,
    wire::Loaded,
};
use pensieve_server::{
    fleet::{self, Fleet, Update, plugins::Status},
    hub::Hub,
};
use pensieve_worker::process::numa::{self, Placement};

const FOLDER_ENTRIES_MAX: usize = 100_000;

/// Check what works on this machine.
///
/// Checks configuration, plugins, devices, memory, port and caches, and has a model generate one token. The exit code is 1 if
/// something is broken.
///
/// With --report it measures devices, kernels, laws and speed instead, for people who have no such machine.
#[derive(Args)]
pub(super) struct Doctor {
    /// Measure what only this machine can tell, and write it to FILE: JSON without personal data, readable before it is sent.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// The model that the report measures: a configured model's id, a .gguf file, a folder, hf:OWNER/REPO[/FILE], or
    /// 'starter' [default: the first that is configured, else the starter].
    #[arg(long, value_name = "SOURCE", requires = "report")]
    model: Option<String>,
    /// Small sizes; a second instead of a minute without work, and five seconds of answers instead of ten minutes.
    #[arg(long, requires = "report")]
    quick: bool,
    #[command(flatten)]
    common: CommonArgs,
}

/// The report, line by line.
#[derive(Default)]
struct Findings {
    text: String,
    broken: usize,
}

impl Findings {
    fn good(&mut self, what: &str, line: &str) {
        self.add("ok", what, line);
    }

    fn notice(&mut self, what: &str, line: &str) {
        self.add("--", what, line);
    }

    fn broken(&mut self, what: &str, line: &str) {
        self.add("!!", what, line);
        self.broken += 1;
    }

    fn add(&mut self, mark: &str, what: &str, line: &str) {
        self.text.push_str(&format!("{mark}  {what:<14} {line}\n"));
    }
}

impl Doctor {
    pub(super) fn run(self) -> CliResult {
        if let Some(file) = &self.report {
            return report::write(&self.common, self.model.as_deref(), file, self.quick);
        }
        let mut findings = Findings::default();
        program(&mut findings);
        devices(&mut findings);
        match self.common.resolve(&[]) {
            Ok(resolved) => self.examine(&mut findings, &resolved)?,
            Err(error) => error.lines.iter().for_each(|line| findings.broken("configuration", line)),
        }
        super::terminal::print(&findings.text)?;
        match findings.broken {
            0 => Ok(()),
            1 => Err(CliError::new(Exit::Failed, "something is broken, see !! above")),
            count => Err(CliError::new(Exit::Failed, format!("{count} things are broken, see !! above"))),
        }
    }

    fn examine(&self, findings: &mut Findings, resolved: &ResolvedConfig) -> CliResult {
        let config = &resolved.config;
        match &resolved.file {
            Some(file) => findings.good("configuration", &Outside::path(&file).to_string()),
            None => findings.good("configuration", "none; defaults apply"),
        }
        home(findings, &config.home);
        match super::space::line(&config.home) {
            Some(Ok(line)) => findings.good("space", &line),
            Some(Err(line)) => findings.broken("space", &line),
            None => {}
        }
        config.server.listen.iter().for_each(|listen| port(findings, config, listen));
        keys(findings, config);
        caches(findings, config);
        super::runtime()?.block_on(models(findings, config));
        Ok(())
    }
}

fn program(findings: &mut Findings) {
    let path = std::env::current_exe().map_or_else(|error| error.to_string(), |path| Outside::path(&path).to_string());
    let (system, machine) = (std::env::consts::OS, std::env::consts::ARCH);
    findings.good("pensieve", &format!("{} for {system} on {machine}, {path}", env!("CARGO_PKG_VERSION")));
}

/// Devices that the system lists. Only a plugin can tell whether it can use one; the line "device" below shows that.
fn devices(findings: &mut Findings) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut devices = vec![match numa::placement() {
        Placement::OneNode => format!("cpu with {threads} threads"),
        Placement::Interleaved(nodes) => {
            format!("cpu with {threads} threads and memory of {} NUMA nodes in turn", nodes.len())
        }
        Placement::Chosen => format!("cpu with {threads} threads, and memory by the policy that it was started with"),
        Placement::Refused(why) => {
            findings.notice(
                "memory",
                &format!("cannot be taken from NUMA nodes in turn: {why}; try numactl --interleave=all"),
            );
            format!("cpu with {threads} threads")
        }
    }];
    if cfg!(target_os = "macos") {
        devices.push("metal:0".into());
    }
    let numbered = |name: &str| name.strip_prefix("nvidia").and_then(|number| number.parse::<u32>().ok());
    let entries = fs::read_dir("/dev").into_iter().flatten().flatten();
    let mut cuda: Vec<u32> = entries.filter_map(|entry| numbered(entry.file_name().to_str()?)).collect();
    cuda.sort_unstable();
    devices.extend(cuda.iter().map(|number| format!("cuda:{number}")));
    findings.good("devices", &devices.join(", "));
}

fn home(findings: &mut Findings, home: &Path) {
    let probe = home.join(format!(".doctor.{}", std::process::id()));
    let tried = fs::create_dir_all(home).and_then(|()| fs::write(&probe, "")).and_then(|()| fs::remove_file(&probe));
    match tried {
        Ok(()) => findings.good("home", &Outside::path(&home).to_string()),
        Err(error) => {
            findings.broken(
                "home",
                &format!("'{}' cannot be written to: {error}; set PENSIEVE_HOME", Outside::path(&home)),
            );
        }
    }
}

fn port(findings: &mut Findings, config: &Config, listen: &str) {
    match TcpListener::bind(listen) {
        Ok(listener) => {
            let is_exposed = listener.local_addr().is_ok_and(|address| !address.ip().is_loopback());
            if is_exposed && !config.server.has_keys() {
                let line = format!("{listen} can be reached from other machines, and there is no key; set server.key");
                findings.broken("address", &line);
            } else {
                findings.good("address", &format!("{listen} is free"));
            }
        }
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            findings.notice("address", &format!("{listen} is taken, perhaps by a pensieve that is already running"));
        }
        Err(error) => findings.broken("address", &format!("cannot listen on {listen}: {error}")),
    }
}

/// Lists the names of keys; nothing else of them is for other eyes.
fn keys(findings: &mut Findings, config: &Config) {
    let own = (!config.server.keys.is_empty()).then_some("server.key");
    let named = config.server.named_keys.iter().map(|named| named.name.as_str());
    let names: Vec<&str> = own.into_iter().chain(named).collect();
    if !names.is_empty() {
        findings.good("keys", &names.join(", "));
    }
}

fn caches(findings: &mut Findings, config: &Config) {
    let blocks = config.cache.folder.clone().unwrap_or_else(|| config.home.join("cache/blocks"));
    let mut folders: Vec<(&str, PathBuf)> =
        vec![("prompt cache", blocks), ("home's caches", config.home.join("cache"))];
    match Hub::from_environment() {
        Ok(hub) => folders.push(("hub's cache", hub.cache)),
        Err(trouble) => findings.broken("hub's cache", &trouble.to_string()),
    }
    for (what, folder) in folders {
        if folder.is_dir() {
            findings.good(what, &format!("{}, {}", Outside::path(&folder), units::bytes(bytes_below(&folder))));
        } else {
            findings.good(what, &format!("{}, empty", Outside::path(&folder)));
        }
    }
}

/// Checks plugins, memory and cards, and runs one model.
async fn models(findings: &mut Findings, config: &Config) {
    // The doctor downloads nothing.
    let mut local: Vec<Model> = Vec::new();
    for model in &config.models {
        if let Some(handover) = &model.handover {
            findings.good("handover", &format!("'{}' {}", model.id, handover.told()));
        }
        if let Source::Upstream(source) = &model.source {
            upstream(findings, &model.id, source);
            continue;
        }
        match super::models::local_path(&model.source, &config.home) {
            Some(path) => {
                let source = Source::Path(path);
                local.push(Model { source, adapters: std::collections::BTreeMap::new(), ..model.clone() });
            }
            None if matches!(model.source, Source::Hub(_)) => {
                findings.notice(
                    "model",
                    &format!("'{}' is not downloaded yet; run pensieve pull {}", model.id, model.source),
                );
            }
            None if model.source == Source::Starter => {
                findings.notice("model", "this program was built without the starter; name a model");
            }
            None => findings.broken("model", &format!("'{}': there is nothing at '{}'", model.id, model.source)),
        }
    }
    let ready = Config {
        models: local,
        variants: Vec::new(),
        cache: crate::config::CacheSettings { folder: None, budget: 0 },
        ..config.clone()
    };
    let Ok(mut settings) = ready.fleet(|source, _| match source {
        Source::Path(path) => Ok(path.clone()),
        other => Err(other.to_string()),
    }) else {
        return;
    };
    settings.default_model = None;
    let (memory, folders) = (settings.memory_bytes, settings.plugins.folders.clone());
    let machine = fleet::installed_bytes()
        .map_or_else(String::new, |bytes| format!(", of {} in this machine", units::bytes(bytes)));
    findings.good("memory", &format!("{} for all models together{machine}", units::bytes(memory)));
    let fleet = match Fleet::start(settings).await {
        Ok(fleet) => fleet,
        Err(refusal) => return findings.broken("plugins", &refusal.to_string()),
    };
    plugins(findings, &fleet, &folders);
    let fenced = fleet.fenced().await;
    fenced.holds.iter().for_each(|what| findings.good("fence", what));
    fenced.missing.iter().for_each(|what| findings.notice("fence", &format!("missing: {what}")));
    fenced.notes.iter().for_each(|what| findings.notice("fence", what));
    for line in config.missing_samplers(&super::sampler_names(&fleet)) {
        findings.broken("samplers", &line);
    }
    for model in &ready.models {
        match card(&fleet, &model.id).await {
            Ok(line) => findings.good("model", &format!("'{}': {line}{}", model.id, needed(&fleet, &model.id).await)),
            Err(failure) => findings.broken("model", &format!("'{}': {failure}", model.id)),
        }
    }
    if let Some(model) = ready.models.first() {
        match load(&fleet, &model.id).await {
            Ok(Loaded { device, note, .. }) => {
                findings.good("device", &format!("'{}' takes {device} for '{}': {note}", model.spec.device, model.id));
            }
            Err(failure) => {
                findings
                    .broken("device", &format!("'{}' does not run on '{}': {failure}", model.id, model.spec.device));
            }
        }
    }
    fleet.shutdown(Duration::ZERO).await;
}

/// Lists what may leave this machine, and tries to read its keys; nothing is sent.
fn upstream(findings: &mut Findings, id: &str, source: &UpstreamSource) {
    let line = format!("'{id}' {}", source.upstream.told());
    match source.resolve() {
        Ok(upstream) if upstream.shows_key() => {
            findings.broken("upstream", &format!("{line}; its key can be read on the way, use https://"));
        }
        Ok(_) => findings.good("upstream", &line),
        Err(what) => findings.broken("upstream", &format!("'{id}': {what}")),
    }
}

fn plugins(findings: &mut Findings, fleet: &Fleet, folders: &[PathBuf]) {
    let states = fleet.plugins().snapshot();
    for folder in folders {
        let files =
            folder.canonicalize().map(|path| states.iter().filter(|state| state.file.starts_with(&path)).count());
        match files {
            Ok(1) => findings.good("plugin folder", &format!("{}, 1 file", Outside::path(&folder))),
            Ok(count) => findings.good("plugin folder", &format!("{}, {count} files", Outside::path(&folder))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                findings.notice("plugin folder", &format!("{} does not exist, which is fine", Outside::path(&folder)));
            }
            Err(error) => findings.broken("plugin folder", &format!("{}: {error}", Outside::path(&folder))),
        }
    }
    let mut ready = 0;
    for state in &states {
        let file = Outside::path(&state.file);
        match &state.status {
            Status::Ready { plugin } => {
                ready += 1;
                findings.good("plugin", &format!("{} {}, {file}", plugin.id, plugin.version));
            }
            Status::Shadowed { plugin, by } => {
                findings.notice(
                    "plugin",
                    &format!("{} {}, {file}: '{}' comes first", plugin.id, plugin.version, Outside::path(&by)),
                );
            }
            Status::Rejected(refusal) => findings.broken("plugin", &format!("{file}: {refusal}")),
            Status::Pending => findings.broken("plugin", &format!("{file}: still being inspected")),
            Status::Retired { .. } => {}
        }
    }
    if ready == 0 {
        let folders: Vec<String> = folders.iter().map(|folder| format!("'{}'", Outside::path(&folder))).collect();
        findings.broken("plugins", &format!("none in {}; without one no model runs", folders.join(", ")));
    }
}

async fn card(fleet: &Fleet, id: &str) -> Result<String, Failure> {
    let card = fleet.target(id).await?.card;
    Ok(format!("{}, {} of weights, context {}", card.architecture, units::bytes(card.weight_bytes), card.context))
}

/// How much memory a model has needed so far, if that was measured.
async fn needed(fleet: &Fleet, id: &str) -> String {
    let measured = fleet.measured(id).await.ok().flatten();
    measured.map_or_else(String::new, |bytes| format!(", has needed {} of memory", units::bytes(bytes)))
}

/// Loads a model and has it generate one token; returns what it reports about itself.
async fn load(fleet: &Fleet, id: &str) -> Result<Loaded, Failure> {
    let job = Job { tokens: vec![1, 2, 3], max_tokens: 1, ignore_end_of_turn: true, ..Job::default() };
    let mut stream = fleet.submit_to(id, job)?;
    while let Some(update) = stream.next().await {
        if let Update::Event(Event::Failed(failure)) = update {
            return Err(failure);
        }
    }
    let stats: fleet::FleetStats = fleet.stats(false).await;
    Ok(stats.models.into_iter().find_map(|model| model.loaded.filter(|_| model.id == id)).unwrap_or_default())
}

/// Bytes of all files below a folder, up to `FOLDER_ENTRIES_MAX` entries; links are not followed.
fn bytes_below(folder: &Path) -> u64 {
    let (mut bytes, mut entries, mut pending) = (0_u64, 0, vec![folder.to_path_buf()]);
    while let Some(folder) = pending.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            entries += 1;
            if entries > FOLDER_ENTRIES_MAX {
                return bytes;
            }
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_dir() {
                pending.push(entry.path());
            } else {
                bytes = bytes.saturating_add(metadata.len());
            }
        }
    }
    bytes
}
