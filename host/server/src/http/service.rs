//! What every request passes, in order: the auth, its route, and the envelope of whatever went wrong.

use futures_util::{FutureExt, future::BoxFuture};
use hyper::{
    HeaderMap, Method, Request, StatusCode,
    body::Incoming,
    header::{self, HeaderName, HeaderValue},
    service::Service as _,
};
use hyper_util::service::TowerToHyperService;
use std::{
    collections::BTreeSet,
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::Instrument;
use warp::{Reply, reply::Response};

use super::{
    Limits, Settings,
    auth::Auth,
    body::{self, BodyBudget},
    metrics::Recorder,
    request_log::{LoggedBody, RequestLog},
    routes::{self, PUBLIC_PATHS, Rejected, RequestContext},
};
use crate::{
    dialects::{ApiError, Dialect, ErrorCode, StreamLimit},
    prompt::Chats,
};

/// What requests are counted under that no route takes.
const NO_ROUTE: &str = "none";
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

/// What routes share.
pub(super) struct AppState {
    pub(super) chats: Arc<Chats>,
    pub(super) recorder: Recorder,
    limits: Limits,
    requests: Arc<Semaphore>,
    pub(super) streams: StreamLimit,
    pub(super) memory: BodyBudget,
}

/// The auth and the routes behind it.
pub(super) struct Service {
    app: Arc<AppState>,
    auth: Auth,
    methods: Vec<(&'static str, Method)>,
    service: Box<dyn Fn(Request<Incoming>) -> BoxFuture<'static, Response> + Send + Sync>,
}

impl AppState {
    pub(super) fn new(chats: Arc<Chats>, limits: Limits) -> Arc<Self> {
        let (requests, streams) = (Semaphore::new(limits.requests_max), StreamLimit::new(limits.streams_max));
        let recorder = Recorder::install();
        let memory = BodyBudget::new(&limits);
        Arc::new(Self { chats, recorder, limits, requests: Arc::new(requests), streams, memory })
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// A place among the requests at hand.
    pub(super) fn admit(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        self.requests.clone().try_acquire_owned().map_err(|_| {
            let message = format!("{} requests are at hand already; try again later", self.limits.requests_max);
            ApiError::new(ErrorCode::Overloaded, message)
        })
    }
}

impl Service {
    pub(super) fn new(chats: Arc<Chats>, settings: &Settings, address: SocketAddr) -> Arc<Self> {
        let app = AppState::new(chats, settings.limits);
        let routes = routes::routes(&app);
        let methods = routes::methods(&routes);
        let service = TowerToHyperService::new(warp::service(routes::filter(routes)));
        let service = move |request| {
            let answer = service.call(request);
            async move { answer.await.unwrap_or_else(|never| match never {}) }.boxed()
        };
        Arc::new(Self { app, auth: Auth::new(settings, address), methods, service: Box::new(service) })
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.app.limits
    }

    /// Keeps the metrics small while nobody asks for them.
    pub(super) fn upkeep(&self) -> impl Future<Output = ()> + use<> {
        self.app.recorder.clone().upkeep()
    }

    /// Answers a request that reached this address.
    pub(super) async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        local: IpAddr,
    ) -> hyper::Response<LoggedBody> {
        let (path, method) = (request.uri().path().to_owned(), request.method());
        let asked = if method == Method::HEAD { &Method::GET } else { method };
        let mut patterns = self
            .methods
            .iter()
            .filter(|(pattern, served)| served == asked && routes::match_path(pattern, &path).is_some());
        let request_log = RequestLog::begin(method, patterns.next().map_or(NO_ROUTE, |(pattern, _)| pattern));
        let dialect = Dialect::of(request.uri().path(), request.headers().contains_key("anthropic-version"));
        let serving = self.serve(request, local, &request_log.id, dialect);
        let (mut response, origin) = serving.instrument(request_log.span.clone()).await;
        if let Some(Rejected(problem)) = response.extensions_mut().remove() {
            response = self.envelope(&problem, &request_log.id, dialect, &path);
        }
        let status = response.status();
        let headers = response.headers_mut();
        if [429, 503, 529].contains(&status.as_u16()) {
            headers.insert(header::RETRY_AFTER, RETRY_AFTER);
        }
        if let Ok(id) = HeaderValue::from_str(&request_log.id) {
            headers.insert(HeaderName::from_static("request-id"), id.clone());
            headers.insert(HeaderName::from_static("x-request-id"), id);
        }
        if let Some(origin) = origin.and_then(|origin| HeaderValue::from_str(&origin).ok()) {
            let exposed = HeaderValue::from_static("request-id, x-request-id, retry-after");
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
            headers.insert(header::VARY, HeaderValue::from_static("origin"));
        }
        request_log.answer(response)
    }

    /// The answer, and the origin of a page that may read it.
    async fn serve(
        &self,
        mut request: Request<Incoming>,
        local: IpAddr,
        request_id: &str,
        dialect: Dialect,
    ) -> (Response, Option<String>) {
        let checked = self.auth.check_host(request.uri(), request.headers(), local);
        let origin = match checked.and_then(|()| self.auth.check_origin(request.headers())) {
            Ok(origin) => origin,
            Err(problem) => return (routes::refused(problem), None),
        };
        let (path, headers) = (request.uri().path(), request.headers());
        if origin.is_some()
            && request.method() == Method::OPTIONS
            && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
        {
            return (preflight(headers), origin);
        }
        let client = match self.auth.check_key(headers) {
            Ok(client) => Some(client),
            Err(_) if PUBLIC_PATHS.contains(&path) => None,
            Err(problem) => return (routes::refused(problem), origin),
        };
        let request_id = request_id.to_owned();
        request.extensions_mut().insert(RequestContext { client, request_id, dialect });
        ((self.service)(request).await, origin)
    }

    fn envelope(&self, problem: &ApiError, request_id: &str, dialect: Dialect, path: &str) -> Response {
        let (status, body) = dialect.envelope(problem, request_id);
        let mut response = body::whole(status, "application/json", body);
        let headers = response.headers_mut();
        match problem.kind {
            ErrorCode::Authentication => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            ErrorCode::Method => {
                let allowed = self.methods.iter().filter(|(pattern, _)| routes::match_path(pattern, path).is_some());
                let mut allowed: BTreeSet<&str> = allowed.map(|(_, method)| method.as_str()).collect();
                if allowed.contains("GET") {
                    allowed.insert("HEAD");
                }
                let allowed = allowed.into_iter().collect::<Vec<_>>().join(", ");
                if let Ok(allowed) = HeaderValue::from_str(&allowed) {
                    headers.insert(header::ALLOW, allowed);
                }
            }
            _ => {}
        }
        response
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("auth", &self.auth).finish_non_exhaustive()
    }
}

/// Tells a browser that a page may send what it is about to send.
fn preflight(asked: &HeaderMap) -> Response {
    let mut response = warp::reply().into_response();
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, HEAD, POST, DELETE"));
    if let Some(wanted) = asked.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
    }
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    headers.insert(HeaderName::from_static("access-control-allow-private-network"), HeaderValue::from_static("true"));
    response
}
