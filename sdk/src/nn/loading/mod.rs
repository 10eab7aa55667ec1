//! From a checkpoint to weights on their devices: where layers lie, what adapters were merged into them, what they take.

pub(super) mod layout;
pub(super) mod loader;
mod merge;
mod resident;
