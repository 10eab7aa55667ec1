//! Model answers: turns a job's events into text, reasoning and tool calls ([`Generation`]), parses them while they
//! stream ([`ToolParser`]), and measures them.

mod generation;
pub mod measures;
mod parsing;

pub(crate) use generation::AnswerReader;
pub use generation::Generation;
pub use parsing::ToolParser;
