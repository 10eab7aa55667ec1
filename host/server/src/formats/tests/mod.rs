//! Answers in every format, chunked in every way, and grammars on a real vocabulary.

mod constraints;
mod damaged;
mod families;
mod finding;
mod forms;
mod fuzz;
mod parsing;

use super::*;
use crate::{answers::ToolParser, constraints::Rules};

fn format(open: &str, close: &str, body: Body) -> OutputFormat {
    let calls = Calls { open: open.into(), close: close.into(), bare: false, body };
    OutputFormat { calls: Some(calls), ..OutputFormat::default() }
}

fn hermes() -> OutputFormat {
    format("<tool_call>", "</tool_call>", Body::Object(Keys::default()))
}

fn thinking(format: OutputFormat) -> OutputFormat {
    let reasoning = Reasoning { open: "<think>".into(), close: "</think>".into() };
    OutputFormat { reasoning: Some(reasoning), ..format }
}

fn llama() -> OutputFormat {
    let keys = Keys { name: "name".into(), arguments: "parameters".into() };
    let mut format = format("<|python_tag|>", "", Body::Object(keys));
    format.calls.as_mut().unwrap().bare = true;
    format
}

fn mistral() -> OutputFormat {
    format("[TOOL_CALLS]", "", Body::List(Keys::default()))
}

fn new_mistral() -> OutputFormat {
    let named = Named { arguments: "[ARGS]".into(), id: "[CALL_ID]".into(), ..Named::default() };
    format("[TOOL_CALLS]", "", Body::Named(named))
}

fn phi() -> OutputFormat {
    format("<|tool_call|>", "<|/tool_call|>", Body::List(Keys::default()))
}

fn functionary() -> OutputFormat {
    let named = Named { arguments: ">".into(), ..Named::default() };
    format("<function=", "</function>", Body::Named(named))
}
