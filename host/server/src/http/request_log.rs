//! One request from its headers to the last byte of its answer: its id, its line in the log, its place in the metrics.
//!
//! The line tells method, path, client, dialect, the model that was asked for and the one that answered, the status, tokens
//! and times, and for a request that was refused the reason. It never tells a prompt, an answer or a key.

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Instant,
};
use tracing::{Span, field::Empty};

use super::{
    connections::Answering,
    filters::{BodyError, Response},
};
use crate::dialects::fresh_id;
use pensieve_protocol::outside::Outside;

const PATH_LEN_MAX: usize = 200;
const CLIENT_LEN_MAX: usize = 100;

/// The status in the log of a client that has left before its answer.
const CLIENT_GONE: u16 = 499;

/// A request that is being served. Dropping it ends it.
#[derive(Debug)]
pub(super) struct RequestLog {
    pub(super) id: String,
    /// What happens on its behalf happens in here.
    pub(super) span: Span,
    method: String,
    route: &'static str,
    status: Option<u16>,
    is_complete: bool,
    began: Instant,
    _answering: Answering,
}

#[derive(Debug)]
pub(super) struct LoggedBody {
    body: Response,
    /// What is left of the length that the head declares. hyper asks a body for no more than that, not even for its end.
    left: Option<u64>,
    log: RequestLog,
}

impl RequestLog {
    /// A request has come that a route of this pattern will answer.
    pub(super) fn begin(
        request: &hyper::Request<Incoming>,
        route: &'static str,
        dialect: &'static str,
        answering: Answering,
    ) -> Self {
        let id = fresh_id("req_");
        let method = request.method();
        let path = Outside::new(request.uri().path()).at_most(PATH_LEN_MAX).to_string();
        let agent = request.headers().get(hyper::header::USER_AGENT).and_then(|agent| agent.to_str().ok());
        let client = Outside::new(agent.unwrap_or("unknown")).at_most(CLIENT_LEN_MAX).to_string();
        // These fields are known later, and by others.
        let span = tracing::info_span!(
            "request",
            id,
            method = method.as_str(),
            path,
            route,
            client,
            dialect,
            asked = Empty,
            model = Empty,
            reason = Empty,
            outcome = Empty,
            prompt_tokens = Empty,
            reused_tokens = Empty,
            generated_tokens = Empty
        );
        metrics::gauge!("pensieve_http_requests_in_flight").increment(1);
        let method = if is_common(method) { method.to_string() } else { "other".to_owned() };
        Self { id, span, method, route, status: None, is_complete: false, began: Instant::now(), _answering: answering }
    }

    pub(super) fn answer(mut self, response: Response) -> hyper::Response<LoggedBody> {
        self.status = Some(response.status().as_u16());
        // An answer to HEAD ends with its head.
        self.is_complete = self.method == "HEAD" || response.body().is_end_stream();
        let mut head = hyper::Response::new(());
        *head.status_mut() = response.status();
        *head.headers_mut() = response.headers().clone();
        let declared = response.headers().get(hyper::header::CONTENT_LENGTH);
        let left = declared.and_then(|length| length.to_str().ok()?.parse().ok());
        head.map(|()| LoggedBody { body: response, left, log: self })
    }
}

impl Drop for RequestLog {
    fn drop(&mut self) {
        let elapsed = self.began.elapsed();
        let status = self.status.unwrap_or(CLIENT_GONE);
        let labels = [
            ("route", self.route.to_owned()),
            ("method", std::mem::take(&mut self.method)),
            ("status", status.to_string()),
        ];
        metrics::gauge!("pensieve_http_requests_in_flight").decrement(1);
        metrics::counter!("pensieve_http_requests_total", &labels).increment(1);
        if !self.is_complete {
            metrics::counter!("pensieve_http_requests_abandoned_total", "route" => self.route).increment(1);
        }
        metrics::histogram!("pensieve_http_request_seconds", "route" => self.route).record(elapsed.as_secs_f64());
        let duration_ms = elapsed.as_millis() as u64;
        let outcome = if self.is_complete { "answered" } else { "the client has gone" };
        self.span.in_scope(|| match self.route {
            // Monitoring asks for these every few seconds.
            "/" | "/health" | "/metrics" => tracing::debug!(status, duration_ms, "{outcome}"),
            _ => tracing::info!(status, duration_ms, "{outcome}"),
        });
    }
}

impl Body for LoggedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        let polled = this.log.span.in_scope(|| Pin::new(this.body.body_mut()).poll_frame(context));
        if let (Poll::Ready(Some(Ok(frame))), Some(left)) = (&polled, &mut this.left) {
            *left = left.saturating_sub(frame.data_ref().map_or(0, |data| data.len() as u64));
        }
        if matches!(polled, Poll::Ready(None)) || this.is_end_stream() {
            this.log.is_complete = true;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.left == Some(0) || self.body.body().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.body().size_hint()
    }
}

/// Labels are few, whatever clients send.
fn is_common(method: &hyper::Method) -> bool {
    use hyper::Method;
    [Method::GET, Method::POST, Method::HEAD, Method::OPTIONS, Method::PUT, Method::DELETE, Method::PATCH]
        .contains(method)
}
