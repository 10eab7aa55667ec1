//! Calls that begin with the tool's name: `f[ARGS]{}`, `<function=f><parameter=a>…`, `call:f{a:…}`, and Python's
//! `f(a=…)`.

use super::{
    call::{Call, Fed},
    literal::{Literal, Progress},
    mend::{Mended, Mender},
    pieces::find,
    tags::TagReader,
};
use crate::{
    chat::Delta,
    formats::{Arguments, Named, Signature},
};

const NAME_BYTES_MAX: usize = 1024;

#[derive(Debug)]
pub(super) struct NamedReader {
    named: Named,
    /// For Python calls: whether a list of them is required, possible or open.
    python: Option<List>,
    at: CallPart,
    /// The consumed part of a marker or a name.
    head: Vec<u8>,
    name: String,
    arguments: Form,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum List {
    Expected,
    Possible,
    Open,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallPart {
    /// Before a name, or after a call, where the body may end.
    Before,
    Name,
    Arguments,
    After,
}

/// The parser of the current arguments.
#[derive(Debug)]
enum Form {
    Json(Box<Mender>),
    Tags(Box<TagReader>),
    Literal(Literal),
}

impl NamedReader {
    pub fn new(named: &Named) -> Self {
        Self {
            named: named.clone(),
            python: None,
            at: CallPart::Before,
            head: Vec::new(),
            name: String::new(),
            arguments: Form::Json(Box::new(Mender::new(None, &named.after))),
        }
    }

    /// Starts after the marker before a name.
    pub fn begun(named: &Named) -> Self {
        Self { at: CallPart::Name, ..Self::new(named) }
    }

    /// Parses Python calls. `bare`: only a list counts as a call.
    pub fn python(bare: bool) -> Self {
        let named = Named { arguments: "(".into(), ..Named::default() };
        Self { python: Some(if bare { List::Expected } else { List::Possible }), ..Self::new(&named) }
    }

    /// Parses only the arguments of a tool, as a JSON object.
    pub fn arguments_of(tool: &str, signature: Option<Signature>, close: &str) -> Self {
        let arguments = Form::Json(Box::new(Mender::new(signature, close)));
        Self { at: CallPart::Arguments, name: tool.to_owned(), arguments, ..Self::new(&Named::default()) }
    }

    pub fn feed(&mut self, byte: u8, call: &mut Call, out: &mut Vec<Delta>) -> Fed {
        match self.at {
            CallPart::Before => self.before(byte, call, out),
            CallPart::Name => self.name(byte, call, out),
            CallPart::Arguments => self.arguments(byte, call, out),
            CallPart::After => self.after(byte),
        }
    }

    pub fn has_tags(&self) -> bool {
        matches!(self.arguments, Form::Tags(_))
    }

    /// Completes arguments at the end of the answer.
    pub fn complete(&mut self, json: &mut Vec<u8>) {
        match (&mut self.arguments, self.at) {
            (Form::Tags(tags), CallPart::Arguments) => tags.complete(json),
            (Form::Json(mender), CallPart::Arguments) => mender.complete(json),
            (Form::Literal(literal), CallPart::Arguments) => literal.complete(json),
            _ => {}
        }
    }

    /// Adds what is held back, at the end of an answer that was cut.
    pub fn flush(&mut self, json: &mut Vec<u8>) {
        match (&mut self.arguments, self.at) {
            (Form::Json(mender), CallPart::Arguments) => mender.flush(json),
            (Form::Literal(literal), CallPart::Arguments) => literal.flush(json),
            _ => {}
        }
    }

    fn before(&mut self, byte: u8, call: &mut Call, out: &mut Vec<Delta>) -> Fed {
        let is_between = call.count() > 0 && matches!(byte, b',' | b';');
        if self.head.is_empty() && (byte.is_ascii_whitespace() || is_between) {
            return Fed::Open;
        }
        if let Some(list) = &mut self.python {
            match (*list, byte) {
                (List::Expected | List::Possible, b'[') if call.count() == 0 => {
                    *list = List::Open;
                    return Fed::Open;
                }
                (List::Open, b']') if call.count() > 0 => return Fed::Done,
                (List::Expected, _) => return Fed::Broken,
                _ => {}
            }
        }
        let before = self.named.before.as_bytes();
        if before.is_empty() {
            self.at = CallPart::Name;
            return self.name(byte, call, out);
        }
        self.head.push(byte);
        if self.head == before {
            self.head.clear();
            self.at = CallPart::Name;
        } else if !before.starts_with(&self.head) {
            return Self::no_call(call);
        }
        Fed::Open
    }

    /// The result if no call follows.
    fn no_call(call: &Call) -> Fed {
        if call.count() > 0 { Fed::Ended } else { Fed::Broken }
    }

    fn name(&mut self, byte: u8, call: &mut Call, out: &mut Vec<Delta>) -> Fed {
        let marker = self.named.arguments.as_bytes();
        if marker.is_empty() {
            // The arguments begin with white space, a tag or a brace, none of which can be part of a name.
            let ends = byte.is_ascii_whitespace() || matches!(byte, b'<' | b'{');
            if !ends || self.head.is_empty() {
                self.head.push(byte);
                let is_long = self.head.len() > NAME_BYTES_MAX;
                return if is_long || ends && !byte.is_ascii_whitespace() { Fed::Broken } else { Fed::Open };
            }
            return match self.begin_arguments(self.head.len(), call, out) {
                Fed::Open if !byte.is_ascii_whitespace() => self.arguments(byte, call, out),
                fed => fed,
            };
        }
        self.head.push(byte);
        if self.head.ends_with(marker) {
            return self.begin_arguments(self.head.len() - marker.len(), call, out);
        }
        let is_identifier = byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.') || byte >= 0x80;
        if self.head.len() > NAME_BYTES_MAX || self.python.is_some() && !is_identifier {
            return Self::no_call(call);
        }
        Fed::Open
    }

    fn begin_arguments(&mut self, name_bytes: usize, call: &mut Call, out: &mut Vec<Delta>) -> Fed {
        let mut name = &self.head[..name_bytes];
        if let Some(end) = find(name, self.named.id.as_bytes()) {
            name = &name[..end];
        }
        self.name = String::from_utf8_lossy(name).trim().to_owned();
        self.head.clear();
        let Some(signature) = call.tool(&self.name) else { return Self::no_call(call) };
        self.at = CallPart::Arguments;
        let quote = if let Arguments::Quoted { quote } = &self.named.form { Some(quote.as_str()) } else { None };
        self.arguments = match &self.named.form {
            Arguments::Tags(tags) => Form::Tags(Box::new(TagReader::new(tags, &self.named.after, signature.clone()))),
            Arguments::Json if self.python.is_none() => {
                Form::Json(Box::new(Mender::new(Some(signature.clone()), &self.named.after)))
            }
            _ => {
                // The name's end is also the opener of such arguments.
                call.begin(&self.name, out);
                call.arguments.push(b'{');
                self.arguments = Form::Literal(Literal::arguments(quote));
                return Fed::Counted;
            }
        };
        Fed::Open
    }

    fn arguments(&mut self, byte: u8, call: &mut Call, out: &mut Vec<Delta>) -> Fed {
        let progress = match &mut self.arguments {
            Form::Json(_) if !call.is_open() && byte.is_ascii_whitespace() => Progress::Inside,
            Form::Json(mender) => {
                let is_open = call.is_open() || (byte == b'{' && call.begin(&self.name, out));
                if !is_open {
                    return Fed::Broken;
                }
                match mender.feed(byte, &mut call.arguments) {
                    Mended::Inside => Progress::Inside,
                    Mended::End => Progress::End,
                    Mended::Broken => Progress::Broken,
                    Mended::Before => Progress::Before,
                }
            }
            Form::Literal(literal) => literal.feed(byte, &mut call.arguments),
            Form::Tags(tags) => {
                let progress = tags.feed(byte, &mut call.arguments);
                if !call.is_open() && !call.arguments.is_empty() {
                    call.begin(&self.name, out);
                }
                progress
            }
        };
        match progress {
            Progress::Inside if call.is_open() => Fed::Counted,
            Progress::Inside => Fed::Open,
            Progress::Broken if call.is_open() || call.count() == 0 => Fed::Broken,
            Progress::Broken => Fed::Ended,
            Progress::Before => {
                call.end(out);
                if !self.named.after.is_empty() {
                    self.at = CallPart::After;
                    self.after(byte)
                } else if matches!(self.arguments, Form::Literal(_)) {
                    self.at = CallPart::Before;
                    self.before(byte, call, out)
                } else {
                    Fed::Ended
                }
            }
            Progress::End => {
                call.end(out);
                // The tag parser has already consumed the marker after the arguments.
                let is_over = self.named.after.is_empty() || matches!(self.arguments, Form::Tags(_));
                if is_over { self.next() } else { self.go(CallPart::After) }
            }
        }
    }

    fn go(&mut self, at: CallPart) -> Fed {
        self.at = at;
        Fed::Counted
    }

    fn after(&mut self, byte: u8) -> Fed {
        if self.head.is_empty() && byte.is_ascii_whitespace() {
            return Fed::Open;
        }
        self.head.push(byte);
        let after = self.named.after.trim().as_bytes();
        if self.head == after {
            self.head.clear();
            return self.next();
        }
        if after.starts_with(&self.head) { Fed::Open } else { Fed::Ended }
    }

    /// After a call: another one may follow if the format allows several.
    fn next(&mut self) -> Fed {
        let is_last = self.named.before.is_empty() && self.python.is_none();
        if is_last { Fed::Done } else { self.go(CallPart::Before) }
    }
}
