//! The host's services for plugins: logging, progress and cancellation.

use pensieve_plugin_api as api;
use std::fmt;

use crate::{Error, Result};

/// The host's services. Cheap to clone; usable from any thread.
#[derive(Clone)]
pub struct Services(Option<api::ServicesArc>);

/// The severity of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Something failed.
    Error,
    /// Something is wrong, but work continues.
    Warn,
    /// Of interest to users.
    Info,
    /// Of interest to the plugin's author.
    Debug,
}

impl Services {
    /// Creates services that discard everything, for tests and tools.
    pub fn silent() -> Self {
        Self(None)
    }

    pub(crate) fn from_host(services: api::ServicesArc) -> Self {
        Self(Some(services))
    }

    /// Writes a line to the host's log.
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

    /// Reports progress of a long task: `done` of `total` units.
    pub fn progress(&self, done: u64, total: u64, what: &str) {
        if let Some(host) = &self.0 {
            host.progress(done, total, what.into());
        }
    }

    /// Returns an error once the host has cancelled the load: call `services.go_on()?` for every tensor.
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

#[cfg(all(test, feature = "nn"))]
pub(crate) mod heard {
    //! A host for tests, which records log lines and progress.

    use super::{Services, api};
    use api::abi_stable::{
        sabi_trait::TD_Opaque,
        std_types::{RArc, ROption, RStr},
    };
    use std::sync::Arc;

    #[derive(Clone)]
    struct Host(Arc<dyn Fn(&str) + Send + Sync>);

    /// Creates services that pass log lines, and the names in progress reports, to this function.
    pub(crate) fn by(hear: impl Fn(&str) + Send + Sync + 'static) -> Services {
        Services::from_host(api::Services_TO::from_ptr(RArc::new(Host(Arc::new(hear))), TD_Opaque))
    }

    impl api::Services for Host {
        fn log(&self, _level: api::LogLevel, message: RStr<'_>) {
            self.0(message.as_str());
        }

        fn progress(&self, _done: u64, _total: u64, what: RStr<'_>) {
            self.0(what.as_str());
        }

        fn cancelled(&self) -> bool {
            false
        }

        fn extension(&self, _id: RStr<'_>) -> ROption<api::Extension> {
            ROption::RNone
        }
    }
}
