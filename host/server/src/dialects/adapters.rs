//! Routes that manage a model's adapters at run time. No vendor's API has such routes, so these are our own: `POST
//! /v1/models/ID/adapters` with `{"name", "source"}`, `GET` of the same path, and `DELETE /v1/models/ID/adapters/NAME`.
//! Errors have the form of the client's API.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{ApiError, ApiRequest, ApiResponse, ErrorCode};
use crate::{
    fleet::{AdapterFailure, AdapterState, Culprit, check_adapter_name},
    requests::Chats,
};
use pensieve_protocol::job::{Failure, FailureCode};

const NAMES: [&str; 2] = ["name", "source"];
const TEXT_LEN_MAX: usize = 4096;

/// `POST /v1/models/ID/adapters`: answers once the adapter can be used.
pub(crate) async fn attach(chats: Arc<Chats>, call: ApiRequest) -> Result<ApiResponse, ApiError> {
    let read = call.read(|_, body| {
        for (name, entry) in body.entries()? {
            if !NAMES.contains(&name) {
                return Err(entry.invalid("unknown field; 'name' and 'source' are allowed"));
            }
        }
        let (name, source) = (body.get("name"), body.get("source"));
        let text = name.text(TEXT_LEN_MAX)?;
        check_adapter_name(text).map_err(|what| name.invalid(what))?;
        Ok((text.to_owned(), source.text(TEXT_LEN_MAX)?.to_owned()))
    });
    let ((name, source), _) = read.await?;
    let attached = chats.fleet().attach(&call.id, &name, &source).await;
    let state = attached.map_err(error_of)?;
    Ok(ApiResponse::json(&entry(&call.id, &state)))
}

/// `GET /v1/models/ID/adapters`.
pub(crate) async fn list(chats: Arc<Chats>, call: ApiRequest) -> Result<ApiResponse, ApiError> {
    let id = &call.id;
    chats.permit(&call.client(), id)?;
    let adapters = chats.fleet().adapters(id).await.map_err(absent)?;
    let entries: Vec<Value> = adapters.iter().map(|state| entry(id, state)).collect();
    Ok(ApiResponse::json(&json!({ "object": "list", "data": entries })))
}

/// `DELETE /v1/models/ID/adapters/NAME`. Running answers that use it continue.
pub(crate) async fn detach(
    chats: Arc<Chats>,
    ApiRequest { id, name, .. }: ApiRequest,
) -> Result<ApiResponse, ApiError> {
    chats.fleet().detach(&id, &name).await.map_err(error_of)?;
    Ok(ApiResponse::json(&json!({ "object": "adapter", "id": format!("{id}:{name}"), "deleted": true })))
}

/// Attributes client errors to the part of the request that caused them; the model is part of the path.
fn error_of(AdapterFailure { culprit, failure }: AdapterFailure) -> ApiError {
    let part = match culprit {
        Culprit::Model => return absent(failure),
        Culprit::Name => "name",
        Culprit::Source => "source",
        Culprit::Other => return failure.into(),
    };
    let ApiError { code, message, help, .. } = ApiError::from(failure);
    match code {
        ErrorCode::InvalidRequest | ErrorCode::Permission | ErrorCode::NotFound | ErrorCode::Conflict => {
            ApiError { code, help, ..ApiError::field(part, message) }
        }
        _ => ApiError { help, ..ApiError::new(code, message) },
    }
}

fn absent(failure: Failure) -> ApiError {
    let field = (failure.code == FailureCode::NotFound).then(|| "model".to_owned());
    ApiError { field, ..ApiError::from(failure) }
}

fn entry(id: &str, adapter: &AdapterState) -> Value {
    let AdapterState { name, source, merged, refusal, known } = adapter;
    let state = match (known, refusal) {
        _ if *merged => "merged",
        (_, Some(_)) => "refused",
        (Some(known), _) if known.loaded => "loaded",
        _ => "unloaded",
    };
    json!({
        "object": "adapter",
        "id": if *merged { id.to_owned() } else { format!("{id}:{name}") },
        "model": id,
        "name": name,
        "source": source,
        "state": state,
        "reason": refusal,
        "format": known.as_ref().map(|known| &known.format),
        "pairs": known.as_ref().map(|known| known.pairs),
        "bytes": known.as_ref().map(|known| known.bytes),
        "streams": known.as_ref().map_or(0, |known| known.jobs),
    })
}
