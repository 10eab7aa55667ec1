//! Ollama's routes about models: the list, details, and the loaded ones.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{details, model_name};
use crate::{
    dialects::{ApiError, ApiRequest, ApiResponse, catalog, catalog::ListedModel, fields::Field, validation},
    requests::Chats,
};

/// Clients check it for the features that they need; everything served here existed in this version.
const VERSION: &str = "0.13.0";
const MODEL_BYTES_MAX: usize = 256;
/// A hundred years.
const FOREVER_S: u64 = 100 * 365 * 24 * 60 * 60;

/// `GET /api/version`.
pub(crate) fn version() -> ApiResponse {
    ApiResponse::json(&json!({ "version": VERSION }))
}

/// `GET /api/tags`.
pub(crate) async fn tags(chats: Arc<Chats>, call: ApiRequest) -> Result<ApiResponse, ApiError> {
    let models: Vec<Value> = catalog::entries(&chats, &call).await.iter().map(tag).collect();
    Ok(ApiResponse::json(&json!({ "models": models })))
}

/// `GET /api/ps`: models in memory, and until when they stay.
pub(crate) async fn ps(chats: Arc<Chats>, call: ApiRequest) -> Result<ApiResponse, ApiError> {
    let stats = chats.fleet().stats(false).await;
    let mut models = Vec::new();
    for model in stats.models.iter().filter(|model| model.loaded.is_some()) {
        let Ok(entry) = catalog::find(&chats, &call, &model.id).await else { continue };
        let mut value = tag(&entry);
        value["size"] = model.bytes.into();
        let is_cpu = model.loaded.as_ref().is_none_or(|loaded| loaded.device.starts_with("cpu"));
        value["size_vram"] = if is_cpu { 0 } else { model.bytes }.into();
        value["expires_at"] = expiry(model.expires_in_s).into();
        value["context_length"] = entry.context.into();
        models.push(value);
    }
    Ok(ApiResponse::json(&json!({ "models": models })))
}

/// The time in so many seconds. Clients expect one even where there is no limit; Ollama's shows a distant one as
/// "Forever".
pub(super) fn expiry(seconds: Option<u64>) -> String {
    let seconds = seconds.unwrap_or(FOREVER_S).min(FOREVER_S);
    let span = jiff::SignedDuration::from_secs(i64::try_from(seconds).unwrap_or_default());
    let now = jiff::Timestamp::now();
    catalog::rfc3339(now.checked_add(span).unwrap_or(now))
}

/// `POST /api/show`.
pub(crate) async fn show(chats: Arc<Chats>, call: ApiRequest) -> Result<ApiResponse, ApiError> {
    let (name, _) = call.read(|_, body| name_of(body)).await?;
    let entry = named(&chats, &call, &name).await?;
    let target = chats.fleet().target(&entry.id).await.map_err(ApiError::of_model)?;
    let card = &target.card;
    let architecture = card.architecture.as_str();
    let modified = entry.modified.and_then(|time| jiff::Timestamp::try_from(time).ok()).unwrap_or_default();
    let mut info = json!({ "general.architecture": architecture, "general.basename": target.id });
    info[format!("{architecture}.context_length")] = target.longest().into();
    info[format!("{architecture}.vocab_size")] = card.vocabulary.into();
    if let Some(rows) = card.rows().filter(|rows| rows.made_for) {
        info[format!("{architecture}.embedding_length")] = rows.dimensions.into();
    }
    Ok(ApiResponse::json(&json!({
        "license": "",
        "modelfile": format!("FROM {}\n", target.id),
        "parameters": format!("num_ctx {}", target.longest()),
        "template": card.chat_template.as_deref().unwrap_or_default(),
        "details": details::of(&entry),
        "model_info": info,
        "capabilities": catalog::capabilities(&target),
        "modified_at": catalog::rfc3339(modified),
    })))
}

/// The model name in a body: `model`, or `name` as older clients send it.
pub(super) fn name_of(body: &Field<'_>) -> Result<String, ApiError> {
    let field = if body.get("model").is_absent() { body.get("name") } else { body.get("model") };
    if field.is_absent() {
        return Err(body.get("model").invalid("this field is required"));
    }
    field.text(MODEL_BYTES_MAX).map(str::to_owned)
}

pub(super) async fn named(chats: &Chats, call: &ApiRequest, name: &str) -> Result<ListedModel, ApiError> {
    catalog::find(chats, call, validation::model_name(call, model_name(name))).await
}

fn tag(entry: &ListedModel) -> Value {
    let card = entry.target.as_ref().map(|target| &*target.card);
    let modified = entry.modified.and_then(|time| jiff::Timestamp::try_from(time).ok()).unwrap_or_default();
    json!({
        "name": entry.id,
        "model": entry.id,
        "modified_at": catalog::rfc3339(modified),
        "size": card.map_or(0, |card| card.weight_bytes),
        "digest": card.map_or("", |card| card.fingerprint.as_str()),
        "details": details::of(entry),
    })
}
