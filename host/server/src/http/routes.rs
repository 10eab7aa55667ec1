//! All routes on one screen. Query strings matter only for stored responses, and every GET route also serves HEAD.

use bytes::Bytes;
use futures_util::{FutureExt, future::BoxFuture};
use hyper::{HeaderMap, Method};
use std::sync::Arc;

use super::{
    body, docs,
    filters::{self, Filter, Response},
    info, live, metrics, openapi, page,
    panics::catch_panic,
    router::{Route, Router},
    socket,
    state::{AppState, RequestContext, Work},
};
use crate::dialects::{
    ApiError, ApiRequest, ApiResponse, ErrorCode, adapters, anthropic, catalog, embeddings, execute, gemini, ollama,
    openai, residency, responses, token_stream, usage,
};

pub(super) fn router(app: &Arc<AppState>) -> Router {
    let mut routes = anthropic_and_openai(app);
    routes.extend(own(app));
    routes.extend(ollama(app));
    routes.extend(gemini(app));
    Router::new(routes)
}

fn anthropic_and_openai(app: &Arc<AppState>) -> Vec<Route> {
    vec![
        post(app, "/v1/messages", |app, call| anthropic::messages(app.chats.clone(), call, false)),
        post(app, "/v1/messages/stream", |app, call| anthropic::messages(app.chats.clone(), call, true)),
        post(app, "/v1/messages/count_tokens", |app, call| anthropic::count_tokens(app.chats.clone(), call)),
        post(app, "/v1/chat/completions", |app, call| openai::chat_completions(app.chats.clone(), call)),
        post(app, "/v1/completions", |app, call| openai::completions(app.chats.clone(), call)),
        post(app, "/v1/responses", |app, call| responses::create(app.chats.clone(), call)),
        socket(app, "/v1/responses"),
        post(app, "/v1/responses/compact", |app, call| responses::compact(app.chats.clone(), call)),
        post(app, "/v1/responses/input_tokens", |app, call| responses::input_tokens(app.chats.clone(), call)),
        // Before `/v1/responses/{id}`, as an id may contain slashes.
        get(app, "/v1/responses/{id}/input_items", |_, call| responses::input_items(call)),
        without_body(app.clone(), Method::POST, "/v1/responses/{id}/cancel", boxed(|_, call| responses::cancel(call))),
        get(app, "/v1/responses/{id}", |_, call| responses::retrieve(call)),
        delete(app, "/v1/responses/{id}", |_, call| responses::delete(call)),
        post(app, "/v1/embeddings", |app, call| embeddings::embeddings(app.chats.clone(), call)),
        post(app, "/v1/rerank", |app, call| embeddings::rerank(app.chats.clone(), call)),
        post(app, "/v2/rerank", |app, call| embeddings::rerank(app.chats.clone(), call)),
        post(app, "/rerank", |app, call| embeddings::rerank(app.chats.clone(), call)),
        post(app, "/v1/score", |app, call| embeddings::score(app.chats.clone(), call)),
        post(app, "/score", |app, call| embeddings::score(app.chats.clone(), call)),
        post(app, "/v1/classify", |app, call| embeddings::classify(app.chats.clone(), call)),
        post(app, "/classify", |app, call| embeddings::classify(app.chats.clone(), call)),
        get(app, "/v1/models", |app, call| async move { catalog::models(&app.chats, &call).await }),
    ]
}

fn own(app: &Arc<AppState>) -> Vec<Route> {
    vec![
        post(app, "/token_stream", |app, call| token_stream::answer(app.chats.clone(), call)),
        post(app, "/execute", |app, call| execute::answer(app.chats.clone(), call)),
        // Before `/v1/models/{id}`, as an id may contain slashes.
        post(app, "/v1/models/{id}/adapters", |app, call| adapters::attach(app.chats.clone(), call)),
        get(app, "/v1/models/{id}/adapters", |app, call| adapters::list(app.chats.clone(), call)),
        delete(app, "/v1/models/{id}/adapters/{name}", |app, call| adapters::detach(app.chats.clone(), call)),
        post(app, "/v1/models/{id}/unload", |app, call| residency::unload(app.chats.clone(), call)),
        post(app, "/v1/models/{id}/pin", |app, call| residency::pin(app.chats.clone(), call)),
        delete(app, "/v1/models/{id}/pin", |app, call| residency::unpin(app.chats.clone(), call)),
        get(app, "/v1/models/{id}", |app, call| async move { catalog::model(&app.chats, &call).await }),
        get(app, "/v1/plugins", |app, _| async move { Ok(info::plugins(&app)) }),
        get(app, "/v1/usage", |_, call| async move { usage::answer(&call) }),
        get(app, "/v1/requests", |_, call| async move { usage::requests(&call) }),
        get(app, "/health", |app, call| async move { Ok(info::health(&app, call.client.is_some()).await) }),
        get(
            app,
            "/metrics",
            |app, _| async move { Ok(metrics::answer(&app.recorder, &app.chats, app.shared()).await) },
        ),
        get(app, "/openapi.json", |_, _| async move { Ok(openapi::answer()) }),
        get(app, "/v1/live", |app, call| async move { live::answer(&app, &call) }),
        file("/page/{id}", page::named),
        file("/docs/{id}", docs::named),
        file("/docs", docs::root),
        file("/", page::root),
    ]
}

fn ollama(app: &Arc<AppState>) -> Vec<Route> {
    vec![
        post(app, "/api/chat", |app, call| ollama::chat(app.chats.clone(), call)),
        post(app, "/api/generate", |app, call| ollama::generate(app.chats.clone(), call)),
        post(app, "/api/show", |app, call| ollama::show(app.chats.clone(), call)),
        get(app, "/api/tags", |app, call| ollama::tags(app.chats.clone(), call)),
        get(app, "/api/ps", |app, call| ollama::ps(app.chats.clone(), call)),
        get(app, "/api/version", |_, _| async move { Ok(ollama::version()) }),
        post(app, "/api/embed", |app, call| embeddings::embed(app.chats.clone(), call)),
        post(app, "/api/embeddings", |app, call| embeddings::old_embeddings(app.chats.clone(), call)),
        post(app, "/api/pull", |app, call| ollama::pull(app.chats.clone(), call)),
    ]
}

fn gemini(app: &Arc<AppState>) -> Vec<Route> {
    vec![
        post(app, "/v1beta/models/{id}:generateContent", |app, call| gemini::generate(app.chats.clone(), call, false)),
        post(app, "/v1beta/models/{id}:streamGenerateContent", |app, call| {
            gemini::generate(app.chats.clone(), call, true)
        }),
        post(app, "/v1beta/models/{id}:countTokens", |app, call| gemini::count_tokens(app.chats.clone(), call)),
        post(app, "/v1beta/models/{id}:embedContent", |app, call| embeddings::embed_content(app.chats.clone(), call)),
        post(app, "/v1beta/models/{id}:batchEmbedContents", |app, call| {
            embeddings::batch_embed_contents(app.chats.clone(), call)
        }),
        get(app, "/v1beta/models", |app, call| async move { catalog::models(&app.chats, &call).await }),
        get(app, "/v1beta/models/{id}", |app, call| async move { catalog::model(&app.chats, &call).await }),
    ]
}

pub(super) const PUBLIC_PATHS: [&str; 6] = ["/", "/page/{id}", "/docs", "/docs/{id}", "/health", "/openapi.json"];
/// Exempt from the request limit: they are cheap, and monitoring needs them most when the server is busy. Readers of
/// `/v1/live`, which stay for hours, have a limit of their own.
const UNCOUNTED_PATHS: [&str; 4] = ["/health", "/openapi.json", "/metrics", "/v1/live"];

/// POST routes that cost no tokens: a key's limits do not apply to them.
const FREE_PATHS: [&str; 8] = [
    "/v1/messages/count_tokens",
    "/v1/responses/input_tokens",
    "/v1beta/models/{id}:countTokens",
    "/v1/models/{id}/adapters",
    "/v1/models/{id}/unload",
    "/v1/models/{id}/pin",
    "/api/show",
    "/api/pull",
];

/// True for routes that change what the server does for everybody, or show what everybody does. They take a key of the
/// server's own.
fn is_for_operators(method: &Method, pattern: &str) -> bool {
    matches!(
        (method.as_str(), pattern),
        ("GET", "/metrics")
            | ("POST", "/v1/models/{id}/adapters" | "/v1/models/{id}/unload" | "/v1/models/{id}/pin" | "/api/pull")
            | ("DELETE", "/v1/models/{id}/adapters/{name}" | "/v1/models/{id}/pin")
    )
}

/// Refuses a named key where only the server's own will do.
fn check_operator(method: &Method, pattern: &str, context: &RequestContext) -> Result<(), ApiError> {
    match context.account() {
        Some(account) if is_for_operators(method, pattern) => {
            let message = format!("the key '{}' may not do this", account.name());
            let help = "it takes the server's own key, server.key".to_owned();
            Err(ApiError { help, ..ApiError::new(ErrorCode::Permission, message) })
        }
        _ => Ok(()),
    }
}

/// An error, stored in the extensions of an empty response; the service formats it in the client's dialect.
#[derive(Clone, Debug)]
pub(super) struct Rejected(pub(super) ApiError);

/// An empty response that carries an error.
pub(super) fn rejected(error: ApiError) -> Response {
    let mut response = filters::empty();
    response.extensions_mut().insert(Rejected(error));
    response
}

type Answer = BoxFuture<'static, Result<ApiResponse, ApiError>>;

/// The handler of a route, boxed so that the code around it is compiled once and not for each route.
type ApiHandler = Arc<dyn Fn(Arc<AppState>, ApiRequest) -> Answer + Send + Sync>;

fn boxed<F, R>(handler: F) -> ApiHandler
where
    F: Fn(Arc<AppState>, ApiRequest) -> R + Send + Sync + 'static,
    R: Future<Output = Result<ApiResponse, ApiError>> + Send + 'static,
{
    Arc::new(move |app, call| handler(app, call).boxed())
}

fn post<F, R>(app: &Arc<AppState>, pattern: &'static str, handler: F) -> Route
where
    F: Fn(Arc<AppState>, ApiRequest) -> R + Send + Sync + 'static,
    R: Future<Output = Result<ApiResponse, ApiError>> + Send + 'static,
{
    with_body(app.clone(), pattern, boxed(handler))
}

fn with_body(app: Arc<AppState>, pattern: &'static str, handler: ApiHandler) -> Route {
    let answer = move |headers: HeaderMap, context: RequestContext, body| {
        let (app, handler) = (app.clone(), handler.clone());
        async move {
            let client = context.share();
            let work = if FREE_PATHS.contains(&pattern) { Work::Looks } else { Work::Computes };
            let read = async {
                check_operator(&Method::POST, pattern, &context)?;
                // Checked before the body is read, but taken only after it, so that a slow sender holds no permit.
                drop(app.admit(&context, work)?);
                body::check(&headers, app.limits(), pattern.starts_with("/api/"))?;
                let body = body::read(body, app.limits(), &app.memory, client, context.connection.reading()).await?;
                Ok((app.admit(&context, work)?, body))
            };
            let (permit, body) = match read.await {
                Ok(read) => read,
                Err(error) => return rejected(error),
            };
            let (memory, request) = (app.memory_of(client), context.request_id.clone());
            let call = context.into_request(body, memory.clone(), &app, permit.running.clone());
            let handover = call.handover.clone();
            let answer = catch_panic(handler(app.clone(), call)).await;
            if let Ok(answer) = &answer {
                app.shared().usage.warned(&request, &answer.warnings);
            }
            let mut written = answer.and_then(|answer| body::write(answer, Some(permit), &memory));
            if let (Ok(response), Some((model, reason))) = (&mut written, handover.get()) {
                body::tell_handover(response, model, reason);
            }
            if let (Ok(response), Some((prompt, cached))) = (&mut written, app.prompt_of(&request)) {
                body::tell_prompt(response, prompt, cached);
            }
            written.unwrap_or_else(rejected)
        }
    };
    Route { method: Method::POST, pattern, handler: filters::handler(filters::context_and_body().then(answer)) }
}

fn get<F, R>(app: &Arc<AppState>, pattern: &'static str, handler: F) -> Route
where
    F: Fn(Arc<AppState>, ApiRequest) -> R + Send + Sync + 'static,
    R: Future<Output = Result<ApiResponse, ApiError>> + Send + 'static,
{
    without_body(app.clone(), Method::GET, pattern, boxed(handler))
}

fn delete<F, R>(app: &Arc<AppState>, pattern: &'static str, handler: F) -> Route
where
    F: Fn(Arc<AppState>, ApiRequest) -> R + Send + Sync + 'static,
    R: Future<Output = Result<ApiResponse, ApiError>> + Send + 'static,
{
    without_body(app.clone(), Method::DELETE, pattern, boxed(handler))
}

/// A route without request bodies. hyper omits the body of a response to HEAD.
fn without_body(app: Arc<AppState>, method: Method, pattern: &'static str, handler: ApiHandler) -> Route {
    let is_watched = UNCOUNTED_PATHS.contains(&pattern);
    let of_route = method.clone();
    let answer = move |context: RequestContext| {
        let (app, handler) = (app.clone(), handler.clone());
        let admitted = check_operator(&of_route, pattern, &context)
            .and_then(|()| (!is_watched).then(|| app.admit(&context, Work::Looks)).transpose());
        async move {
            let permit = match admitted {
                Ok(permit) => permit,
                Err(error) => return rejected(error),
            };
            let memory = app.memory_of(context.share());
            let call = context.into_request(Bytes::new(), memory.clone(), &app, None);
            let answer = catch_panic(handler(app, call)).await;
            answer.and_then(|answer| body::write(answer, permit, &memory)).unwrap_or_else(rejected)
        }
    };
    Route { method, pattern, handler: filters::handler(filters::context().then(answer)) }
}

/// A route of the page, which has headers of its own.
fn file(pattern: &'static str, answer: fn(&HeaderMap, &RequestContext) -> Result<Response, ApiError>) -> Route {
    let answer = move |headers: HeaderMap, context: RequestContext, _| {
        std::future::ready(answer(&headers, &context).unwrap_or_else(rejected))
    };
    Route { method: Method::GET, pattern, handler: filters::handler(filters::context_and_body().then(answer)) }
}

/// A route that becomes a WebSocket.
fn socket(app: &Arc<AppState>, pattern: &'static str) -> Route {
    let app = app.clone();
    let answer = move |headers: HeaderMap, context: RequestContext, _| {
        let answer = app.admit(&context, Work::Looks).and_then(|_permit| socket::accept(&app, context, &headers));
        std::future::ready(answer.unwrap_or_else(rejected))
    };
    Route { method: Method::GET, pattern, handler: filters::handler(filters::context_and_body().then(answer)) }
}
