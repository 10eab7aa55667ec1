//! What a model remembers of its sequences, and how a step finds its way in it: `kv` knows where a token's keys lie, `pass` is a
//! batch on its way through the layers.

pub(super) mod kv;
pub(super) mod pass;
pub(super) mod states;
pub(super) mod store;
pub(super) mod view;
