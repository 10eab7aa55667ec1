//! Routes about the server itself: plugins and health.

use serde_json::{Value, json};

use super::state::AppState;
use crate::{
    dialects::ApiResponse,
    fleet::{
        FleetStats,
        plugins::{PluginState, Status},
    },
};
use pensieve_protocol::{manifest::Manifest, outside::Outside};

/// `GET /v1/plugins`: every file in the plugin folders with its status.
pub(super) fn plugins(app: &AppState) -> ApiResponse {
    let plugins: Vec<Value> = app.chats.fleet().plugins().snapshot().iter().map(plugin).collect();
    ApiResponse::json(&json!({ "object": "list", "data": plugins }))
}

/// `GET /`, for people with a browser.
pub(super) fn greeting() -> ApiResponse {
    let text = "This is Pensieve, an inference server that speaks Anthropic's, OpenAI's and Ollama's APIs.\n\n\
        POST /v1/messages\nPOST /v1/chat/completions\nPOST /v1/responses\nPOST /api/chat\nGET  /v1/models\nGET  /openapi.json   everything that is served\n";
    ApiResponse::text("text/plain; charset=utf-8", text)
}

/// `GET /health`. Without a key the response does not mention models.
pub(super) async fn health(app: &AppState, is_known: bool) -> ApiResponse {
    if !is_known {
        return ApiResponse::json(&json!({ "status": "ok" }));
    }
    let FleetStats { memory_budget, memory_used, models } = app.chats.fleet().stats(false).await;
    let models: Vec<Value> = models
        .iter()
        .map(|model| {
            json!({
                "id": model.id,
                "state": model.state,
                "reason": model.reason,
                "streams": model.streams,
                "waiting": model.waiting,
                "workers": model.workers,
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
        })
        .collect();
    let fence = app.chats.fleet().fenced().await;
    let memory = json!({ "budget_bytes": memory_budget, "used_bytes": memory_used });
    ApiResponse::json(&json!({
        "status": "ok", "version": env!("CARGO_PKG_VERSION"), "models": models, "memory": memory,
        "fence": fence,
    }))
}

fn plugin(state: &PluginState) -> Value {
    let mut entry = json!({ "object": "plugin", "file": state.file, "sha256": state.sha256 });
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
}
