//! Ids of requests, answers and their parts: the prefix that an API prescribes, and 24 random letters and digits.

/// An id that no other answer has.
pub(crate) fn fresh_id(prefix: &str) -> String {
    let letters: String = std::iter::repeat_with(fastrand::alphanumeric).take(24).collect();
    format!("{prefix}{letters}")
}
