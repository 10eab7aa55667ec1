//! `POST /token_stream`: `{"query": "…"}`, and the answer as plain text while it is written. For a person with curl.
//!
//! The first piece is awaited before the status is sent, as plain text has no other way to say that something is wrong.
//! What breaks off later ends with a line that says so.

use std::sync::Arc;

use futures_util::{StreamExt, stream};

use super::{
    ApiError, ApiRequest, ApiResponse, FrameStream, StreamPermit,
    simple::{News, Running, refused},
};
use crate::{
    chat::{Conversation, Delta, Input, Part, Role, Turn},
    prompt::Chats,
};

const QUERY_BYTES_MAX: usize = 16 << 20;

/// Answers a query.
pub(crate) async fn answer(chats: Arc<Chats>, call: ApiRequest) -> ApiResponse {
    match begin(&chats, &call).await {
        Ok((pieces, place)) => ApiResponse::Stream { media_type: "text/plain; charset=utf-8", pieces, place },
        Err(problem) => refused(&problem, &call.request_id),
    }
}

async fn begin(chats: &Chats, call: &ApiRequest) -> Result<(FrameStream, StreamPermit), ApiError> {
    let place = call.places.take()?;
    let query = Running::start(chats, call, |body| {
        let text = body.get("query").text(QUERY_BYTES_MAX)?.to_owned();
        let turns = vec![Turn { role: Role::User, parts: vec![Part::Text(text)] }];
        Ok(Input::Chat(Conversation { turns, ..Conversation::default() }))
    });
    let mut running = query.await?;
    let first = loop {
        match running.next().await {
            Some(News::Delta(Delta::Text { text, .. })) if !text.is_empty() => break Some(text.into_bytes()),
            Some(News::Delta(Delta::Failed(failure))) => return Err(failure.into()),
            Some(News::Delta(Delta::Finished { .. })) | None => break None,
            Some(_) => {}
        }
    };
    let rest = stream::unfold(running, |mut running| async move { Some((piece(&mut running).await?, running)) });
    Ok((stream::iter(first).chain(rest).boxed(), place))
}

async fn piece(running: &mut Running) -> Option<Vec<u8>> {
    loop {
        match running.next().await? {
            News::Delta(Delta::Text { text, .. }) if !text.is_empty() => return Some(text.into_bytes()),
            News::Delta(Delta::Failed(failure)) => return Some(format!("\n\nerror: {failure}\n").into_bytes()),
            News::Delta(_) | News::Silence => {}
        }
    }
}
