//! The caches of a model, and their use by a forward pass: `kv` locates a token's keys, `pass` is a batch on its way
//! through the layers.

pub(super) mod kv;
pub(super) mod pass;
pub(super) mod states;
pub(super) mod store;
pub(super) mod view;
