//! One request's generations side by side, up to the answer: `n` of them, or several prompts' worth.

use std::{pin::Pin, time::Duration};

use futures_util::{
    Stream, StreamExt,
    stream::{SelectAll, unfold},
};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::{
    choice::ChoiceState,
    encoder::{ChoiceEncoder, ResponseHead, event},
    error::error,
    usage::UsageTotal,
};
use crate::{
    chat::Delta,
    dialects::{ApiError, ApiResponse, ErrorCode, FrameStream, StreamPermit},
    prompt::Generation,
};

/// After so much silence a stream says that it is alive; clients give up after 10 seconds or more.
const SILENCE: Duration = Duration::from_secs(5);
/// A comment by the rules of such streams, which every reader skips. No empty line follows: some readers take the end of
/// a comment for the end of an event without data.
const COMMENT: &[u8] = b": keep-alive\n";
const DONE: &[u8] = b"data: [DONE]\n\n";

/// The deltas of all generations, each with its place.
pub(super) type Deltas = SelectAll<Pin<Box<dyn Stream<Item = (usize, Delta)> + Send>>>;

/// How the answer is to be written.
pub(super) struct Style {
    /// What stands around the choices.
    pub(super) frame: ResponseHead,
    /// One per generation.
    pub(super) forms: Vec<Box<dyn ChoiceEncoder>>,
    /// How many generations a prompt has.
    pub(super) copies: usize,
    /// How many of them are shown: the likeliest ones, if not all.
    pub(super) shown: usize,
    /// Tokens of each prompt.
    pub(super) input_tokens: Vec<u32>,
    /// Whether a stream tells the usage.
    pub(super) include_usage: bool,
}

/// The generations at work.
pub(super) struct ResponseBuilder {
    style: Style,
    deltas: Deltas,
    progress: Vec<ChoiceState>,
}

/// Adds a generation's deltas to the others.
pub(super) fn join(deltas: &mut Deltas, place: usize, generation: Generation) {
    let next = move |mut generation: Generation| async move {
        let delta = generation.next().await?;
        Some(((place, delta), generation))
    };
    deltas.push(Box::pin(unfold(generation, next)));
}

impl ResponseBuilder {
    /// Generations that are queued.
    pub(super) fn new(style: Style, deltas: Deltas) -> Self {
        let progress = style.forms.iter().map(|_| ChoiceState::default()).collect();
        Self { style, deltas, progress }
    }

    /// Answers with one body.
    pub(super) async fn whole(mut self) -> Result<ApiResponse, ApiError> {
        while let Some((place, delta)) = self.deltas.next().await {
            if let Some(piece) = self.progress[place].take(delta)? {
                self.style.forms[place].keep(piece);
            }
        }
        let usage = self.tally()?.json();
        let places = self.shown();
        let mut forms: Vec<Option<Box<dyn ChoiceEncoder>>> = self.style.forms.into_iter().map(Some).collect();
        let shown = places.iter().filter_map(|place| forms[*place].take());
        let choices: Vec<_> = shown.enumerate().map(|(index, form)| form.whole(index)).collect();
        let mut body = self.style.frame.body(&choices);
        body["usage"] = usage;
        Ok(ApiResponse::Full { status: 200, media_type: "application/json", body: body.to_string().into_bytes() })
    }

    /// Answers with a stream.
    pub(super) fn stream(self, place: StreamPermit) -> ApiResponse {
        ApiResponse::Stream { media_type: "text/event-stream", pieces: self.pieces(SILENCE), place }
    }

    fn pieces(self, silence: Duration) -> FrameStream {
        let writer = Writer { round: self, silence, said: None, is_over: false };
        Box::pin(unfold(writer, |mut writer| async move {
            let bytes = writer.next().await?;
            Some((bytes, writer))
        }))
    }

    /// The events that say this delta.
    fn say(&mut self, place: usize, delta: Delta) -> Result<Vec<u8>, ApiError> {
        let Some(piece) = self.progress[place].take(delta)? else { return Ok(Vec::new()) };
        let entries = self.style.forms[place].chunks(place, piece);
        Ok(entries.into_iter().flat_map(|entry| event(&self.chunk(&[entry]))).collect())
    }

    /// The events after the last choice.
    fn close(&self) -> Result<Vec<u8>, ApiError> {
        let usage = self.tally()?.json();
        let mut bytes = Vec::new();
        if self.style.include_usage {
            let mut body = self.style.frame.body(&[]);
            body["usage"] = usage;
            bytes = event(&body);
        }
        bytes.extend(DONE);
        Ok(bytes)
    }

    fn chunk(&self, choices: &[Value]) -> Value {
        let mut body = self.style.frame.body(choices);
        if self.style.include_usage {
            body["usage"] = Value::Null;
        }
        body
    }

    fn tally(&self) -> Result<UsageTotal, ApiError> {
        let mut tally = UsageTotal::new(&self.style.input_tokens);
        for (place, progress) in self.progress.iter().enumerate() {
            let usage = progress.usage().ok_or_else(silent)?;
            tally.add(place / self.style.copies, usage, progress.has_thought());
        }
        Ok(tally)
    }

    /// The places to show: of each prompt's generations the likeliest, in the order of their likelihood, or all as they are.
    fn shown(&self) -> Vec<usize> {
        let Style { copies, shown, .. } = self.style;
        let places: Vec<usize> = (0..self.progress.len()).collect();
        if shown == copies {
            return places;
        }
        let likelihood = |place: usize| self.progress[place].likelihood();
        let best = |places: &[usize]| {
            let mut places = places.to_vec();
            places.sort_by(|&a, &b| likelihood(b).total_cmp(&likelihood(a)));
            places.truncate(shown);
            places
        };
        places.chunks(copies).flat_map(best).collect()
    }
}

/// A stream in the making.
struct Writer {
    round: ResponseBuilder,
    silence: Duration,
    said: Option<Instant>,
    is_over: bool,
}

impl Writer {
    async fn next(&mut self) -> Option<Vec<u8>> {
        if self.is_over {
            return None;
        }
        let bytes = match self.said {
            None => COMMENT.to_vec(),
            Some(said) => self.after(said + self.silence).await,
        };
        self.said = Some(Instant::now());
        Some(bytes)
    }

    /// What comes until then, or else a sign of life.
    async fn after(&mut self, deadline: Instant) -> Vec<u8> {
        loop {
            let said = match timeout_at(deadline, self.round.deltas.next()).await {
                Ok(Some((place, delta))) => self.round.say(place, delta),
                Ok(None) => {
                    self.is_over = true;
                    self.round.close()
                }
                Err(_) => return COMMENT.to_vec(),
            };
            match said {
                Ok(bytes) if bytes.is_empty() => {}
                Ok(bytes) => return bytes,
                Err(problem) => {
                    self.is_over = true;
                    // The other generations end with this one.
                    self.round.deltas = Deltas::new();
                    return event(&json!({ "error": error(&problem) }));
                }
            }
        }
    }
}

fn silent() -> ApiError {
    ApiError::new(ErrorCode::Internal, "a generation ended without saying why; send the request again")
}

#[cfg(test)]
#[path = "response_tests.rs"]
mod tests;
