//! Routes that decide which models are in memory: `POST /v1/models/ID/unload`, and `POST` and `DELETE
//! /v1/models/ID/pin`. No vendor's API has them. Errors have the form of the client's API.

use std::sync::Arc;

use serde_json::json;

use super::{ApiError, ApiRequest, ApiResponse};
use crate::requests::Chats;

/// `POST /v1/models/ID/unload`: answers at once; running answers finish before the model goes.
pub(crate) async fn unload(chats: Arc<Chats>, call: ApiRequest) -> Result<ApiResponse, ApiError> {
    // Before, as a model whose worker drains does not count as loaded any more.
    let stats = chats.fleet().stats(false).await;
    chats.fleet().unload(&call.id).map_err(ApiError::of_model)?;
    let model = stats.models.iter().find(|model| model.id == call.id);
    let was_loaded = model.is_some_and(|model| model.pid.is_some());
    let running = model.map_or(0, |model| model.streams);
    tracing::info!(model = call.id, running, "unloaded by request");
    Ok(ApiResponse::json(&json!({ "object": "model", "id": call.id, "was_loaded": was_loaded, "running": running })))
}

/// `POST /v1/models/ID/pin`: loads the model and keeps it loaded; answers when it is there. One that cannot load stays as
/// it was: pinned only if it was before.
pub(crate) async fn pin(chats: Arc<Chats>, call: ApiRequest) -> Result<ApiResponse, ApiError> {
    let fleet = chats.fleet();
    let was_pinned = fleet.is_pinned(&call.id).await.map_err(ApiError::of_model)?;
    fleet.pin(&call.id, true).map_err(ApiError::of_model)?;
    let loaded = match fleet.target(&call.id).await {
        Ok(target) => fleet.load(&target).await,
        Err(failure) => Err(failure),
    };
    if let Err(failure) = loaded {
        if !was_pinned {
            fleet.pin(&call.id, false).map_err(ApiError::of_model)?;
        }
        return Err(ApiError::of_model(failure));
    }
    Ok(answer(&call, true))
}

/// `DELETE /v1/models/ID/pin`: the model may be evicted again.
pub(crate) async fn unpin(chats: Arc<Chats>, call: ApiRequest) -> Result<ApiResponse, ApiError> {
    chats.fleet().pin(&call.id, false).map_err(ApiError::of_model)?;
    Ok(answer(&call, false))
}

fn answer(call: &ApiRequest, pinned: bool) -> ApiResponse {
    ApiResponse::json(&json!({ "object": "model", "id": call.id, "pinned": pinned }))
}
