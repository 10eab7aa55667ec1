//! The page for people: `GET /` when a browser asks, and the files that it consists of. They are part of the program and
//! lie in `host/server/page`.
//!
//! The page may load nothing from elsewhere and run no inline code, and no other page may embed it. It holds no secret:
//! the routes that it calls ask for the key like those of any other client.

use hyper::{
    HeaderMap, StatusCode,
    header::{
        ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderName, HeaderValue, IF_NONE_MATCH,
        REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
    },
};
use sha2::{Digest, Sha256};
use std::sync::OnceLock;

use super::{
    filters::{self, Response},
    state::RequestContext,
};
use crate::dialects::{ApiError, ErrorCode};
use pensieve_protocol::outside::Outside;

const GREETING: &str = "This is Pensieve, an inference server that speaks Anthropic's, OpenAI's, Google's and Ollama's APIs.\n\n\
    POST /v1/messages\nPOST /v1/chat/completions\nPOST /v1/responses\nPOST /api/chat\nGET  /v1/models\n\
    GET  /openapi.json   everything that is served\n\nA browser gets a page here.\n";

/// Everything from this server, and nothing inline.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

struct File {
    name: &'static str,
    media_type: &'static str,
    content: &'static str,
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

macro_rules! files {
    ($($name:literal: $media_type:expr),* $(,)?) => {
        [$(File { name: $name, media_type: $media_type, content: include_str!(concat!("../../page/", $name)) }),*]
    };
}

const INDEX: &str = "index.html";

static FILES: &[File] = &files![
    "index.html": HTML,
    "page.css": CSS,
    "chat.css": CSS,
    "icon.svg": SVG,
    "main.js": SCRIPT,
    "words.js": SCRIPT,
    "dom.js": SCRIPT,
    "server.js": SCRIPT,
    "store.js": SCRIPT,
    "format.js": SCRIPT,
    "charts.js": SCRIPT,
    "models.js": SCRIPT,
    "plugins.js": SCRIPT,
    "requests.js": SCRIPT,
    "chat.js": SCRIPT,
    "chat_settings.js": SCRIPT,
    "chat_thread.js": SCRIPT,
    "chat_stream.js": SCRIPT,
    "chat_store.js": SCRIPT,
    "tokens.js": SCRIPT,
];

/// `GET /`: the page for browsers, and text for everything else.
pub(super) fn root(headers: &HeaderMap, _: &RequestContext) -> Result<Response, ApiError> {
    let mut accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut response = if accepted.any(|value| value.contains("text/html")) {
        file(INDEX, headers)?
    } else {
        let mut response = filters::whole(GREETING.as_bytes().to_vec());
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        response
    };
    response.headers_mut().append(VARY, HeaderValue::from_static("accept"));
    Ok(response)
}

/// `GET /page/NAME`: a file of the page.
pub(super) fn named(headers: &HeaderMap, context: &RequestContext) -> Result<Response, ApiError> {
    file(&context.params.id, headers)
}

fn file(name: &str, request: &HeaderMap) -> Result<Response, ApiError> {
    let Some(file) = FILES.iter().find(|file| file.name == name) else {
        let message = format!("the page has no file '{}'", Outside::new(name).at_most(80));
        return Err(ApiError::new(ErrorCode::NotFound, message));
    };
    Ok(answer(file.content.as_bytes(), file.media_type, tag(), request))
}

/// A file that is part of the program, for browsers.
pub(super) fn answer(content: &[u8], media_type: &'static str, tag: &HeaderValue, request: &HeaderMap) -> Response {
    let is_known = request.get(IF_NONE_MATCH).is_some_and(|known| known == tag);
    let mut response = filters::whole(if is_known { Vec::new() } else { content.to_vec() });
    if is_known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(ETAG, tag.clone());
    // Asked for every time, since another version of the program may answer.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    for name in ["cross-origin-opener-policy", "cross-origin-resource-policy"] {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static("same-origin"));
    }
    response
}

/// One tag for all files, which belong together.
fn tag() -> &'static HeaderValue {
    static TAG: OnceLock<HeaderValue> = OnceLock::new();
    TAG.get_or_init(|| {
        let digest = FILES.iter().fold(Sha256::new(), |digest, file| digest.chain_update(file.content));
        let text: String = digest.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        HeaderValue::from_str(&format!("\"{text}\"")).unwrap_or(HeaderValue::from_static("\"0\""))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_inline_and_nothing_is_loaded_from_elsewhere() {
        for file in FILES {
            let is_namespace = |line: &str| line.contains("http://www.w3.org/");
            for line in file.content.lines().filter(|line| !is_namespace(line)) {
                for outside in ["http://", "https://", "//cdn", "@import", "eval(", "innerHTML", "style=\""] {
                    assert!(!line.contains(outside), "{}: {line}", file.name);
                }
            }
        }
        let index = FILES.iter().find(|file| file.name == INDEX).map_or("", |file| file.content);
        assert_eq!(index.matches("<script").count(), index.matches("<script type=\"module\" src=\"/page/").count());
        assert!(!index.contains("<style") && !index.contains(" onload") && !index.contains(" onclick"), "{index}");
    }

    #[test]
    fn the_page_is_small() {
        let bytes: usize = FILES.iter().map(|file| file.content.len()).sum();
        // Uncompressed; a gzip of it has about a quarter.
        assert!(bytes < 240 << 10, "{bytes}");
    }
}
