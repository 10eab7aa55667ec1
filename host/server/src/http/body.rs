//! Reads request bodies within limits, and writes answer bodies piece by piece.

use bytes::{Buf, Bytes};
use futures_util::{Stream, StreamExt};
use hyper::{
    HeaderMap, StatusCode,
    header::{
        CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue, TRANSFER_ENCODING,
        WARNING,
    },
};
use std::{
    convert::Infallible,
    pin::{Pin, pin},
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};
use tokio::time::timeout;

use super::{
    BYTES_PER_SECOND_MIN, Limits,
    connections::Reading,
    filters::{self, BodyError, Response},
    state::Admission,
};
use crate::{
    dialects::{
        ApiBody, ApiError, ApiResponse, ErrorCode, Frame, FrameStream, RequestMemory, StreamPermit, counted, exhausted,
    },
    shares::Shares,
};
use pensieve_protocol::{
    awake::{AwakeClock, TICK},
    outside::without_quoted,
};

/// The minimum rate is enforced after this fraction (1/N) of the body timeout.
const GRACE: u32 = 6;

/// Answers up to this length are not charged while they wait to be read: they fit into socket buffers.
const SMALL_BYTES: usize = 64 << 10;
/// Limit of one `warning` header's text.
const WARNING_BYTES_MAX: usize = 400;

/// Headers that browsers add to requests of web pages.
const BROWSER_HEADERS: [&str; 3] = ["origin", "referer", "sec-fetch-site"];

/// Refuses bodies with another content type than JSON, or with too large a content length, before reading them. One that is
/// empty needs no type. Ollama
/// accepts any content type, and `curl -d` sends that of a form, so its routes accept any, too, unless the request
/// comes from a web page: pages can send forms to any server without permission.
pub(super) fn check(headers: &HeaderMap, limits: &Limits, is_ollama: bool) -> Result<(), ApiError> {
    let text = |name| headers.get(name).map(|value: &HeaderValue| value.to_str().unwrap_or_default());
    let media_type = text(CONTENT_TYPE).map(|value| value.split(';').next().unwrap_or_default().trim());
    let is_exempt = is_ollama && BROWSER_HEADERS.iter().all(|name| !headers.contains_key(*name));
    let is_json = media_type.is_some_and(|media_type| media_type.eq_ignore_ascii_case("application/json"));
    let is_empty = match headers.get(CONTENT_LENGTH) {
        Some(length) => length == "0",
        None => !headers.contains_key(TRANSFER_ENCODING),
    };
    let needs_none = is_empty && media_type.is_none();
    if !is_json && !is_exempt && !needs_none {
        let message = match media_type {
            None => "there is no Content-Type; send application/json".to_owned(),
            Some(_) => "the Content-Type is not application/json; send the body as that".to_owned(),
        };
        return Err(ApiError::new(ErrorCode::MediaType, message));
    }
    if text(CONTENT_ENCODING).is_some_and(|encoding| !encoding.trim().eq_ignore_ascii_case("identity")) {
        return Err(ApiError::new(ErrorCode::MediaType, "compressed bodies are not served; send it as it is"));
    }
    match text(CONTENT_LENGTH).map(str::parse::<u64>) {
        Some(Ok(length)) if length > limits.body_bytes_max as u64 => Err(too_large(limits)),
        _ => Ok(()),
    }
}

/// Reads a body to its end. Its memory is charged to the client's share of `memory` until the last part of it is
/// dropped. Time in which this process is stopped does not count, as what the client sends meanwhile stays unread.
pub(super) async fn read(
    body: impl Stream<Item = Result<impl Buf, BodyError>>,
    limits: &Limits,
    memory: &Shares,
    client: u64,
    mut reading: Reading,
) -> Result<Bytes, ApiError> {
    let mut body = pin!(body);
    let (mut read, mut held) = (Vec::new(), memory.nothing(client));
    let began = Instant::now();
    let mut clock = AwakeClock::new(began);
    loop {
        let patience = patience(limits, read.len());
        let piece = loop {
            let left = (began + patience).saturating_duration_since(clock.at(Instant::now()));
            // Even without any time left, what has arrived is taken first.
            match timeout(left.min(TICK), body.next()).await {
                Ok(piece) => break piece,
                Err(_) if left.is_zero() => return Err(too_slow(limits, patience)),
                Err(_) => {}
            }
        };
        let Some(piece) = piece else { return Ok(counted(read, held)) };
        let invalid = |error| ApiError::new(ErrorCode::InvalidRequest, format!("the body broke off: {error}"));
        let mut piece = piece.map_err(invalid)?;
        let more = piece.remaining();
        if more > limits.body_bytes_max - read.len() {
            return Err(too_large(limits));
        }
        if !held.grow(more) {
            return Err(exhausted());
        }
        reading.received(more);
        while piece.has_remaining() {
            let chunk = piece.chunk();
            let length = chunk.len();
            read.extend_from_slice(chunk);
            piece.advance(length);
        }
    }
}

/// How long a body may take of which this much has arrived.
pub(super) fn patience(limits: &Limits, bytes: usize) -> Duration {
    let earned = Duration::from_secs_f64(bytes as f64 / BYTES_PER_SECOND_MIN);
    (limits.body_timeout / GRACE + earned).min(limits.body_timeout)
}

pub(super) fn too_slow(limits: &Limits, patience: Duration) -> ApiError {
    let message = if patience < limits.body_timeout {
        format!("the body arrives too slowly, at less than {BYTES_PER_SECOND_MIN} bytes per second")
    } else {
        format!("the body did not arrive within {} s", patience.as_secs_f32())
    };
    ApiError::new(ErrorCode::Timeout, message)
}

fn too_large(limits: &Limits) -> ApiError {
    let message = format!("the body is longer than {} bytes", limits.body_bytes_max);
    ApiError::new(ErrorCode::TooLarge, message)
}

/// Says in the headers of a stream how long its prompt is, and how much of it need not be read, as far as that is known
/// when the headers leave.
pub(super) fn tell_prompt(response: &mut Response, prompt: u32, cached: u32) {
    let headers = response.headers_mut();
    headers.insert(HeaderName::from_static("pensieve-prompt-tokens"), HeaderValue::from(prompt));
    headers.insert(HeaderName::from_static("pensieve-cached-tokens"), HeaderValue::from(cached));
}

/// Says in the headers which model answers instead of the one that was asked for, and why.
pub(super) fn tell_handover(response: &mut Response, model: &str, reason: &'static str) {
    let headers = response.headers_mut();
    headers.insert(HeaderName::from_static("pensieve-handover"), HeaderValue::from_static(reason));
    if let Ok(model) = HeaderValue::from_str(model) {
        headers.insert(HeaderName::from_static("pensieve-model"), model);
    }
}

/// Converts an answer to a response. The request holds its permit until the last byte of the answer is handed over, so
/// that a client that has read everything can send another, and its memory until that byte is written.
pub(super) fn write(
    answer: ApiResponse,
    permit: Option<Admission>,
    memory: &RequestMemory,
) -> Result<Response, ApiError> {
    let ApiResponse { status, media_type, warnings, body } = answer;
    let mut response = match body {
        ApiBody::Full(body) => {
            let length = body.len();
            let held = (length > SMALL_BYTES).then(|| memory.hold(length)).transpose()?;
            let (mut pieces, mut permit, held) = (body.into_iter(), permit, Arc::new(held));
            let pieces = std::iter::from_fn(move || {
                let piece = pieces.next();
                if pieces.len() == 0 {
                    permit.take();
                }
                piece.map(|piece| Ok::<_, Infallible>(counted(piece, held.clone())))
            });
            let mut response = filters::streamed(futures_util::stream::iter(pieces));
            response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
            response
        }
        ApiBody::Stream(frames, stream_permit) => {
            let (frames, waiting) = (Mutex::new(frames), Frame::default().into_iter());
            let frames = FrameBody { frames, waiting, _permit: permit, _stream_permit: stream_permit };
            let mut response = filters::streamed(frames);
            let headers = response.headers_mut();
            headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
            // Turns off buffering in nginx and similar proxies.
            headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
            response
        }
    };
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    for warning in &warnings {
        // The part after a second colon is a parser's message, which may quote the client.
        let logged = warning.splitn(3, ": ").take(2).collect::<Vec<_>>().join(": ");
        tracing::warn!(warning = without_quoted(&logged), "a request was changed");
        // Code 299 is "miscellaneous persistent warning"; its text is quoted.
        let visible = warning.chars().filter(|letter| letter.is_ascii_graphic() || *letter == ' ');
        let text: String = visible.take(WARNING_BYTES_MAX).collect();
        let text = text.replace(['"', '\\'], "'");
        if let Ok(value) = HeaderValue::from_str(&format!("299 pensieve \"{text}\"")) {
            response.headers_mut().append(WARNING, value);
        }
    }
    Ok(response)
}

pub(super) fn full(status: u16, media_type: &'static str, body: Vec<u8>) -> Response {
    let mut response = filters::whole(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

struct FrameBody {
    /// A [`filters::streamed`] body is `Sync`; nothing ever waits for the lock.
    frames: Mutex<FrameStream>,
    /// Remaining buffers of the current frame.
    waiting: std::vec::IntoIter<Bytes>,
    _permit: Option<Admission>,
    _stream_permit: StreamPermit,
}

impl Stream for FrameBody {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            if let Some(piece) = this.waiting.next() {
                return Poll::Ready(Some(Ok(piece)));
            }
            let frames = this.frames.get_mut().unwrap_or_else(PoisonError::into_inner);
            match ready!(frames.as_mut().poll_next(context)) {
                Some(frame) => this.waiting = frame.into_iter(),
                None => return Poll::Ready(None),
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_declared_as_json_and_not_too_long() {
        let limits = Limits { body_bytes_max: 10, ..Limits::default() };
        let check = |lines: &[(&'static str, &str)]| {
            let line = |(name, value): &(&'static str, &str)| {
                (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
            };
            let headers: HeaderMap = lines.iter().map(line).collect();
            super::check(&headers, &limits, false).map_err(|error| error.code)
        };
        let json = ("content-type", "application/json");
        assert_eq!(check(&[json]), Ok(()));
        assert_eq!(check(&[json, ("content-length", "10"), ("content-encoding", "identity")]), Ok(()));
        assert_eq!(check(&[("content-type", "Application/JSON; charset=utf-8")]), Ok(()));
        assert_eq!(check(&[json, ("content-length", "11")]), Err(ErrorCode::TooLarge));
        assert_eq!(check(&[json, ("content-encoding", "gzip")]), Err(ErrorCode::MediaType));
        for other in ["", "text/plain", "application/jsonp", "application/json, text/plain", "multipart/form-data"] {
            assert_eq!(check(&[("content-type", other)]), Err(ErrorCode::MediaType), "{other}");
        }
        for length in [("content-length", "1"), ("transfer-encoding", "chunked")] {
            assert_eq!(check(&[length]), Err(ErrorCode::MediaType), "{length:?}");
        }
        assert_eq!((check(&[]), check(&[("content-length", "0")])), (Ok(()), Ok(())));
        let of_ollama = |names: &[&'static str]| {
            let line = |name: &&'static str| (HeaderName::from_static(name), HeaderValue::from_static("text/plain"));
            super::check(&names.iter().map(line).collect(), &limits, true).map_err(|error| error.code)
        };
        assert_eq!(of_ollama(&[]), Ok(()));
        assert_eq!(of_ollama(&["content-type"]), Ok(()));
        for header in BROWSER_HEADERS {
            assert_eq!(of_ollama(&["content-type", header]), Err(ErrorCode::MediaType), "{header}");
        }
    }
}
