//! All uses of warp in this server: filters split a request for its handler, a filter becomes a service for hyper's
//! requests, and all replies share one body type.
//!
//! Sockets, limits, timeouts, authentication, routing and error formats do not use warp; ADR 4 explains why.

use bytes::{Buf, Bytes};
use futures_util::{FutureExt, Stream, future::BoxFuture};
use hyper::{HeaderMap, Request, body::Incoming, service::Service as _};
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use warp::{Rejection, Reply};

pub(super) use warp::{Error as BodyError, Filter, reply::Response};

pub(super) type Handler = Box<dyn Fn(Request<Incoming>) -> BoxFuture<'static, Response> + Send + Sync>;

/// Extracts the context that the service has put into every request, so that no request is rejected.
pub(super) fn context<C>() -> impl Filter<Extract = (C,), Error = Rejection> + Clone + Send + Sync
where
    C: Clone + Send + Sync + 'static,
{
    warp::ext::get::<C>()
}

/// Extracts the headers, the context, and the unread body.
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

/// Converts a filter that rejects nothing to a route's handler.
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
