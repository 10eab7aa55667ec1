//! `pensieve models`: lists the checkpoints on this machine, with what plugins report about them.

use clap::{Args, Subcommand};
use serde::Serialize;
use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{
    common_args::CommonArgs,
    error::{CliError, CliResult},
    terminal,
};
use crate::config::{Config, Model, Source, units};
use pensieve_protocol::card::Card;
use pensieve_server::{
    fleet::{self, Fleet, ModelConfig},
    hub::Hub,
};

#[derive(Subcommand)]
pub(super) enum Models {
    /// List the configured models, and the checkpoints in the hub's cache and in $PENSIEVE_HOME/models.
    List(List),
}

#[derive(Args)]
#[command(after_help = "Examples:
  pensieve models list
  pensieve models list --json | jq -r '.[] | select(.state == \"ready\") | .source'")]
pub(super) struct List {
    /// Print one line of JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    common: CommonArgs,
}

/// One line of the list.
#[derive(Debug, Serialize)]
struct Row {
    /// The model id; `None` if it is not configured.
    id: Option<String>,
    /// The value for `--model`.
    source: String,
    /// `ready`, `not here` or `refused`.
    state: &'static str,
    /// The reason why no plugin serves it.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    architecture: Option<String>,
    context: Option<u32>,
    bytes: u64,
    #[serde(skip)]
    path: Option<PathBuf>,
}

impl Models {
    pub(super) fn run(self) -> CliResult {
        let Self::List(list) = self;
        let resolved = list.common.resolve(&[])?;
        let mut rows = configured(&resolved.config);
        for source in local_checkpoints(&resolved.config.home) {
            let path = local_path(&source, &resolved.config.home);
            if !rows.iter().any(|row| row.path == path) {
                rows.push(row(None, &source, path));
            }
        }
        describe(&mut rows, &resolved.config)?;
        if list.json { terminal::say_json(&json(&rows)?) } else { terminal::print(&table(&rows, &resolved.config)) }
    }
}

fn configured(config: &Config) -> Vec<Row> {
    let row = |model: &Model| row(Some(model.id.clone()), &model.source, local_path(&model.source, &config.home));
    config.models.iter().map(row).collect()
}

fn row(id: Option<String>, source: &Source, path: Option<PathBuf>) -> Row {
    let bytes = path.as_deref().map_or(0, size);
    let state = match source {
        Source::Upstream(_) => "elsewhere",
        _ if path.is_some() => "ready",
        _ => "not here",
    };
    Row { id, source: source.to_string(), state, reason: None, architecture: None, context: None, bytes, path }
}

/// The path of a source if it is on this machine; downloads nothing.
pub(super) fn local_path(source: &Source, home: &Path) -> Option<PathBuf> {
    match source {
        Source::Path(path) => std::path::absolute(path).ok().filter(|path| path.exists()),
        Source::Hub(name) => Hub::from_environment().ok()?.cached(name).map(|pulled| pulled.path),
        Source::Starter => crate::starter::path(home).ok(),
        Source::Upstream(_) => None,
    }
}

/// Checkpoints in `models` of the home and in the hub's cache.
fn local_checkpoints(home: &Path) -> Vec<Source> {
    let models = fs::read_dir(home.join("models")).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_checkpoint = |path: &PathBuf| {
        path.extension().is_some_and(|extension| extension == "gguf") || path.join("config.json").is_file()
    };
    let mut models: Vec<Source> = models.filter(is_checkpoint).map(Source::Path).collect();
    if let Ok(hub) = Hub::from_environment() {
        models.extend(hub.all_cached().into_iter().map(Source::Hub));
    }
    models
}

/// Fills in what plugins report about every checkpoint; each is inspected in a separate process.
fn describe(rows: &mut [Row], config: &Config) -> CliResult {
    let mut fleet = Config { models: Vec::new(), variants: Vec::new(), ..config.clone() }
        .fleet(|_, _| Err(()))
        .unwrap_or_else(|()| fleet::Config::new(&[], &config.home));
    let model = |(index, row): (usize, &Row)| {
        let source = row.path.clone().unwrap_or_default();
        ModelConfig { id: index.to_string(), source, ..ModelConfig::default() }
    };
    fleet.models = rows.iter().enumerate().map(model).collect();
    super::runtime()?.block_on(async {
        let fleet = Fleet::start(fleet).await?;
        for (index, row) in rows.iter_mut().enumerate().filter(|(_, row)| row.path.is_some()) {
            match fleet.target(&index.to_string()).await.map(|target| target.card) {
                Ok(card) => {
                    let Card { architecture, context, .. } = &*card;
                    (row.architecture, row.context) = (Some(architecture.clone()), Some(*context));
                }
                Err(failure) => (row.state, row.reason) = ("refused", Some(failure.to_string())),
            }
        }
        Ok(())
    })
}

fn json(rows: &[Row]) -> Result<String, CliError> {
    serde_json::to_string(rows).map_err(|error| CliError::system("the list", &error.into()))
}

fn table(rows: &[Row], config: &Config) -> String {
    let mut text = String::new();
    let line = |cells: [&str; 6]| {
        format!("{:<24} {:<9} {:>9}  {:<12} {:>8}  {}\n", cells[0], cells[1], cells[2], cells[3], cells[4], cells[5])
    };
    text.push_str(&line(["ID", "STATE", "SIZE", "ARCHITECTURE", "CONTEXT", "SOURCE"]));
    for row in rows {
        let context = row.context.map(|context| context.to_string()).unwrap_or_default();
        let size = if row.path.is_some() { units::bytes(row.bytes) } else { String::new() };
        let id = row.id.as_deref().unwrap_or("-");
        let architecture = row.architecture.as_deref().unwrap_or_default();
        text.push_str(&line([id, row.state, &size, architecture, &context, &row.source]));
        if let Some(reason) = &row.reason {
            text.push_str(&format!("    {reason}\n"));
        }
    }
    for variant in &config.variants {
        let adapter =
            variant.adapter.as_ref().map(|adapter| format!(" with adapter '{}'", adapter.name)).unwrap_or_default();
        text.push_str(&line([&variant.id, "", "", "", "", &format!("another name for '{}'{adapter}", variant.base)]));
    }
    text
}

/// Bytes of a checkpoint: a file with its other parts, or all files in a folder. Links are followed.
fn size(path: &Path) -> u64 {
    let Ok(metadata) = path.metadata() else { return 0 };
    if !metadata.is_dir() {
        return split_size(path).unwrap_or(metadata.len());
    }
    let files = fs::read_dir(path).into_iter().flatten().flatten().filter_map(|entry| entry.path().metadata().ok());
    files.filter(fs::Metadata::is_file).map(|metadata| metadata.len()).sum()
}

/// Bytes of all parts of a split GGUF file; `None` if one is missing.
fn split_size(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_str()?;
    let parts = pensieve_protocol::checkpoint_files::parts(name);
    let sizes = parts.iter().map(|part| Some(path.with_file_name(part).metadata().ok()?.len()));
    sizes.sum()
}
