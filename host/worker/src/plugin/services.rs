//! The host's services for a plugin while it loads and runs: log lines, progress, and cancellation.
//!
//! The caller decides where the lines go. A panic in the caller's code must not reach the plugin, whose stack it would
//! unwind: it is caught here, and the line is lost.

use pensieve_plugin_api::{
    self as api, LogLevel,
    abi_stable::{
        sabi_trait::TD_Opaque,
        std_types::{RArc, ROption, RStr},
    },
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

type Log = dyn Fn(LogLevel, &str) + Send + Sync;
type Progress = dyn Fn(u64, u64, &str) + Send + Sync;

/// The services of this host for one load and the resulting model. Cheap to clone.
#[derive(Clone)]
pub struct HostServices {
    log: Arc<Log>,
    progress: Arc<Progress>,
    cancel: Cancel,
}

#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl HostServices {
    /// Services that discard lines and progress until told otherwise.
    pub fn new() -> Self {
        Self { log: Arc::new(|_, _| ()), progress: Arc::new(|_, _, _| ()), cancel: Cancel::default() }
    }

    /// Passes log lines to `log`, from any thread.
    #[must_use]
    pub fn on_log(mut self, log: impl Fn(LogLevel, &str) + Send + Sync + 'static) -> Self {
        self.log = Arc::new(log);
        self
    }

    /// Passes progress to `progress`, from any thread: the amount done, the total, and the name of the step.
    #[must_use]
    pub fn on_progress(mut self, progress: impl Fn(u64, u64, &str) + Send + Sync + 'static) -> Self {
        self.progress = Arc::new(progress);
        self
    }

    /// Returns a handle that cancels the load with these services.
    pub fn cancel(&self) -> Cancel {
        self.cancel.clone()
    }

    pub fn into_abi(self) -> api::ServicesArc {
        api::Services_TO::from_ptr(RArc::new(self), TD_Opaque)
    }
}

impl Default for HostServices {
    fn default() -> Self {
        Self::new()
    }
}

impl api::Services for HostServices {
    fn log(&self, level: LogLevel, message: RStr<'_>) {
        let known = LogLevel::ERROR.0..=LogLevel::DEBUG.0;
        let level = if known.contains(&level.0) { level } else { LogLevel::INFO };
        contained(|| (self.log)(level, message.as_str()));
    }

    fn progress(&self, done: u64, total: u64, what: RStr<'_>) {
        contained(|| (self.progress)(done, total, what.as_str()));
    }

    fn cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    fn extension(&self, _id: RStr<'_>) -> ROption<api::Extension> {
        ROption::RNone
    }
}

fn contained(code: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(code)) {
        // The panic's payload may itself panic when dropped.
        std::mem::forget(panic);
    }
}
