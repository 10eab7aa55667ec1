//! Tracks a request from its headers to the last byte of its answer: its id, log line and metrics.
//!
//! The log line has method, path, client, dialect, the key's name if it has one, the requested and the actual model, status, tokens and times, and
//! the reason of a refusal. It never contains prompts, answers or keys.

use hyper::{
    Method,
    body::{Body, Bytes, Frame, SizeHint},
    header::HeaderValue,
};
use std::{
    pin::Pin,
    sync::Arc,
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

/// Logged status when the client disconnected before its answer (as in nginx).
const CLIENT_GONE: u16 = 499;

/// A request being served; dropping it writes the log line.
#[derive(Debug)]
pub(super) struct RequestLog {
    pub(super) id: String,
    /// The `user-agent` of the client's program.
    pub(super) client: Arc<str>,
    /// Entered by all work for the request.
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
    /// Remaining bytes of the declared content length. hyper stops polling the body after that, without polling for its
    /// end.
    remaining: Option<u64>,
    log: RequestLog,
}

impl RequestLog {
    /// Starts tracking a request for the route with this pattern.
    pub(super) fn begin(
        method: &Method,
        path: &str,
        agent: Option<&HeaderValue>,
        route: &'static str,
        dialect: &'static str,
        answering: Answering,
    ) -> Self {
        let id = fresh_id("req_");
        let path = Outside::new(path).at_most(PATH_LEN_MAX).to_string();
        let agent = agent.and_then(|agent| agent.to_str().ok());
        let client = Outside::new(agent.unwrap_or("unknown")).at_most(CLIENT_LEN_MAX).to_string();
        // The empty fields are recorded later, elsewhere.
        let span = tracing::info_span!(
            "request",
            id,
            method = method.as_str(),
            path,
            route,
            client,
            dialect,
            key = Empty,
            asked = Empty,
            model = Empty,
            reason = Empty,
            outcome = Empty,
            prompt_tokens = Empty,
            reused_tokens = Empty,
            disk_tokens = Empty,
            read_tokens = Empty,
            generated_tokens = Empty,
            cache_miss = Empty
        );
        metrics::gauge!("pensieve_http_requests_in_flight").increment(1);
        let method = if is_common(method) { method.to_string() } else { "other".to_owned() };
        let client = client.into();
        Self {
            id,
            client,
            span,
            method,
            route,
            status: None,
            is_complete: false,
            began: Instant::now(),
            _answering: answering,
        }
    }

    /// Ends one that has no HTTP response of its own.
    pub(super) fn end(mut self, status: u16) {
        self.status = Some(status);
        self.is_complete = true;
    }

    pub(super) fn answer(mut self, response: Response) -> hyper::Response<LoggedBody> {
        self.status = Some(response.status().as_u16());
        // The answer to HEAD has no body.
        self.is_complete = self.method == "HEAD" || response.body().is_end_stream();
        let mut head = hyper::Response::new(());
        *head.status_mut() = response.status();
        *head.headers_mut() = response.headers().clone();
        let declared = response.headers().get(hyper::header::CONTENT_LENGTH);
        let remaining = declared.and_then(|length| length.to_str().ok()?.parse().ok());
        head.map(|()| LoggedBody { body: response, remaining, log: self })
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
            // Monitoring and status lines poll these every few seconds.
            "/" | "/page/{id}" | "/docs" | "/docs/{id}" | "/health" | "/metrics" | "/v1/live" | "/v1/usage"
            | "/v1/requests" => {
                tracing::debug!(status, duration_ms, "{outcome}");
            }
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
        if let (Poll::Ready(Some(Ok(frame))), Some(remaining)) = (&polled, &mut this.remaining) {
            *remaining = remaining.saturating_sub(frame.data_ref().map_or(0, |data| data.len() as u64));
        }
        if matches!(polled, Poll::Ready(None)) || this.is_end_stream() {
            this.log.is_complete = true;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.remaining == Some(0) || self.body.body().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.body().size_hint()
    }
}

/// Unknown methods do not become metric labels, which keeps their number bounded.
fn is_common(method: &Method) -> bool {
    [Method::GET, Method::POST, Method::HEAD, Method::OPTIONS, Method::PUT, Method::DELETE, Method::PATCH]
        .contains(method)
}
