//! What a host does for a plugin while it loads and runs.

use abi_stable::{
    StableAbi, sabi_trait,
    std_types::{RArc, ROption, RStr},
};

use crate::Extension;

/// How much a log line matters; an unknown level counts as [`LogLevel::INFO`].
#[repr(transparent)]
#[derive(StableAbi, Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLevel(pub u32);

impl LogLevel {
    /// Something failed.
    pub const ERROR: Self = Self(1);
    /// Something is not as it should be.
    pub const WARN: Self = Self(2);
    /// What a user may want to know.
    pub const INFO: Self = Self(3);
    /// What an author wants to know.
    pub const DEBUG: Self = Self(4);
}

/// What a host does for a plugin.
#[sabi_trait]
pub trait Services: Send + Sync + Clone {
    /// `[any thread]` One line, without prompts or keys.
    fn log(&self, level: LogLevel, message: RStr<'_>);

    /// `[any thread]` How far a long task has come: `done` of `total` bytes or steps, and of what.
    fn progress(&self, done: u64, total: u64, what: RStr<'_>);

    /// `[any thread]` Whether the host wants the current `load` to stop. Cheap enough to ask for every tensor.
    fn cancelled(&self) -> bool;

    /// `[any thread]` An ability beyond contract 1. The functions of its table take this object first.
    #[sabi(last_prefix_field)]
    fn extension(&self, id: RStr<'_>) -> ROption<Extension>;
}

/// The host's services as they cross.
pub type ServicesArc = Services_TO<'static, RArc<()>>;
