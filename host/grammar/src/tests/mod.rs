//! Constraints on small vocabularies of both kinds, driven as an engine drives them.

mod figures;
mod fixture;
mod hostile;
mod triggers;
mod validator;
mod walks;
mod work;
