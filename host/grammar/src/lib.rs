//! Output that keeps to a grammar: which tokens may come next, from which moment on, and what follows the grammar's end.
//!
//! A grammar seldom holds for a whole answer. Arguments of a tool call begin after the model has written a marker, an
//! answer in JSON begins once the reasoning has ended, and a second call may follow the first. So a [`Spec`](pensieve_protocol::grammar::Spec) is a list of
//! [`Rule`](pensieve_protocol::grammar::Rule)s with triggers, and a [`Constraint`] watches the bytes that a sequence generates and takes the next token's
//! mask from whatever holds at that moment; a trigger that ends within a token holds for the rest of that token.
//!
//! Grammars come from clients. Compiling one happens on a thread of its own, under a deadline and limits on everything
//! that is known to grow ([`Compiler`]); masks are made while the model computes ([`Masks`]). A grammar of text never lets
//! a special token through; one in Lark can name such tokens.

mod barred;
mod cache;
mod compiler;
mod constraint;
mod constraint_error;
mod error;
mod limits;
mod masks;
pub mod patterns;
mod rules;
mod source;
mod token_trie;

#[cfg(test)]
mod tests;

pub use compiler::{Compiler, Compiling, try_compile};
pub use constraint::Constraint;
pub use constraint_error::ConstraintError;
pub use error::GrammarError;
pub use masks::{Masks, is_allowed, keep_allowed};
