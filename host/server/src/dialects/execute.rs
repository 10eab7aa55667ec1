//! `POST /execute`: a generation as a worker of a queue wants it. `{"prompt", "max_tokens", "temperature", …}` is answered by
//! the events `started`, `token` for each piece, and `end`, or `error` where it broke off. The prompt is a text, rendered
//! by no template.

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use serde_json::{Value, json};

use super::{
    ApiError, ApiRequest, ApiResponse, ErrorCode, FrameStream, StreamPermit,
    simple::{News, Running, refused},
};
use crate::{
    chat::{Delta, Input},
    prompt::Chats,
};
use pensieve_protocol::job::Finish;

const PROMPT_BYTES_MAX: usize = 16 << 20;
/// A comment, by the rules of such streams.
const ALIVE: &[u8] = b": alive\n\n";

/// Runs a generation.
pub(crate) async fn answer(chats: Arc<Chats>, call: ApiRequest) -> ApiResponse {
    match begin(&chats, &call).await {
        Ok((pieces, place)) => ApiResponse::Stream { media_type: "text/event-stream", pieces, place },
        Err(problem) => refused(&problem, &call.request_id),
    }
}

async fn begin(chats: &Chats, call: &ApiRequest) -> Result<(FrameStream, StreamPermit), ApiError> {
    let place = call.places.take()?;
    let prompt =
        |body: &super::fields::Field<'_>| Ok(Input::Text(body.get("prompt").text(PROMPT_BYTES_MAX)?.to_owned()));
    let running = Running::start(chats, call, prompt).await?;
    let started =
        json!({ "request_id": call.request_id, "model": running.model, "prompt_tokens": running.input_tokens });
    let rest = stream::unfold(running, |mut running| async move { Some((piece(&mut running).await?, running)) });
    Ok((stream::iter([event("started", &started)]).chain(rest).boxed(), place))
}

async fn piece(running: &mut Running) -> Option<Vec<u8>> {
    loop {
        let delta = match running.next().await? {
            News::Delta(delta) => delta,
            News::Silence => return Some(ALIVE.to_vec()),
        };
        match delta {
            Delta::Text { text, .. } if !text.is_empty() => return Some(event("token", &json!({ "text": text }))),
            Delta::Thinking(text) if !text.is_empty() => {
                return Some(event("token", &json!({ "text": text, "thinking": true })));
            }
            Delta::Finished { reason, usage } => {
                let usage = json!({
                    "prompt_tokens": usage.prompt, "reused_tokens": usage.reused, "completion_tokens": usage.generated,
                });
                let (word, stop) = word(reason, &running.stops);
                return Some(event("end", &json!({ "reason": word, "stop": stop, "usage": usage })));
            }
            Delta::Failed(failure) => {
                let problem = ApiError::from(failure);
                let kind = match problem.kind {
                    ErrorCode::Overloaded | ErrorCode::Unavailable => "overloaded",
                    _ => "failed",
                };
                return Some(event("error", &json!({ "type": kind, "message": problem.message })));
            }
            _ => {}
        }
    }
}

/// Why it ended, and the stop string that ended it.
fn word(reason: Finish, stops: &[String]) -> (&'static str, Option<&str>) {
    match reason {
        Finish::EndOfTurn | Finish::StopToken(_) | Finish::GrammarDone => ("stop", None),
        Finish::StopString(place) => ("stop", stops.get(place as usize).map(String::as_str)),
        Finish::Length | Finish::ContextFull => ("length", None),
        Finish::Deadline => ("deadline", None),
        Finish::Cancelled => ("cancelled", None),
    }
}

fn event(name: &str, data: &Value) -> Vec<u8> {
    format!("event: {name}\ndata: {data}\n\n").into_bytes()
}
