//! Answers that are generated while their client is away: `"background": true` returns at once, or streams for as long as
//! the client listens; `GET /v1/responses/ID` tells how far it is, and `POST /v1/responses/ID/cancel` ends it.

use std::{
    collections::HashMap,
    fmt,
    sync::{Mutex, PoisonError},
};

use futures_util::stream::unfold;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, MissedTickBehavior, interval_at},
};

use super::{encoder::ResponseEncoder, numbering::Progress};
use crate::dialects::{
    ApiError, ApiRequest, ApiResponse, Frame, FrameStream, StreamPermit,
    stream::{EventEncoder, Generations, KEEP_ALIVE},
};

/// Frames that a client may be behind. One that reads more slowly is left, as the answer must not wait for it.
const BEHIND_MAX: usize = 1024;
/// Requests to one answer that wait for it; more wait to be queued.
const COMMANDS_MAX: usize = 16;

/// Answers in the making, by their owner and id; dropping the sender ends one.
#[derive(Debug, Default)]
pub(crate) struct Background(Mutex<HashMap<(u64, String), mpsc::Sender<Command>>>);

/// To the task of an answer.
#[derive(Debug)]
enum Command {
    /// It tells when it has ended.
    Stop(oneshot::Sender<()>),
    Follow(oneshot::Sender<Followed>),
}

/// An answer in the making: what it is so far, and the events from then on.
pub(super) struct Followed {
    pub(super) progress: Progress,
    pub(super) frames: FrameStream,
}

impl fmt::Debug for Followed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Followed").finish_non_exhaustive()
    }
}

impl Background {
    fn begin(&self, owner: u64, id: &str) -> mpsc::Receiver<Command> {
        let (sender, commands) = mpsc::channel(COMMANDS_MAX);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert((owner, id.to_owned()), sender);
        commands
    }

    fn end(&self, owner: u64, id: &str) -> Option<mpsc::Sender<Command>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&(owner, id.to_owned()))
    }

    /// Ends an answer; afterwards the store has its last state. False if it was not in the making.
    pub(super) async fn stop(&self, owner: u64, id: &str) -> bool {
        let Some(task) = self.end(owner, id) else { return false };
        let (told, hears) = oneshot::channel();
        if task.send(Command::Stop(told)).await.is_ok() {
            // It drops the command if it ends by itself meanwhile, which it does after it has stored its last state.
            let _ = hears.await;
        }
        true
    }

    /// `None` if no such answer is in the making.
    pub(super) async fn follow(&self, owner: u64, id: &str) -> Option<Followed> {
        let task = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&(owner, id.to_owned())).cloned()?;
        let (told, hears) = oneshot::channel();
        task.send(Command::Follow(told)).await.ok()?;
        hears.await.ok()
    }
}

/// The clients of an answer, for as long as they listen.
struct Listeners(Vec<mpsc::Sender<Frame>>);

impl Listeners {
    fn add(&mut self) -> FrameStream {
        let (sender, receiver) = mpsc::channel(BEHIND_MAX);
        self.0.push(sender);
        Box::pin(unfold(receiver, |mut receiver| async move { Some((receiver.recv().await?, receiver)) }))
    }

    fn send(&mut self, frame: &Frame) {
        if !frame.is_empty() {
            self.0.retain(|sender| sender.try_send(frame.clone()).is_ok());
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
    // Before it can be found, so that a client that finds it can follow it.
    let mut commands = shared.background.begin(owner, &id);
    let response = encoder.put("in_progress", None);
    if shared.responses.get(owner, &id).is_none() {
        shared.background.end(owner, &id);
        let help = "raise 'server.response_store', or send \"stream\": true";
        let error = ApiError::field("background", "there is no room to store the answer");
        return Err(ApiError { help: help.to_owned(), ..error });
    }
    let mut listeners = Listeners(Vec::new());
    // The task below holds the permit, for longer than the client may listen.
    let answer = if is_streamed {
        ApiResponse::events(listeners.add(), StreamPermit::default())
    } else {
        ApiResponse::text("application/json", response)
    };
    // Without a listener as well, so that the numbers of the events are the same.
    listeners.send(&encoder.begin());
    let began = Instant::now();
    tokio::spawn(async move {
        let mut silence = interval_at(Instant::now() + KEEP_ALIVE, KEEP_ALIVE);
        silence.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut told = None;
        let is_stopped = loop {
            let next = tokio::select! {
                command = commands.recv() => match command {
                    Some(Command::Follow(told)) => {
                        let _ = told.send(Followed { progress: encoder.progress(), frames: listeners.add() });
                        continue;
                    }
                    Some(Command::Stop(sender)) => {
                        told = Some(sender);
                        break true;
                    }
                    None => break true,
                },
                next = generations.gather() => next,
                _ = silence.tick() => {
                    if !listeners.0.is_empty() {
                        listeners.send(&encoder.keep_alive());
                    }
                    continue;
                }
            };
            let encoded = match next {
                // Not once more after the last event: a follower that comes then reads the stored answer.
                Ok(Some((choice, delta))) => encoder.delta(choice, delta).map(|frame| (frame, !encoder.is_finished())),
                Ok(None) => encoder.end().map(|frame| (frame, false)),
                Err(error) => Err(error),
            };
            match encoded {
                Ok((frame, is_going_on)) => {
                    listeners.send(&frame);
                    if !is_going_on {
                        break false;
                    }
                }
                Err(error) => {
                    listeners.send(&encoder.fail(&error));
                    break false;
                }
            }
        };
        if is_stopped {
            listeners.send(&encoder.cancel());
            if let Some(told) = told {
                let _ = told.send(());
            }
        } else {
            shared.background.end(owner, &id);
        }
        tracing::info!(id, seconds = began.elapsed().as_secs_f32(), "an answer in the background has ended");
        drop(permit);
    });
    Ok(answer)
}
