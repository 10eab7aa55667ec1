//! The mark that macOS puts on downloaded files, which Gatekeeper asks about when one is opened. Server and worker look for it by
//! themselves and refuse a plugin that has it in the same words.

use std::path::Path;

use crate::outside::Outside;

pub const ATTRIBUTE: &str = "com.apple.quarantine";
/// The predicate of a sentence about the file.
pub const REASON: &str = "is quarantined: macOS has marked it as downloaded";

pub fn help(path: &Path) -> String {
    let quoted = Outside::path(path).to_string().replace('\'', r"'\''");
    format!("if you trust where it came from, take the mark away: xattr -d {ATTRIBUTE} '{quoted}'")
}
