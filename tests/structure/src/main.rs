//! The structure of the tree: which way imports run, what may link what, how long files may be, and what comments may say.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod comments;
mod dependencies;
mod entries;
mod layers;
mod pages;
mod platforms;
mod tidy;
mod unsafe_code;

use std::path::Path;

/// The repository.
fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}
