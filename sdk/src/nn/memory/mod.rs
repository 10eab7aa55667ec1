//! The caches of a model, and their use by a forward pass: `kv` knows where a token's keys are, `pass` is a batch on its way
//! through the layers.

pub(super) mod kv;
pub(super) mod pass;
pub(super) mod states;
pub(super) mod store;
pub(super) mod view;
