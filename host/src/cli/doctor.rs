//! `pensieve doctor`: what works on this machine and what does not, found by trying it.

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
};
use crate::config::{Config, Model, Source, units};
use pensieve_protocol::{
    job::{Event, Failure, Job},
    outside::Outside,
    wire::Loaded,
};
use pensieve_server::{
    fleet::{self, Fleet, Update, plugins::Status},
    hub::Hub,
};

const FOLDER_ENTRIES_MAX: usize = 100_000;

/// Tell what works on this machine, and what does not.
///
/// It looks at the configuration, plugins, devices, memory, port and caches, and has a model generate one token. The exit code
/// is 1 if something is broken.
#[derive(Args)]
pub(super) struct Doctor {
    #[command(flatten)]
    common: CommonArgs,
}

/// What was found, line by line.
#[derive(Default)]
struct Findings {
    text: String,
    broken: usize,
}

impl Findings {
    fn good(&mut self, what: &str, line: &str) {
        self.add("ok", what, line);
    }

    fn odd(&mut self, what: &str, line: &str) {
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
        let mut found = Findings::default();
        program(&mut found);
        devices(&mut found);
        match self.common.resolve(&[]) {
            Ok(resolved) => self.examine(&mut found, &resolved)?,
            Err(error) => error.lines.iter().for_each(|line| found.broken("configuration", line)),
        }
        super::terminal::print(&found.text)?;
        match found.broken {
            0 => Ok(()),
            1 => Err(CliError::new(Exit::Failed, "something is broken, see !! above")),
            count => Err(CliError::new(Exit::Failed, format!("{count} things are broken, see !! above"))),
        }
    }

    fn examine(&self, found: &mut Findings, resolved: &ResolvedConfig) -> CliResult {
        let config = &resolved.config;
        match &resolved.file {
            Some(file) => found.good("configuration", &Outside::path(&file).to_string()),
            None => found.good("configuration", "none; everything is as it comes"),
        }
        home(found, &config.home);
        config.server.listen.iter().for_each(|listen| port(found, config, listen));
        caches(found, config);
        super::runtime()?.block_on(models(found, config));
        Ok(())
    }
}

fn program(found: &mut Findings) {
    let path = std::env::current_exe().map_or_else(|error| error.to_string(), |path| Outside::path(&path).to_string());
    let (system, machine) = (std::env::consts::OS, std::env::consts::ARCH);
    found.good("pensieve", &format!("{} for {system} on {machine}, {path}", env!("CARGO_PKG_VERSION")));
}

/// What the system says there is. Whether a plugin can use it, only a plugin can tell: see `auto`.
fn devices(found: &mut Findings) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut devices = vec![format!("cpu with {threads} threads")];
    if cfg!(target_os = "macos") {
        devices.push("metal:0".into());
    }
    let numbered = |name: &str| name.strip_prefix("nvidia").and_then(|number| number.parse::<u32>().ok());
    let entries = fs::read_dir("/dev").into_iter().flatten().flatten();
    let mut cuda: Vec<u32> = entries.filter_map(|entry| numbered(entry.file_name().to_str()?)).collect();
    cuda.sort_unstable();
    devices.extend(cuda.iter().map(|number| format!("cuda:{number}")));
    found.good("devices", &devices.join(", "));
}

fn home(found: &mut Findings, home: &Path) {
    let probe = home.join(format!(".doctor.{}", std::process::id()));
    let tried = fs::create_dir_all(home).and_then(|()| fs::write(&probe, "")).and_then(|()| fs::remove_file(&probe));
    match tried {
        Ok(()) => found.good("home", &Outside::path(&home).to_string()),
        Err(error) => {
            found.broken(
                "home",
                &format!("'{}' cannot be written to: {error}; set PENSIEVE_HOME", Outside::path(&home)),
            );
        }
    }
}

fn port(found: &mut Findings, config: &Config, listen: &str) {
    match TcpListener::bind(listen) {
        Ok(listener) => {
            let open = listener.local_addr().is_ok_and(|address| !address.ip().is_loopback());
            if open && config.server.keys.is_empty() {
                let line = format!("{listen} can be reached from other machines, and there is no key; set server.key");
                found.broken("address", &line);
            } else {
                found.good("address", &format!("{listen} is free"));
            }
        }
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            found.odd("address", &format!("{listen} is taken, perhaps by a pensieve that runs already"));
        }
        Err(error) => found.broken("address", &format!("{listen} cannot be listened at: {error}")),
    }
}

fn caches(found: &mut Findings, config: &Config) {
    let blocks = config.cache.folder.clone().unwrap_or_else(|| config.home.join("cache/blocks"));
    let mut folders: Vec<(&str, PathBuf)> =
        vec![("prompt cache", blocks), ("home's caches", config.home.join("cache"))];
    match Hub::from_environment() {
        Ok(hub) => folders.push(("hub's cache", hub.cache)),
        Err(trouble) => found.broken("hub's cache", &trouble.to_string()),
    }
    for (what, folder) in folders {
        if folder.is_dir() {
            found.good(what, &format!("{}, {}", Outside::path(&folder), units::bytes(bytes_below(&folder))));
        } else {
            found.good(what, &format!("{}, empty", Outside::path(&folder)));
        }
    }
}

/// Plugins, memory, and a model that is really run.
async fn models(found: &mut Findings, config: &Config) {
    // The doctor downloads nothing.
    let mut here: Vec<Model> = Vec::new();
    for model in &config.models {
        match super::models::here(&model.source, &config.home) {
            Some(path) => {
                let source = Source::Path(path);
                here.push(Model { source, adapters: std::collections::BTreeMap::new(), ..model.clone() });
            }
            None if matches!(model.source, Source::Hub(_)) => {
                found
                    .odd("model", &format!("'{}' is not here yet; pensieve pull {} brings it", model.id, model.source));
            }
            None if model.source == Source::Starter => {
                found.odd("model", "this program was built without the starter; name a model");
            }
            None => found.broken("model", &format!("'{}': there is nothing at '{}'", model.id, model.source)),
        }
    }
    let ready = Config {
        models: here,
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
    found.good("memory", &format!("{} for all models together{machine}", units::bytes(memory)));
    let fleet = match Fleet::start(settings).await {
        Ok(fleet) => fleet,
        Err(refusal) => return found.broken("plugins", &refusal.to_string()),
    };
    plugins(found, &fleet, &folders);
    let fenced = fleet.fenced().await;
    fenced.holds.iter().for_each(|what| found.good("fence", what));
    fenced.missing.iter().for_each(|what| found.odd("fence", &format!("missing: {what}")));
    fenced.notes.iter().for_each(|what| found.odd("fence", what));
    for line in config.missing_samplers(&super::sampler_names(&fleet)) {
        found.broken("samplers", &line);
    }
    for model in &ready.models {
        match card(&fleet, &model.id).await {
            Ok(line) => found.good("model", &format!("'{}': {line}", model.id)),
            Err(failure) => found.broken("model", &format!("'{}': {failure}", model.id)),
        }
    }
    if let Some(model) = ready.models.first() {
        match load(&fleet, &model.id).await {
            Ok(Loaded { device, note, .. }) => {
                found.good("device", &format!("'{}' takes {device} for '{}': {note}", model.spec.device, model.id));
            }
            Err(failure) => {
                found.broken("device", &format!("'{}' does not run on '{}': {failure}", model.id, model.spec.device));
            }
        }
    }
    fleet.shutdown(Duration::ZERO).await;
}

fn plugins(found: &mut Findings, fleet: &Fleet, folders: &[PathBuf]) {
    let states = fleet.plugins().snapshot();
    for folder in folders {
        let files =
            folder.canonicalize().map(|path| states.iter().filter(|state| state.file.starts_with(&path)).count());
        match files {
            Ok(1) => found.good("plugin folder", &format!("{}, 1 file", Outside::path(&folder))),
            Ok(count) => found.good("plugin folder", &format!("{}, {count} files", Outside::path(&folder))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                found.odd("plugin folder", &format!("{} is not there, and need not be", Outside::path(&folder)));
            }
            Err(error) => found.broken("plugin folder", &format!("{}: {error}", Outside::path(&folder))),
        }
    }
    let mut ready = 0;
    for state in &states {
        let file = Outside::path(&state.file);
        match &state.status {
            Status::Ready { plugin } => {
                ready += 1;
                found.good("plugin", &format!("{} {}, {file}", plugin.id, plugin.version));
            }
            Status::Shadowed { plugin, by } => {
                found.odd(
                    "plugin",
                    &format!("{} {}, {file}: '{}' comes first", plugin.id, plugin.version, Outside::path(&by)),
                );
            }
            Status::Rejected(refusal) => found.broken("plugin", &format!("{file}: {refusal}")),
            Status::Pending => found.broken("plugin", &format!("{file}: still being looked at")),
            Status::Retired { .. } => {}
        }
    }
    if ready == 0 {
        let folders: Vec<String> = folders.iter().map(|folder| format!("'{}'", Outside::path(&folder))).collect();
        found.broken("plugins", &format!("none in {}; without one no model runs", folders.join(", ")));
    }
}

async fn card(fleet: &Fleet, id: &str) -> Result<String, Failure> {
    let card = fleet.target(id).await?.card;
    Ok(format!("{}, {} of weights, context {}", card.architecture, units::bytes(card.weight_bytes), card.context))
}

/// Loads a model, has it generate a token, and tells where it is.
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

/// Bytes of all files below a folder; links are not followed.
fn bytes_below(folder: &Path) -> u64 {
    let (mut bytes, mut seen, mut open) = (0_u64, 0, vec![folder.to_path_buf()]);
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            seen += 1;
            if seen > FOLDER_ENTRIES_MAX {
                return bytes;
            }
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_dir() {
                open.push(entry.path());
            } else {
                bytes = bytes.saturating_add(metadata.len());
            }
        }
    }
    bytes
}
