//! Constraints on small vocabularies of both kinds, driven the way an engine drives them.

mod endings;
mod figures;
mod fixture;
mod hostile;
mod triggers;
mod validator;
mod walks;
mod work;
