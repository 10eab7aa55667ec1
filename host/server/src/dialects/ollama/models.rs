//! Ollama's routes about models: the list, details, and the loaded ones.

use std::sync::Arc;

use serde_json::{Value, json};

use super::model_name;
use crate::{
    dialects::{ApiError, ApiRequest, ApiResponse, catalog, catalog::ListedModel, fields::Field, validation},
    requests::Chats,
};
use pensieve_protocol::card::Card;

/// Clients check it for the features that they need; everything served here existed in this version.
const VERSION: &str = "0.13.0";
const MODEL_BYTES_MAX: usize = 256;

/// `GET /api/version`.
pub(crate) fn version() -> ApiResponse {
    ApiResponse::json(&json!({ "version": VERSION }))
}

/// `GET /api/tags`.
pub(crate) async fn tags(chats: Arc<Chats>, _: ApiRequest) -> Result<ApiResponse, ApiError> {
    let models: Vec<Value> = catalog::entries(&chats).await.iter().map(tag).collect();
    Ok(ApiResponse::json(&json!({ "models": models })))
}

/// `GET /api/ps`: models in memory. They have no expiry time, as they stay until another model needs the memory.
pub(crate) async fn ps(chats: Arc<Chats>, _: ApiRequest) -> Result<ApiResponse, ApiError> {
    let stats = chats.fleet().stats(false).await;
    let mut models = Vec::new();
    for model in stats.models.iter().filter(|model| model.loaded.is_some()) {
        let Ok(entry) = catalog::find(&chats, &model.id).await else { continue };
        let mut value = tag(&entry);
        value["size"] = model.bytes.into();
        let is_cpu = model.loaded.as_ref().is_none_or(|loaded| loaded.device.starts_with("cpu"));
        value["size_vram"] = if is_cpu { 0 } else { model.bytes }.into();
        value["expires_at"] = "9999-12-31T23:59:59Z".into();
        value["context_length"] = entry.target.as_ref().map(|target| target.context).into();
        models.push(value);
    }
    Ok(ApiResponse::json(&json!({ "models": models })))
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
    info[format!("{architecture}.context_length")] = target.context.into();
    info[format!("{architecture}.vocab_size")] = card.vocabulary.into();
    Ok(ApiResponse::json(&json!({
        "license": "",
        "modelfile": format!("FROM {}\n", target.id),
        "parameters": format!("num_ctx {}", target.context),
        "template": card.chat_template.as_deref().unwrap_or_default(),
        "details": details(Some(card)),
        "model_info": info,
        "capabilities": ["completion", "tools"],
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
    catalog::find(chats, validation::model_name(call, model_name(name))).await
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
        "details": details(card),
    })
}

fn details(card: Option<&Card>) -> Value {
    let family = card.map_or("", |card| card.architecture.as_str());
    json!({
        "parent_model": "", "format": "", "family": family, "families": [family], "parameter_size": "",
        "quantization_level": "",
    })
}
