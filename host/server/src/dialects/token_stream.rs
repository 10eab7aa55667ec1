//! `POST /token_stream`: answers `{"query": "…"}` with a stream of plain text, for use with curl.
//!
//! The status is sent after the first piece has arrived, as plain text has no other way to report errors. An answer
//! that breaks off later ends with an error line.

use std::sync::Arc;

use super::{
    ApiError, ApiRequest, ApiResponse, Frame, simple,
    stream::{self, EventEncoder},
};
use crate::{
    chat::{Conversation, Delta, Input, Part, Role, Turn},
    requests::Chats,
};

const QUERY_BYTES_MAX: usize = 16 << 20;

pub(crate) async fn answer(chats: Arc<Chats>, call: ApiRequest) -> Result<ApiResponse, ApiError> {
    let permit = call.stream_permit()?;
    let running = simple::start(&chats, &call, |body| {
        let text = body.get("query").text(QUERY_BYTES_MAX)?.to_owned();
        let turns = vec![Turn { role: Role::User, parts: vec![Part::Text(text)] }];
        Ok(Input::Chat(Conversation { turns, ..Conversation::default() }))
    });
    let mut generations = running.await?.generations;
    let mut first = Vec::new();
    while first.is_empty() {
        match generations.next().await {
            Some((_, Delta::Text { text, .. })) => first = text.into_bytes(),
            Some((_, Delta::Failed(failure))) => return Err(failure.into()),
            Some((_, Delta::Finished { .. })) | None => break,
            Some(_) => {}
        }
    }
    Ok(ApiResponse::stream("text/plain; charset=utf-8", stream::frames(TextEncoder { first }, generations), permit))
}

struct TextEncoder {
    first: Vec<u8>,
}

impl EventEncoder for TextEncoder {
    fn begin(&mut self) -> Frame {
        std::mem::take(&mut self.first).into()
    }

    fn delta(&mut self, _choice: usize, delta: Delta) -> Result<Frame, ApiError> {
        match delta {
            Delta::Text { text, .. } => Ok(text.into()),
            Delta::Failed(failure) => Err(failure.into()),
            _ => Ok(Frame::default()),
        }
    }

    fn keep_alive(&mut self) -> Frame {
        Frame::default()
    }

    fn end(&mut self) -> Result<Frame, ApiError> {
        Ok(Frame::default())
    }

    fn error(&mut self, error: &ApiError) -> Frame {
        format!("\n\nerror: {error}\n").into()
    }
}
