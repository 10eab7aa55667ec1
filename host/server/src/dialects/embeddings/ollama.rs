//! Ollama's `/api/embed`, and the older `/api/embeddings` for one text.

use std::{sync::Arc, time::Instant};

use serde::Serialize;

use super::{MODEL_BYTES_MAX, dimensions, json, texts};
use crate::{
    dialects::{ApiError, ApiRequest, ApiResponse, extensions, fields::Field, ollama, validation},
    fleet::KeepAlive,
    requests::{Chats, FieldNames, RowText, Rows, RowsRequest, TextField},
};
use pensieve_protocol::{
    job::{Failure, FailureCode},
    outside::Outside,
    rows::Kind,
};

/// Fields of `pensieve` that are read.
const OWN: [&str; 3] = ["prompt_name", "input_type", "task"];

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
    let (embeddings, tokens, more) =
        rows.map_or((Vec::new(), 0, Vec::new()), |rows| (rows.rows, rows.tokens, rows.warnings));
    let total_duration = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let answer = Embedded { model: &name, embeddings, total_duration, load_duration: 0, prompt_eval_count: tokens };
    Ok(json(&answer)?.with_warnings([warnings, more].concat()))
}

/// `POST /api/embeddings`.
pub(crate) async fn embeddings(chats: Arc<Chats>, call: ApiRequest) -> Result<ApiResponse, ApiError> {
    let (parsed, warnings) = call.read(|_, body| read(body, "prompt")).await?;
    let rows = compute(&chats, &call, parsed).await?;
    let (rows, more) = rows.map_or((Vec::new(), Vec::new()), |rows| (rows.rows, rows.warnings));
    let embedding = rows.into_iter().next().unwrap_or_default();
    Ok(json(&OldEmbedded { embedding })?.with_warnings([warnings, more].concat()))
}

/// Reads the body of a route that has its texts in `name`. The older one takes a single text.
pub(super) fn read(body: &Field<'_>, name: &str) -> Result<Parsed, ApiError> {
    let takes_several = name == "input";
    let (own, other) = (body.get(name), body.get(if takes_several { "prompt" } else { "input" }));
    let field = if own.is_absent() { other } else { own };
    if !takes_several && field.present().is_some_and(|field| !field.is_string()) {
        return Err(field.should_be("one text"));
    }
    let (texts, place) = match field.present() {
        Some(field) => texts(field)?,
        None => (Vec::new(), TextField::Text(name.to_owned())),
    };
    // An empty text only checks that the model exists; one in a list is a text.
    let is_empty = field.is_string() && texts.iter().all(String::is_empty);
    let texts = if is_empty { Vec::new() } else { texts };
    let own = body.get("pensieve");
    if let Some(own) = own.present() {
        extensions::check_names(own, &OWN)?;
    }
    let request = RowsRequest {
        model: body.get("model").text(MODEL_BYTES_MAX)?.to_owned(),
        texts: texts.into_iter().map(RowText::Text).collect(),
        prompt: super::prompt(&own)?,
        dimensions: dimensions(&body.get("dimensions"))?,
        truncate: body.get("truncate").flag(true)?,
        fields: FieldNames { texts: place, ..FieldNames::default() },
        ..RowsRequest::default()
    };
    let keep = ollama::keep_alive_of(body)?;
    ollama::note_unknown_options(body)?;
    body.note_unknown(&super::IGNORED);
    Ok(Parsed { request, keep })
}

/// Returns nothing for a request without texts, which only checks that the model exists.
async fn compute(chats: &Chats, call: &ApiRequest, parsed: Parsed) -> Result<Option<Rows>, ApiError> {
    let asked = validation::asked_model(call, ollama::model_name(&parsed.request.model));
    let request = RowsRequest { client: call.client(), model: asked.clone(), ..parsed.request };
    let (model, rows) = if request.texts.is_empty() {
        check_model(chats, &request).map_err(ApiError::of_model)?;
        (asked, None)
    } else {
        let rows = super::compute(chats, call, request, Kind::Embed).await?;
        (rows.model.clone(), Some(rows))
    };
    ollama::stay(chats, &model, parsed.keep)?;
    Ok(rows)
}

/// Checks that there is a model of the requested name. No other one stands in for it.
fn check_model(chats: &Chats, request: &RowsRequest) -> Result<(), Failure> {
    if chats.is_model(&request.client, &request.model)? {
        return Ok(());
    }
    let message = format!("there is no model '{}'", Outside::new(&request.model).at_most(80));
    Err(Failure::new(FailureCode::NotFound, message).with_help("GET /api/tags lists those that there are"))
}
