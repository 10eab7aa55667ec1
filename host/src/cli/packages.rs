//! `pensieve plugins add`, `remove`, `update`, `outdated` and `search`: packages of plugins, from an index, a URL or a
//! file.

pub(super) mod certificate;
mod keys;
mod own;
pub(super) mod pack;
pub(super) mod publish;

use std::{env, fs::File, path::Path};

use clap::Args;
use jiff::Timestamp;
use semver::Version;
use serde_json::json;

use super::{
    common_args::CommonArgs,
    error::{CliError, CliResult, Exit},
    inspect,
    progress::DownloadProgress,
    terminal::{say, say_json, tell},
};
use pensieve_packages::{
    Added, Bundled, Certificate, Environment, Found, Host, IndexSource, PackageError, PackageErrorKind, Request,
    Settings, Store, Update,
};
use pensieve_protocol::{manifest::Manifest, outside::Outside};
use pensieve_server::hub::{self, HubError, HubErrorKind};

/// Flags of all commands that ask indexes.
#[derive(Args)]
struct IndexArgs {
    /// The configuration file, which names indexes and publishers [default: as for serve].
    #[arg(long, value_name = "FILE")]
    config: Option<std::path::PathBuf>,
    /// An index to ask instead of the configured ones, a folder or an https:// URL; may be repeated.
    #[arg(long = "index", value_name = "LOCATION")]
    indexes: Vec<String>,
    /// Print one line of JSON.
    #[arg(long)]
    json: bool,
}

/// Install plugins: from an index by name, or from a URL or a file.
///
/// A package's signature, its publisher's key and the digest of its library are checked before the library is put into
/// $PENSIEVE_HOME/plugins, where a running server picks it up. Without a name, what plugins.lock lists is installed again.
#[derive(Args)]
#[command(after_help = "Examples:
  pensieve plugins add granite
  pensieve plugins add granite@1.2.0 --index ./index
  pensieve plugins add https://example.org/granite-1.2.0.pensieve
  pensieve plugins add ./granite-1.2.0.pensieve")]
pub(super) struct Add {
    /// NAME, NAME@VERSION, a URL or a file.
    #[arg(value_name = "PACKAGE")]
    packages: Vec<String>,
    /// The variant to install: cpu, cuda or metal [default: the one that is installed, else the best one for this machine].
    #[arg(long)]
    variant: Option<String>,
    #[command(flatten)]
    from: IndexArgs,
}

/// Remove plugins that were added.
#[derive(Args)]
pub(super) struct Remove {
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

/// Replace plugins by their newest releases: all that an index has, or those that are named.
///
/// A newer release of a family that came with the program is put into $PENSIEVE_HOME/plugins, which comes before the program's
/// own; once the program is newer, it is removed there.
#[derive(Args)]
pub(super) struct UpdatePlugins {
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    #[command(flatten)]
    from: IndexArgs,
}

/// List plugins, added ones and the program's own, of which an index has a newer release.
#[derive(Args)]
pub(super) struct ListOutdated {
    #[command(flatten)]
    from: IndexArgs,
}

/// Search the indexes by name, description, architecture, or the name that a checkpoint goes by.
#[derive(Args)]
#[command(after_help = "Examples:
  pensieve plugins search
  pensieve plugins search granite
  pensieve plugins search GraniteForCausalLM")]
pub(super) struct Search {
    /// Words that all have to be found; without any, everything is listed.
    #[arg(value_name = "WORD")]
    words: Vec<String>,
    #[command(flatten)]
    from: IndexArgs,
}

impl Add {
    pub(super) fn run(self) -> CliResult {
        let requests = self.packages.iter().map(|text| Request::parse(text)).collect::<Result<Vec<_>, _>>()?;
        let environment = Terminal;
        let mut store = self.from.store(&environment, self.variant)?;
        if requests.is_empty() {
            let restored = store.restore();
            if restored.is_empty() {
                tell("everything that plugins.lock lists is installed");
            }
            let mut failed = None;
            for (locked, added) in restored {
                match added {
                    Ok(added) => self.from.show(&added)?,
                    Err(error) => {
                        tell(format_args!("{locked} is not installed: {error}"));
                        failed = Some(error);
                    }
                }
            }
            return failed
                .map_or(Ok(()), |error| Err(CliError::new(exit_of(error.kind), "not everything could be installed")));
        }
        requests.iter().try_for_each(|request| self.from.show(&store.add(request)?))
    }
}

impl Remove {
    pub(super) fn run(self) -> CliResult {
        let environment = Terminal;
        let from = IndexArgs { config: None, indexes: Vec::new(), json: false };
        let mut store = from.store(&environment, None)?;
        self.names.iter().try_for_each(|name| say(&format!("removed {}", store.remove(name)?)))
    }
}

impl UpdatePlugins {
    pub(super) fn run(self) -> CliResult {
        let environment = Terminal;
        let mut store = self.from.store(&environment, None)?;
        let mut failed = None;
        for update in store.update(&self.names)? {
            match update {
                Update::Updated(added) => self.from.show(&added)?,
                Update::Newest(locked) => tell(format_args!("{locked} is the newest")),
                Update::Superseded { locked, by } => {
                    tell(format_args!("{locked} is removed: the program itself brings {} {by}", locked.name));
                }
                Update::Failed { name, error } => {
                    tell(format_args!("{name} stays as it is: {error}"));
                    failed = Some(error);
                }
            }
        }
        failed.map_or(Ok(()), |error| Err(CliError::new(exit_of(error.kind), "not everything could be updated")))
    }
}

impl ListOutdated {
    pub(super) fn run(self) -> CliResult {
        let environment = Terminal;
        let outdated = self.from.store(&environment, None)?.outdated()?;
        if self.from.json {
            let lines = outdated.iter().map(|one| {
                json!({
                    "name": one.name, "installed": one.installed.to_string(), "newest": one.newest.to_string(),
                    "index": one.index,
                })
            });
            return say_json(&json!(lines.collect::<Vec<_>>()).to_string());
        }
        if outdated.is_empty() {
            tell("all plugins from indexes are the newest that run here");
        }
        outdated.iter().try_for_each(|one| say(&format!("{} {} -> {}", one.name, one.installed, one.newest)))
    }
}

impl Search {
    pub(super) fn run(self) -> CliResult {
        let environment = Terminal;
        let found = self.from.store(&environment, None)?.search(&self.words)?;
        if self.from.json {
            let lines = found.iter().map(
                |Found { index, release, unfit }| json!({"index": index, "manifest": release.manifest, "unfit": unfit}),
            );
            return say_json(&json!(lines.collect::<Vec<_>>()).to_string());
        }
        if found.is_empty() {
            return Err(CliError::new(Exit::Absent, "no index has a plugin with these words"));
        }
        found.iter().try_for_each(|found| say(&described(found)))
    }
}

impl IndexArgs {
    fn store<'a>(&self, environment: &'a Terminal, variant: Option<String>) -> Result<Store<'a>, CliError> {
        let config = CommonArgs::configured_by(self.config.clone()).resolve(&[])?.config;
        let (mut known, mut bundled) = (config.plugins.indexes, Bundled::default());
        if let Some((index, plugins)) = own::own_index() {
            known.push(index);
            bundled = plugins;
        }
        let indexes = match &self.indexes[..] {
            [] => known,
            given => given.iter().map(|location| self.index(location, &known)).collect(),
        };
        let settings = Settings { indexes, publishers: config.plugins.publishers, bundled };
        Ok(Store::open(host(&config.home, variant)?, settings, environment)?)
    }

    /// An index of the command line, with the configured key if it is configured, too.
    fn index(&self, location: &str, configured: &[IndexSource]) -> IndexSource {
        let is_url = location.contains("://");
        let path = || std::path::absolute(location).map(|path| path.to_string_lossy().into_owned());
        let location = if is_url { location.to_owned() } else { path().unwrap_or_else(|_| location.to_owned()) };
        let asked = IndexSource::new(&location, None);
        configured.iter().find(|index| index.location == asked.location).cloned().unwrap_or(asked)
    }

    fn show(&self, added: &Added) -> CliResult {
        let Added { locked, manifest, file, before, is_new } = added;
        if self.json {
            let line = json!({
                "name": locked.name, "version": locked.version.to_string(), "file": file, "variant": locked.variant,
                "publisher": locked.publisher, "is_new": is_new,
                "before": before.as_ref().map(ToString::to_string),
            });
            return say_json(&line.to_string());
        }
        let by = format!("by '{}', {}, {}", locked.publisher.name, manifest.license, locked.variant);
        let what = match (is_new, before) {
            (_, Some(before)) => format!("updated {} from {before} to {} ({by})", locked.name, locked.version),
            (true, None) => format!("added {locked} ({by})"),
            (false, None) => format!("{locked} is installed already ({by})"),
        };
        for need in &manifest.needs {
            tell(format_args!("{} needs more than the fence allows: {need}", locked.name));
        }
        say(&format!("{what}\n  {}", file.display()))
    }
}

fn described(Found { index, release, unfit }: &Found) -> String {
    let manifest = &release.manifest;
    let plugin = &manifest.plugin;
    let names = plugin.architectures.iter().map(|claim| claim.architecture.as_str());
    let names: Vec<&str> = names.chain(plugin.samplers.iter().map(String::as_str)).collect();
    let certified: Vec<String> =
        manifest.certificates.iter().map(|certificate| format!("\n  {}", certified(certificate))).collect();
    let unfit = unfit.as_ref().map_or_else(String::new, |why| format!("\n  cannot be added: {why}"));
    format!(
        "{} {} by '{}' ({index}): {}\n  {}{}{unfit}",
        plugin.id,
        plugin.version,
        manifest.publisher.name,
        plugin.description,
        names.join(", "),
        certified.concat()
    )
}

/// A certificate in a line.
pub(super) fn certified(certificate: &Certificate) -> String {
    let off = certificate.difference.map_or_else(String::new, |off| {
        format!(", logits within {:.2} % of the reference's range", (100.0 * off).max(0.01))
    });
    let rate = certificate.tokens_per_second.map_or_else(String::new, |rate| format!(", {rate:.1} tokens/s"));
    let name = if certificate.model.is_empty() { &certificate.architecture } else { &certificate.model };
    let text = format!("certified: {name} on {}, {} laws{off}{rate}", certificate.device, certificate.laws);
    Outside::new(&text).to_string()
}

/// This machine, and this program.
pub(super) fn host(home: &Path, variant: Option<String>) -> Result<Host, CliError> {
    let best = if cfg!(target_os = "macos") { &["metal", "cpu"][..] } else { &["cpu"][..] };
    let has_nvidia = Path::new("/dev/nvidiactl").exists();
    let best = has_nvidia.then_some("cuda").into_iter().chain(best.iter().copied()).map(str::to_owned);
    let contract = pensieve_plugin_api::CONTRACT;
    let version = Version::parse(env!("CARGO_PKG_VERSION"));
    Ok(Host {
        home: home.to_owned(),
        target: target(),
        variants: best.collect(),
        variant,
        contract: (contract.major, contract.minor),
        version: version.map_err(|error| CliError::new(Exit::Failed, error.to_string()))?,
        now: Timestamp::now(),
    })
}

/// This machine's operating system and processor, as packages name them.
pub(super) fn target() -> String {
    format!("{}-{}", env::consts::OS, env::consts::ARCH)
}

/// The terminal and the network.
pub(super) struct Terminal;

impl Environment for Terminal {
    fn fetch(&self, url: &str, bytes_max: u64, to: &mut File) -> Result<(), PackageError> {
        hub::fetch(url, bytes_max, to, &mut DownloadProgress::new()).map_err(of_network)
    }

    fn inspect(&self, library: &Path) -> Result<Manifest, PackageError> {
        inspect::inspect(library).map_err(|error| PackageError::new(PackageErrorKind::Unfit, error.lines.join("; ")))
    }

    fn say(&self, line: &str) {
        tell(line);
    }
}

fn of_network(error: HubError) -> PackageError {
    let kind = match error.kind {
        HubErrorKind::Usage => PackageErrorKind::Usage,
        HubErrorKind::Absent | HubErrorKind::Denied => PackageErrorKind::Absent,
        HubErrorKind::Network => PackageErrorKind::Network,
        HubErrorKind::Space => PackageErrorKind::Space,
        HubErrorKind::TooLarge | HubErrorKind::Damaged => PackageErrorKind::Damaged,
        HubErrorKind::Cancelled | HubErrorKind::Other => PackageErrorKind::System,
    };
    PackageError::new(kind, error.message).help(error.help)
}

impl From<PackageError> for CliError {
    fn from(error: PackageError) -> Self {
        Self::new(exit_of(error.kind), error.to_string())
    }
}

fn exit_of(kind: PackageErrorKind) -> Exit {
    match kind {
        PackageErrorKind::Usage => Exit::Usage,
        PackageErrorKind::Absent => Exit::Absent,
        PackageErrorKind::Network => Exit::Network,
        PackageErrorKind::Space => Exit::Space,
        PackageErrorKind::Damaged => Exit::Damaged,
        PackageErrorKind::Untrusted => Exit::Denied,
        PackageErrorKind::Unfit => Exit::Plugin,
        PackageErrorKind::Taken => Exit::Taken,
        PackageErrorKind::System => Exit::Failed,
    }
}
