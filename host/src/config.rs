//! Configuration from the file `pensieve.toml`, environment variables and flags, in ascending precedence.
//!
//! This is the only module that knows the file's keys. The whole file is checked before anything starts, all errors are
//! reported at once with their lines, and the result is the plain settings of fleet and server.
//! `examples/pensieve.toml` documents every key, and a test holds it to that.

mod file;
mod keys;
mod models;
mod reader;
mod server;
mod source;
pub(crate) mod units;
mod upstream;
mod variables;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};
use toml::de::DeTable;

pub use file::{LoadedFile, candidates, find, home};
pub use models::{Adapter, Artifact, Model, Variant, check_device, check_id};
pub use server::{ServerSettings, listen_address};
pub use source::Source;
pub use upstream::UpstreamSource;
pub use variables::{VARIABLES, Variable, apply};

use pensieve_packages::{IndexSource, PublicKey};
use pensieve_protocol::{outside::Outside, wire};
use pensieve_server::fleet;
use reader::{Document, NamedValue, Section};

#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub home: PathBuf,
    pub server: ServerSettings,
    pub plugins: PluginSettings,
    pub fleet: FleetSettings,
    pub cache: CacheSettings,
    pub models: Vec<Model>,
    /// Other names for `models`, each optionally with an adapter or samplers.
    pub variants: Vec<Variant>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PluginSettings {
    /// Searched before the default folders.
    pub folders: Vec<PathBuf>,
    /// SHA-256 digests of the only files that may be loaded; `None` allows any.
    pub allow: Option<Vec<String>>,
    /// Ids of plugins whose workers run with the user's full rights.
    pub unfenced: Vec<String>,
    /// Indexes that `pensieve plugins` adds packages from.
    pub indexes: Vec<IndexSource>,
    /// Keys of the only publishers whose packages are added; empty to trust each at its first use.
    pub publishers: BTreeMap<String, PublicKey>,
    pub limits: fleet::plugins::Limits,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetSettings {
    /// Bytes for all models together; `None` for two thirds of the machine's memory.
    pub memory: Option<u64>,
    /// Time without a request after which a model is unloaded.
    pub idle_timeout: Option<Duration>,
    /// The model for requests with unknown model ids; `None` for the first one.
    pub default_model: Option<String>,
    /// `default` routes unknown names to the default model, `refuse` rejects them.
    pub unknown_models: &'static str,
    pub deadlines: fleet::Deadlines,
    pub restart: fleet::Restart,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheSettings {
    /// `None` for `cache/blocks` in the home.
    pub folder: Option<PathBuf>,
    /// Bytes per model; 0 turns the cache off.
    pub budget: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// One message per error, ready to print.
    pub lines: Vec<String>,
}

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const MS: Duration = Duration::from_millis(1);

impl Config {
    /// One message for each configured sampler that is not among `installed`.
    pub(crate) fn missing_samplers(&self, installed: &[String]) -> Vec<String> {
        let models = self.models.iter().map(|model| (&model.id, &model.samplers));
        let variants = self.variants.iter().map(|variant| (&variant.id, &variant.samplers));
        let stages =
            models.chain(variants).flat_map(|(id, stages)| stages.iter().flatten().map(move |stage| (id, stage)));
        let known = if installed.is_empty() { "none".to_owned() } else { installed.join(", ") };
        let missing = stages.filter(|(_, stage)| !installed.contains(&stage.sampler)).map(|(id, stage)| {
            let name = &stage.sampler;
            format!("model '{id}': no sampler is called '{name}' (installed: {known}); drop its plugin into plugins/")
        });
        missing.collect()
    }

    pub fn new(home: &Path) -> Self {
        Self {
            home: home.to_path_buf(),
            server: ServerSettings::default(),
            plugins: PluginSettings::default(),
            fleet: FleetSettings::default(),
            cache: CacheSettings { folder: None, budget: 4 << 30 },
            models: Vec::new(),
            variants: Vec::new(),
        }
    }

    /// Parses the text of `file`; relative paths in it start at the file's folder.
    pub fn read(text: &str, file: &Path, home: &Path) -> Result<Self, ConfigError> {
        Self::read_with_keys(text, file, home).map(|(config, _)| config)
    }

    /// Like `read`, and also returns every key that exists, as `section.key`.
    fn read_with_keys(text: &str, file: &Path, home: &Path) -> Result<(Self, BTreeSet<String>), ConfigError> {
        let document = Document::new(text);
        let name = |line: String| format!("{}: {line}", Outside::path(&file));
        let table = DeTable::parse(text).map_err(|error| {
            let line = error.span().map(|span| format!(", line {}", document.line(&span))).unwrap_or_default();
            ConfigError { lines: vec![name(format!("not valid TOML: {}{line}", error.message().replace('\n', ", ")))] }
        })?;
        let root = Section::root(&document, &table);
        let mut config = Self::new(home);
        let folder = file.parent().unwrap_or(Path::new(""));
        config.server.read(root.section("server"), folder);
        config.plugins.read(root.section("plugins"), folder);
        config.fleet.read(root.section("fleet"));
        config.cache.read(root.section("cache"), folder);
        (config.models, config.variants) = models::read(&root, folder);
        models::check(&config, &root);
        config.server.named_keys = keys::read(&root);
        keys::check(&config.server, &root);
        root.finish();
        let errors = document.errors();
        if errors.is_empty() {
            Ok((config, document.known()))
        } else {
            Err(ConfigError { lines: errors.into_iter().map(name).collect() })
        }
    }

    /// Converts to the fleet's configuration. `locate` returns the path of an artifact, and may download it.
    pub fn fleet<E>(
        &self,
        mut locate: impl FnMut(&Source, Artifact<'_>) -> Result<PathBuf, E>,
    ) -> Result<fleet::Config, E> {
        let mut config = fleet::Config::new(&self.plugins.folders, &self.home);
        config.plugins.allow.clone_from(&self.plugins.allow);
        config.unfenced.clone_from(&self.plugins.unfenced);
        config.plugins.limits = self.plugins.limits.clone();
        if let Some(bytes) = self.fleet.memory {
            config.memory_bytes = bytes;
        }
        config.idle_timeout = self.fleet.idle_timeout;
        config.deadlines = self.fleet.deadlines;
        config.restart = self.fleet.restart;
        let folder = self.cache.folder.clone().unwrap_or_else(|| self.home.join("cache/blocks"));
        let disk = (self.cache.budget > 0).then_some(wire::DiskTier { folder, bytes: self.cache.budget });
        for model in &self.models {
            config.models.push(model.fleet(disk.clone(), self.server.open_schemas, &mut locate)?);
        }
        config.variants.clone_from(&self.variants);
        let (folders, downloads) = (self.server.adapter_folders.clone(), self.server.adapter_downloads);
        config.sources = fleet::Sources { folders, downloads };
        let first = self.models.first().map(|model| model.id.clone());
        let default = self.fleet.default_model.clone().or(first);
        config.default_model = default.filter(|_| self.fleet.unknown_models == "default");
        Ok(config)
    }
}

impl PluginSettings {
    fn read(&mut self, section: Section<'_, '_>, folder: &Path) {
        let (mut folders, mut allow) = (Vec::new(), Vec::new());
        section.texts("folders", &mut folders);
        section.texts("allow", &mut allow);
        section.texts("unfenced", &mut self.unfenced);
        section.duration("settle", Duration::ZERO..=MINUTE, &mut self.limits.settle);
        section.duration("inspection_timeout", 100 * MS..=10 * MINUTE, &mut self.limits.inspection);
        section.bytes("file_max", 1024..=1 << 40, &mut self.limits.file_bytes_max);
        let home = file::user_home();
        self.folders = folders.iter().map(|text| reader::path(folder, home.as_deref(), text)).collect();
        let is_digest = |text: &String| text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if let Some(invalid) = allow.iter().find(|text| !is_digest(text)) {
            let what = format!("'allow' in [plugins] holds \"{invalid}\", which is not a SHA-256");
            section.note("allow", what, "it takes 64 hexadecimal digits, as sha256sum FILE prints them");
        }
        self.read_indexes(&section, folder);
        self.read_publishers(&section);
        if section.has("allow") {
            self.allow = Some(allow.iter().map(|text| text.to_ascii_lowercase()).collect());
        }
        section.finish();
    }

    /// `[plugins.indexes]`: a folder or URL by name, or a table that also has its key.
    fn read_indexes(&mut self, section: &Section<'_, '_>, folder: &Path) {
        let home = file::user_home();
        for (name, entry, span) in section.named("indexes") {
            let (mut location, mut key) = (String::new(), None);
            match entry {
                NamedValue::Text(text) => location = text,
                NamedValue::Table(entry) => {
                    entry.text("location", &mut location);
                    entry.some_text("key", &mut key);
                    entry.finish();
                }
            }
            let key = key.map(|key| PublicKey::parse(&key)).transpose();
            match (location.is_empty(), key) {
                (true, _) => section.note_at(
                    &span,
                    format!("the index '{name}' in [plugins.indexes] has no location"),
                    "it takes a folder or an https:// URL",
                ),
                (_, Err(error)) => {
                    let what = format!("the key of '{name}' in [plugins.indexes] is not one: {}", error.message);
                    section.note_at(&span, what, "its maintainer publishes it");
                }
                (false, Ok(key)) => {
                    let is_url = location.contains("://");
                    let path = || reader::path(folder, home.as_deref(), &location).to_string_lossy().into_owned();
                    let location = if is_url { location } else { path() };
                    self.indexes.push(IndexSource::new(&location, key));
                }
            }
        }
    }

    /// `[plugins.publishers]`: a public key by name.
    fn read_publishers(&mut self, section: &Section<'_, '_>) {
        for (name, entry, span) in section.named("publishers") {
            let key = match entry {
                NamedValue::Text(key) => PublicKey::parse(&key).ok(),
                NamedValue::Table(_) => None,
            };
            match key {
                Some(key) => drop(self.publishers.insert(name, key)),
                None => section.note_at(
                    &span,
                    format!("the key of '{name}' in [plugins.publishers] is not one"),
                    "a public key is 56 characters of base64, as minisign writes it",
                ),
            }
        }
    }
}

impl FleetSettings {
    fn read(&mut self, section: Section<'_, '_>) {
        section.some_bytes("memory", 64 << 20..=1 << 50, &mut self.memory);
        section.limit("idle_timeout", SECOND..=1000 * HOUR, &mut self.idle_timeout);
        section.some_text("default_model", &mut self.default_model);
        section.word("unknown_models", &["default", "refuse"], &mut self.unknown_models);
        section.duration("probe_timeout", SECOND..=HOUR, &mut self.deadlines.probe);
        section.duration("load_timeout", SECOND..=24 * HOUR, &mut self.deadlines.load);
        section.duration("silence_timeout", 2 * SECOND..=HOUR, &mut self.deadlines.silence);
        section.duration("farewell_timeout", 100 * MS..=HOUR, &mut self.deadlines.drain);
        section.duration("memory_timeout", Duration::ZERO..=HOUR, &mut self.deadlines.memory);
        section.duration("restart_pause", MS..=HOUR, &mut self.restart.pause);
        section.duration("restart_pause_max", MS..=24 * HOUR, &mut self.restart.pause_max);
        section.integer("deaths_max", 1..=1000, &mut self.restart.deaths_max);
        section.duration("deaths_window", SECOND..=24 * HOUR, &mut self.restart.window);
        section.duration("quarantine", SECOND..=1000 * HOUR, &mut self.restart.quarantine);
        if self.restart.pause > self.restart.pause_max {
            let what = "'restart_pause' in [fleet] is longer than 'restart_pause_max'";
            section.note("restart_pause", what, "the pause starts at the former and grows to the latter");
        }
        section.finish();
    }
}

impl CacheSettings {
    fn read(&mut self, section: Section<'_, '_>, folder: &Path) {
        let mut text = None;
        section.some_text("folder", &mut text);
        section.bytes("budget", 0..=1 << 50, &mut self.budget);
        self.folder = text.map(|text| reader::path(folder, file::user_home().as_deref(), &text));
        section.finish();
    }
}

impl Default for FleetSettings {
    fn default() -> Self {
        Self {
            memory: None,
            idle_timeout: None,
            default_model: None,
            unknown_models: "default",
            deadlines: fleet::Deadlines::default(),
            restart: fleet::Restart::default(),
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines.join("\n"))
    }
}

impl std::error::Error for ConfigError {}

#[cfg(test)]
mod tests;
