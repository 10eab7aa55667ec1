//! Model answers: turns a job's events into text, reasoning and tool calls ([`Generation`]), parses them while they
//! stream ([`ToolParser`]), and measures them.

mod generation;
mod history;
pub mod measures;
mod parsing;
mod row;
mod worker_answer;

pub use generation::Generation;
pub(crate) use history::{Outline, Prompt, PromptHistory};
pub use parsing::ToolParser;
pub(crate) use row::row;
pub(crate) use worker_answer::{AnswerReader, Origin};
