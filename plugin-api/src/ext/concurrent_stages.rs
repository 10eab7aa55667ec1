//! `concurrent-stages/1`, of a [`crate::Sampler`]: its stages may be called on several threads at once, so that a step
//! with many sequences need not sample them one by one. Each single stage is still called by one thread at a time.

use abi_stable::StableAbi;

use crate::{PluginError, SamplerBox};

/// The extension's id.
pub const ID: &str = "concurrent-stages/1";

/// The table of `concurrent-stages/1`.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct ConcurrentStages {
    /// Threads that may be in its stages at once; 0 for any number. A host may treat any other number as 1.
    pub threads: u32,
}

impl ConcurrentStages {
    /// The sampler's table, if it offers one.
    pub fn of(sampler: &SamplerBox) -> Option<Result<Self, PluginError>> {
        let extension = sampler.extension(ID.into()).into_option()?;
        Some(extension.table::<Self>(ID).copied())
    }
}
