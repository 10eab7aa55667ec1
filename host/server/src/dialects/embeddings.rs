//! `POST /v1/embeddings`, `/v1/rerank` and Ollama's `/api/embed`. No plugin can return hidden states yet, so bodies are
//! validated and valid requests get a clear error.

use std::sync::Arc;

use super::{ApiError, ApiRequest, ApiResponse, ErrorCode, fields::Field, validation};
use crate::requests::Chats;

const MODEL_BYTES_MAX: usize = 256;
const INPUTS_MAX: usize = 2048;
const TOKENS_MAX: usize = 1 << 20;
const DIMENSIONS_MAX: i64 = 65_536;

/// `POST /v1/embeddings`.
pub(crate) async fn embeddings(chats: Arc<Chats>, call: ApiRequest) -> Result<ApiResponse, ApiError> {
    let (model, _) = call.read(|_, body| check_embeddings(body)).await?;
    refuse(&chats, &call, &model, "embeddings").await
}

fn check_embeddings(body: &Field<'_>) -> Result<String, ApiError> {
    let model = body.get("model").text(MODEL_BYTES_MAX)?;
    let input = body.get("input");
    if input.is_string() {
        input.text(usize::MAX)?;
    } else {
        let items = input.items(TOKENS_MAX)?;
        let mut texts = 0;
        for item in items {
            if item.is_string() {
                texts += 1;
                item.text(usize::MAX)?;
            } else if item.json()?.is_array() {
                texts += 1;
                for token in item.items(TOKENS_MAX)? {
                    token.integer(0..=i64::from(u32::MAX))?;
                }
            } else {
                item.integer(0..=i64::from(u32::MAX))?;
            }
        }
        if texts > INPUTS_MAX {
            return Err(input.invalid(format_args!("has {texts} items, more than {INPUTS_MAX}")));
        }
    }
    body.get("encoding_format").optional(|format| format.choice(&["float", "base64"]))?;
    body.get("dimensions").optional(|count| count.integer(1..=DIMENSIONS_MAX))?;
    Ok(model.to_owned())
}

/// `POST /v1/rerank`.
pub(crate) async fn rerank(chats: Arc<Chats>, call: ApiRequest) -> Result<ApiResponse, ApiError> {
    let read = call.read(|_, body| {
        let model = body.get("model").text(MODEL_BYTES_MAX)?;
        body.get("query").text(usize::MAX)?;
        for document in body.get("documents").items(INPUTS_MAX)? {
            if !document.is_string() {
                document.get("text").string()?;
            }
        }
        body.get("top_n").optional(|count| count.count(1))?;
        Ok(model.to_owned())
    });
    let (model, _) = read.await?;
    refuse(&chats, &call, &model, "scores").await
}

/// `POST /api/embed` and `/api/embeddings`.
pub(crate) async fn ollama(chats: Arc<Chats>, call: ApiRequest) -> Result<ApiResponse, ApiError> {
    let read = call.read(|_, body| {
        let model = body.get("model").text(MODEL_BYTES_MAX)?;
        let input = if body.get("input").is_absent() { body.get("prompt") } else { body.get("input") };
        if !input.is_string() {
            input.items(INPUTS_MAX)?.try_for_each(|item: Field<'_>| item.string().map(drop))?;
        }
        Ok(model.to_owned())
    });
    let (model, _) = read.await?;
    refuse(&chats, &call, super::ollama::model_name(&model), "embeddings").await
}

async fn refuse(chats: &Chats, call: &ApiRequest, model: &str, what: &str) -> Result<ApiResponse, ApiError> {
    let name = validation::model_name(call, model);
    let target = chats.fleet().target(name).await.map_err(ApiError::of_model)?;
    let why = format!(
        "'{}' answers with text and has no {what}; no model of this server has any, since no installed plugin computes them",
        target.id
    );
    Err(ApiError { code: ErrorCode::InvalidRequest, ..ApiError::field("model", why) })
}
