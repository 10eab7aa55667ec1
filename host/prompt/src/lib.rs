//! Prompt processes: they interpret programs from checkpoints and clients, so that the server need not.
//!
//! One kind renders and tokenizes conversations with one model's chat template and tokenizer. Both come out of a checkpoint and
//! are programs in all but name: a template can loop and allocate, and so can a tokenizer whose normalizer replaces each
//! letter by a thousand. The other kind takes the programs of one client's request: grammars, and the formats of custom tools.
//! The server starts this program again under a hidden verb, behind a fence with a limit of memory, and gives each question
//! a deadline; a process that breaks either costs the one request that asked.
//!
//! [`serve`] is the process; [`Model`] is what it runs, for `plugins check` and tests as well.

#![cfg_attr(test, allow(clippy::needless_pass_by_value, reason = "tests hand over what they write down"))]

mod lark;
mod model;
mod process;
mod rendered;
mod template;
mod tokens;

pub use model::Model;
pub use process::serve;
