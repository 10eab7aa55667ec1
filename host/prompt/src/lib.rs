//! Prompt processes: they interpret programs from checkpoints and clients, so that the server need not.
//!
//! One kind renders and tokenizes conversations with one model's chat template and tokenizer. Both come with the
//! checkpoint and are programs in all but name: a template can loop and allocate, and so can a tokenizer whose
//! normalizer replaces each letter with a thousand others. The other kind interprets the programs in one client's
//! request: grammars, and the formats of custom tools. The server runs this executable with a hidden subcommand, in a
//! fence with a memory limit, and gives each question a deadline; a process that exceeds either costs only the request
//! that asked.
//!
//! [`serve`] runs the process; [`Model`] is its core, also used by `plugins check` and tests.

#![cfg_attr(test, allow(clippy::needless_pass_by_value, reason = "tests hand over what they write down"))]

mod heap;
mod lark;
mod model;
mod process;
mod rendered;
mod template;
mod tokens;

pub use model::Model;
pub use process::serve;
