//! Locations of indexes: folders and URLs, each in one spelling, as trust and the lock go by it.

use std::path::{Path, PathBuf};

/// The one spelling of a location: `https://x/i/` is `https://x/i`, and `file:///srv/i` is `/srv/i`.
pub(crate) fn normal(location: &str) -> String {
    let location = location.strip_prefix("file://").unwrap_or(location);
    if is_url(location) {
        return location.trim_end_matches('/').to_owned();
    }
    // Of a path, this drops slashes at the end, doubled ones and dots.
    Path::new(location).components().collect::<PathBuf>().to_string_lossy().into_owned()
}

pub(crate) fn is_url(location: &str) -> bool {
    location.contains("://")
}

/// The location of a document of an index.
pub(crate) fn join(location: &str, name: &str) -> String {
    format!("{location}/{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_has_one_spelling() {
        for (location, expected) in [
            ("https://example.org/Index", "https://example.org/Index"),
            ("https://example.org/Index//", "https://example.org/Index"),
            ("https://example.org/", "https://example.org"),
            ("/srv/index/", "/srv/index"),
            ("/srv//./index", "/srv/index"),
            ("file:///srv/index/", "/srv/index"),
            ("/", "/"),
            ("index/", "index"),
        ] {
            assert_eq!(normal(location), expected);
            assert_eq!(normal(expected), expected);
        }
    }
}
