//! Parses the body of a call byte by byte, so that arguments stream while they are generated.
//!
//! Nothing is validated against a schema here: a grammar has done that, and where there is none, the client gets what the
//! model wrote.

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

/// A call, or a list of calls, that is being parsed.
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
    /// The body after an opener. `bare`: there was none.
    pub fn new(body: &Body, tools: Arc<[Signature]>, bare: bool) -> Self {
        let reader = match body {
            Body::Object(keys) | Body::List(keys) => Reader::Json(Box::new(JsonReader::new(keys.clone(), bare))),
            Body::Named(named) => Reader::Named(Box::new(NamedReader::new(named))),
            Body::Python(_) => Reader::Named(Box::new(NamedReader::python(bare))),
        };
        Self { reader, call: Call::new(tools) }
    }

    /// The body after the marker of a single call, without the opener of the list.
    pub fn unopened(named: &Named, tools: Arc<[Signature]>) -> Self {
        Self { reader: Reader::Named(Box::new(NamedReader::begun(named))), call: Call::new(tools) }
    }

    /// Only the arguments of this tool, as a JSON object.
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

    /// Emits the rest at the end of the answer. `cut`: it was cut short.
    pub fn finish(&mut self, cut: bool, out: &mut Vec<Delta>) {
        if !cut {
            self.complete();
        }
        self.call.flush(out, !cut);
    }

    /// Closes arguments that lack nothing but their end.
    fn complete(&mut self) {
        if let (Reader::Named(named), true) = (&self.reader, self.call.is_open()) {
            self.call.arguments.extend(named.rest());
        }
    }
}
