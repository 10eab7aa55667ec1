//! The call that is being parsed, whatever its format. It is committed once its tool is one of those offered and its arguments
//! have begun; until then it may turn out to be text.

use std::sync::Arc;

use super::pieces::whole;
use crate::{chat::Delta, formats::Signature, ids::fresh_id};

#[derive(Debug)]
pub(super) struct Call {
    tools: Arc<[Signature]>,
    count: usize,
    is_open: bool,
    /// Arguments that were not emitted yet.
    pub arguments: Vec<u8>,
}

/// The result of feeding a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fed {
    /// It belongs to a committed call, or completes one.
    Counted,
    /// It is undecided whether it belongs to a call.
    Open,
    /// It completes the body.
    Done,
    /// Neither it nor what came since the last committed byte belongs to a call; there were calls before.
    Ended,
    /// It does not belong to a call.
    Broken,
}

impl Call {
    pub fn new(tools: Arc<[Signature]>) -> Self {
        Self { tools, count: 0, is_open: false, arguments: Vec::new() }
    }

    /// The number of committed calls.
    pub fn count(&self) -> usize {
        self.count
    }

    /// True if the current call is committed.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    pub fn tool(&self, name: &str) -> Option<&Signature> {
        self.tools.iter().find(|tool| tool.name == name)
    }

    /// Commits a call of a tool; false if that was not offered.
    pub fn begin(&mut self, name: &str, out: &mut Vec<Delta>) -> bool {
        if self.tool(name).is_none() {
            return false;
        }
        (self.is_open, self.count) = (true, self.count + 1);
        out.push(Delta::ToolCall { id: fresh_id(""), name: name.to_owned() });
        true
    }

    /// The arguments are complete.
    pub fn end(&mut self, out: &mut Vec<Delta>) {
        self.flush(out, true);
        self.is_open = false;
    }

    /// Emits the arguments so far; with `all` also half a character at the end, which nothing will complete.
    pub fn flush(&mut self, out: &mut Vec<Delta>, all: bool) {
        let whole = if all { self.arguments.len() } else { whole(&self.arguments) };
        if whole > 0 && self.is_open {
            let piece: Vec<u8> = self.arguments.drain(..whole).collect();
            out.push(Delta::ToolArguments(String::from_utf8_lossy(&piece).into_owned()));
        }
    }
}
