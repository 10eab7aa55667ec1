//! Bodies: a request's is read whole, within limits; an answer's is written piece by piece.

use futures_util::{Stream, StreamExt};
use hyper::{
    HeaderMap,
    header::{CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue, WARNING},
};
use std::{
    convert::Infallible,
    pin::{Pin, pin},
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use warp::{Buf, Reply, http::StatusCode, reply::Response};

use super::Limits;
use crate::dialects::{ApiBody, ApiError, ApiResponse, ErrorCode, FrameStream, StreamPermit};

/// Refuses what is not declared as JSON or is declared as too long, before any of it is read.
pub(super) fn check(headers: &HeaderMap, limits: &Limits) -> Result<(), ApiError> {
    let text = |name| headers.get(name).map(|value: &HeaderValue| value.to_str().unwrap_or_default());
    let media_type = text(CONTENT_TYPE).map(|value| value.split(';').next().unwrap_or_default().trim());
    if !media_type.is_some_and(|media_type| media_type.eq_ignore_ascii_case("application/json")) {
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

/// BodyBudget for the bodies of all requests. Each takes as much of it as has come of it, so that nobody can reserve any by saying
/// how much he is about to send.
#[derive(Clone, Debug)]
pub(super) struct BodyBudget(Arc<Semaphore>);

/// A body, and the memory that it takes as long as this is kept.
pub(super) struct Body {
    pub(super) bytes: Vec<u8>,
    pub(super) held: Option<OwnedSemaphorePermit>,
}

impl BodyBudget {
    pub(super) fn new(limits: &Limits) -> Self {
        Self(Arc::new(Semaphore::new(limits.bodies_bytes_max.min(Semaphore::MAX_PERMITS))))
    }

    fn take(&self, bytes: usize) -> Result<OwnedSemaphorePermit, ApiError> {
        let count = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.0.clone().try_acquire_many_owned(count).map_err(|_| {
            let message = "the requests at hand take all the memory that there is for them; try again later";
            ApiError::new(ErrorCode::Overloaded, message)
        })
    }
}

/// Reads a body to its end.
pub(super) async fn read(
    body: impl Stream<Item = Result<impl Buf, warp::Error>>,
    limits: &Limits,
    memory: &BodyBudget,
) -> Result<Body, ApiError> {
    let mut body = pin!(body);
    let mut read = Vec::new();
    let mut held: Option<OwnedSemaphorePermit> = None;
    let reading = async {
        while let Some(piece) = body.next().await {
            let invalid = |error| ApiError::new(ErrorCode::InvalidRequest, format!("the body broke off: {error}"));
            let mut piece = piece.map_err(invalid)?;
            if piece.remaining() > limits.body_bytes_max - read.len() {
                return Err(too_large(limits));
            }
            let more = memory.take(piece.remaining())?;
            match &mut held {
                Some(held) => held.merge(more),
                None => held = Some(more),
            }
            while piece.has_remaining() {
                let chunk = piece.chunk();
                let length = chunk.len();
                read.extend_from_slice(chunk);
                piece.advance(length);
            }
        }
        Ok(())
    };
    let seconds = limits.body_timeout.as_secs_f32();
    let slow = |_| ApiError::new(ErrorCode::Timeout, format!("the body did not arrive within {seconds} s"));
    timeout(limits.body_timeout, reading).await.map_err(slow)??;
    Ok(Body { bytes: read, held })
}

fn too_large(limits: &Limits) -> ApiError {
    let message = format!("the body is longer than {} bytes", limits.body_bytes_max);
    ApiError::new(ErrorCode::TooLarge, message)
}

/// The response of an answer. The permit of a request is kept until its stream ends, as the stream's own is.
pub(super) fn write(answer: ApiResponse, permit: Option<OwnedSemaphorePermit>) -> Response {
    let ApiResponse { status, media_type, warnings, body } = answer;
    let mut response = match body {
        ApiBody::Full(body) => full(status, media_type, body),
        ApiBody::Stream(frames, stream_permit) => {
            let frames = FrameBody { frames: Mutex::new(frames), _permit: permit, _stream_permit: stream_permit };
            let mut response = warp::reply::stream(frames).into_response();
            let headers = response.headers_mut();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
            headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
            // Some proxies keep a stream back until it is complete unless they are told not to.
            headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
            response
        }
    };
    for warning in &warnings {
        tracing::warn!(warning, "a request was changed");
        // Code 299 is a warning of no particular kind, and quotes stand around its text.
        let text: String = warning.chars().filter(|letter| letter.is_ascii_graphic() || *letter == ' ').collect();
        let text = text.replace(['"', '\\'], "'");
        if let Ok(value) = HeaderValue::from_str(&format!("299 pensieve \"{text}\"")) {
            response.headers_mut().append(WARNING, value);
        }
    }
    response
}

/// An answer in one piece.
pub(super) fn full(status: u16, media_type: &'static str, body: Vec<u8>) -> Response {
    let mut response = body.into_response();
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

/// Frames on their way to the client.
struct FrameBody {
    /// warp wants bodies that threads may share; the lock is never waited for.
    frames: Mutex<FrameStream>,
    _permit: Option<OwnedSemaphorePermit>,
    _stream_permit: StreamPermit,
}

impl Stream for FrameBody {
    type Item = Result<Vec<u8>, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let frames = self.frames.get_mut().unwrap_or_else(PoisonError::into_inner);
        frames.as_mut().poll_next(context).map(|frame| frame.map(Ok))
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
            super::check(&headers, &limits).map_err(|error| error.code)
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
        assert_eq!(check(&[]), Err(ErrorCode::MediaType));
    }
}
