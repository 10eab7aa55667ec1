//! Flags shared by most subcommands, and the configuration resolved from file, variables and flags.

use clap::Args;
use std::{
    collections::HashSet,
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    error::{CliError, Exit},
    progress::DownloadProgress,
    terminal::tell,
};
use crate::{
    config::{self, Artifact, Config, Model, Source},
    starter,
};
use pensieve_protocol::outside::Outside;
use pensieve_server::{
    fleet::{self, check_adapter_name, default_budget},
    hub::Hub,
};

#[derive(Args, Clone, Debug)]
pub(super) struct CommonArgs {
    /// The configuration file [default: ./pensieve.toml, else pensieve.toml in $PENSIEVE_HOME].
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A folder with plugins, searched before the default ones; may be repeated.
    #[arg(long = "plugins", value_name = "DIR")]
    plugins: Vec<PathBuf>,
    /// Where models run: auto, cpu, cuda:N or metal:N, or several GPUs as cuda:0+cuda:1 or cuda:all.
    #[arg(long)]
    device: Option<String>,
}

#[derive(Args, Clone, Debug, Default)]
pub(super) struct AdapterArgs {
    /// An adapter for a model: a folder saved by PEFT, a GGUF file, or hf:OWNER/REPO; may be repeated. MODEL may be
    /// left out if there is only one.
    #[arg(long = "adapter", value_name = "[MODEL:]NAME=SOURCE", value_parser = adapter)]
    adapters: Vec<Adapter>,
}

/// One `--adapter`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Adapter {
    model: Option<String>,
    name: String,
    source: String,
}

/// The configuration resolved from file, variables and flags.
pub(super) struct ResolvedConfig {
    pub(super) config: Config,
    /// The file that was read, if any.
    pub(super) file: Option<PathBuf>,
}

impl CommonArgs {
    /// Flags that only name a configuration.
    pub(super) fn configured_by(config: Option<PathBuf>) -> Self {
        Self { config, plugins: Vec::new(), device: None }
    }

    /// The configuration that a flag or a variable names.
    pub(super) fn file(&self) -> Option<PathBuf> {
        self.config.clone().or_else(|| variable("PENSIEVE_CONFIG").map(PathBuf::from))
    }

    /// Plugin folders of flags that are not there.
    pub(super) fn missing_plugin_folders(&self) -> impl Iterator<Item = &Path> {
        self.plugins.iter().map(PathBuf::as_path).filter(|folder| !folder.is_dir())
    }

    /// One copy of these flags per device of `--device A,B`.
    pub(super) fn each_device(&self) -> Vec<Self> {
        let Some(devices) = &self.device else { return vec![self.clone()] };
        devices.split(',').map(|device| Self { device: Some(device.trim().to_owned()), ..self.clone() }).collect()
    }

    /// The device that these flags ask for; `auto` if none.
    pub(super) fn device(&self) -> &str {
        self.device.as_deref().unwrap_or("auto")
    }

    /// These flags as a child process takes them.
    pub(super) fn arguments(&self) -> Vec<OsString> {
        let Self { config, plugins, device } = self;
        let config = config.iter().map(|file| ("--config", file.into()));
        let plugins = plugins.iter().map(|folder| ("--plugins", folder.into()));
        let device = device.iter().map(|device| ("--device", device.into()));
        config.chain(plugins).chain(device).flat_map(|(flag, value): (&str, OsString)| [flag.into(), value]).collect()
    }

    /// Applies the file, then the variables, then these flags and `models`, which are pairs of id and source.
    pub(super) fn resolve(&self, models: &[(String, String)]) -> Result<ResolvedConfig, CliError> {
        let home = std::path::absolute(config::home()).map_err(|error| CliError::system("PENSIEVE_HOME", &error))?;
        let config::LoadedFile { mut config, file, warnings } = config::find(self.file().as_deref(), &home)?;
        for warning in warnings {
            tell(format_args!("pensieve: warning: {warning}"));
        }
        for (id, source) in models {
            let source = source_of(source)?;
            match config.models.iter_mut().find(|model| model.id == *id) {
                Some(model) => model.source = source,
                None => config.models.push(Model::new(id, source)),
            }
        }
        if config.models.is_empty() {
            let source = Source::Starter;
            config.models.push(Model::new(source.id(), source));
        }
        config::apply(&mut config, variable)?;
        if !self.plugins.is_empty() {
            config.plugins.folders.clone_from(&self.plugins);
        }
        if let Some(device) = &self.device {
            config::check_device(device)
                .map_err(|what| CliError::new(Exit::Usage, format!("--device {device}: {what}")))?;
            config.models.iter_mut().for_each(|model| model.spec.device.clone_from(device));
        }
        Ok(ResolvedConfig { config, file })
    }

    /// Resolves `--model`, a configured id or a source, to a model id; without the flag it is the default model.
    pub(super) fn resolve_one(&self, model: Option<&str>) -> Result<(ResolvedConfig, String), CliError> {
        let mut resolved = self.resolve(&[])?;
        let Some(text) = model else {
            let id = resolved.config.fleet.default_model.clone();
            let id = id.unwrap_or_else(|| resolved.config.models[0].id.clone());
            return Ok((resolved, id));
        };
        let config = &mut resolved.config;
        let (name, _adapter) = text.rsplit_once(':').unwrap_or((text, ""));
        let known = |name: &str| {
            config.models.iter().any(|model| model.id == name)
                || config.variants.iter().any(|variant| variant.id == name)
        };
        if known(text) || known(name) {
            return Ok((resolved, text.to_owned()));
        }
        let mut model = Model::new("", source_of(text)?);
        model.id = model.source.id();
        if let Some(device) =
            self.device.clone().or_else(|| env::var("PENSIEVE_DEVICE").ok().filter(|text| !text.is_empty()))
        {
            model.spec.device = device;
        }
        config.variants.clear();
        config.fleet.default_model = None;
        let id = model.id.clone();
        config.models = vec![model];
        Ok((resolved, id))
    }
}

impl AdapterArgs {
    /// The adapters' names, in the order of the flags.
    pub(super) fn names(&self) -> Vec<String> {
        self.adapters.iter().map(|adapter| adapter.name.clone()).collect()
    }

    /// Adds each adapter to its model. One without a MODEL goes to `default_model`, else to the only configured model.
    pub(super) fn add_to(&self, config: &mut Config, default_model: Option<&str>) -> Result<(), CliError> {
        let mut added = HashSet::new();
        for Adapter { model, name, source } in &self.adapters {
            let wrong = |what: String| CliError::new(Exit::Usage, format!("--adapter {name}={source}: {what}"));
            let default_model = default_model.map(|default_model| {
                let variant = config.variants.iter().find(|variant| variant.id == default_model);
                variant.map_or(default_model, |variant| &variant.base).to_owned()
            });
            let id = match (model.clone().or(default_model), config.models.as_slice()) {
                (Some(id), _) => id,
                (None, [only]) => only.id.clone(),
                (None, _) => return Err(wrong("there are several models; write MODEL:NAME=SOURCE".into())),
            };
            let known: Vec<String> = config.models.iter().map(|model| model.id.clone()).collect();
            let Some(model) = config.models.iter_mut().find(|model| model.id == id) else {
                return Err(wrong(format!("there is no model '{id}' (there are: {})", known.join(", "))));
            };
            let source = match source_of(source)? {
                Source::Starter => return Err(wrong("'starter' is a model, not an adapter".into())),
                source => source,
            };
            if !added.insert((id, name)) {
                return Err(wrong("there is another --adapter with that name".into()));
            }
            model.adapters.insert(name.clone(), config::Adapter { source, merged: None });
        }
        Ok(())
    }
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

fn adapter(argument: &str) -> Result<Adapter, String> {
    let Some((left, source)) = argument.split_once('=').filter(|(_, source)| !source.is_empty()) else {
        return Err("it has to be NAME=SOURCE or MODEL:NAME=SOURCE".into());
    };
    let (model, name) = match left.rsplit_once(':') {
        Some((model, name)) => (Some(model.to_owned()), name),
        None => (None, left),
    };
    check_adapter_name(name).map_err(|what| format!("the adapter's name {what}"))?;
    Ok(Adapter { model, name: name.to_owned(), source: source.to_owned() })
}

impl ResolvedConfig {
    /// Converts to the fleet's configuration. Hub models that are not cached are downloaded, and the starter is
    /// unpacked.
    pub(super) fn fleet(&self) -> Result<fleet::Config, CliError> {
        let memory = self.config.fleet.memory.unwrap_or_else(default_budget);
        let mut fleet = self.config.fleet(|source, artifact| locate(source, artifact, &self.config.home, memory))?;
        for (model, of_fleet) in self.config.models.iter().zip(&mut fleet.models) {
            if let Source::Upstream(source) = &model.source {
                let failed = |what| CliError::new(Exit::Usage, format!("model '{}': {what}", model.id));
                of_fleet.upstream = Some(Arc::new(source.resolve().map_err(failed)?));
            }
        }
        Ok(fleet)
    }
}

/// Returns the path of an artifact, downloading it if needed; of several quantizations it takes one that fits `memory`.
fn locate(source: &Source, artifact: Artifact<'_>, home: &Path, memory: u64) -> Result<PathBuf, CliError> {
    match source {
        Source::Path(path) => {
            let absolute = std::path::absolute(path).map_err(|error| CliError::system(Outside::path(&path), &error))?;
            match absolute.metadata() {
                Ok(_) => Ok(absolute),
                Err(error) => {
                    let (what, help) = match artifact {
                        Artifact::Checkpoint => (
                            "no checkpoint".to_owned(),
                            "a .gguf file, a folder with config.json and safetensors, hf:OWNER/REPO, or 'starter'",
                        ),
                        Artifact::Adapter { name, .. } => {
                            let help =
                                "a folder with adapter_config.json and safetensors, a .gguf file, or hf:OWNER/REPO";
                            (format!("no adapter '{name}'"), help)
                        }
                    };
                    let line = format!("there is {what} at '{}': {error}; name {help}", Outside::path(&path));
                    Err(CliError { lines: vec![line], ..CliError::system("", &error) })
                }
            }
        }
        Source::Upstream(_) => {
            let line = format!("'{source}' is no checkpoint, but other servers; name a model with a source");
            Err(CliError::new(Exit::Usage, line))
        }
        Source::Starter => starter::path(home).map_err(|what| CliError::system("the starter model", &what)),
        Source::Hub(name) => {
            let hub = Hub { memory: Some(memory), ..Hub::from_environment()? };
            let mut download = DownloadProgress::new();
            let pulled = match (artifact, hub.cached(name)) {
                (Artifact::Adapter { bytes_max, .. }, _) => hub.pull_adapter(name, bytes_max, &mut download)?,
                (Artifact::Checkpoint, Some(pulled)) => pulled,
                (Artifact::Checkpoint, None) => hub.pull(name, &mut download)?,
            };
            Ok(pulled.path)
        }
    }
}

/// Returns the path of a checkpoint from a source on the command line, without a configuration.
pub(super) fn locate_checkpoint(text: &str) -> Result<PathBuf, CliError> {
    let home = std::path::absolute(config::home()).map_err(|error| CliError::system("PENSIEVE_HOME", &error))?;
    locate(&source_of(text)?, Artifact::Checkpoint, &home, default_budget())
}

fn source_of(text: &str) -> Result<Source, CliError> {
    Source::parse(text, Path::new("")).map_err(|what| CliError::new(Exit::Usage, what))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn adapters_belong_to_a_model() {
        let parsed = |text: &str| adapter(text).map(|adapter| (adapter.model, adapter.name, adapter.source));
        assert_eq!(parsed("poet=a=b").unwrap(), (None, "poet".into(), "a=b".into()));
        assert_eq!(parsed("a:b:poet=c:d").unwrap(), (Some("a:b".into()), "poet".into(), "c:d".into()));
        for wrong in ["poet", "poet=", "=x", "a/b=x", "a:=x"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
        let models = |ids: &[&str]| {
            let mut config = Config::new(std::path::Path::new("/home"));
            config.models = ids.iter().map(|id| Model::new(*id, Source::Starter)).collect();
            config
        };
        let add = |text: &str, ids: &[&str], usual: Option<&str>| {
            let mut config = models(ids);
            let added = AdapterArgs { adapters: vec![adapter(text).unwrap()] }.add_to(&mut config, usual);
            let with = config.models.iter().find(|model| !model.adapters.is_empty()).map(|model| model.id.clone());
            added.map(|()| with.unwrap()).map_err(|error| error.lines.join(" "))
        };
        assert_eq!(add("poet=x", &["one"], None), Ok("one".into()));
        assert_eq!(add("poet=x", &["one", "two"], Some("two")), Ok("two".into()));
        assert_eq!(add("two:poet=x", &["one", "two"], Some("one")), Ok("two".into()));
        assert!(add("poet=x", &["one", "two"], None).unwrap_err().contains("write MODEL:NAME=SOURCE"));
        assert!(add("three:poet=x", &["one"], None).unwrap_err().contains("no model 'three' (there are: one)"));
        let twice = AdapterArgs { adapters: ["poet=x", "one:poet=y"].map(|text| adapter(text).unwrap()).into() };
        let refused = twice.add_to(&mut models(&["one"]), None).unwrap_err();
        assert!(refused.lines[0].contains("another --adapter with that name"), "{refused:?}");
        assert!(add("poet=starter", &["one"], None).unwrap_err().contains("'starter' is a model"));
    }
}
