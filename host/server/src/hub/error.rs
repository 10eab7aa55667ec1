//! Errors of downloads from the hub; the command line maps their kinds to exit codes.

use pensieve_protocol::{
    job::{Failure, FailureCode},
    outside::Outside,
};
use std::{fmt, io, path::Path};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HubErrorKind {
    /// The name or a setting is wrong.
    Usage,
    Absent,
    Denied,
    Network,
    TooLarge,
    Space,
    /// The received data do not match the hub's description.
    Damaged,
    Cancelled,
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubError {
    pub kind: HubErrorKind,
    pub message: String,
    /// How to fix it; may be empty.
    pub help: String,
}

impl HubError {
    pub(super) fn new(kind: HubErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), help: String::new() }
    }

    pub(super) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = help.into();
        self
    }

    pub(super) fn file(path: &Path, error: &io::Error) -> Self {
        let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded, io::ErrorKind::FileTooLarge];
        if full.contains(&error.kind()) {
            let message = format!("no space for '{}': {error}", Outside::path(path));
            return Self::new(HubErrorKind::Space, message)
                .help("received data are kept: free some space, or set HF_HUB_CACHE to another disk, and pull again");
        }
        Self::new(HubErrorKind::Other, format!("'{}': {error}", Outside::path(path)))
            .help("check that this user can write there")
    }
}

impl fmt::Display for HubError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if !self.help.is_empty() {
            write!(f, "; {}", self.help)?;
        }
        Ok(())
    }
}

impl std::error::Error for HubError {}

impl From<HubError> for Failure {
    fn from(error: HubError) -> Self {
        let code = match error.kind {
            HubErrorKind::Usage => FailureCode::Invalid,
            HubErrorKind::Absent => FailureCode::NotFound,
            HubErrorKind::Denied => FailureCode::Forbidden,
            HubErrorKind::TooLarge => FailureCode::Unsupported,
            HubErrorKind::Network | HubErrorKind::Damaged => FailureCode::Unreachable,
            HubErrorKind::Space | HubErrorKind::Cancelled | HubErrorKind::Other => FailureCode::Internal,
        };
        Self::new(code, error.message).with_help(error.help)
    }
}

/// Text from the hub, on one line of a bounded length.
pub(super) fn cleaned(text: &str) -> String {
    Outside::new(text).at_most(300).to_string()
}
