//! Services that a host offers to a plugin while it loads and runs.

use abi_stable::{
    StableAbi, sabi_trait,
    std_types::{RArc, ROption, RStr},
};

use crate::Extension;

/// Severity of a log line; an unknown level counts as [`LogLevel::INFO`].
#[repr(transparent)]
#[derive(StableAbi, Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLevel(pub u32);

impl LogLevel {
    /// Something failed.
    pub const ERROR: Self = Self(1);
    /// Something is wrong, but work continues.
    pub const WARN: Self = Self(2);
    /// Of interest to users.
    pub const INFO: Self = Self(3);
    /// Of interest to plugin authors.
    pub const DEBUG: Self = Self(4);
}

/// Logging, progress and cancellation, by the host.
#[sabi_trait]
pub trait Services: Send + Sync + Clone {
    /// `[any thread]` Writes one line, without prompts or keys.
    fn log(&self, level: LogLevel, message: RStr<'_>);

    /// `[any thread]` Reports that `done` of `total` bytes or steps of `what` are complete.
    fn progress(&self, done: u64, total: u64, what: RStr<'_>);

    /// `[any thread]` Returns whether the current `load` should stop. Cheap enough to call for every tensor.
    fn cancelled(&self) -> bool;

    /// `[any thread]` Returns an extension by id. The functions of its table take this object as their first argument.
    #[sabi(last_prefix_field)]
    fn extension(&self, id: RStr<'_>) -> ROption<Extension>;
}

/// [`Services`] as they cross the boundary.
pub type ServicesArc = Services_TO<'static, RArc<()>>;
