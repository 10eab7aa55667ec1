//! What the server says of itself in JSON: its models, its plugins and its health.

use serde_json::{Value, json};

use super::front::App;
use crate::{
    dialects::{Answer, Dialect, anthropic, openai},
    fleet::{
        FleetStats,
        plugins::{PluginState, Status},
    },
};
use pensieve_protocol::manifest::Manifest;

/// `GET /v1/models`, in the words of the API that the client speaks.
pub(super) fn models(app: &App, dialect: Dialect) -> Answer {
    match dialect {
        Dialect::Anthropic => anthropic::models(&app.chats),
        Dialect::OpenAi => openai::models(&app.chats),
    }
}

/// `GET /v1/models/ID`.
pub(super) fn model(app: &App, dialect: Dialect, id: &str, request_id: &str) -> Answer {
    match dialect {
        Dialect::Anthropic => anthropic::model(&app.chats, id, request_id),
        Dialect::OpenAi => openai::model(&app.chats, id, request_id),
    }
}

/// `GET /v1/plugins`: every file in the plugin folders and what became of it.
pub(super) fn plugins(app: &App) -> Answer {
    let plugins: Vec<Value> = app.chats.fleet().plugins().snapshot().iter().map(plugin).collect();
    answer(&json!({ "object": "list", "data": plugins }))
}

/// `GET /`, for people who come with a browser.
pub(super) fn greeting() -> Answer {
    let text = "This is Pensieve, an inference server that speaks Anthropic's and OpenAI's APIs.\n\n\
        POST /v1/messages\nPOST /v1/chat/completions\nGET  /v1/models\nGET  /openapi.json   everything that is served\n";
    Answer::Whole { status: 200, media_type: "text/plain; charset=utf-8", body: text.into() }
}

/// `GET /health`. Strangers hear that the server is there, and nothing of its models.
pub(super) async fn health(app: &App, is_known: bool) -> Answer {
    if !is_known {
        return answer(&json!({ "status": "ok" }));
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
                "device": model.loaded.as_ref().map(|loaded| &loaded.device),
                "note": model.loaded.as_ref().map(|loaded| &loaded.note),
            })
        })
        .collect();
    let fenced = app.chats.fleet().fenced().await;
    let memory = json!({ "budget_bytes": memory_budget, "used_bytes": memory_used });
    answer(&json!({
        "status": "ok", "version": env!("CARGO_PKG_VERSION"), "models": models, "memory": memory,
        "fence": { "holds": fenced.holds, "missing": fenced.missing },
    }))
}

fn plugin(state: &PluginState) -> Value {
    let mut entry = json!({ "object": "plugin", "file": state.file, "sha256": state.sha256 });
    let (word, manifest) = match &state.status {
        Status::Pending => ("pending", None),
        Status::Ready { plugin } => ("ready", Some(plugin)),
        Status::Shadowed { plugin, by } => {
            entry["reason"] = format!("'{}' has the same id and comes first", by.display()).into();
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

fn answer(body: &Value) -> Answer {
    Answer::Whole { status: 200, media_type: "application/json", body: body.to_string().into_bytes() }
}
