//! The call being parsed, whatever its format. It is committed once its tool is known to be offered and its arguments
//! have begun; until then it may turn out to be text.

use std::sync::Arc;

use super::pieces::whole;
use crate::{chat::Delta, formats::Signature, ids::fresh_id};

#[derive(Debug)]
pub(super) struct Call {
    tools: Arc<[Signature]>,
    count: usize,
    is_open: bool,
    /// Arguments not emitted yet.
    pub arguments: Vec<u8>,
}

/// The result of feeding a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fed {
    /// The byte belongs to a committed call, or completes one.
    Counted,
    /// Whether the byte belongs to a call is undecided.
    Open,
    /// The byte completes the body.
    Done,
    /// Neither this byte nor any since the last committed one belongs to a call, but there were calls before.
    Ended,
    /// The byte does not belong to a call.
    Broken,
}

impl Call {
    pub fn new(tools: Arc<[Signature]>) -> Self {
        Self { tools, count: 0, is_open: false, arguments: Vec::new() }
    }

    /// Number of committed calls.
    pub fn count(&self) -> usize {
        self.count
    }

    /// True if the current call is committed.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// The tool of this name, or the only one that it can mean: in another case, or after a namespace.
    pub fn tool(&self, name: &str) -> Option<&Signature> {
        let exact = self.tools.iter().find(|tool| tool.name == name);
        exact.or_else(|| {
            let name = name.strip_prefix("functions.").or(name.strip_prefix("tools.")).unwrap_or(name);
            let plain = |name: &str| name.replace('-', "_").to_ascii_lowercase();
            let mut alike = self.tools.iter().filter(|tool| plain(&tool.name) == plain(name));
            alike.next().filter(|_| alike.next().is_none())
        })
    }

    /// Commits a call of the named tool. Returns false if that tool was not offered.
    pub fn begin(&mut self, name: &str, out: &mut Vec<Delta>) -> bool {
        let Some(name) = self.tool(name).map(|tool| tool.name.clone()) else { return false };
        (self.is_open, self.count) = (true, self.count + 1);
        out.push(Delta::ToolCall { id: fresh_id(""), name });
        true
    }

    /// Ends the call: its arguments are complete.
    pub fn end(&mut self, out: &mut Vec<Delta>) {
        self.flush(out, true);
        self.is_open = false;
    }

    /// Emits the arguments so far. With `all`, this includes an incomplete character at the end.
    pub fn flush(&mut self, out: &mut Vec<Delta>, all: bool) {
        let whole = if all { self.arguments.len() } else { whole(&self.arguments) };
        if whole > 0 && self.is_open {
            let piece: Vec<u8> = self.arguments.drain(..whole).collect();
            out.push(Delta::ToolArguments(String::from_utf8_lossy(&piece).into_owned()));
        }
    }
}
