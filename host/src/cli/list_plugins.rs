//! `pensieve plugins list`: the plugin folders as a server would see them. Every file is inspected in a separate
//! process.

use clap::Args;
use std::fmt::Write as _;

use super::{
    common_args::CommonArgs,
    error::{CliError, CliResult},
    terminal,
};
use pensieve_protocol::{manifest::Manifest, outside::Outside};
use pensieve_server::fleet::plugins::{Limits, PluginFolder, PluginState, Settings, Status};

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
        let states =
            super::runtime()?.block_on(async { PluginFolder::open(settings).await.map(|folder| folder.snapshot()) })?;
        if self.json {
            let line = serde_json::to_string(&states).map_err(|error| CliError::system("the list", &error.into()))?;
            return terminal::say_json(&line);
        }
        let text = if states.is_empty() {
            format!("no plugins in {}\n", folders.join(", "))
        } else {
            states.iter().map(render).collect()
        };
        terminal::print(&text)
    }
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
