//! Google's `embedContent` and `batchEmbedContents`.

use std::sync::Arc;

use serde::Serialize;

use super::{DIMENSIONS_MAX, INPUTS_MAX, json, suggested};
use crate::{
    dialects::{ApiError, ApiRequest, ApiResponse, fields::Field, validation},
    requests::{Chats, FieldNames, PromptChoice, RowText, Rows, RowsRequest, TextField},
};
use pensieve_protocol::rows::Kind;

const PARTS_MAX: usize = 1024;
/// The path names the model, and a title is for Google's own prompts.
const IGNORED: [&str; 2] = ["model", "title"];
const READ: [&str; 3] = ["content", "outputDimensionality", "taskType"];

#[derive(Serialize)]
struct Values {
    values: Vec<f32>,
}

#[derive(Serialize)]
struct One {
    embedding: Values,
}

#[derive(Serialize)]
struct Several {
    embeddings: Vec<Values>,
}

/// The embedding that one content asks for.
pub(super) struct Content {
    text: String,
    prompt: PromptChoice,
    dimensions: Option<u32>,
}

/// `POST /v1beta/models/ID:embedContent`.
pub(crate) async fn embed_content(chats: Arc<Chats>, call: ApiRequest) -> Result<ApiResponse, ApiError> {
    let read = call.read(|_, body| {
        let content = read(body)?;
        body.note_unknown(&IGNORED);
        Ok(content)
    });
    let (content, warnings) = read.await?;
    let mut rows = compute(&chats, &call, vec![content], TextField::Text("content".to_owned())).await?;
    let values = rows.rows.pop().unwrap_or_default();
    Ok(json(&One { embedding: Values { values } })?.with_warnings([warnings, rows.warnings].concat()))
}

/// `POST /v1beta/models/ID:batchEmbedContents`.
pub(crate) async fn batch_embed_contents(chats: Arc<Chats>, call: ApiRequest) -> Result<ApiResponse, ApiError> {
    let read = call.read(|_, body| {
        let contents = batch(body)?;
        body.note_unknown(&[]);
        Ok(contents)
    });
    let (contents, warnings) = read.await?;
    let rows = compute(&chats, &call, contents, TextField::Members("requests", "content")).await?;
    let embeddings = rows.rows.into_iter().map(|values| Values { values }).collect();
    Ok(json(&Several { embeddings })?.with_warnings([warnings, rows.warnings].concat()))
}

pub(super) fn read(request: &Field<'_>) -> Result<Content, ApiError> {
    let content = request.get("content");
    let texts = content.get("parts").items(PARTS_MAX)?.map(|part| part.get("text").string().map(str::to_owned));
    let dimensions = request.get("outputDimensionality").optional(|count| count.integer(1..=DIMENSIONS_MAX))?;
    let task = request.get("taskType").optional(Field::string)?;
    Ok(Content {
        text: texts.collect::<Result<Vec<_>, _>>()?.join("\n"),
        prompt: task.map_or(PromptChoice::Usual, suggested),
        // The range makes the cast exact.
        dimensions: dimensions.map(|count| count as u32),
    })
}

pub(super) fn batch(body: &Field<'_>) -> Result<Vec<Content>, ApiError> {
    let field = body.get("requests");
    let content = |request: Field<'_>| {
        let content = read(&request)?;
        request.note_unknown_members(|name| READ.contains(&name) || IGNORED.contains(&name))?;
        Ok(content)
    };
    let contents = field.items(INPUTS_MAX)?.map(content).collect::<Result<Vec<_>, ApiError>>()?;
    let Some(first) = contents.first() else { return Err(field.invalid("is empty")) };
    if contents.iter().any(|one| (&one.prompt, one.dimensions) != (&first.prompt, first.dimensions)) {
        return Err(field.invalid("should have the same taskType and outputDimensionality in all of its items"));
    }
    Ok(contents)
}

async fn compute(chats: &Chats, call: &ApiRequest, contents: Vec<Content>, texts: TextField) -> Result<Rows, ApiError> {
    let (prompt, dimensions) =
        contents.first().map_or((PromptChoice::Usual, None), |first| (first.prompt.clone(), first.dimensions));
    let request = RowsRequest {
        model: validation::asked_model(call, &call.id),
        client: call.client(),
        texts: contents.into_iter().map(|content| RowText::Text(content.text)).collect(),
        prompt,
        dimensions,
        // As at Google.
        truncate: true,
        fields: FieldNames { texts, dimensions: "outputDimensionality", ..FieldNames::default() },
        ..RowsRequest::default()
    };
    super::compute(chats, call, request, Kind::Embed).await
}
