//! Parses the body of a call byte by byte, so that arguments stream while they are generated.
//!
//! Nothing is validated against a schema here: the grammar has done that, and without a grammar the client gets
//! whatever the model wrote.

use std::sync::Arc;

use super::{
    call::{Call, Fed},
    json::JsonReader,
    named::NamedReader,
};
use crate::{
    chat::Delta,
    formats::{Body, Named, Signature},
};

/// A call, or a list of calls, being parsed.
#[derive(Debug)]
pub(super) struct CallBody {
    reader: Reader,
    call: Call,
}

#[derive(Debug)]
enum Reader {
    Json(Box<JsonReader>),
    Named(Box<NamedReader>),
}

impl CallBody {
    /// Parses the body after an opener, or with `bare` a body without one.
    pub fn new(body: &Body, tools: Arc<[Signature]>, bare: bool) -> Self {
        let reader = match body {
            Body::Object(keys) | Body::List(keys) => Reader::Json(Box::new(JsonReader::new(keys.clone(), bare))),
            Body::Named(named) => Reader::Named(Box::new(NamedReader::new(named))),
            Body::Python(_) => Reader::Named(Box::new(NamedReader::python(bare))),
        };
        Self { reader, call: Call::new(tools) }
    }

    /// Parses the body after the marker of a single call whose list has no opener.
    pub fn unopened(named: &Named, tools: Arc<[Signature]>) -> Self {
        Self { reader: Reader::Named(Box::new(NamedReader::begun(named))), call: Call::new(tools) }
    }

    /// Parses only the arguments of this tool, as a JSON object.
    pub fn arguments_of(tool: &str, tools: Arc<[Signature]>) -> Self {
        Self { reader: Reader::Named(Box::new(NamedReader::arguments_of(tool))), call: Call::new(tools) }
    }

    pub fn calls(&self) -> usize {
        self.call.count()
    }

    pub fn feed(&mut self, byte: u8, out: &mut Vec<Delta>) -> Fed {
        let fed = match &mut self.reader {
            Reader::Named(named) => named.feed(byte, &mut self.call, out),
            Reader::Json(json) => json.feed(byte, &mut self.call, out),
        };
        if matches!(fed, Fed::Broken | Fed::Done | Fed::Ended) {
            self.complete();
            self.call.end(out);
        }
        fed
    }

    /// Emits the arguments so far.
    pub fn flush(&mut self, out: &mut Vec<Delta>) {
        self.call.flush(out, false);
    }

    /// Emits the rest at the end of the answer. `cut`: the answer was truncated.
    pub fn finish(&mut self, cut: bool, out: &mut Vec<Delta>) {
        if !cut {
            self.complete();
        }
        self.call.flush(out, !cut);
    }

    /// Closes arguments that lack only their end.
    fn complete(&mut self) {
        if let (Reader::Named(named), true) = (&self.reader, self.call.is_open()) {
            self.call.arguments.extend(named.rest());
        }
    }
}
