//! `POST /v1/responses/compact`: the model sums a conversation up, so that the next request can go on from there.
//!
//! The answer is what the client sends instead of the conversation: its instructions and the latest of the user's messages
//! as they were, and the summary.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{ParsedRequest, encoder::usage, prepare, read, summary::Summary};
use crate::{
    chat::Delta,
    dialects::{
        ApiError, ApiRequest, ApiResponse, ErrorCode,
        fields::{Field, value_of},
        fresh_id, openai,
        stream::{FIRST_EVENT, Generations, ended_early},
    },
    requests::{Chats, summary},
};
use pensieve_protocol::job::Finish;

/// Limit of the user's messages that stay as they were; the latest ones count first.
const KEPT_BYTES_MAX: usize = 32 << 10;

/// `POST /v1/responses/compact`.
pub(crate) async fn compact(chats: Arc<Chats>, call: ApiRequest) -> Result<ApiResponse, ApiError> {
    let (ParsedRequest { response: parsed, items, .. }, mut warnings) =
        call.read_conversation(&chats, read_stored).await?;
    let mut question = summary::question(&parsed.request, None);
    question.max_tokens = question.max_tokens.min(parsed.request.max_tokens).or(question.max_tokens);
    let prepared = prepare(&chats, question, &mut warnings).await?;
    let generations = Generations::start(&call, vec![prepared], Instant::now() + FIRST_EVENT).await;
    let mut generations = generations.map_err(ApiError::of_model)?;
    let (mut text, mut counted) = (String::new(), None);
    while let Some((_, delta)) = generations.gather().await? {
        match delta {
            Delta::Text { text: piece, .. } => text.push_str(&piece),
            Delta::Finished { reason: Finish::Cancelled | Finish::Deadline, .. } => return Err(ended_early()),
            Delta::Finished { usage, .. } => counted = Some(usage),
            Delta::Failed(failure) => return Err(ApiError::of_model(failure)),
            _ => {}
        }
    }
    let text = text.trim();
    if text.is_empty() {
        let help = "send the conversation itself, or a shorter one";
        let error = ApiError::new(ErrorCode::Internal, "the model gave no summary of this conversation");
        return Err(ApiError { help: help.to_owned(), ..error });
    }
    let mut output = kept(value_of(&items.unwrap_or_default(), &call.memory)?);
    output.push(Summary { text: text.to_owned(), is_all: false }.item());
    let body = json!({
        "id": fresh_id("resp_"), "object": "response.compaction", "created_at": openai::now(), "output": output,
        "usage": usage(counted.ok_or_else(ended_early)?),
    });
    Ok(ApiResponse::json(&body).with_warnings(warnings))
}

/// Reads the request like one whose response is stored, as its items are needed.
fn read_stored(call: &ApiRequest, body: &Field<'_>) -> Result<ParsedRequest, ApiError> {
    body.get("model").string()?;
    read(call, body, true)
}

/// All instructions, and the latest messages of the user.
fn kept(items: Value) -> Vec<Value> {
    let Value::Array(items) = items else { return Vec::new() };
    let (mut kept, mut left) = (Vec::new(), KEPT_BYTES_MAX);
    for mut item in items.into_iter().rev().filter(|item| item["type"] == "message") {
        let is_user = item["role"] == "user";
        if !is_user && item["role"] != "system" && item["role"] != "developer" {
            continue;
        }
        if let Some(text) = item["content"].as_str() {
            item["content"] = json!([{ "type": "input_text", "text": text }]);
        }
        item["status"] = "completed".into();
        let bytes = item["content"].to_string().len();
        if is_user && bytes > left {
            left = 0;
            continue;
        }
        left -= if is_user { bytes } else { 0 };
        kept.push(item);
    }
    kept.reverse();
    kept
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn instructions_and_the_latest_messages_of_the_user_stay() {
        let user = |text: &str| json!({"type": "message", "id": "i", "role": "user", "content": text});
        let items = json!([
            {"type": "message", "id": "d", "role": "developer", "content": [{"type": "input_text", "text": "be brief"}]},
            user("old"),
            user(&"x".repeat(KEPT_BYTES_MAX)),
            {"type": "message", "id": "a", "role": "assistant", "content": "yes"},
            {"type": "function_call", "id": "f", "call_id": "c", "name": "n", "arguments": "{}"},
            user("new"),
        ]);
        let kept = kept(items);
        let texts: Vec<&str> = kept.iter().map(|item| item["content"][0]["text"].as_str().unwrap()).collect();
        assert_eq!(texts, ["be brief", "new"]);
        assert!(kept.iter().all(|item| item["status"] == "completed"));
    }
}
