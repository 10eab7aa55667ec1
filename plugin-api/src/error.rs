//! The one error type that crosses. Its readers wrote neither host nor plugin: messages are lowercase, without a full
//! stop, and name both sides.

use abi_stable::{StableAbi, std_types::RString};
use std::fmt;

/// Tells the caller how to react; an unknown code counts as [`ErrorCode::DEVICE`].
#[repr(transparent)]
#[derive(StableAbi, Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorCode(pub u32);

impl ErrorCode {
    /// The caller broke the contract: wrong length, id out of range, unknown sequence.
    pub const INVALID: Self = Self(1);
    /// A file violates its format.
    pub const CORRUPT: Self = Self(2);
    /// Well formed, but not supported by this provider.
    pub const UNSUPPORTED: Self = Self(3);
    /// The checkpoint or adapter is not this provider's after all: the next claimant is asked.
    pub const DECLINED: Self = Self(4);
    /// Something named does not exist.
    pub const NOT_FOUND: Self = Self(5);
    /// An operating system error.
    pub const IO: Self = Self(6);
    /// A device's memory or a budget is exhausted.
    pub const OUT_OF_MEMORY: Self = Self(7);
    /// [`crate::Services::cancelled`] returned true.
    pub const CANCELLED: Self = Self(8);
    /// The callee panicked and caught it.
    pub const PANICKED: Self = Self(9);
    /// The device or its driver failed.
    pub const DEVICE: Self = Self(10);
}

/// An error with a message for users.
#[repr(C)]
#[derive(StableAbi, Clone, Debug)]
pub struct PluginError {
    /// For the caller.
    pub code: ErrorCode,
    /// What happened, and to what.
    pub message: RString,
    /// What to do about it; may be empty.
    pub help: RString,
}

impl PluginError {
    /// Creates an error without help.
    pub fn new(code: ErrorCode, message: impl Into<RString>) -> Self {
        Self { code, message: message.into(), help: RString::new() }
    }

    /// Adds advice for the user.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<RString>) -> Self {
        self.help = help.into();
        self
    }
}

impl fmt::Display for PluginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if !self.help.is_empty() {
            write!(f, "; {}", self.help)?;
        }
        Ok(())
    }
}

impl std::error::Error for PluginError {}
