//! Exit codes for scripts, and error messages for people.

use serde::{Deserialize, Serialize};
use std::fmt;

use crate::config::ConfigError;
use pensieve_protocol::{
    job::{Failure, FailureCode},
    refusal::{Refusal, RefusalKind},
};
use pensieve_server::hub::{HubError, HubErrorKind};

/// Exit codes. `docs/cli.md` documents them; a test keeps both in step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Exit {
    Failed = 1,
    Usage = 2,
    Absent = 3,
    Denied = 4,
    Network = 5,
    Space = 6,
    Damaged = 7,
    Taken = 8,
    Plugin = 9,
}

/// An error that ends the program.
#[derive(Clone, Debug)]
pub(super) struct CliError {
    pub(super) exit: Exit,
    /// States what happened, to what, and what to do.
    pub(super) lines: Vec<String>,
}

pub(super) type CliResult = Result<(), CliError>;

impl CliError {
    pub(super) fn new(exit: Exit, line: impl Into<String>) -> Self {
        Self { exit, lines: vec![line.into()] }
    }

    /// An I/O error; `what` names the file or operation.
    pub(super) fn system(what: impl fmt::Display, error: &std::io::Error) -> Self {
        let exit = match error.kind() {
            std::io::ErrorKind::NotFound => Exit::Absent,
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded | std::io::ErrorKind::FileTooLarge => {
                Exit::Space
            }
            std::io::ErrorKind::AddrInUse => Exit::Taken,
            _ => Exit::Failed,
        };
        Self::new(exit, format!("{what}: {error}"))
    }
}

impl From<ConfigError> for CliError {
    fn from(error: ConfigError) -> Self {
        Self { exit: Exit::Usage, lines: error.lines }
    }
}

impl From<HubError> for CliError {
    fn from(error: HubError) -> Self {
        let exit = match error.kind {
            HubErrorKind::Usage => Exit::Usage,
            HubErrorKind::Absent => Exit::Absent,
            HubErrorKind::Denied => Exit::Denied,
            HubErrorKind::Network => Exit::Network,
            HubErrorKind::Space => Exit::Space,
            HubErrorKind::Damaged => Exit::Damaged,
            HubErrorKind::TooLarge | HubErrorKind::Cancelled | HubErrorKind::Other => Exit::Failed,
        };
        Self::new(exit, error.to_string())
    }
}

impl From<Failure> for CliError {
    fn from(failure: Failure) -> Self {
        let exit = match failure.code {
            FailureCode::Invalid | FailureCode::TooLong => Exit::Usage,
            FailureCode::NotFound => Exit::Absent,
            FailureCode::Unsupported => Exit::Plugin,
            _ => Exit::Failed,
        };
        Self::new(exit, failure.to_string())
    }
}

impl From<Refusal> for CliError {
    fn from(refusal: Refusal) -> Self {
        let exit = match refusal.kind {
            RefusalKind::Taken => Exit::Taken,
            RefusalKind::NoSpace => Exit::Space,
            RefusalKind::Keyless => Exit::Usage,
            _ => Exit::Failed,
        };
        Self::new(exit, refusal.to_string())
    }
}
