//! Google's Gemini API: `generateContent`, `streamGenerateContent` and `countTokens`, for the Gemini CLI and Google's
//! SDKs.
//!
//! Deliberate deviations from the original:
//! - Tools that only Google's servers can run (`googleSearch`, `codeExecution`, …) are left out with a warning. Safety
//!   settings have no effect, and `cachedContent` is refused, as every prompt is cached by itself.
//! - Images are shown to a model that reads them, and text files are text; audio, other files, and images for other models
//!   become a note in the prompt, unless a setting makes them an error.
//! - `thinkingBudget` and `thinkingLevel` reach the template as `thinking_budget` and `reasoning_effort`, and are enforced.
//!   Thoughts are shown where `includeThoughts` asks for them, and need no signature when they come back. They count among
//!   the candidates' tokens, not as `thoughtsTokenCount`.
//! - `response.functionCall` always has an id, which is optional when it comes back.

mod content;
mod encoder;
mod error;
mod logprobs;
mod names;
mod request;
mod schema;
#[cfg(test)]
mod tests;
mod tools;

pub(crate) use error::envelope;

use std::sync::Arc;

use serde_json::json;
use tokio::time::Instant;

use super::{
    ApiError, ApiRequest, ApiResponse, fresh_id,
    stream::{self, FIRST_EVENT, Generations},
    validation,
};
use crate::{chat::Request, requests::Chats};
use encoder::{ContentEncoder, Form, Head};
use request::GeminiRequest;

/// The path below which all of this API lies.
pub(crate) const ROOT: &str = "/v1beta";
/// Ends of the paths that only this API has: `/v1beta/models/ID:generateContent`.
pub(crate) const METHODS: [&str; 5] =
    [":generateContent", ":streamGenerateContent", ":countTokens", ":embedContent", ":batchEmbedContents"];

/// `POST /v1beta/models/ID:generateContent`, and `:streamGenerateContent`.
pub(crate) async fn generate(chats: Arc<Chats>, call: ApiRequest, is_stream: bool) -> Result<ApiResponse, ApiError> {
    let (parsed, warnings) = call.read_conversation(&chats, |_, body| request::read(body)).await?;
    let GeminiRequest { request, choices, with_thoughts } = parsed;
    let permit = is_stream.then(|| call.stream_permit()).transpose()?;
    let model = validation::model_name(&call, &call.id).to_owned();
    let request = request.or_usual_limit(call.shared.settings.max_tokens);
    let request = Request { client: call.client(), model, ..request };
    validation::check(&chats, &request)?;
    let logprobs = request.logprobs;
    let prepared = chats.prepare(request).await.map_err(ApiError::of_model)?;
    let input_tokens = prepared.input_tokens();
    let head = Head { id: fresh_id(""), model: call.id.clone(), input_tokens, with_thoughts, logprobs };
    let form = if asks_for_events(&call.query) { Form::Events } else { Form::Array };
    let mut encoder = ContentEncoder::new(head, form, choices);
    // The range of choices makes the cast exact.
    let copies = (0..choices).map(|place| prepared.choice(place as u32)).collect();
    // What is sent is not kept any longer than it is needed.
    drop(prepared);
    let generations = Generations::start(&call, copies, Instant::now() + FIRST_EVENT).await;
    let mut generations = generations.map_err(ApiError::of_model)?;
    let answer = match permit {
        Some(permit) => {
            let media_type = if form == Form::Events { "text/event-stream" } else { "application/json" };
            ApiResponse::stream(media_type, stream::frames(encoder, generations), permit)
        }
        None => {
            while let Some((choice, delta)) = generations.gather().await? {
                encoder.keep(choice, delta)?;
            }
            ApiResponse::json(&encoder.into_whole()?)
        }
    };
    Ok(answer.with_warnings(warnings))
}

/// `POST /v1beta/models/ID:countTokens`: counts the tokens of the prompt that the same request would have.
pub(crate) async fn count_tokens(chats: Arc<Chats>, call: ApiRequest) -> Result<ApiResponse, ApiError> {
    let (request, mut warnings) = call.read_conversation(&chats, |_, body| request::count(body)).await?;
    let model = validation::model_name(&call, &call.id).to_owned();
    let counted = chats.count(Request { client: call.client(), model, ..request }).await.map_err(ApiError::of_model)?;
    let tokens = counted.told(&mut warnings);
    let details = json!([{ "modality": "TEXT", "tokenCount": tokens }]);
    Ok(ApiResponse::json(&json!({ "totalTokens": tokens, "promptTokensDetails": details })).with_warnings(warnings))
}

/// Without `alt=sse` a stream is a JSON array.
fn asks_for_events(query: &str) -> bool {
    query.split('&').any(|pair| pair == "alt=sse")
}
