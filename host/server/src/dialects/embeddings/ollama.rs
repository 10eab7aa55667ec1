//! Ollama's `/api/embed`, and the older `/api/embeddings` for one text.

use std::{sync::Arc, time::Instant};

use serde::Serialize;

use super::{MODEL_BYTES_MAX, dimensions, json, texts};
use crate::{
    dialects::{ApiError, ApiRequest, ApiResponse, fields::Field, ollama, validation},
    fleet::KeepAlive,
    requests::{Chats, RowText, Rows, RowsRequest},
};
use pensieve_protocol::rows::Kind;

#[derive(Serialize)]
struct Embedded<'a> {
    model: &'a str,
    embeddings: Vec<Vec<f32>>,
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: u64,
}

#[derive(Serialize)]
struct OldEmbedded {
    embedding: Vec<f32>,
}

pub(super) struct Parsed {
    request: RowsRequest,
    keep: Option<KeepAlive>,
}

/// `POST /api/embed`.
pub(crate) async fn embed(chats: Arc<Chats>, call: ApiRequest) -> Result<ApiResponse, ApiError> {
    let (parsed, warnings) = call.read(|_, body| read(body, "input")).await?;
    let (began, name) = (Instant::now(), parsed.request.model.clone());
    let rows = compute(&chats, &call, parsed).await?;
    let (embeddings, tokens, told) =
        rows.map_or((Vec::new(), 0, Vec::new()), |rows| (rows.rows, rows.tokens, rows.warnings));
    let total_duration = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let answer = Embedded { model: &name, embeddings, total_duration, load_duration: 0, prompt_eval_count: tokens };
    Ok(json(&answer)?.with_warnings([warnings, told].concat()))
}

/// `POST /api/embeddings`.
pub(crate) async fn embeddings(chats: Arc<Chats>, call: ApiRequest) -> Result<ApiResponse, ApiError> {
    let (parsed, warnings) = call.read(|_, body| read(body, "prompt")).await?;
    let rows = compute(&chats, &call, parsed).await?;
    let (rows, told) = rows.map_or((Vec::new(), Vec::new()), |rows| (rows.rows, rows.warnings));
    let embedding = rows.into_iter().next().unwrap_or_default();
    Ok(json(&OldEmbedded { embedding })?.with_warnings([warnings, told].concat()))
}

pub(super) fn read(body: &Field<'_>, name: &str) -> Result<Parsed, ApiError> {
    let (own, other) = (body.get(name), body.get(if name == "input" { "prompt" } else { "input" }));
    let field = if own.is_absent() { other } else { own };
    let texts = if field.is_absent() { Vec::new() } else { texts(&field)?.0 };
    // An empty text only loads the model.
    let texts: Vec<RowText> = match &texts[..] {
        [only] if only.is_empty() => Vec::new(),
        _ => texts.into_iter().map(RowText::Text).collect(),
    };
    let request = RowsRequest {
        model: body.get("model").text(MODEL_BYTES_MAX)?.to_owned(),
        texts,
        prompt: super::prompt(&body.get("pensieve"))?,
        dimensions: dimensions(&body.get("dimensions"))?,
        truncate: body.get("truncate").flag(true)?,
        ..RowsRequest::default()
    };
    let keep = ollama::keep_alive_of(body)?;
    body.note_unknown(&super::IGNORED);
    Ok(Parsed { request, keep })
}

/// Returns nothing for a request without texts, which only checks that the model exists.
async fn compute(chats: &Chats, call: &ApiRequest, parsed: Parsed) -> Result<Option<Rows>, ApiError> {
    let asked = validation::asked_model(call, ollama::model_name(&parsed.request.model));
    let request = RowsRequest { client: call.client(), model: asked.clone(), ..parsed.request };
    let (model, rows) = if request.texts.is_empty() {
        let model = chats.rows_model(&request.client, &asked, Kind::Embed).await.map_err(ApiError::of_model)?.id;
        chats.permit(&request.client, &model).map_err(ApiError::of_model)?;
        (chats.fleet().target(&model).await.map_err(ApiError::of_model)?.id, None)
    } else {
        let rows = super::compute(chats, call, request, Kind::Embed).await?;
        (rows.model.clone(), Some(rows))
    };
    ollama::stay(chats, &model, parsed.keep)?;
    Ok(rows)
}
