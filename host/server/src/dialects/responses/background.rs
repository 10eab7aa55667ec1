//! Answers that are generated while their client is away: `"background": true` returns at once, or streams for as long as
//! the client listens; `GET /v1/responses/ID` tells how far it is, and `POST /v1/responses/ID/cancel` ends it.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use futures_util::stream::unfold;
use serde::Deserialize;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, MissedTickBehavior, interval_at},
};

use super::{
    encoder::ResponseEncoder,
    stored::{self, find},
};
use crate::dialects::{
    ApiError, ApiRequest, ApiResponse, Frame, FrameStream, StreamPermit,
    stream::{EventEncoder, Generations, KEEP_ALIVE, ended_early},
};

/// Frames that a client may be behind. One that reads more slowly is left, as the answer must not wait for it.
const BEHIND_MAX: usize = 1024;

/// Answers in the making, by their owner and id; dropping the sender ends one.
#[derive(Debug, Default)]
pub(crate) struct Background(Mutex<HashMap<(u64, String), oneshot::Sender<Stopped>>>);

/// Where the task tells that it has ended.
type Stopped = oneshot::Sender<()>;

impl Background {
    fn begin(&self, owner: u64, id: &str) -> oneshot::Receiver<Stopped> {
        let (stop, stopped) = oneshot::channel();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert((owner, id.to_owned()), stop);
        stopped
    }

    /// Ends an answer; the receiver hears when the store has its last state. `None` if it has ended already.
    pub(super) fn stop(&self, owner: u64, id: &str) -> Option<oneshot::Receiver<()>> {
        let stop = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&(owner, id.to_owned()))?;
        let (told, hears) = oneshot::channel();
        stop.send(told).ok().map(|()| hears)
    }
}

/// The client of an answer, for as long as it listens.
struct Listener(Option<mpsc::Sender<Frame>>);

impl Listener {
    fn new() -> (Self, FrameStream) {
        let (sender, receiver) = mpsc::channel(BEHIND_MAX);
        let frames = unfold(receiver, |mut receiver| async move { Some((receiver.recv().await?, receiver)) });
        (Self(Some(sender)), Box::pin(frames))
    }

    fn send(&mut self, frame: Frame) {
        if !frame.is_empty() && self.0.as_ref().is_some_and(|sender| sender.try_send(frame).is_err()) {
            self.0 = None;
        }
    }
}

/// Generates an answer in the background. It holds a place among those that are streamed.
pub(super) fn start(
    call: &ApiRequest,
    mut encoder: ResponseEncoder,
    mut generations: Generations,
    permit: StreamPermit,
    is_streamed: bool,
) -> Result<ApiResponse, ApiError> {
    let (shared, owner, id) = (call.shared.clone(), call.client().id, encoder.id().to_owned());
    let response = encoder.put("in_progress", None);
    if shared.responses.get(owner, &id).is_none() {
        let help = "raise 'server.response_store', or send \"stream\": true";
        let error = ApiError::field("background", "there is no room to store the answer");
        return Err(ApiError { help: help.to_owned(), ..error });
    }
    let (mut listener, answer) = if is_streamed {
        let (mut listener, frames) = Listener::new();
        listener.send(encoder.begin());
        // The task below holds the permit, for longer than the client may listen.
        (listener, ApiResponse::events(frames, StreamPermit::default()))
    } else {
        (Listener(None), ApiResponse::text("application/json", response))
    };
    let mut stop = shared.background.begin(owner, &id);
    let began = Instant::now();
    tokio::spawn(async move {
        let mut silence = interval_at(Instant::now() + KEEP_ALIVE, KEEP_ALIVE);
        silence.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let told = loop {
            let next = tokio::select! {
                told = &mut stop => break told.ok(),
                next = generations.gather() => next,
                _ = silence.tick() => {
                    listener.send(encoder.keep_alive());
                    continue;
                }
            };
            let encoded = match next {
                Ok(Some((choice, delta))) => encoder.delta(choice, delta).map(|frame| (frame, true)),
                Ok(None) => encoder.end().map(|frame| (frame, false)),
                Err(error) => Err(error),
            };
            match encoded {
                Ok((frame, is_going_on)) => {
                    listener.send(frame);
                    if !is_going_on {
                        break None;
                    }
                }
                Err(error) => {
                    encoder.put("failed", Some(&error));
                    listener.send(encoder.error(&error));
                    break None;
                }
            }
        };
        if let Some(told) = told {
            encoder.put("cancelled", None);
            let _ = told.send(());
        } else {
            shared.background.stop(owner, &id);
        }
        tracing::info!(id, seconds = began.elapsed().as_secs_f32(), "an answer in the background has ended");
        drop(permit);
    });
    Ok(answer)
}

/// `POST /v1/responses/ID/cancel`.
pub(crate) async fn cancel(call: ApiRequest) -> Result<ApiResponse, ApiError> {
    let owner = call.client().id;
    if let Some(ended) = call.shared.background.stop(owner, &call.id) {
        ended.await.map_err(|_| ended_early())?;
        return stored::retrieve(call).await;
    }
    let stored = find(&call, &call.id)?;
    if serde_json::from_slice(&stored.response).is_ok_and(|Stored { background }| background) {
        return Ok(ApiResponse::text("application/json", stored.response));
    }
    let help = "an answer that is not in the background ends when its connection is closed";
    let error = ApiError::field("id", "this response was not generated in the background");
    Err(ApiError { help: help.to_owned(), ..error })
}

/// True while a stored response is being generated.
pub(super) fn is_running(response: &[u8]) -> bool {
    serde_json::from_slice(response).is_ok_and(|State { status }| status == "in_progress")
}

#[derive(Deserialize)]
struct Stored {
    background: bool,
}

#[derive(Deserialize)]
struct State {
    status: String,
}
