//! Routes about the server itself: plugins and health.

use serde_json::{Value, json};

use super::state::AppState;
use crate::{
    dialects::ApiResponse,
    fleet::{
        FleetStats, ModelStats,
        plugins::{Packaged, PluginState, Status},
    },
};
use pensieve_protocol::{manifest::Manifest, outside::Outside};

/// `GET /v1/plugins`: every file in the plugin folders with its status.
pub(super) fn plugins(app: &AppState) -> ApiResponse {
    ApiResponse::json(&json!({ "object": "list", "data": plugin_list(app) }))
}

pub(super) fn plugin_list(app: &AppState) -> Vec<Value> {
    let folder = app.chats.fleet().plugins();
    let packages = folder.packaged();
    let package = |state: &PluginState| packages.get(state.sha256.as_ref()?);
    folder.snapshot().iter().map(|state| plugin(state, package(state))).collect()
}

/// `GET /health`. Without a key the response does not mention models.
pub(super) async fn health(app: &AppState, is_known: bool) -> ApiResponse {
    if !is_known {
        return ApiResponse::json(&json!({ "status": "ok" }));
    }
    let FleetStats { memory_budget, memory_used, models } = app.chats.fleet().stats(false).await;
    let models: Vec<Value> = models.iter().map(model).collect();
    let fence = app.chats.fleet().fenced().await;
    let memory = json!({ "budget_bytes": memory_budget, "used_bytes": memory_used });
    ApiResponse::json(&json!({
        "status": "ok", "version": env!("CARGO_PKG_VERSION"), "models": models, "memory": memory,
        "fence": fence,
    }))
}

/// A model's state.
pub(super) fn model(model: &ModelStats) -> Value {
    json!({
        "id": model.id,
        "state": model.state,
        "reason": model.reason,
        "streams": model.streams,
        "waiting": model.waiting,
        "workers": model.workers,
        "pid": model.pid,
        "loads": model.loads,
        "deaths": model.deaths,
        "bytes": model.bytes,
        "measured_bytes": model.measured_bytes,
        "pinned": model.pinned,
        "expires_in_s": model.expires_in_s,
        "progress": model.progress,
        "device": model.loaded.as_ref().map(|loaded| &loaded.device),
        "note": model.loaded.as_ref().map(|loaded| &loaded.note),
    })
}

fn plugin(state: &PluginState, package: Option<&Packaged>) -> Value {
    let mut entry = json!({ "object": "plugin", "file": state.file, "sha256": state.sha256 });
    if let Some(Packaged { name, version, publisher, source, certificates }) = package {
        entry["package"] = json!({ "name": name, "version": version, "publisher": publisher, "source": source });
        entry["certificates"] = json!(certificates);
    }
    let (word, manifest) = match &state.status {
        Status::Pending => ("pending", None),
        Status::Ready { plugin } => ("ready", Some(plugin)),
        Status::Shadowed { plugin, by } => {
            entry["reason"] = format!("'{}' has the same id and comes first", Outside::path(&by)).into();
            ("shadowed", Some(plugin))
        }
        Status::Rejected(refusal) => {
            entry["kind"] = refusal.kind.as_str().into();
            entry["reason"] = refusal.reason.as_str().into();
            entry["help"] = refusal.help.as_str().into();
            ("rejected", None)
        }
        Status::Retired { plugin, in_use } => {
            entry["in_use"] = (*in_use).into();
            ("retired", Some(plugin))
        }
    };
    entry["state"] = word.into();
    if let Some(manifest) = manifest {
        describe(&mut entry, manifest);
    }
    entry
}

fn describe(entry: &mut Value, manifest: &Manifest) {
    entry["id"] = manifest.id.as_str().into();
    entry["version"] = manifest.version.as_str().into();
    entry["description"] = manifest.description.as_str().into();
    entry["toolchain"] = manifest.toolchain.as_str().into();
    entry["sdk"] = manifest.sdk.as_str().into();
    entry["provides"] = json!({
        "architectures": manifest.architectures,
        "samplers": manifest.samplers,
        "adapter_formats": manifest.adapter_formats,
    });
    // The plugin's own words, which were checked to be objects.
    let described = manifest.samplers.iter().zip(&manifest.sampler_descriptions);
    let parsed = described.filter_map(|(name, text)| Some((name.clone(), serde_json::from_str::<Value>(text).ok()?)));
    let described: serde_json::Map<String, Value> = parsed.collect();
    if !described.is_empty() {
        entry["samplers"] = described.into();
    }
}
