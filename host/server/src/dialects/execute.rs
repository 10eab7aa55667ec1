//! `POST /execute`: a generation for queue workers. `{"prompt", "max_tokens", "temperature", …}` is answered by the
//! events `started`, `token` for each piece, and `end`, or `error` if it broke off. The prompt is raw text without a
//! chat template.

use std::sync::Arc;

use serde_json::json;

use super::{
    ApiError, ApiRequest, ApiResponse, ErrorCode, Frame, simple,
    stream::{self, EventEncoder, event},
    usage::add_report,
};
use crate::{
    chat::{CacheReport, Delta, Input},
    requests::Chats,
};
use pensieve_protocol::job::Finish;

const PROMPT_BYTES_MAX: usize = 16 << 20;
/// A comment in server-sent events.
const COMMENT: &[u8] = b": alive\n\n";

pub(crate) async fn answer(chats: Arc<Chats>, call: ApiRequest) -> Result<ApiResponse, ApiError> {
    let permit = call.stream_permit()?;
    let prompt =
        |body: &super::fields::Field<'_>| Ok(Input::Text(body.get("prompt").text(PROMPT_BYTES_MAX)?.to_owned()));
    let running = simple::start(&chats, &call, prompt).await?;
    let started =
        json!({ "request_id": call.request_id, "model": running.model, "prompt_tokens": running.input_tokens });
    let encoder =
        ExecuteEncoder { started: event("started", &started), stops: running.stops, cache: None, is_over: false };
    Ok(ApiResponse::events(stream::frames(encoder, running.generations), permit))
}

struct ExecuteEncoder {
    started: Vec<u8>,
    cache: Option<CacheReport>,
    stops: Vec<String>,
    is_over: bool,
}

impl EventEncoder for ExecuteEncoder {
    fn begin(&mut self) -> Frame {
        std::mem::take(&mut self.started).into()
    }

    fn delta(&mut self, _choice: usize, delta: Delta) -> Result<Frame, ApiError> {
        Ok(match delta {
            Delta::Text { text, .. } if !text.is_empty() => event("token", &json!({ "text": text })).into(),
            Delta::Thinking(text) if !text.is_empty() => {
                event("token", &json!({ "text": text, "thinking": true })).into()
            }
            Delta::Cache(report) => {
                self.cache = Some(report);
                Frame::default()
            }
            Delta::Finished { reason, usage } => {
                self.is_over = true;
                let mut usage = json!({
                    "prompt_tokens": usage.prompt, "reused_tokens": usage.reused, "completion_tokens": usage.generated,
                });
                add_report(&mut usage, self.cache.as_ref());
                let (word, stop) = word(reason, &self.stops);
                event("end", &json!({ "reason": word, "stop": stop, "usage": usage })).into()
            }
            Delta::Failed(failure) => return Err(failure.into()),
            _ => Frame::default(),
        })
    }

    fn keep_alive(&mut self) -> Frame {
        COMMENT.into()
    }

    fn end(&mut self) -> Result<Frame, ApiError> {
        if self.is_over { Ok(Frame::default()) } else { Err(stream::ended_early()) }
    }

    fn error(&mut self, error: &ApiError) -> Frame {
        let kind = match error.code {
            ErrorCode::Overloaded | ErrorCode::Unavailable => "overloaded",
            _ => "failed",
        };
        event("error", &json!({ "type": kind, "message": error.to_string() })).into()
    }
}

/// The finish reason, and the stop string that ended it, if any.
fn word(reason: Finish, stops: &[String]) -> (&'static str, Option<&str>) {
    match reason {
        Finish::EndOfTurn | Finish::StopToken(_) | Finish::GrammarDone => ("stop", None),
        Finish::StopString(index) => ("stop", stops.get(index as usize).map(String::as_str)),
        Finish::Length | Finish::Repetition | Finish::ContextFull => ("length", None),
        Finish::Refused => ("refused", None),
        Finish::Paused => ("paused", None),
        Finish::Deadline => ("deadline", None),
        Finish::Cancelled => ("cancelled", None),
    }
}
