//! Matches requests to routes; `routes` is the table.
//!
//! Clients assemble base URLs in many ways, so unambiguous mistakes in paths are tolerated: extra slashes, a missing
//! `/v1`, or a duplicate one.

use hyper::Method;
use std::collections::BTreeSet;

use super::filters::Handler;
use crate::dialects::{ApiError, ErrorCode, gemini};
use pensieve_protocol::outside::Outside;

pub(super) struct Route {
    pub(super) method: Method,
    /// `{id}` matches a model id, which may contain slashes, `{name}` a single segment.
    pub(super) pattern: &'static str,
    pub(super) handler: Handler,
}

/// All routes, in order of precedence.
pub(super) struct Router(Vec<Route>);

pub(super) enum RouteMatch<'a> {
    Found(&'a Route, PathParams),
    /// The path exists only for these methods.
    MethodNotAllowed(String),
    NotFound,
}

/// The variable parts of a path; empty if the pattern has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PathParams {
    pub(super) id: String,
    pub(super) name: String,
}

/// Matches a path against a pattern. Slashes in an id may be unescaped.
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

impl Router {
    pub(super) fn new(routes: Vec<Route>) -> Self {
        Self(routes)
    }

    /// Every pattern with its method, for the test that compares them with the OpenAPI document.
    #[cfg(test)]
    pub(super) fn methods(&self) -> impl Iterator<Item = (&'static str, &Method)> {
        self.0.iter().map(|route| (route.pattern, &route.method))
    }

    /// Matches a path from [`normalized`].
    pub(super) fn find(&self, method: &Method, path: &str) -> RouteMatch<'_> {
        let method = if method == Method::HEAD { &Method::GET } else { method };
        let mut allowed = BTreeSet::new();
        for route in &self.0 {
            let Some(params) = match_path(route.pattern, path) else { continue };
            if route.method == *method {
                return RouteMatch::Found(route, params);
            }
            allowed.insert(route.method.as_str());
            if route.method == Method::GET {
                allowed.insert("HEAD");
            }
        }
        // A model's id may be anything, so a mistyped end of a path looks like a part of the id.
        let is_meant = |route: &Route| {
            route.method == *method && route.pattern.contains("{id}") && distance(route.pattern, path).is_some()
        };
        if allowed.is_empty() || path.ends_with(':') || self.0.iter().any(is_meant) {
            return RouteMatch::NotFound;
        }
        RouteMatch::MethodNotAllowed(allowed.into_iter().collect::<Vec<_>>().join(", "))
    }

    /// The served path that the client most likely means.
    pub(super) fn normalized(&self, path: &str) -> String {
        let plain = format!("/{}", path.split('/').filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/"));
        if let Some(path) = gemini_path(&plain) {
            return path;
        }
        let is_served = |path: &str| self.0.iter().any(|route| match_path(route.pattern, path).is_some());
        if is_served(&plain) {
            return plain;
        }
        let mut others = vec![format!("/v1{plain}")];
        others.extend(plain.strip_prefix("/v1").filter(|rest| rest.starts_with('/')).map(str::to_owned));
        others.into_iter().find(|other| is_served(other)).unwrap_or(plain)
    }

    /// Error for an unknown path, with the known one that it may be meant for, if one is near.
    pub(super) fn not_found(&self, path: &str) -> ApiError {
        let shown = Outside::new(path).at_most(120);
        // A path that is served under another method is not what was meant.
        let others = self.0.iter().filter(|route| match_path(route.pattern, path).is_none());
        let near = others.filter_map(|route| Some((distance(route.pattern, path)?, route.pattern))).min();
        let list = "GET /openapi.json lists all paths";
        if path.ends_with(':') {
            let help = format!("a method follows the model's id, such as {}; {list}", gemini::METHODS.join(" or "));
            return ApiError { help, ..ApiError::new(ErrorCode::NotFound, format!("there is nothing at '{shown}'")) };
        }
        let help = near.map_or_else(|| list.to_owned(), |(_, near)| format!("the nearest path is '{near}'; {list}"));
        ApiError { help, ..ApiError::new(ErrorCode::NotFound, format!("there is nothing at '{shown}'")) }
    }
}

/// The path that is served for one of the Gemini API, which clients reach under several versions, under a project's
/// path, or without either; `None` for other paths.
fn gemini_path(path: &str) -> Option<String> {
    let is_method = gemini::METHODS.iter().any(|method| path.ends_with(method));
    let (before, model) = path.split_once("/models").filter(|(_, rest)| rest.is_empty() || rest.starts_with('/'))?;
    (is_method || matches!(before, "/v1alpha" | "/v1beta1")).then(|| format!("{}/models{model}", gemini::ROOT))
}

/// The number of edits between a path and a pattern; `None` if they have little in common. They do if one is the other's
/// start, or if they differ in few letters of one segment.
fn distance(pattern: &str, path: &str) -> Option<usize> {
    let segments = |path: &str| path.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect::<Vec<_>>();
    let (mut known, mut asked) = (segments(pattern), segments(path));
    for list in [&mut known, &mut asked] {
        if list.first().is_some_and(|first| matches!(first.as_str(), "v1" | "v1beta")) {
            list.remove(0);
        }
    }
    if known.is_empty() || asked.is_empty() || known.len() != asked.len() {
        return None;
    }
    let mut edits = 0;
    for (known, asked) in known.iter().zip(&asked) {
        // An id may be anything; a method of the Gemini API may follow it.
        let (known, asked) = match known.split_once('}') {
            Some((_, "")) => {
                edits += asked.rfind(':').map_or(0, |colon| asked.len() - colon);
                continue;
            }
            Some((_, method)) => (method, asked.rfind(':').map_or("", |colon| &asked[colon..])),
            None => (known.as_str(), asked.as_str()),
        };
        let distance = strsim::damerau_levenshtein(known, asked);
        let shared = known.bytes().zip(asked.bytes()).take_while(|(a, b)| a == b).count();
        // A third of a word may be wrong, or its end.
        let is_near = distance * 3 <= known.len().max(asked.len());
        if !is_near && (shared < 4 || shared * 4 < known.len().min(asked.len()) * 3) {
            return None;
        }
        edits += distance;
    }
    Some(edits)
}

#[cfg(test)]
#[allow(clippy::panic)]
mod tests {
    use super::*;

    fn router() -> Router {
        let patterns =
            ["/v1/messages", "/v1/chat/completions", "/v1/models", "/v1/models/{id}", "/api/chat", "/health"];
        let route = |pattern| Route { method: Method::GET, pattern, handler: Box::new(|_| unreachable!()) };
        Router::new(patterns.into_iter().map(route).collect())
    }

    #[test]
    fn paths_are_forgiven_slashes_and_versions() {
        let check = |path: &str, expect: &str| assert_eq!(router().normalized(path), expect, "{path}");
        for path in ["/v1/chat/completions", "/chat/completions", "//v1//chat/completions/", "/v1/v1/chat/completions"]
        {
            check(path, "/v1/chat/completions");
        }
        check("/v1/v1/messages", "/v1/messages");
        check("/messages/", "/v1/messages");
        check("/models", "/v1/models");
        check("/models/a%2Fb", "/v1/models/a%2Fb");
        check("/v1/api/chat", "/api/chat");
        check("/v1/health/", "/health");
        check("/v1/nothing/", "/v1/nothing");
        check("/v1beta/messages", "/v1beta/messages");
        for path in [
            "/v1beta/models/a:generateContent",
            "/v1/models/a:generateContent",
            "/models/a:generateContent",
            "/v1beta1/projects/p/locations/l/publishers/google/models/a:generateContent",
            "//v1alpha/models/a:generateContent",
        ] {
            check(path, "/v1beta/models/a:generateContent");
        }
        check("/v1alpha/models", "/v1beta/models");
        check("/v1/models/a:latest", "/v1/models/a:latest");
        check("/", "/");
    }

    #[test]
    fn an_unknown_path_is_named_with_its_neighbour() {
        let error = router().not_found("/v1/chat/complete");
        assert_eq!(error.code, ErrorCode::NotFound);
        let expected = "there is nothing at '/v1/chat/complete'; the nearest path is '/v1/chat/completions'; \
            GET /openapi.json lists all paths";
        assert_eq!(error.to_string(), expected);
        for (path, near) in [
            ("/v1/mesages", Some("/v1/messages")),
            ("/chat/complete", Some("/v1/chat/completions")),
            ("/api/chats", Some("/api/chat")),
            ("/helth", Some("/health")),
            ("/v1/audio/speech", None),
            ("/v1/images/generations", None),
            ("/v1/files", None),
            ("/v1/moderations", None),
            ("/v1/model", Some("/v1/models")),
            ("/index.html", None),
            ("/", None),
        ] {
            let help = router().not_found(path).help;
            let expected = near.map(|near| format!("the nearest path is '{near}'; "));
            let expected = format!("{}GET /openapi.json lists all paths", expected.unwrap_or_default());
            assert_eq!(help, expected, "{path}");
        }
    }

    #[test]
    fn a_path_under_another_method_names_those_it_has() {
        let router = router();
        let RouteMatch::MethodNotAllowed(allowed) = router.find(&Method::POST, "/health") else { panic!("a match") };
        assert_eq!(allowed, "GET, HEAD");
        assert!(matches!(router.find(&Method::HEAD, "/health"), RouteMatch::Found(..)));
        assert!(matches!(router.find(&Method::GET, "/nothing"), RouteMatch::NotFound));
    }

    #[test]
    fn a_mistyped_end_after_a_model_s_id_is_an_unknown_path() {
        let table = [
            (Method::GET, "/v1/models/{id}"),
            (Method::GET, "/v1beta/models/{id}"),
            (Method::POST, "/v1beta/models/{id}:generateContent"),
            (Method::POST, "/v1/models/{id}/pin"),
        ];
        let route = |(method, pattern)| Route { method, pattern, handler: Box::new(|_| unreachable!()) };
        let router = Router::new(table.into_iter().map(route).collect());
        for (path, help) in [
            ("/v1beta/models/a:generatContent", Some("the nearest path is '/v1beta/models/{id}:generateContent'")),
            ("/v1beta/models/a:", Some("a method follows the model's id, such as :generateContent")),
            ("/v1/models/a/pins", Some("the nearest path is '/v1/models/{id}/pin'")),
            ("/v1/models/a:latest", None),
            ("/v1/models/a", None),
        ] {
            let is_unknown = matches!(router.find(&Method::POST, path), RouteMatch::NotFound);
            assert_eq!(is_unknown, help.is_some(), "{path}");
            let told = router.not_found(path).help;
            assert!(help.is_none_or(|help| told.starts_with(help)), "{path}: {told}");
        }
    }

    #[test]
    fn paths_name_models_and_adapters() {
        let check = |pattern: &str, path: &str, expect: Option<(&str, &str)>| {
            let found = match_path(pattern, path);
            let found = found.as_ref().map(|params| (params.id.as_str(), params.name.as_str()));
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
