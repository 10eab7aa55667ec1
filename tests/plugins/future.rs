//! The table of an extension that only the hosts and plugins of a later day know; tests play both.

use abi_stable::StableAbi;

/// The id to ask for.
pub const ID: &str = "future/1";

/// The table.
#[repr(C)]
#[derive(StableAbi)]
pub struct Future {
    pub answer: extern "C" fn() -> u64,
}
