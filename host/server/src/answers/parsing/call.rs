//! The call that is being read, whatever its convention: it counts from the moment at which its tool is known to be one of
//! those on offer and its arguments have begun; until then it may turn out to be text.

use std::sync::Arc;

use super::pieces::whole;
use crate::{chat::Delta, formats::Signature, ids::fresh_id};

/// A call on its way out.
#[derive(Debug)]
pub(super) struct Call {
    tools: Arc<[Signature]>,
    count: usize,
    is_open: bool,
    /// Arguments that have not left yet.
    pub arguments: Vec<u8>,
}

/// What became of a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fed {
    /// It belongs to a call that counts; or one has just been completed by it.
    Counted,
    /// It belongs to what may yet turn out to be no call.
    Open,
    /// It completes everything.
    Done,
    /// It does not belong to a call, nor does what came since the last byte that counted; there were calls before.
    Ended,
    /// It does not belong to a call.
    Broken,
}

impl Call {
    pub fn new(tools: Arc<[Signature]>) -> Self {
        Self { tools, count: 0, is_open: false, arguments: Vec::new() }
    }

    /// How many calls have counted so far.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether the call at hand counts already.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    pub fn tool(&self, name: &str) -> Option<&Signature> {
        self.tools.iter().find(|tool| tool.name == name)
    }

    /// Says that a tool is called, if it is on offer.
    pub fn begin(&mut self, name: &str, out: &mut Vec<Delta>) -> bool {
        if self.tool(name).is_none() {
            return false;
        }
        (self.is_open, self.count) = (true, self.count + 1);
        out.push(Delta::ToolCall { id: fresh_id(""), name: name.to_owned() });
        true
    }

    /// Says that its arguments are complete.
    pub fn end(&mut self, out: &mut Vec<Delta>) {
        self.flush(out, true);
        self.is_open = false;
    }

    /// Lets go of the arguments so far; `all` if half a character at their end will not be completed.
    pub fn flush(&mut self, out: &mut Vec<Delta>, all: bool) {
        let whole = if all { self.arguments.len() } else { whole(&self.arguments) };
        if whole > 0 && self.is_open {
            let piece: Vec<u8> = self.arguments.drain(..whole).collect();
            out.push(Delta::ToolArguments(String::from_utf8_lossy(&piece).into_owned()));
        }
    }
}
