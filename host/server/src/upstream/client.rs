//! The HTTP client for one model's servers. What a server sends is bounded: its headers in number and bytes, a body that is
//! read whole, the time without a byte. Redirects are not followed, and nothing is decompressed. The key goes to the
//! configured addresses alone.

use std::{io, time::Duration};

use bytes::{Buf, Bytes, buf::Chain};
use http_body_util::{BodyExt, Full};
use hyper::{
    HeaderMap, Method, Request, StatusCode,
    body::Incoming,
    header::{self, HeaderName, HeaderValue},
    http::uri::Scheme,
};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{
        Client as Pool,
        connect::{HttpConnector, capture_connection},
    },
    rt::{TokioExecutor, TokioTimer},
};
use tokio::time::timeout;

use super::{retry_after, tls};
use crate::fleet::{Upstream, UpstreamKind};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Shorter than servers keep a connection that is not used (uvicorn: five seconds), as a request that meets its end is lost.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);
const IDLE_CONNECTIONS_MAX: usize = 64;
const HEADERS_MAX: usize = 100;
/// Limit of the status line with all headers, and of what is read at once.
const HEADER_BYTES_MAX: usize = 64 << 10;
/// Limit of a body that is read whole: a list of models, a count, an error.
const WHOLE_BYTES_MAX: usize = 1 << 20;
/// Limit of a count, which some servers send as the list of a long prompt's tokens, and of that prompt.
pub(super) const COUNT_BYTES_MAX: usize = 16 << 20;
/// Longest that a body which is read whole may take.
const WHOLE_TIMEOUT: Duration = Duration::from_secs(20);

/// A body whose long part several requests may share.
type Content = Chain<Bytes, Bytes>;
type Connections = Pool<HttpsConnector<HttpConnector>, Full<Content>>;

#[derive(Debug)]
pub(super) struct Client {
    pool: Connections,
    /// Keeps no connections.
    fresh: Connections,
    bearer: Option<HeaderValue>,
    plain_key: Option<HeaderValue>,
    silence: Duration,
}

/// A server's answer, of which status and headers have come.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) retry_after: Option<Duration>,
    pub(super) is_event_stream: bool,
    body: Incoming,
    /// Time without a byte after which it is given up.
    pub(super) silence: Duration,
}

/// Why there is no answer, for messages and for the choice of another server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Broken {
    pub(super) why: String,
    pub(super) stage: Stage,
}

/// How far a request got that was not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// There was no connection, so that the server has not seen it.
    Unsent,
    /// The connection ended before a status, as one does that the server had given up while it was not used.
    HungUp,
    Sent,
}

impl Broken {
    pub(super) fn new(why: impl Into<String>) -> Self {
        Self { why: why.into(), stage: Stage::Sent }
    }

    /// With the server's address, for the log.
    #[must_use]
    pub(super) fn at(self, url: &impl std::fmt::Display) -> Self {
        Self { why: format!("{url}: {}", self.why), ..self }
    }
}

impl Client {
    /// The error is a message for the user.
    pub(super) fn new(upstream: &Upstream) -> Result<Self, String> {
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls::config(upstream)?)
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        let pool = |connections_max| {
            Pool::builder(TokioExecutor::new())
                .pool_timer(TokioTimer::new())
                .timer(TokioTimer::new())
                .pool_idle_timeout(IDLE_TIMEOUT)
                .pool_max_idle_per_host(connections_max)
                .http1_max_headers(HEADERS_MAX)
                .http1_max_buf_size(HEADER_BYTES_MAX)
                .build(connector.clone())
        };
        let (pool, fresh) = (pool(IDLE_CONNECTIONS_MAX), pool(0));
        let key = upstream.key.as_ref();
        let bearer = key.map(|key| secret_header(&[&b"Bearer "[..], key.reveal()].concat())).transpose()?;
        let plain_key = key.map(|key| secret_header(key.reveal())).transpose()?;
        Ok(Self { pool, fresh, bearer, plain_key, silence: upstream.silence })
    }

    /// Posts JSON, and waits for the status.
    pub(super) async fn post(&self, kind: UpstreamKind, url: &str, body: Bytes) -> Result<Answer, Broken> {
        self.post_parts(kind, url, [body, Bytes::new()], false).await
    }

    /// Posts JSON whose text is in two parts. If a kept connection has failed it, a `fresh` one is made: there may be more
    /// that the server has given up.
    pub(super) async fn post_parts(
        &self,
        kind: UpstreamKind,
        url: &str,
        [head, tail]: [Bytes; 2],
        fresh: bool,
    ) -> Result<Answer, Broken> {
        let mut request = self.request(kind, Method::POST, url, head.chain(tail))?;
        // What a server sends too much would be read as the answer to the next request, so a connection has one answer. Over
        // TLS a new one takes too long, and what has come before the next request is found.
        let used = (request.uri().scheme() == Some(&Scheme::HTTP)).then(|| capture_connection(&mut request));
        let pool = if fresh { &self.fresh } else { &self.pool };
        let answer = self.send(pool, request, self.silence).await;
        if let Some(used) = &used
            && let Some(connected) = &*used.connection_metadata()
        {
            connected.poison();
        }
        answer
    }

    /// Gets a small document within `time`.
    pub(super) async fn get(&self, kind: UpstreamKind, url: &str, time: Duration) -> Result<Answer, Broken> {
        let request = self.request(kind, Method::GET, url, Bytes::new().chain(Bytes::new()))?;
        self.send(&self.pool, request, time).await
    }

    fn request(
        &self,
        kind: UpstreamKind,
        method: Method,
        url: &str,
        body: Content,
    ) -> Result<Request<Full<Content>>, Broken> {
        let request = Request::builder().method(method).uri(url).body(Full::new(body));
        let mut request = request.map_err(|error| Broken::new(error.to_string()))?;
        let headers = request.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        headers.insert(header::USER_AGENT, HeaderValue::from_static("pensieve"));
        let key = if kind == UpstreamKind::Anthropic {
            headers.insert(HeaderName::from_static("anthropic-version"), HeaderValue::from_static("2023-06-01"));
            self.plain_key.clone().map(|key| (HeaderName::from_static("x-api-key"), key))
        } else {
            self.bearer.clone().map(|key| (header::AUTHORIZATION, key))
        };
        if let Some((name, key)) = key {
            headers.insert(name, key);
        }
        Ok(request)
    }

    async fn send(
        &self,
        pool: &Connections,
        request: Request<Full<Content>>,
        time: Duration,
    ) -> Result<Answer, Broken> {
        let response = match timeout(time, pool.request(request)).await {
            Err(_) => return Err(Broken::new(format!("it did not answer within {} s", time.as_secs_f32()))),
            Ok(Err(error)) => {
                let stage = if error.is_connect() { Stage::Unsent } else { stage_of(&error) };
                return Err(Broken { why: chain(&error), stage });
            }
            Ok(Ok(response)) => response,
        };
        let (head, body) = response.into_parts();
        if head.status.is_redirection() {
            return Err(Broken::new(format!(
                "it answered {}, a redirect, which is not followed",
                head.status.as_u16()
            )));
        }
        let encoding = head.headers.get(header::CONTENT_ENCODING);
        if encoding.is_some_and(|encoding| encoding != "identity") {
            return Err(Broken::new("it compressed its answer, although it was asked not to"));
        }
        Ok(Answer {
            status: head.status,
            retry_after: retry_after::of(&head.headers, jiff::Timestamp::now()),
            is_event_stream: is_event_stream(&head.headers),
            body,
            silence: self.silence,
        })
    }
}

impl Answer {
    /// The next bytes; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, Broken> {
        loop {
            let frame = match timeout(self.silence, self.body.frame()).await {
                Err(_) => return Err(Broken::new(format!("it sent nothing for {} s", self.silence.as_secs_f32()))),
                Ok(None) => return Ok(None),
                Ok(Some(Err(error))) => return Err(Broken::new(chain(&error))),
                Ok(Some(Ok(frame))) => frame,
            };
            // Trailers say nothing of interest.
            if let Ok(bytes) = frame.into_data() {
                return Ok(Some(bytes));
            }
        }
    }

    /// The whole body, which has to be small.
    pub(super) async fn whole(self) -> Result<Vec<u8>, Broken> {
        self.whole_of(WHOLE_BYTES_MAX).await
    }

    /// The whole body, of at most `bytes_max`.
    pub(super) async fn whole_of(mut self, bytes_max: usize) -> Result<Vec<u8>, Broken> {
        let read = async {
            let mut whole = Vec::new();
            while let Some(bytes) = self.next().await? {
                if whole.len() + bytes.len() > bytes_max {
                    return Err(Broken::new(format!("it sent more than {bytes_max} bytes where few were expected")));
                }
                whole.extend_from_slice(&bytes);
            }
            Ok(whole)
        };
        timeout(WHOLE_TIMEOUT, read).await.unwrap_or_else(|_| Err(Broken::new("its answer had no end")))
    }
}

/// Media types have no case, and parameters follow them.
fn is_event_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("text/event-stream")
}

/// The stage at which a connection failed that had been there.
fn stage_of(error: &(dyn std::error::Error + 'static)) -> Stage {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let is_incomplete = error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_incomplete_message);
        // TLS calls it an unexpected end.
        let is_reset = error.downcast_ref::<io::Error>().is_some_and(|error| {
            use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
            matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
        });
        if is_incomplete || is_reset {
            return Stage::HungUp;
        }
        cause = error.source();
    }
    Stage::Sent
}

fn secret_header(bytes: &[u8]) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::from_bytes(bytes).map_err(|_| "the key has characters that no header may have")?;
    value.set_sensitive(true);
    Ok(value)
}

/// An error with its causes, as the outermost ones say little.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_media_type_of_events_has_no_case() {
        let check = |kind: &'static str, is| {
            let headers = [(header::CONTENT_TYPE, HeaderValue::from_static(kind))].into_iter().collect();
            assert_eq!(is_event_stream(&headers), is, "{kind}");
        };
        check("text/event-stream", true);
        check("Text/Event-Stream; charset=UTF-8", true);
        check("text/event-streams", false);
        check("application/json", false);
        assert!(!is_event_stream(&HeaderMap::new()));
    }
}
