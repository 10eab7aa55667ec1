//! `concurrent-stages/1`, of a [`crate::Sampler`]: its stages may be called on several threads at once, so that a step with many
//! sequences need not pick one token after the other. A stage by itself is called by one thread at a time, as always.

use abi_stable::StableAbi;

use crate::{PluginError, SamplerBox};

/// The id to ask for.
pub const ID: &str = "concurrent-stages/1";

/// The table.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct ConcurrentStages {
    /// How many threads may be in its stages at once; 0 for any number. A host may take every other number for 1.
    pub threads: u32,
}

impl ConcurrentStages {
    /// The sampler's ability, if it offers one.
    pub fn of(sampler: &SamplerBox) -> Option<Result<Self, PluginError>> {
        let extension = sampler.extension(ID.into()).into_option()?;
        Some(extension.table::<Self>(ID).copied())
    }
}
