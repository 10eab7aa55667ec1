//! A message as a stream of frames. Its beginning leaves before anything is known of the answer, and while there is nothing
//! to say a ping says that somebody is still there: a model is being loaded, or a long prompt computed.

use std::time::Duration;

use futures_util::stream::unfold;
use tokio::time::{Instant, timeout_at};

use super::{encoder::MessageEncoder, events::Event};
use crate::{dialects::FrameStream, prompt::Generation};

/// Clients give up after 20 s of silence.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// What is left to be sent.
pub(super) struct Feed {
    encoder: MessageEncoder,
    generation: Generation,
    request_id: String,
    has_begun: bool,
    /// When the last frame left.
    sent: Instant,
}

impl Feed {
    pub(super) fn new(encoder: MessageEncoder, generation: Generation, request_id: String) -> Self {
        Self { encoder, generation, request_id, has_begun: false, sent: Instant::now() }
    }

    /// The frames; each piece holds what can be said at that moment.
    pub(super) fn pieces(self) -> FrameStream {
        Box::pin(unfold(self, |mut feed| async move { feed.next().await.map(|piece| (piece, feed)) }))
    }

    async fn next(&mut self) -> Option<Vec<u8>> {
        if !self.has_begun {
            self.has_begun = true;
            return Some(self.frame(&self.encoder.begin()));
        }
        while !self.encoder.is_over() {
            let events = match timeout_at(self.sent + SILENCE_MAX, self.generation.next()).await {
                Ok(Some(delta)) => self.encoder.take(delta),
                Ok(None) => self.encoder.break_off(),
                Err(_) => vec![Event::Ping],
            };
            // Some pieces mean nothing to a client, and break no silence.
            if !events.is_empty() {
                return Some(self.frame(&events));
            }
        }
        None
    }

    fn frame(&mut self, events: &[Event]) -> Vec<u8> {
        self.sent = Instant::now();
        events.iter().flat_map(|event| event.frame(&self.request_id)).collect()
    }
}
