//! `pensieve plugins list`: the plugin folders as a server would see them. Every file is inspected in a separate
//! process.

use clap::Args;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{
    common_args::CommonArgs,
    error::{CliError, CliResult},
    packages::certified,
    terminal,
};
use pensieve_protocol::{manifest::Manifest, outside::Outside};
use pensieve_server::fleet::plugins::{Limits, Packaged, PluginFolder, PluginState, Settings, Status};

#[derive(Args)]
#[command(after_help = "Examples:
  pensieve plugins list
  pensieve plugins list --plugins ./target/release
  pensieve plugins list --json | jq -r '.[] | select(.status == \"rejected\") | .file'")]
pub(super) struct List {
    /// Print one line of JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    common: CommonArgs,
}

impl List {
    pub(super) fn run(self) -> CliResult {
        let config = self.common.resolve(&[])?.config;
        let mut settings = Settings::new(&config.plugins.folders, &config.home);
        settings.allow = config.plugins.allow;
        // A longer `settle` is meant for servers, and must not delay this listing.
        settings.limits = Limits { settle: settings.limits.settle, ..config.plugins.limits };
        let folders: Vec<String> =
            settings.folders.iter().map(|folder| format!("'{}'", Outside::path(&folder))).collect();
        let opened = async { PluginFolder::open(settings).await.map(|folder| (folder.snapshot(), folder.packaged())) };
        let (states, packages) = super::runtime()?.block_on(opened)?;
        let package = |state: &PluginState| packages.get(state.sha256.as_deref()?);
        if self.json {
            let entries: Result<Vec<Value>, _> = states.iter().map(|state| entry(state, package(state))).collect();
            let line = serde_json::to_string(&entries.map_err(|error| CliError::system("the list", &error.into()))?);
            return terminal::say_json(&line.map_err(|error| CliError::system("the list", &error.into()))?);
        }
        let text = if states.is_empty() {
            format!("no plugins in {}\n", folders.join(", "))
        } else {
            states.iter().map(|state| render(state) + &package(state).map_or_else(String::new, came_in)).collect()
        };
        terminal::print(&text)
    }
}

/// A plugin as JSON, with its package and certificates as in `/v1/plugins`.
fn entry(state: &PluginState, package: Option<&Packaged>) -> serde_json::Result<Value> {
    let mut entry = serde_json::to_value(state)?;
    if let Some(Packaged { name, version, publisher, source, certificates }) = package {
        entry["package"] = json!({ "name": name, "version": version, "publisher": publisher, "source": source });
        entry["certificates"] = json!(certificates);
    }
    Ok(entry)
}

/// The package of a library, and what its certificates say.
fn came_in(package: &Packaged) -> String {
    let Packaged { publisher, source, certificates, .. } = package;
    let certified: String = certificates.iter().map(|certificate| format!("  {}\n", certified(certificate))).collect();
    format!("  added from {}, by '{}'\n{certified}", Outside::new(source), Outside::new(publisher))
}

fn render(state: &PluginState) -> String {
    let file = Outside::path(&state.file);
    match &state.status {
        Status::Ready { plugin } => provides(plugin, &format!("ready, {file}")),
        Status::Shadowed { plugin, by } => {
            provides(plugin, &format!("not used, as '{}' comes first, {file}", Outside::path(&by)))
        }
        Status::Rejected(refusal) => format!("{file}\n  rejected: {refusal}\n"),
        Status::Pending => format!("{file}\n  still being inspected\n"),
        Status::Retired { plugin, .. } => provides(plugin, &format!("removed, {file}")),
    }
}

fn provides(manifest: &Manifest, state: &str) -> String {
    let mut text = format!("{} {}: {}\n  {state}\n", manifest.id, manifest.version, manifest.description);
    let architectures: Vec<&str> = manifest.architectures.iter().map(|claim| claim.architecture.as_str()).collect();
    for (kind, names) in [
        ("architectures", architectures),
        ("samplers", manifest.samplers.iter().map(String::as_str).collect()),
        ("adapter formats", manifest.adapter_formats.iter().map(String::as_str).collect()),
    ] {
        if !names.is_empty() {
            let _ = writeln!(text, "  {kind}: {}", names.join(", "));
        }
    }
    text
}
