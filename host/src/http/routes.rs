//! All that is served, on one screen. Query strings do not matter anywhere.

use futures_util::FutureExt;
use hyper::{HeaderMap, Method};
use std::{convert::Infallible, panic::AssertUnwindSafe, sync::Arc};
use warp::{Filter, Rejection, Reply, filters::BoxedFilter, path::FullPath, reply::Response};

use super::{
    body::{self, Body},
    front::App,
    lists, metrics, openapi,
};
use crate::{
    chat::Client,
    dialects::{Answer, Call, Dialect, Problem, ProblemKind, anthropic, execute, openai, token_stream},
    prompt::Chats,
};

/// What a server of this app serves.
pub(super) fn routes(app: &Arc<App>) -> Vec<Route> {
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
        get(app, "/v1/models", |app, ask| async move { lists::models(&app, ask.dialect) }),
        get(
            app,
            "/v1/models/{id}",
            |app, ask| async move { lists::model(&app, ask.dialect, &ask.id, &ask.request_id) },
        ),
        get(app, "/v1/plugins", |app, _| async move { lists::plugins(&app) }),
        get(app, "/health", |app, ask| async move { lists::health(&app, ask.is_known).await }),
        get(app, "/metrics", |app, _| async move { metrics::answer(&app).await }),
        get(app, "/openapi.json", |_, _| async move { openapi::answer() }),
        head("/"),
    ]
}

/// Paths that need no key.
pub(super) const OPEN: [&str; 3] = ["/", "/health", "/openapi.json"];

/// Something that is served.
pub(super) struct Route {
    pub(super) method: Method,
    /// `{id}` stands for the rest of the path.
    pub(super) pattern: &'static str,
    filter: BoxedFilter<(Response,)>,
}

/// All routes as one filter, which answers whatever it is asked.
pub(super) fn filter(routes: Vec<Route>) -> BoxedFilter<(Response,)> {
    let nothing = warp::any().and_then(|| async { Err::<Response, _>(warp::reject::not_found()) }).boxed();
    let any = routes.into_iter().fold(nothing, |any, route| any.or(route.filter).unify().boxed());
    any.recover(|rejection| async move { Ok::<_, Infallible>(unrouted(&rejection)) }).unify().boxed()
}

/// The methods that a path is served under.
pub(super) fn methods(routes: &[Route]) -> Vec<(&'static str, Method)> {
    routes.iter().map(|route| (route.pattern, route.method.clone())).collect()
}

/// What stands for `{id}` in a path of this pattern, empty where the pattern has none. Its slashes may be written as they
/// are: a model's id may have some.
pub(super) fn id(pattern: &str, path: &str) -> Option<String> {
    let Some(prefix) = pattern.strip_suffix("{id}") else { return (pattern == path).then(String::new) };
    let decoded = percent_encoding::percent_decode_str(path.strip_prefix(prefix)?).decode_utf8();
    decoded.ok().filter(|id| !id.is_empty()).map(String::from)
}

/// Who has come through the door; an extension of the request.
#[derive(Clone, Debug)]
pub(super) struct Visitor {
    pub(super) client: Option<Client>,
    pub(super) request_id: String,
    pub(super) dialect: Dialect,
}

/// Why there is no answer; an extension of an empty response, which whoever knows the dialect replaces.
#[derive(Clone, Debug)]
pub(super) struct Refused(pub(super) Problem);

/// A question without a body.
struct Ask {
    id: String,
    request_id: String,
    dialect: Dialect,
    is_known: bool,
}

/// A request without an answer but for this problem.
pub(super) fn refused(problem: Problem) -> Response {
    let mut response = warp::reply().into_response();
    response.extensions_mut().insert(Refused(problem));
    response
}

fn post<F, R>(app: &Arc<App>, pattern: &'static str, handler: F) -> Route
where
    F: Fn(Arc<Chats>, Call) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Answer> + Send + 'static,
{
    let app = app.clone();
    let answer = move |_, headers: HeaderMap, visitor: Visitor, body| {
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
            let client = visitor.client.unwrap_or_default();
            let call = Call { body: bytes, client, request_id: visitor.request_id };
            let answer = caught(handler(app.chats.clone(), call)).await;
            // A stream needs no more of its request than is in the queue.
            drop(held);
            match (answer, app.stream()) {
                (Ok(Answer::Stream { media_type, pieces }), Ok(stream)) => {
                    body::write(Answer::Stream { media_type, pieces }, vec![permit, stream])
                }
                (Ok(Answer::Stream { .. }), Err(problem)) | (Err(problem), _) => refused(problem),
                (Ok(whole), _) => body::write(whole, Vec::new()),
            }
        }
    };
    let arguments = at(pattern).and(warp::post()).and(warp::header::headers_cloned()).and(warp::ext::get::<Visitor>());
    let filter = arguments.and(warp::body::stream()).then(answer);
    Route { method: Method::POST, pattern, filter: filter.boxed() }
}

fn get<F, R>(app: &Arc<App>, pattern: &'static str, handler: F) -> Route
where
    F: Fn(Arc<App>, Ask) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Answer> + Send + 'static,
{
    let app = app.clone();
    let answer = move |id, visitor: Visitor| {
        let (app, handler) = (app.clone(), handler.clone());
        async move {
            let Visitor { client, request_id, dialect } = visitor;
            let ask = Ask { id, request_id, dialect, is_known: client.is_some() };
            match caught(handler(app, ask)).await {
                Ok(answer) => body::write(answer, Vec::new()),
                Err(problem) => refused(problem),
            }
        }
    };
    let filter = at(pattern).and(warp::get()).and(warp::ext::get::<Visitor>()).then(answer);
    Route { method: Method::GET, pattern, filter: filter.boxed() }
}

/// A route that says that somebody is there.
fn head(pattern: &'static str) -> Route {
    let filter = at(pattern).and(warp::head()).map(|_| warp::reply().into_response());
    Route { method: Method::HEAD, pattern, filter: filter.boxed() }
}

/// The paths of a pattern, and what stands for `{id}`.
fn at(pattern: &'static str) -> BoxedFilter<(String,)> {
    let id = move |path: FullPath| async move { id(pattern, path.as_str()).ok_or_else(warp::reject::not_found) };
    warp::path::full().and_then(id).boxed()
}

/// A defect in a handler costs its own request only.
async fn caught(answer: impl Future<Output = Answer>) -> Result<Answer, Problem> {
    let caught = AssertUnwindSafe(answer).catch_unwind().await;
    caught.map_err(|_| Problem::new(ProblemKind::Internal, "this server has a defect; its log tells more"))
}

fn unrouted(rejection: &Rejection) -> Response {
    let problem = if rejection.is_not_found() {
        Problem::new(ProblemKind::NotFound, "there is nothing at this path; /openapi.json tells what is where")
    } else if rejection.find::<warp::reject::MethodNotAllowed>().is_some() {
        Problem::new(ProblemKind::Method, "this path is not served under this method")
    } else {
        Problem::new(ProblemKind::Internal, "this server has a defect: no route takes the request")
    };
    refused(problem)
}
