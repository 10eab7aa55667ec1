//! `pensieve ps`, `stop` and `pin`: what a running server has in memory, and what stays there.

use clap::Args;
use serde::Deserialize;
use std::{fmt::Write as _, time::Duration};

use super::{
    error::{CliError, CliResult, Exit},
    server_client::{Method, ServerArgs, ServerClient, in_path},
    terminal,
};
use crate::config::units;
use pensieve_protocol::outside::Outside;

/// How long a pinned model may take to load.
const LOAD_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// Show a running server's models: state, device, memory, requests, and how long each stays.
#[derive(Args)]
#[command(after_help = "Examples:
  pensieve ps
  pensieve ps --url http://127.0.0.1:11434
  pensieve ps --json | jq -r '.models[] | select(.state == \"ready\") | .id'")]
pub(super) struct Ps {
    /// Print one line of JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Unload a model of a running server. Running answers finish first, and the next request loads it again.
#[derive(Args)]
#[command(after_help = "Examples:
  pensieve stop pensieve-starter
  pensieve stop --all")]
pub(super) struct Stop {
    /// The models' ids.
    #[arg(value_name = "MODEL", required_unless_present = "all", conflicts_with = "all")]
    models: Vec<String>,
    /// All models that are loaded.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Load a model of a running server and keep it: it makes no room for others and does not leave when it is idle.
///
/// It stays until it is unpinned or stopped, and comes back after a restart.
#[derive(Args)]
#[command(after_help = "Examples:
  pensieve pin pensieve-starter
  pensieve pin --off pensieve-starter")]
pub(super) struct Pin {
    /// The model's id.
    #[arg(value_name = "MODEL")]
    model: String,
    /// Let it go again when others need the memory, or when it is idle for as long as configured.
    #[arg(long)]
    off: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// The fields of `GET /health` that are used here.
#[derive(Deserialize)]
struct Health {
    models: Vec<Model>,
    memory: Memory,
}

#[derive(Deserialize)]
struct Memory {
    budget_bytes: u64,
    used_bytes: u64,
}

#[derive(Deserialize)]
struct Model {
    id: String,
    state: String,
    reason: Option<String>,
    streams: u64,
    waiting: u64,
    bytes: u64,
    measured_bytes: Option<u64>,
    #[serde(default)]
    pinned: bool,
    expires_in_s: Option<u64>,
    device: Option<String>,
}

/// The fields of `GET /v1/usage` that are used here.
#[derive(Deserialize)]
pub(super) struct Usage {
    #[serde(default)]
    pub(super) data: Vec<LastAnswer>,
    #[serde(default)]
    pub(super) running: Vec<Running>,
}

#[derive(Deserialize)]
pub(super) struct LastAnswer {
    pub(super) model: String,
    pub(super) context_window: u64,
    pub(super) context_tokens: u64,
    pub(super) tokens_per_second: f64,
}

#[derive(Deserialize)]
pub(super) struct Running {
    pub(super) model: String,
    pub(super) seconds: u64,
    pub(super) text: String,
}

#[derive(Deserialize)]
struct Unloaded {
    was_loaded: bool,
    running: u64,
}

impl Ps {
    pub(super) fn run(self) -> CliResult {
        let client = self.server.client()?;
        if self.json {
            let (mut health, usage): (serde_json::Value, serde_json::Value) =
                (client.ask(Method::Get, "/health")?, client.ask(Method::Get, "/v1/usage")?);
            health["requests"] = usage["running"].clone();
            return terminal::say_json(&health.to_string());
        }
        let health: Health = client.ask(Method::Get, "/health")?;
        let usage: Usage = client.ask(Method::Get, "/v1/usage")?;
        terminal::print(&text(&health, &usage))
    }
}

impl Stop {
    pub(super) fn run(self) -> CliResult {
        let client = self.server.client()?;
        let models = if self.all { loaded(&client)? } else { self.models };
        if models.is_empty() {
            return terminal::say("no model is loaded");
        }
        for id in models {
            let answer: Unloaded = client.ask(Method::Post, &format!("/v1/models/{}/unload", in_path(&id)))?;
            terminal::say(&match answer {
                Unloaded { was_loaded: false, .. } => format!("'{id}' is not loaded"),
                Unloaded { running: 0, .. } => format!("'{id}' is unloaded"),
                Unloaded { running, .. } => format!("'{id}' is unloaded once its {running} running answers have ended"),
            })?;
        }
        Ok(())
    }
}

impl Pin {
    pub(super) fn run(self) -> CliResult {
        let client = self.server.client()?.patient(LOAD_TIMEOUT);
        let (path, id) = (format!("/v1/models/{}/pin", in_path(&self.model)), &self.model);
        let method = if self.off { Method::Delete } else { Method::Post };
        let _: serde_json::Value = client.ask(method, &path)?;
        let what = if self.off { "may be unloaded again" } else { "stays loaded until it is unpinned or stopped" };
        terminal::say(&format!("'{id}' {what}"))
    }
}

fn loaded(client: &ServerClient) -> Result<Vec<String>, CliError> {
    let health: Health = client.ask(Method::Get, "/health").map_err(|error| match error.exit {
        Exit::Failed => {
            CliError::new(Exit::Denied, format!("the server at {} tells nothing of its models", client.base))
        }
        _ => error,
    })?;
    Ok(health.models.into_iter().filter(|model| model.bytes > 0).map(|model| model.id).collect())
}

fn text(health: &Health, usage: &Usage) -> String {
    let mut rows = vec![["MODEL", "STATE", "DEVICE", "MEMORY", "REQUESTS", "STAYS"].map(str::to_owned)];
    for model in &health.models {
        let memory = match (model.bytes, model.measured_bytes) {
            (0, None) => "-".to_owned(),
            (0, Some(peak)) => format!("(needs {})", units::bytes(peak)),
            (claim, None) => units::bytes(claim),
            (claim, Some(peak)) => format!("{} (needs {})", units::bytes(claim), units::bytes(peak)),
        };
        let requests = match (model.streams, model.waiting) {
            (running, 0) => running.to_string(),
            (running, waiting) => format!("{running}, {waiting} wait"),
        };
        rows.push([
            Outside::new(&model.id).to_string(),
            model.state.clone(),
            model.device.clone().unwrap_or_else(|| "-".into()),
            memory,
            requests,
            stays(model),
        ]);
    }
    let mut text = String::new();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..6).map(width).collect();
    for row in &rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        let _ = writeln!(text, "{}", line.trim_end());
    }
    for model in health.models.iter().filter(|model| model.state != "ready") {
        if let Some(reason) = &model.reason {
            let _ = writeln!(text, "{}: {}", Outside::new(&model.id), Outside::new(reason));
        }
    }
    let Memory { budget_bytes, used_bytes } = health.memory;
    let _ = writeln!(text, "\n{} of {} for models are claimed", units::bytes(used_bytes), units::bytes(budget_bytes));
    for Running { model, seconds, text: what } in &usage.running {
        let _ = writeln!(text, "request for {seconds} s on {}: {}", Outside::new(model), Outside::new(what));
    }
    text
}

fn stays(model: &Model) -> String {
    match (model.bytes, model.pinned, model.expires_in_s) {
        (0, false, _) => "-".into(),
        (_, true, _) => "pinned".into(),
        (_, false, None) => "while there is room".into(),
        (_, false, Some(seconds)) if seconds < 120 => format!("{seconds} s without requests"),
        (_, false, Some(seconds)) => format!("{} min without requests", seconds / 60),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn shows_what_is_loaded_and_for_how_long() {
        let model = |id: &str, more: serde_json::Value| {
            let mut model = json!({"id": id, "state": "ready", "streams": 0, "waiting": 0, "bytes": 0});
            model.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            model
        };
        let health = json!({"models": [
            model("a", json!({"bytes": 3 << 20, "measured_bytes": 2 << 20, "device": "cpu", "streams": 2, "expires_in_s": 300})),
            model("b", json!({"bytes": 1 << 20, "device": "cuda:0", "pinned": true, "waiting": 1})),
            model("c", json!({"state": "idle", "measured_bytes": 1 << 20, "reason": "no plugin"})),
        ], "memory": {"budget_bytes": 8 << 20, "used_bytes": 4 << 20}});
        let usage = json!({"running": [{"model": "a", "seconds": 7, "text": "reading 1.0k of 2.0k tokens"}]});
        let shown = text(&serde_json::from_value(health).unwrap(), &serde_json::from_value(usage).unwrap());
        let lines: Vec<String> =
            shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        let expected = [
            "MODEL STATE DEVICE MEMORY REQUESTS STAYS",
            "a ready cpu 3 MiB (needs 2 MiB) 2 5 min without requests",
            "b ready cuda:0 1 MiB 0, 1 wait pinned",
            "c idle - (needs 1 MiB) 0 -",
            "c: no plugin",
            "",
            "4 MiB of 8 MiB for models are claimed",
            "request for 7 s on a: reading 1.0k of 2.0k tokens",
        ];
        assert_eq!(lines, expected, "{shown}");
    }
}
