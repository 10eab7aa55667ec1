//! Ids of requests, answers and their parts: the API's prefix and 24 random letters and digits.

/// A new random id.
pub(crate) fn fresh_id(prefix: &str) -> String {
    let letters: String = std::iter::repeat_with(fastrand::alphanumeric).take(24).collect();
    format!("{prefix}{letters}")
}
