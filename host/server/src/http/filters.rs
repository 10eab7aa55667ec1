//! Everything that warp does for this server, which names it nowhere else: filters take a request apart for its handler, a
//! filter becomes a service that hyper's requests go through, and replies of every form share one body type.
//!
//! Sockets, limits, timeouts, authentication, routing and the form of errors are the server's own; ADR 4 says why.

use bytes::{Buf, Bytes};
use futures_util::{FutureExt, Stream, future::BoxFuture};
use hyper::{HeaderMap, Request, body::Incoming, service::Service as _};
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use warp::{Rejection, Reply};

pub(super) use warp::{Error as BodyError, Filter, reply::Response};

pub(super) type Handler = Box<dyn Fn(Request<Incoming>) -> BoxFuture<'static, Response> + Send + Sync>;

/// The context that the service has put into every request, so that no request is rejected.
pub(super) fn context<C>() -> impl Filter<Extract = (C,), Error = Rejection> + Clone + Send + Sync
where
    C: Clone + Send + Sync + 'static,
{
    warp::ext::get::<C>()
}

/// Headers, context, and the body, of which nothing has been read yet.
pub(super) fn context_and_body<C>()
-> impl Filter<Extract = (HeaderMap, C, impl Stream<Item = Result<impl Buf, BodyError>> + Send), Error = Rejection>
+ Clone
+ Send
+ Sync
where
    C: Clone + Send + Sync + 'static,
{
    warp::header::headers_cloned().and(context()).and(warp::body::stream())
}

/// A route's handler, out of a filter that rejects nothing.
pub(super) fn handler<F>(filter: F) -> Handler
where
    F: Filter<Extract = (Response,), Error = Rejection> + Clone + Send + Sync + 'static,
{
    let service = TowerToHyperService::new(warp::service(filter.boxed()));
    Box::new(move |request: Request<Incoming>| {
        let answer = service.call(request);
        async move { answer.await.unwrap_or_else(|never| match never {}) }.boxed()
    })
}

pub(super) fn empty() -> Response {
    warp::reply().into_response()
}

pub(super) fn whole(body: Vec<u8>) -> Response {
    body.into_response()
}

pub(super) fn streamed(pieces: impl Stream<Item = Result<Bytes, Infallible>> + Send + Sync + 'static) -> Response {
    warp::reply::stream(pieces).into_response()
}
