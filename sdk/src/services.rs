//! What a host does for a plugin: it takes log lines and progress, and says when to stop.

use pensieve_plugin_api as api;
use std::fmt;

use crate::{Error, Result};

/// The host's services. Cheap to clone; usable from any thread.
#[derive(Clone)]
pub struct Services(Option<api::ServicesArc>);

/// How much a log line matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Something failed.
    Error,
    /// Something is not as it should be.
    Warn,
    /// What a user may want to know.
    Info,
    /// What an author wants to know.
    Debug,
}

impl Services {
    /// Services that discard everything, for tests and tools.
    pub fn silent() -> Self {
        Self(None)
    }

    pub(crate) fn from_host(services: api::ServicesArc) -> Self {
        Self(Some(services))
    }

    /// Hands one line to the host's log.
    pub fn log(&self, level: Level, message: impl fmt::Display) {
        let Some(host) = &self.0 else { return };
        let level = match level {
            Level::Error => api::LogLevel::ERROR,
            Level::Warn => api::LogLevel::WARN,
            Level::Info => api::LogLevel::INFO,
            Level::Debug => api::LogLevel::DEBUG,
        };
        host.log(level, message.to_string().as_str().into());
    }

    /// Says how far a long task has come: `done` of `total` of what.
    pub fn progress(&self, done: u64, total: u64, what: &str) {
        if let Some(host) = &self.0 {
            host.progress(done, total, what.into());
        }
    }

    /// Fails once the host wants the current load to stop: `services.go_on()?` for every tensor.
    pub fn go_on(&self) -> Result<()> {
        match &self.0 {
            Some(host) if host.cancelled() => Err(Error::cancelled("the host cancelled the load")),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Services(host)" } else { "Services(silent)" })
    }
}
