//! Handles every request: authentication, routing, and formatting of errors in the client's dialect.

use hyper::{
    HeaderMap, Method, Request, StatusCode,
    body::Incoming,
    header::{self, HeaderName, HeaderValue},
};
use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};
use tokio::task::spawn_blocking;
use tracing::Instrument;

use super::{
    Keyring, Limits, Settings,
    auth::{Auth, Identity},
    body,
    connections::{self, ConnectionHandle},
    filters::{self, Response},
    heap,
    request_log::{LoggedBody, RequestLog},
    router::{PathParams, RouteMatch, Router},
    routes::{self, PUBLIC_PATHS, Rejected},
    state::{AppState, RequestContext},
};
use crate::{
    dialects::{ApiError, Dialect, ErrorCode, Signs},
    requests::Chats,
};

/// Metrics label for requests without a route.
const NO_ROUTE: &str = "none";
/// Default of the `retry-after` header.
const RETRY_AFTER: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    /// The address that the client connected to.
    pub(super) local: IpAddr,
    /// The client's address.
    pub(super) peer: IpAddr,
}

pub(super) struct Service {
    app: Arc<AppState>,
    auth: Auth,
    router: Router,
}

impl Service {
    pub(super) fn new(chats: Arc<Chats>, settings: &Settings, address: SocketAddr, keyring: Arc<Keyring>) -> Arc<Self> {
        let app = AppState::new(chats, settings, keyring.clone());
        let router = routes::router(&app);
        Arc::new(Self { app, auth: Auth::new(settings, address, keyring), router })
    }

    pub(super) fn limits(&self) -> &Limits {
        self.app.limits()
    }

    /// Ends streams that would go on for ever.
    pub(super) fn close(&self) {
        self.app.readers.close();
    }

    /// Background tasks: maintenance of the metrics, the return of freed memory to the system, and the file of the ledger.
    pub(super) fn upkeep(&self) -> impl Future<Output = ()> + use<> {
        let (metrics, heap) = (self.app.recorder.clone().upkeep(), heap::give_back(self.app.memory.clone()));
        let ledger = self.app.shared().ledger.clone().upkeep();
        async move {
            tokio::join!(metrics, heap, ledger);
        }
    }

    /// Writes the usage of keys for the last time.
    pub(super) async fn keep_usage(&self) {
        let ledger = self.app.shared().ledger.clone();
        let _ = spawn_blocking(move || ledger.flush()).await;
    }

    pub(super) async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        ends: Ends,
        connection: ConnectionHandle,
    ) -> hyper::Response<LoggedBody> {
        let path = self.router.normalized(request.uri().path());
        let has = |name: &str| request.headers().contains_key(name);
        let signs = Signs { anthropic: has("anthropic-version") || has("x-api-key"), google: has("x-goog-api-key") };
        let dialect = Dialect::of(&path, signs);
        let matched = self.router.find(request.method(), &path);
        let pattern = if let RouteMatch::Found(route, _) = &matched { route.pattern } else { NO_ROUTE };
        let log = RequestLog::begin(
            request.method(),
            request.uri().path(),
            request.headers().get(header::USER_AGENT),
            pattern,
            dialect.name(),
            connection.answering(),
        );
        let query = request.uri().query().unwrap_or_default().to_owned();
        let request_id = log.id.clone();
        let agent = log.client.clone();
        let context =
            |identity, params| RequestContext { identity, request_id, dialect, params, query, connection, agent };
        let serving = self.serve(request, dialect, ends, matched, context);
        let (mut response, origin) = serving.instrument(log.span.clone()).await;
        let mut retry_after = RETRY_AFTER;
        if let Some(Rejected(error)) = response.extensions_mut().remove() {
            log.span.record("reason", error.reason());
            retry_after = error.retry_after.unwrap_or(retry_after);
            let allowed = response.headers_mut().remove(header::ALLOW);
            let (status, body) = dialect.error(&error, &log.id);
            response = body::full(status, "application/json", body);
            response.headers_mut().extend(allowed.map(|allowed| (header::ALLOW, allowed)));
            if error.code == ErrorCode::Authentication {
                response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
        }
        let status = response.status();
        let headers = response.headers_mut();
        if [429, 503, 529].contains(&status.as_u16()) {
            // Whole seconds, rounded up.
            let seconds = retry_after.as_millis().div_ceil(1000).max(1);
            headers.insert(header::RETRY_AFTER, HeaderValue::from(u64::try_from(seconds).unwrap_or(u64::MAX)));
        }
        if let Ok(id) = HeaderValue::from_str(&log.id) {
            headers.insert(HeaderName::from_static("request-id"), id.clone());
            headers.insert(HeaderName::from_static("x-request-id"), id);
        }
        if let Some(origin) = origin.and_then(|origin| HeaderValue::from_str(&origin).ok()) {
            let exposed = HeaderValue::from_static("request-id, x-request-id, retry-after, warning");
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
            headers.insert(header::VARY, HeaderValue::from_static("origin"));
        }
        log.answer(response)
    }

    /// The answer, and the web page's origin for CORS headers.
    async fn serve(
        &self,
        mut request: Request<Incoming>,
        dialect: Dialect,
        ends: Ends,
        matched: RouteMatch<'_>,
        context: impl FnOnce(Option<Identity>, PathParams) -> RequestContext,
    ) -> (Response, Option<String>) {
        let checked = self.auth.check_host(request.uri(), request.headers(), ends.local);
        let origin = match checked.and_then(|()| self.auth.check_origin(request.headers())) {
            Ok(origin) => origin,
            Err(error) => return (routes::rejected(error), None),
        };
        let headers = request.headers();
        if origin.is_some()
            && request.method() == Method::OPTIONS
            && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
        {
            return (preflight(headers), origin);
        }
        let is_public = matches!(&matched, RouteMatch::Found(route, _) if PUBLIC_PATHS.contains(&route.pattern));
        // Only Google's clients put keys into addresses, which end up in logs.
        let query = request.uri().query().filter(|_| dialect == Dialect::Gemini).unwrap_or_default();
        let identity = match self.auth.check_key(headers, query, connections::network(ends.peer)) {
            Ok(identity) => Some(identity),
            Err(_) if is_public => None,
            Err(error) => return (routes::rejected(error), origin),
        };
        let (route, params) = match matched {
            RouteMatch::Found(route, params) => (route, params),
            RouteMatch::NotFound => {
                return (routes::rejected(self.router.not_found(request.uri().path())), origin);
            }
            RouteMatch::MethodNotAllowed(allowed) => {
                let message = format!("this path does not support {}; it supports {allowed}", request.method());
                let mut response = routes::rejected(ApiError::new(ErrorCode::Method, message));
                response.headers_mut().extend(HeaderValue::from_str(&allowed).map(|value| (header::ALLOW, value)));
                return (response, origin);
            }
        };
        if let Some(account) = identity.as_ref().and_then(|identity| identity.client.account.as_ref()) {
            tracing::Span::current().record("key", account.name());
        }
        request.extensions_mut().insert(context(identity, params));
        ((route.handler)(request).await, origin)
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("auth", &self.auth).finish_non_exhaustive()
    }
}

/// Answers a CORS preflight.
fn preflight(request: &HeaderMap) -> Response {
    let mut response = filters::empty();
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, HEAD, POST, DELETE"));
    if let Some(names) = request.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
    }
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    headers.insert(HeaderName::from_static("access-control-allow-private-network"), HeaderValue::from_static("true"));
    response
}
