//! WebSockets: the handshake, and the connection after it. The dialect gives messages their meaning.

use std::{
    collections::VecDeque,
    io,
    pin::{Pin, pin},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use hyper::{
    HeaderMap, Method, StatusCode,
    header::{
        CONNECTION, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE, USER_AGENT,
    },
};
use sha1::{Digest, Sha1};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::timeout,
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Error, Message,
        error::ProtocolError,
        protocol::{CloseFrame, Role, WebSocketConfig, frame::coding::CloseCode},
    },
};
use tracing::Instrument;

use super::{
    Limits, body,
    filters::{self, Response},
    panics::catch_panic,
    request_log::RequestLog,
    state::{AppState, RequestContext, Work},
    upgrade::{Duplex, Upgrade, Upgraded},
};
use crate::{
    dialects::{
        ApiError, ErrorCode, counted, exhausted,
        responses::{SocketConversation, refused},
    },
    shares::Share,
};
use pensieve_protocol::awake::{AwakeClock, TICK};

/// RFC 6455 appends this to a client's key.
const PROTOCOL: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// How long a connection may be silent between two responses.
const IDLE_MAX: Duration = Duration::from_secs(60 * 60);
/// Messages that may wait while a response is generated.
const WAITING_MAX: usize = 8;
/// A control frame has room for so much after the code.
const REASON_BYTES_MAX: usize = 123;
const READ_BYTES: usize = 16 << 10;
/// The longest frame between the pieces of a message, such as a ping.
const CONTROL_BYTES_MAX: usize = 131;

/// Accepts a WebSocket for responses; its connection is served once this answer is written.
pub(super) fn accept(app: &Arc<AppState>, context: RequestContext, headers: &HeaderMap) -> Result<Response, ApiError> {
    let has = |name, word: &str| {
        let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|value| value.trim().eq_ignore_ascii_case(word))
    };
    if !has(UPGRADE, "websocket") || !has(CONNECTION, "upgrade") {
        let help = "send POST, or ask for an upgrade to a WebSocket";
        let error = ApiError::new(ErrorCode::Method, "this path supports GET for WebSockets only");
        return Err(ApiError { help: help.to_owned(), ..error });
    }
    if !has(SEC_WEBSOCKET_VERSION, "13") {
        return Err(ApiError::new(
            ErrorCode::InvalidRequest,
            "this server speaks version 13 of the WebSocket protocol",
        ));
    }
    let key = headers.get(SEC_WEBSOCKET_KEY).filter(|key| key.len() == 24);
    let key = key.ok_or_else(|| ApiError::new(ErrorCode::InvalidRequest, "the header sec-websocket-key is missing"))?;
    let digest = Sha1::new().chain_update(key).chain_update(PROTOCOL).finalize();
    let accepted = HeaderValue::try_from(STANDARD.encode(digest))
        .map_err(|_| ApiError::new(ErrorCode::Internal, "the key of the WebSocket has no answer"))?;
    let mut response = filters::empty();
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let answer = response.headers_mut();
    answer.insert(UPGRADE, HeaderValue::from_static("websocket"));
    answer.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    answer.insert(SEC_WEBSOCKET_ACCEPT, accepted);
    let connection = context.connection.clone();
    let session = Session { app: app.clone(), agent: headers.get(USER_AGENT).cloned(), context };
    connection.upgrade(Upgrade::to(move |upgraded| session.serve(upgraded)));
    Ok(response)
}

struct Session {
    app: Arc<AppState>,
    agent: Option<HeaderValue>,
    context: RequestContext,
}

type Socket = WebSocketStream<Metered>;

/// A message, charged to its client until it is dropped.
struct Incoming(Bytes);

impl Session {
    async fn serve(self, upgraded: Upgraded) {
        let Upgraded { stream, read, mut stopping } = upgraded;
        let held = Held::new(self.app.memory.nothing(self.context.share()));
        let metered = Metered { stream, held: held.clone() };
        let limits = self.app.limits();
        let bytes_max = limits.body_bytes_max;
        let config = WebSocketConfig::default()
            .read_buffer_size(READ_BYTES)
            .max_message_size(Some(bytes_max))
            .max_frame_size(Some(bytes_max));
        let socket = WebSocketStream::from_partially_read(metered, read.to_vec(), Role::Server, Some(config));
        let mut socket = socket.await;
        let conversation = SocketConversation::new(self.app.shared().clone());
        let mut waiting = VecDeque::new();
        let farewell = loop {
            let message = match waiting.pop_front() {
                Some(message) => message,
                None => {
                    let next = tokio::select! {
                        next = timeout(IDLE_MAX, next(&mut socket, &held, limits)) => next.map_err(|_| "idle for an hour"),
                        _ = stopping.wait_for(|is_stopping| *is_stopping) => Err("the server stops"),
                    };
                    match next {
                        Ok(Some(message)) => message,
                        // What there is to say has been said.
                        Ok(None) => break None,
                        Err(reason) => break Some(CloseFrame { code: CloseCode::Away, reason: reason.into() }),
                    }
                }
            };
            if !self.turn(&conversation, message, &mut socket, &held, &mut waiting).await {
                return;
            }
        };
        let _ = socket.close(farewell).await;
    }

    /// Answers a message. False if the connection has ended.
    async fn turn(
        &self,
        conversation: &SocketConversation,
        Incoming(body): Incoming,
        socket: &mut Socket,
        held: &Held,
        waiting: &mut VecDeque<Incoming>,
    ) -> bool {
        let mut context = self.context.clone();
        let answering = context.connection.answering();
        let log = RequestLog::begin(
            &Method::GET,
            "/v1/responses",
            self.agent.as_ref(),
            "/v1/responses",
            context.dialect.name(),
            answering,
        );
        context.request_id = log.id.clone();
        let span = log.span.clone();
        let turn = async {
            // Its key may have been replaced since the last turn.
            let keyring = &self.app.shared().keyring;
            context.identity = context.identity.map(|identity| identity.renewed(keyring)).transpose()?;
            let permit = self.app.admit(&context, Work::Computes)?;
            let memory = self.app.memory_of(context.share());
            let call = context.into_request(body, memory, &self.app, permit.running.clone());
            let mut begun = pin!(catch_panic(conversation.answer(self.app.chats.clone(), call)));
            let mut answer = loop {
                tokio::select! {
                    answer = &mut begun => break answer?,
                    message = next(socket, held, self.app.limits()) => {
                        let Some(message) = message else { return Ok::<bool, ApiError>(false) };
                        if !wait(waiting, message, socket).await {
                            return Ok(false);
                        }
                    }
                }
            };
            loop {
                tokio::select! {
                    frame = answer.frames().next() => {
                        let Some(frame) = frame else { return Ok(true) };
                        for message in conversation.messages(&answer, frame) {
                            if socket.send(Message::text(message)).await.is_err() {
                                return Ok(false);
                            }
                        }
                    }
                    message = next(socket, held, self.app.limits()) => {
                        let Some(message) = message else { return Ok(false) };
                        if !wait(waiting, message, socket).await {
                            return Ok(false);
                        }
                    }
                }
            }
        };
        match turn.instrument(span).await {
            Ok(is_open) => {
                if is_open {
                    log.end(200);
                }
                is_open
            }
            Err(error) => {
                log.span.record("reason", error.reason());
                let (status, message) = refused(&error);
                let is_open = socket.send(Message::text(message)).await.is_ok();
                log.end(status);
                is_open
            }
        }
    }
}

/// Keeps a message for later. One too many is refused, and the response that is generated goes on. False if the connection
/// has ended.
async fn wait(waiting: &mut VecDeque<Incoming>, message: Incoming, socket: &mut Socket) -> bool {
    if waiting.len() < WAITING_MAX {
        waiting.push_back(message);
        return true;
    }
    let text =
        "too many messages wait for this connection's response, so this one is left out; send one after the other";
    let (_, error) = refused(&ApiError::new(ErrorCode::Overloaded, text));
    socket.send(Message::text(error)).await.is_ok()
}

/// The next message; `None` at the end of the connection, or if it breaks the protocol or a limit.
async fn next(socket: &mut Socket, held: &Held, limits: &Limits) -> Option<Incoming> {
    loop {
        // Asked here, too, as the wait below may be given up for something else.
        held.partial().clock.at(Instant::now());
        let Ok(frame) = timeout(TICK, socket.next()).await else {
            let late = held.partial().late(limits, Instant::now());
            let Some(patience) = late else { continue };
            let (_, error) = refused(&body::too_slow(limits, patience));
            let _ = socket.send(Message::text(error)).await;
            let frame = CloseFrame { code: CloseCode::Policy, reason: "a message came too slowly".into() };
            let _ = socket.close(Some(frame)).await;
            return None;
        };
        let bytes = match frame? {
            Ok(Message::Text(text)) => Bytes::from(text),
            Ok(Message::Binary(bytes)) => bytes,
            // They may come between the pieces of a message, which stay charged.
            Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_)) => {
                held.partial().control(Instant::now());
                continue;
            }
            Ok(Message::Close(_)) => return None,
            Err(error) => {
                tracing::debug!("a WebSocket ended early: {error}");
                if let Some(frame) = violation(&error) {
                    let _ = socket.close(Some(frame)).await;
                }
                return None;
            }
        };
        return Some(Incoming(counted(bytes, held.take())));
    }
}

/// The farewell to a client that breaks the protocol or a limit; `None` where nothing can be sent any more.
fn violation(error: &Error) -> Option<CloseFrame> {
    let (code, reason) = match error {
        Error::Capacity(error) => (CloseCode::Size, error.to_string()),
        Error::Utf8(_) => (CloseCode::Invalid, "a text message is not UTF-8".to_owned()),
        Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => return None,
        Error::Protocol(error) => (CloseCode::Protocol, error.to_string()),
        Error::Io(error) if error.kind() == io::ErrorKind::Other => (CloseCode::Again, error.to_string()),
        _ => return None,
    };
    let reason: String = reason.chars().filter(char::is_ascii).take(REASON_BYTES_MAX).collect();
    Some(CloseFrame { code, reason: reason.into() })
}

/// The message that has not arrived whole.
#[derive(Clone)]
struct Held(Arc<Mutex<Partial>>);

struct Partial {
    /// Bytes read since the last whole message.
    charge: Share,
    /// When the first of it was read, by the clock.
    since: Option<Instant>,
    /// Leaves out the time in which this process is stopped.
    clock: AwakeClock,
    /// Number of frames in it that are no part of a message.
    controls: usize,
}

impl Held {
    fn new(charge: Share) -> Self {
        Self(Arc::new(Mutex::new(Partial::new(charge, Instant::now()))))
    }

    fn partial(&self) -> MutexGuard<'_, Partial> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The charge of a message that is whole now.
    fn take(&self) -> Share {
        let mut partial = self.partial();
        (partial.since, partial.controls) = (None, 0);
        partial.charge.split()
    }

    /// Charges what was read.
    fn read(&self, bytes: usize) -> io::Result<()> {
        let is_granted = self.partial().read(bytes, Instant::now());
        if is_granted { Ok(()) } else { Err(io::Error::other(exhausted().to_string())) }
    }
}

impl Partial {
    fn new(charge: Share, now: Instant) -> Self {
        Self { charge, since: None, clock: AwakeClock::new(now), controls: 0 }
    }

    #[must_use]
    fn read(&mut self, bytes: usize, now: Instant) -> bool {
        let now = self.clock.at(now);
        if bytes > 0 {
            self.since.get_or_insert(now);
        }
        self.charge.grow(bytes)
    }

    /// A frame between the pieces of a message, or between messages.
    fn control(&mut self, now: Instant) {
        self.clock.at(now);
        self.controls += 1;
        if self.message_bytes() == 0 {
            self.since = None;
        }
    }

    /// The time that a message had to arrive, if it is late.
    fn late(&mut self, limits: &Limits, now: Instant) -> Option<Duration> {
        let now = self.clock.at(now);
        let bytes = self.message_bytes();
        let patience = body::patience(limits, bytes);
        (bytes > 0 && now.saturating_duration_since(self.since?) > patience).then_some(patience)
    }

    /// The bytes that no other frames can account for.
    fn message_bytes(&self) -> usize {
        self.charge.amount().saturating_sub(self.controls * CONTROL_BYTES_MAX)
    }
}

/// Charges what is read to the client's share of memory.
struct Metered {
    stream: Box<dyn Duplex>,
    held: Held,
}

impl AsyncRead for Metered {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        Poll::Ready(self.held.read(buffer.filled().len() - before))
    }
}

impl AsyncWrite for Metered {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shares::Shares;

    /// Bytes that are read, or the end of a ping; each a second after the one before. True if a message is late a second
    /// after all.
    fn is_late(events: &[Option<usize>]) -> bool {
        let mut now = Instant::now();
        let mut partial = Partial::new(Shares::default().nothing(1), now);
        for event in events {
            match event {
                Some(bytes) => assert!(partial.read(*bytes, now)),
                None => partial.control(now),
            }
            now += Duration::from_secs(1);
        }
        partial.late(&Limits { body_timeout: Duration::from_secs(12), ..Limits::default() }, now).is_some()
    }

    #[test]
    fn a_message_has_to_arrive_at_a_rate_and_pings_are_none() {
        let ping = [Some(CONTROL_BYTES_MAX), None];
        for (events, expect) in [
            (vec![], false),
            (vec![Some(10)], false),
            (vec![Some(10), Some(10)], false),
            // Two seconds are free, and a kilobyte is worth another.
            (vec![Some(10), Some(10), Some(10)], true),
            (vec![Some(2048), Some(2), Some(2)], false),
            (vec![Some(2048), Some(2), Some(2), Some(2), Some(2)], true),
            // A connection that is only kept alive is in no hurry, and a ping speeds nothing up.
            (ping.repeat(20), false),
            ([ping.repeat(20), vec![Some(10)]].concat(), false),
            ([ping.repeat(20), vec![Some(10), Some(10), Some(10)]].concat(), true),
            (vec![Some(10), Some(1000), None, Some(10), None], true),
            (vec![Some(0); 9], false),
        ] {
            assert_eq!(is_late(&events), expect, "{events:?}");
        }
    }

    #[test]
    fn a_message_is_not_late_because_the_server_was_stopped() {
        let limits = Limits { body_timeout: Duration::from_secs(12), ..Limits::default() };
        let mut now = Instant::now();
        let mut partial = Partial::new(Shares::default().nothing(1), now);
        assert!(partial.read(10, now));
        now += Duration::from_secs(60);
        assert_eq!(partial.late(&limits, now), None);
        let mut later = 0..6;
        assert!(later.any(|_| {
            now += TICK;
            partial.late(&limits, now).is_some()
        }));
    }
}
