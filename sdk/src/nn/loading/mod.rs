//! Loading a checkpoint's weights: the device of each layer, merged adapters, and the memory that all of it takes.

pub(super) mod layout;
pub(super) mod loader;
mod merge;
mod resident;
