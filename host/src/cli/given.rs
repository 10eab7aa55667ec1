//! The flags that most verbs share, and what comes of them, the variables and the file together.

use clap::Args;
use std::{
    collections::HashSet,
    env,
    path::{Path, PathBuf},
};

use super::{
    exit::{Complaint, Exit},
    progress::Download,
};
use crate::{
    config::{self, Config, Model, Source, Wanted},
    starter,
};
use pensieve_server::{
    fleet::{self, check_adapter_name},
    hub::Hub,
};

#[derive(Args, Clone, Debug)]
pub(super) struct Given {
    /// The configuration's file [default: ./pensieve.toml, else pensieve.toml in $PENSIEVE_HOME].
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A folder with plugins, before the usual ones; may be given again.
    #[arg(long = "plugins", value_name = "DIR")]
    plugins: Vec<PathBuf>,
    /// Where models run: auto, cpu, cuda:N or metal:N.
    #[arg(long)]
    device: Option<String>,
}

#[derive(Args, Clone, Debug, Default)]
pub(super) struct Adapters {
    /// An adapter of a model: a folder as PEFT saves it, a GGUF file, or hf:OWNER/REPO; may be given again. MODEL may be left
    /// out where there is one.
    #[arg(long = "adapter", value_name = "[MODEL:]NAME=SOURCE", value_parser = adapter)]
    adapters: Vec<Adapter>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Adapter {
    model: Option<String>,
    name: String,
    source: String,
}

/// What is set, and where that stands.
pub(super) struct Settled {
    pub(super) config: Config,
    pub(super) file: Option<PathBuf>,
}

impl Given {
    /// Reads the file, then the variables, then these flags and models.
    pub(super) fn settle(&self, models: &[(String, String)]) -> Result<Settled, Complaint> {
        let home = std::path::absolute(config::home()).map_err(|error| Complaint::system("PENSIEVE_HOME", &error))?;
        let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let named = self.config.clone().or_else(|| variable("PENSIEVE_CONFIG").map(PathBuf::from));
        let config::Found { mut config, file, warnings } = config::find(named.as_deref(), &home)?;
        for warning in warnings {
            eprintln!("pensieve: warning: {warning}");
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
                .map_err(|what| Complaint::new(Exit::Usage, format!("--device {device}: {what}")))?;
            config.models.iter_mut().for_each(|model| model.device.clone_from(device));
        }
        Ok(Settled { config, file })
    }

    /// The one model that a flag means, or the first one there is: a name that is configured, or a source.
    pub(super) fn settle_one(&self, model: Option<&str>) -> Result<(Settled, String), Complaint> {
        let mut settled = self.settle(&[])?;
        let Some(text) = model else {
            let id = settled.config.fleet.default_model.clone();
            let id = id.unwrap_or_else(|| settled.config.models[0].id.clone());
            return Ok((settled, id));
        };
        let config = &mut settled.config;
        let (name, _adapter) = text.rsplit_once(':').unwrap_or((text, ""));
        let known = |name: &str| {
            config.models.iter().any(|model| model.id == name)
                || config.variants.iter().any(|variant| variant.id == name)
        };
        if known(text) || known(name) {
            return Ok((settled, text.to_owned()));
        }
        let mut model = Model::new("", source_of(text)?);
        model.id = model.source.id();
        if let Some(device) =
            self.device.clone().or_else(|| env::var("PENSIEVE_DEVICE").ok().filter(|text| !text.is_empty()))
        {
            model.device = device;
        }
        config.variants.clear();
        config.fleet.default_model = None;
        let id = model.id.clone();
        config.models = vec![model];
        Ok((settled, id))
    }
}

impl Adapters {
    /// Their names.
    pub(super) fn names(&self) -> Vec<String> {
        self.adapters.iter().map(|adapter| adapter.name.clone()).collect()
    }

    /// Adds them to their models. Those that name none belong to the model of this name, or to the only one there is.
    pub(super) fn add_to(&self, config: &mut Config, usual: Option<&str>) -> Result<(), Complaint> {
        let mut added = HashSet::new();
        for Adapter { model, name, source } in &self.adapters {
            let wrong = |what: String| Complaint::new(Exit::Usage, format!("--adapter {name}={source}: {what}"));
            let usual = usual.map(|usual| {
                let variant = config.variants.iter().find(|variant| variant.id == usual);
                variant.map_or(usual, |variant| &variant.base).to_owned()
            });
            let id = match (model.clone().or(usual), config.models.as_slice()) {
                (Some(id), _) => id,
                (None, [only]) => only.id.clone(),
                (None, _) => return Err(wrong("there are several models; write MODEL:NAME=SOURCE".into())),
            };
            let known: Vec<String> = config.models.iter().map(|model| model.id.clone()).collect();
            let Some(model) = config.models.iter_mut().find(|model| model.id == id) else {
                return Err(wrong(format!("there is no model '{id}' (there are: {})", known.join(", "))));
            };
            let source = match source_of(source)? {
                Source::Starter => return Err(wrong("'starter' is a model".into())),
                source => source,
            };
            if !added.insert((id, name)) {
                return Err(wrong("there is another --adapter of that name".into()));
            }
            model.adapters.insert(name.clone(), config::Adapter { source, merged: None });
        }
        Ok(())
    }
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

impl Settled {
    /// The fleet that is described. What is on the hub and not here yet is loaded down, and the starter is unpacked.
    pub(super) fn fleet(&self) -> Result<fleet::Config, Complaint> {
        self.config.fleet(|source, wanted| locate(source, wanted, &self.config.home))
    }
}

/// The path of what is wanted from a source, which may have to be loaded down first.
fn locate(source: &Source, wanted: Wanted<'_>, home: &Path) -> Result<PathBuf, Complaint> {
    match source {
        Source::Path(path) => {
            let absolute = std::path::absolute(path).map_err(|error| Complaint::system(path.display(), &error))?;
            match absolute.metadata() {
                Ok(_) => Ok(absolute),
                Err(error) => {
                    let (what, help) = match wanted {
                        Wanted::Checkpoint => (
                            "no checkpoint".to_owned(),
                            "a .gguf file, a folder with config.json and safetensors, hf:OWNER/REPO, or 'starter'",
                        ),
                        Wanted::Adapter { name, .. } => {
                            let help =
                                "a folder with adapter_config.json and safetensors, a .gguf file, or hf:OWNER/REPO";
                            (format!("nothing of adapter '{name}'"), help)
                        }
                    };
                    let line = format!("there is {what} at '{}': {error}; name {help}", path.display());
                    Err(Complaint { lines: vec![line], ..Complaint::system("", &error) })
                }
            }
        }
        Source::Starter => starter::path(home).map_err(|what| Complaint::system("the starter model", &what)),
        Source::Hub(name) => {
            let (hub, mut download) = (Hub::from_environment()?, Download::new());
            let pulled = match (wanted, hub.cached(name)) {
                (Wanted::Adapter { bytes_max, .. }, _) => hub.pull_adapter(name, bytes_max, &mut download)?,
                (Wanted::Checkpoint, Some(pulled)) => pulled,
                (Wanted::Checkpoint, None) => hub.pull(name, &mut download)?,
            };
            Ok(pulled.path)
        }
    }
}

/// The path of a source that is given without a configuration.
pub(super) fn locate_alone(text: &str) -> Result<PathBuf, Complaint> {
    let home = std::path::absolute(config::home()).map_err(|error| Complaint::system("PENSIEVE_HOME", &error))?;
    locate(&source_of(text)?, Wanted::Checkpoint, &home)
}

fn source_of(text: &str) -> Result<Source, Complaint> {
    Source::parse(text, Path::new("")).map_err(|what| Complaint::new(Exit::Usage, what))
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
            let added = Adapters { adapters: vec![adapter(text).unwrap()] }.add_to(&mut config, usual);
            let with = config.models.iter().find(|model| !model.adapters.is_empty()).map(|model| model.id.clone());
            added.map(|()| with.unwrap()).map_err(|complaint| complaint.lines.join(" "))
        };
        assert_eq!(add("poet=x", &["one"], None), Ok("one".into()));
        assert_eq!(add("poet=x", &["one", "two"], Some("two")), Ok("two".into()));
        assert_eq!(add("two:poet=x", &["one", "two"], Some("one")), Ok("two".into()));
        assert!(add("poet=x", &["one", "two"], None).unwrap_err().contains("write MODEL:NAME=SOURCE"));
        assert!(add("three:poet=x", &["one"], None).unwrap_err().contains("no model 'three' (there are: one)"));
        let twice = Adapters { adapters: ["poet=x", "one:poet=y"].map(|text| adapter(text).unwrap()).into() };
        let refused = twice.add_to(&mut models(&["one"]), None).unwrap_err();
        assert!(refused.lines[0].contains("another --adapter of that name"), "{refused:?}");
        assert!(add("poet=starter", &["one"], None).unwrap_err().contains("'starter' is a model"));
    }
}
