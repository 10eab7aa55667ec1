//! Reads JSON field by field, so that every error names the field by its path in the client's request:
//! `messages.0.content.1.text: should be a string, not a number`. Derived deserializers report lines and columns, which
//! mean nothing to a client that serialized an object.
//!
//! Null counts as absent, since some clients send every optional field that way. Errors quote the client's text only if
//! it is short.

mod document;
mod field;
mod members;
mod notes;
mod value;

#[cfg(test)]
mod tests;

pub(crate) use document::{Document, value_of};
pub(crate) use field::{Field, Quote};
pub(crate) use members::Members;
pub(crate) use notes::{ImageIntake, Notes};
