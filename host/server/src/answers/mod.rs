//! Answers of models: a job's events become text, reasoning and tool calls ([`Generation`]), parsed while they stream
//! ([`ToolParser`]) and measured.

mod generation;
pub mod measures;
mod parsing;

pub(crate) use generation::AnswerReader;
pub use generation::Generation;
pub use parsing::ToolParser;
