//! Grammar-constrained output: which tokens may come next, from when, and what follows the grammar's end.
//!
//! A grammar rarely covers a whole answer. Tool call arguments begin after a marker that the model writes, a JSON
//! answer begins once the reasoning has ended, and a second call may follow the first. So a
//! [`Spec`](pensieve_protocol::grammar::Spec) is a list of [`Rule`](pensieve_protocol::grammar::Rule)s with triggers,
//! and a [`Constraint`] watches the bytes that a sequence generates and takes the next token's mask from the active
//! rule. A trigger that ends inside a token applies to the rest of that token.
//!
//! Grammars come from clients. Each is compiled on a separate thread, under a deadline and limits on everything known
//! to grow ([`Compiler`]); masks are computed while the model runs ([`Masks`]). A text grammar never admits a special
//! token; a Lark grammar can name special tokens.

mod anchors;
mod barred;
mod cache;
mod closed;
mod compiler;
mod completion;
mod constraint;
mod constraint_error;
mod error;
mod limits;
mod masks;
mod outline;
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
