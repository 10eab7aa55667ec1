//! Loading a checkpoint's weights: assignment to devices, merged adapters, and memory accounting.

pub(super) mod dense;
pub(super) mod layout;
pub(super) mod loader;
mod merge;
mod resident;
