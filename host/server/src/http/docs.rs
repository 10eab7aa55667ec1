//! The documentation of this version, for browsers: `GET /docs` leads to its first page.

use hyper::{
    HeaderMap, StatusCode,
    header::{HeaderValue, LOCATION},
};
use sha2::{Digest, Sha256};
use std::sync::OnceLock;

use super::{
    filters::{self, Response},
    page,
    state::RequestContext,
};
use crate::dialects::{ApiError, ErrorCode};
use pensieve_protocol::outside::Outside;

/// `GET /docs`: links of pages are relative, so the first one has to have its own address.
pub(super) fn root(_: &HeaderMap, _: &RequestContext) -> Result<Response, ApiError> {
    let mut response = filters::empty();
    *response.status_mut() = StatusCode::FOUND;
    response.headers_mut().insert(LOCATION, HeaderValue::from_static("/docs/index.html"));
    Ok(response)
}

/// `GET /docs/FILE`.
pub(super) fn named(headers: &HeaderMap, context: &RequestContext) -> Result<Response, ApiError> {
    let name = &context.params.id;
    let Some(file) = pensieve_docs::find(name) else {
        let message = format!("the documentation has no file '{}'", Outside::new(name).at_most(80));
        let help = "GET /docs has all pages".to_owned();
        return Err(ApiError { help, ..ApiError::new(ErrorCode::NotFound, message) });
    };
    Ok(page::answer(&file.content, file.media_type, tag(), headers))
}

/// One tag for all files, which are those of one version.
fn tag() -> &'static HeaderValue {
    static TAG: OnceLock<HeaderValue> = OnceLock::new();
    TAG.get_or_init(|| {
        let files = pensieve_docs::site().iter();
        let digest = files.fold(Sha256::new(), |digest, file| digest.chain_update(&file.content));
        let text: String = digest.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        HeaderValue::from_str(&format!("\"{text}\"")).unwrap_or(HeaderValue::from_static("\"0\""))
    })
}
