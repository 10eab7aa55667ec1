//! Damaged bodies: each dialect accepts or refuses them, and its errors can be formatted for the client and the log.

use pensieve_fuzz::{Target, files};
use std::path::Path;

use super::{
    ApiError, Dialect,
    fields::{Document, Notes},
};

/// Damages the bodies in a folder of `tests/fixtures/bodies`.
pub(super) fn bodies(folder: &str, dialect: Dialect, read: impl Fn(&[u8]) -> Result<(), ApiError> + Sync) {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/bodies");
    let corpus = files(&fixtures.join(folder), ".json");
    Target { name: folder, corpus, memory_max: 64 << 20, input_max: 64 << 10 }.run(|bytes| match read(bytes) {
        Ok(()) => "read".to_owned(),
        Err(error) => {
            let (status, body) = dialect.error(&error, "req_1");
            assert!((400..500).contains(&status), "{status}: {error}");
            let written: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
            assert!(written.is_object(), "{error}");
            assert!(error.to_string().len() < 4096 && error.reason().len() < 4096, "{error}");
            error.to_string()
        }
    });
}

/// Like `bodies`, for functions that read a document.
pub(super) fn documents(folder: &str, dialect: Dialect, read: impl Fn(&Document) -> Result<(), ApiError> + Sync) {
    bodies(folder, dialect, |bytes| {
        let document = Document::unlimited(bytes, Notes::default())?;
        read(&document).inspect(|()| drop(document.warnings()))
    });
}
