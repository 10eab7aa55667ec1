//! Panics of handlers.

use futures_util::FutureExt;
use std::panic::AssertUnwindSafe;

use crate::dialects::{ApiError, ErrorCode};

/// Turns a panic in a handler into an error of that request. tower-http's layer would replace six lines by a stack of
/// types.
pub(super) async fn catch_panic<T>(answer: impl Future<Output = Result<T, ApiError>>) -> Result<T, ApiError> {
    AssertUnwindSafe(answer)
        .catch_unwind()
        .await
        .unwrap_or_else(|_| Err(ApiError::new(ErrorCode::Internal, "internal error; the server's log has details")))
}
