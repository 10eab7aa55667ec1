//! Parses the body of a call byte by byte, so that arguments stream while they are generated.
//!
//! Nothing is validated against a schema here: the grammar has done that. Without a grammar the client gets what the
//! model wrote, mended where it is plain what was meant ([`Mender`](super::mend::Mender)).

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
    /// `close` is the marker after the body.
    pub fn new(body: &Body, close: &str, tools: Arc<[Signature]>, bare: bool) -> Self {
        let reader = match body {
            Body::Object(keys) | Body::List(keys) => Reader::Json(Box::new(JsonReader::new(keys.clone(), close, bare))),
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
    pub fn arguments_of(tool: &str, close: &str, tools: Arc<[Signature]>) -> Self {
        let call = Call::new(tools);
        let reader = NamedReader::arguments_of(tool, call.tool(tool).cloned(), close);
        Self { reader: Reader::Named(Box::new(reader)), call }
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
            let is_tagged = matches!(&self.reader, Reader::Named(named) if named.has_tags());
            // Arguments that broke off must not look complete, as clients would run the call.
            if fed != Fed::Broken || is_tagged {
                self.complete();
            }
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
        } else if self.call.is_open() {
            let arguments = &mut self.call.arguments;
            match &mut self.reader {
                Reader::Json(json) => json.flush(arguments),
                Reader::Named(named) => named.flush(arguments),
            }
        }
        self.call.flush(out, !cut);
    }

    /// Closes arguments that lack only their end.
    fn complete(&mut self) {
        if self.call.is_open() {
            let arguments = &mut self.call.arguments;
            match &mut self.reader {
                Reader::Json(json) => json.complete(arguments),
                Reader::Named(named) => named.complete(arguments),
            }
        }
    }
}
