//! The one error that crosses. It ends up before a user who wrote neither host nor plugin: lowercase, no full stop, both
//! sides named.

use abi_stable::{StableAbi, std_types::RString};
use std::fmt;

/// What the caller may do about an error; an unknown code counts as [`ErrorCode::DEVICE`].
#[repr(transparent)]
#[derive(StableAbi, Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorCode(pub u32);

impl ErrorCode {
    /// The caller broke the contract: wrong length, id out of range, unknown sequence.
    pub const INVALID: Self = Self(1);
    /// A file is not what its format promises.
    pub const CORRUPT: Self = Self(2);
    /// Well formed, but this provider cannot do it.
    pub const UNSUPPORTED: Self = Self(3);
    /// This provider does not want the checkpoint or the adapter: the next one that claims it is asked.
    pub const DECLINED: Self = Self(4);
    /// Something named is not there.
    pub const NOT_FOUND: Self = Self(5);
    /// The operating system refused.
    pub const IO: Self = Self(6);
    /// Memory of a device or of a budget ran out.
    pub const OUT_OF_MEMORY: Self = Self(7);
    /// [`crate::Services::cancelled`] answered true.
    pub const CANCELLED: Self = Self(8);
    /// The callee panicked and caught it.
    pub const PANICKED: Self = Self(9);
    /// The device or its driver failed.
    pub const DEVICE: Self = Self(10);
}

/// What happened, to what, and what to do about it.
#[repr(C)]
#[derive(StableAbi, Clone, Debug)]
pub struct PluginError {
    /// What the caller may do.
    pub code: ErrorCode,
    /// What happened, to what.
    pub message: RString,
    /// What to do about it; may be empty.
    pub help: RString,
}

impl PluginError {
    /// An error without help.
    pub fn new(code: ErrorCode, message: impl Into<RString>) -> Self {
        Self { code, message: message.into(), help: RString::new() }
    }

    /// Adds what the reader can do about it.
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
