//! Matches requests to routes; `routes` is the table.
//!
//! Clients assemble base URLs in many ways, so unambiguous mistakes in paths are tolerated: extra slashes, a missing
//! `/v1`, or a duplicate one.

use hyper::Method;
use std::collections::BTreeSet;

use super::filters::Handler;
use crate::dialects::{ApiError, ErrorCode};
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
        if allowed.is_empty() {
            return RouteMatch::NotFound;
        }
        RouteMatch::MethodNotAllowed(allowed.into_iter().collect::<Vec<_>>().join(", "))
    }

    /// The served path that the client most likely means.
    pub(super) fn normalized(&self, path: &str) -> String {
        let plain = format!("/{}", path.split('/').filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/"));
        let is_served = |path: &str| self.0.iter().any(|route| match_path(route.pattern, path).is_some());
        if is_served(&plain) {
            return plain;
        }
        let mut others = vec![format!("/v1{plain}")];
        others.extend(plain.strip_prefix("/v1").filter(|rest| rest.starts_with('/')).map(str::to_owned));
        others.into_iter().find(|other| is_served(other)).unwrap_or(plain)
    }

    /// Error for an unknown path, with the most similar known one.
    pub(super) fn not_found(&self, path: &str) -> ApiError {
        let shown = Outside::new(path).at_most(120);
        let nearest = self
            .0
            .iter()
            .map(|route| route.pattern)
            .max_by(|a, b| strsim::jaro_winkler(a, path).total_cmp(&strsim::jaro_winkler(b, path)));
        let help = format!("the nearest path is '{}'; GET /openapi.json lists all", nearest.unwrap_or("/"));
        ApiError { help, ..ApiError::new(ErrorCode::NotFound, format!("there is nothing at '{shown}'")) }
    }
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
        check("/", "/");
    }

    #[test]
    fn an_unknown_path_is_named_with_its_neighbour() {
        let error = router().not_found("/v1/chat/complete");
        assert_eq!(error.code, ErrorCode::NotFound);
        let expected = "there is nothing at '/v1/chat/complete'; the nearest path is '/v1/chat/completions'; \
            GET /openapi.json lists all";
        assert_eq!(error.to_string(), expected);
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
