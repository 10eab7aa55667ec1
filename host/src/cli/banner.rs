//! The startup banner of `serve`: address, models, and how to use them from Claude Code. Shown on terminals only;
//! programs have the one line on standard output, and the log.

use std::{
    collections::HashSet, fmt::Write, io::IsTerminal, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration,
};
use tokio::time::sleep;

use super::{
    common_args::ResolvedConfig,
    progress::LoadProgress,
    terminal::{tell, tell_part},
};
use crate::config::units;
use pensieve_protocol::outside::Outside;
use pensieve_server::{
    fleet::{
        Fleet, ModelState,
        plugins::{PluginState, Status},
    },
    http::LOCAL_KEY,
};

/// How often the progress of loads is polled.
const POLL_EVERY: Duration = Duration::from_millis(250);

/// Facts for the banner that the fleet does not know.
pub(super) struct BannerInfo {
    file: Option<PathBuf>,
    has_key: bool,
}

impl BannerInfo {
    pub(super) fn new(resolved: &ResolvedConfig) -> Self {
        Self { file: resolved.file.clone(), has_key: resolved.config.server.has_keys() }
    }
}

/// Prints the banner, then reports the progress of every load and where the model ended up.
pub(super) async fn show(fleet: Arc<Fleet>, address: SocketAddr, info: BannerInfo) {
    if !std::io::stderr().is_terminal() {
        return;
    }
    tell_part(text(&fleet, address, &info).await);
    let (mut reported, mut loading) = (HashSet::new(), LoadProgress::default());
    loop {
        let models = fleet.stats(false).await.models;
        match models.iter().find_map(|model| Some((&model.id, model.progress.as_ref()?))) {
            Some((id, load)) => loading.reach(load.done, load.total, &format!("model '{id}': {}", load.what)),
            None => loading.end(),
        }
        for model in models {
            let Some(loaded) = model.loaded.filter(|_| model.state == ModelState::Ready) else { continue };
            if reported.insert((model.id.clone(), model.loads)) {
                tell(format_args!(
                    "model '{}' is on {}: {} of weights, {} for sequences of up to {} tokens",
                    model.id,
                    loaded.device,
                    units::bytes(loaded.weight_bytes),
                    units::bytes(loaded.state_bytes),
                    loaded.context
                ));
            }
        }
        sleep(POLL_EVERY).await;
    }
}

async fn text(fleet: &Fleet, address: SocketAddr, info: &BannerInfo) -> String {
    let mut text = String::from("\n");
    let file = info.file.as_ref().map_or_else(|| "none".into(), |file| Outside::path(&file).to_string());
    let _ = writeln!(text, "  configuration  {file}");
    for (index, model) in fleet.models().iter().enumerate() {
        let label = if index == 0 { "models" } else { "" };
        let summary = match fleet.elsewhere(&model.id) {
            Ok(Some(elsewhere)) => {
                let _ = writeln!(text, "  {label:<13}  {} {}", model.id, elsewhere.upstream.told());
                continue;
            }
            _ => fleet.target(&model.id).await.map(|target| target.card),
        };
        let summary = match summary {
            Ok(card) => format!("{}, {}, loads on first request", card.architecture, units::bytes(card.weight_bytes)),
            Err(failure) => failure.to_string(),
        };
        let _ = writeln!(text, "  {label:<13}  {}: {summary}", model.id);
    }
    for variant in fleet.variants() {
        let _ = writeln!(text, "  {:<13}  {}: another name for '{}'", "", variant.id, variant.base);
    }
    let _ = writeln!(text, "  plugins        {}", plugins(&fleet.plugins().snapshot()));
    let key = if info.has_key { "the key that is configured" } else { LOCAL_KEY };
    let host =
        if address.ip().is_unspecified() { format!("127.0.0.1:{}", address.port()) } else { address.to_string() };
    let _ = writeln!(text, "\n  Claude Code uses it with\n");
    let _ = writeln!(text, "    export ANTHROPIC_BASE_URL=http://{host}");
    let _ = writeln!(
        text,
        "    export ANTHROPIC_API_KEY={}\n",
        if info.has_key { format!("…  # {key}") } else { key.to_owned() }
    );
    text
}

/// Ready plugins and the number of rejected ones, on one line.
pub(super) fn plugins(states: &[PluginState]) -> String {
    let ready: Vec<&str> = states
        .iter()
        .filter_map(|state| match &state.status {
            Status::Ready { plugin } => Some(plugin.id.as_str()),
            _ => None,
        })
        .collect();
    let rejected = states.iter().filter(|state| matches!(state.status, Status::Rejected(_))).count();
    let mut line = if ready.is_empty() { "none".to_owned() } else { ready.join(", ") };
    if rejected > 0 {
        let _ = write!(line, "; {rejected} rejected: see pensieve doctor");
    }
    line
}
