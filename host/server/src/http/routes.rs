//! All that is served, on one screen. Query strings do not matter anywhere, and what is served under GET is under HEAD, too.

use futures_util::FutureExt;
use hyper::{HeaderMap, Method};
use std::{convert::Infallible, panic::AssertUnwindSafe, sync::Arc};
use warp::{Filter, Rejection, Reply, filters::BoxedFilter, path::FullPath, reply::Response};

use super::{
    body::{self, Body},
    info, metrics, openapi,
    service::AppState,
};
use crate::{
    chat::Client,
    dialects::{
        ApiError, ApiRequest, ApiResponse, Dialect, ErrorCode, adapters, anthropic, execute, openai, token_stream,
    },
    prompt::Chats,
};

/// What a server of this app serves.
pub(super) fn routes(app: &Arc<AppState>) -> Vec<Route> {
    vec![
        post(app, "/v1/messages", |chats, call| async move { anthropic::messages(&chats, call, false).await }),
        post(app, "/v1/messages/stream", |chats, call| async move { anthropic::messages(&chats, call, true).await }),
        post(
            app,
            "/v1/messages/count_tokens",
            |chats, call| async move { anthropic::count_tokens(&chats, call).await },
        ),
        post(app, "/v1/chat/completions", |chats, call| async move { openai::chat_completions(&chats, call).await }),
        post(app, "/v1/completions", |chats, call| async move { openai::completions(&chats, call).await }),
        post(app, "/token_stream", token_stream::answer),
        post(app, "/execute", execute::answer),
        get(app, "/v1/models", |app, ask| async move { info::models(&app, ask.dialect) }),
        // Before the model itself, whose id may have slashes.
        post(app, "/v1/models/{id}/adapters", |chats, call| async move { adapters::attach(&chats, call).await }),
        get(
            app,
            "/v1/models/{id}/adapters",
            |app, ask| async move { adapters::list(&app.chats, &ask.match_path.id).await },
        ),
        delete(app, "/v1/models/{id}/adapters/{name}", |app, ask| async move {
            adapters::detach(&app.chats, &ask.match_path.id, &ask.match_path.name).await
        }),
        get(app, "/v1/models/{id}", |app, ask| async move {
            info::model(&app, ask.dialect, &ask.match_path.id, &ask.request_id)
        }),
        get(app, "/v1/plugins", |app, _| async move { info::plugins(&app) }),
        get(app, "/health", |app, ask| async move { info::health(&app, ask.is_known).await }),
        get(app, "/metrics", |app, _| async move { metrics::answer(&app).await }),
        get(app, "/openapi.json", |_, _| async move { openapi::answer() }),
        get(app, "/", |_, _| async move { info::greeting() }),
    ]
}

/// Paths that need no key.
pub(super) const PUBLIC_PATHS: [&str; 3] = ["/", "/health", "/openapi.json"];

/// Something that is served.
pub(super) struct Route {
    pub(super) method: Method,
    /// `{id}` stands for a model's id, which may have slashes, and `{name}` for a name without any.
    pub(super) pattern: &'static str,
    filter: BoxedFilter<(Response,)>,
}

/// All routes as one filter, which answers whatever it is asked.
pub(super) fn filter(routes: Vec<Route>) -> BoxedFilter<(Response,)> {
    let nothing = warp::any().and_then(|| async { Err::<Response, _>(warp::reject::not_found()) }).boxed();
    let any = routes.into_iter().fold(nothing, |any, route| any.or(route.filter).unify().boxed());
    any.recover(|rejection| async move { Ok::<_, Infallible>(no_route(&rejection)) }).unify().boxed()
}

/// The methods that a path is served under.
pub(super) fn methods(routes: &[Route]) -> Vec<(&'static str, Method)> {
    routes.iter().map(|route| (route.pattern, route.method.clone())).collect()
}

/// What stands in a path for the parts of its pattern; empty where the pattern has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PathParams {
    /// A model's id.
    pub(super) id: String,
    /// A name.
    pub(super) name: String,
}

/// What stands for the parts of this pattern in a path, if it is such a path. An id's slashes may be written as they are.
pub(super) fn match_path(pattern: &str, path: &str) -> Option<PathParams> {
    let decoded = |text: &str| {
        let decoded = percent_encoding::percent_decode_str(text).decode_utf8();
        decoded.ok().filter(|text| !text.is_empty()).map(String::from)
    };
    let Some((prefix, rest)) = pattern.split_once("{id}") else {
        return (pattern == path).then(PathParams::default);
    };
    let path = path.strip_prefix(prefix)?;
    match rest.strip_suffix("{name}") {
        Some(between) => {
            let (id, name) = path.rsplit_once(between)?;
            Some(PathParams { id: decoded(id)?, name: decoded(name).filter(|_| !name.contains('/'))? })
        }
        None => Some(PathParams { id: decoded(path.strip_suffix(rest)?)?, name: String::new() }),
    }
}

/// Who has come through the auth; an extension of the request.
#[derive(Clone, Debug)]
pub(super) struct RequestContext {
    pub(super) client: Option<Client>,
    pub(super) request_id: String,
    pub(super) dialect: Dialect,
}

/// Why there is no answer; an extension of an empty response, which whoever knows the dialect replaces.
#[derive(Clone, Debug)]
pub(super) struct Rejected(pub(super) ApiError);

/// A question without a body.
struct BodilessRequest {
    match_path: PathParams,
    request_id: String,
    dialect: Dialect,
    is_known: bool,
}

/// A request without an answer but for this problem.
pub(super) fn refused(problem: ApiError) -> Response {
    let mut response = warp::reply().into_response();
    response.extensions_mut().insert(Rejected(problem));
    response
}

fn post<F, R>(app: &Arc<AppState>, pattern: &'static str, handler: F) -> Route
where
    F: Fn(Arc<Chats>, ApiRequest) -> R + Clone + Send + Sync + 'static,
    R: Future<Output: Into<Result<ApiResponse, ApiError>>> + Send + 'static,
{
    let app = app.clone();
    let answer = move |match_path: PathParams, headers: HeaderMap, context: RequestContext, body| {
        let (app, handler) = (app.clone(), handler.clone());
        async move {
            let read = async {
                let permit = app.admit()?;
                body::check(&headers, app.limits())?;
                Ok((permit, body::read(body, app.limits(), &app.memory).await?))
            };
            let (permit, body) = match read.await {
                Ok(read) => read,
                Err(problem) => return refused(problem),
            };
            let Body { bytes, held } = body;
            let (id, client) = (match_path.id, context.client.unwrap_or_default());
            let call =
                ApiRequest { id, body: bytes, client, request_id: context.request_id, places: app.streams.clone() };
            let answer = caught(handler(app.chats.clone(), call)).await;
            // A stream needs no more of its request than is in the queue.
            drop(held);
            answer.map_or_else(refused, |answer| body::write(answer, Some(permit)))
        }
    };
    let arguments =
        at(pattern).and(warp::post()).and(warp::header::headers_cloned()).and(warp::ext::get::<RequestContext>());
    let filter = arguments.and(warp::body::stream()).then(answer);
    Route { method: Method::POST, pattern, filter: filter.boxed() }
}

fn get<F, R>(app: &Arc<AppState>, pattern: &'static str, handler: F) -> Route
where
    F: Fn(Arc<AppState>, BodilessRequest) -> R + Clone + Send + Sync + 'static,
    R: Future<Output: Into<Result<ApiResponse, ApiError>>> + Send + 'static,
{
    bodiless(app, Method::GET, pattern, handler)
}

fn delete<F, R>(app: &Arc<AppState>, pattern: &'static str, handler: F) -> Route
where
    F: Fn(Arc<AppState>, BodilessRequest) -> R + Clone + Send + Sync + 'static,
    R: Future<Output: Into<Result<ApiResponse, ApiError>>> + Send + 'static,
{
    bodiless(app, Method::DELETE, pattern, handler)
}

/// A route whose requests have no body.
fn bodiless<F, R>(app: &Arc<AppState>, method: Method, pattern: &'static str, handler: F) -> Route
where
    F: Fn(Arc<AppState>, BodilessRequest) -> R + Clone + Send + Sync + 'static,
    R: Future<Output: Into<Result<ApiResponse, ApiError>>> + Send + 'static,
{
    let app = app.clone();
    let answer = move |match_path, context: RequestContext| {
        let (app, handler) = (app.clone(), handler.clone());
        async move {
            let RequestContext { client, request_id, dialect } = context;
            let ask = BodilessRequest { match_path, request_id, dialect, is_known: client.is_some() };
            match caught(handler(app, ask)).await {
                Ok(answer) => body::write(answer, None),
                Err(problem) => refused(problem),
            }
        }
    };
    let under = match method {
        Method::DELETE => warp::delete().boxed(),
        // hyper leaves the body out of an answer to the latter.
        _ => warp::get().or(warp::head()).unify().boxed(),
    };
    let filter = at(pattern).and(under).and(warp::ext::get::<RequestContext>()).then(answer);
    Route { method, pattern, filter: filter.boxed() }
}

/// The paths of a pattern, and what stands for its parts.
fn at(pattern: &'static str) -> BoxedFilter<(PathParams,)> {
    let match_path =
        move |path: FullPath| async move { match_path(pattern, path.as_str()).ok_or_else(warp::reject::not_found) };
    warp::path::full().and_then(match_path).boxed()
}

/// A defect in a handler costs its own request only.
async fn caught(answer: impl Future<Output: Into<Result<ApiResponse, ApiError>>>) -> Result<ApiResponse, ApiError> {
    match AssertUnwindSafe(answer).catch_unwind().await {
        Ok(answer) => answer.into(),
        Err(_) => Err(ApiError::new(ErrorCode::Internal, "this server has a defect; its log tells more")),
    }
}

fn no_route(rejection: &Rejection) -> Response {
    let problem = if rejection.is_not_found() {
        ApiError::new(ErrorCode::NotFound, "there is nothing at this path; /openapi.json tells what is where")
    } else if rejection.find::<warp::reject::MethodNotAllowed>().is_some() {
        ApiError::new(ErrorCode::Method, "this path is not served under this method")
    } else {
        ApiError::new(ErrorCode::Internal, "this server has a defect: no route takes the request")
    };
    refused(problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_models_and_adapters() {
        let check = |pattern: &str, path: &str, expect: Option<(&str, &str)>| {
            let found = match_path(pattern, path);
            let found = found.as_ref().map(|match_path| (match_path.id.as_str(), match_path.name.as_str()));
            assert_eq!(found, expect, "{path} as {pattern}");
        };
        check("/v1/models", "/v1/models", Some(("", "")));
        check("/v1/models", "/v1/models/", None);
        check("/v1/models/{id}", "/v1/models/a/b%3Ac", Some(("a/b:c", "")));
        check("/v1/models/{id}", "/v1/models/", None);
        let list = "/v1/models/{id}/adapters";
        check(list, "/v1/models/a/b/adapters", Some(("a/b", "")));
        check(list, "/v1/models/adapters", None);
        check(list, "/v1/models//adapters", None);
        check(list, "/v1/models/a%2Fadapters", None);
        let one = "/v1/models/{id}/adapters/{name}";
        check(one, "/v1/models/a/b/adapters/poet", Some(("a/b", "poet")));
        check(one, "/v1/models/a/adapters/adapters/poet", Some(("a/adapters", "poet")));
        check(one, "/v1/models/a/adapters/", None);
        check(one, "/v1/models/a/adapters/b/c", None);
        check(one, "/v1/models/a/adapters/..%2Fc", Some(("a", "../c")));
    }
}
