//! The streaming parser: splits an answer's bytes into text, reasoning and tool calls as they arrive.
//!
//! The deltas join to the same result however the bytes are chunked: a delta never ends within a character, and text
//! that may become a marker is held back. White space around reasoning and calls is dropped, since templates write
//! their own there.
//!
//! Malformed calls are mended where it is plain what was meant: quotes, commas and brackets, names in another case,
//! doubled openers, fences, missing closers. Others stay text: a marker without a call, a tool that was not offered,
//! JSON that breaks off before the arguments. Once arguments have begun to stream, what cannot be mended ends the call,
//! and the rest is text. If an answer is
//! truncated within a character, a marker or an undecided call, that piece is dropped, except that an undecided call
//! without an opener is shown as text.

mod call;
mod call_body;
mod channels;
mod held;
mod json;
mod literal;
mod mend;
mod named;
mod pieces;
mod tags;

use std::sync::Arc;

use self::{
    call::Fed,
    call_body::CallBody,
    channels::ChannelReader,
    held::Held,
    pieces::{Advance, leading, overlap, show, think, whole},
};
use crate::{
    chat::Delta,
    formats::{Calls, Named, OutputFormat, Reasoning, Signature, Thoughts},
};

/// Maximum number of bytes held back while it is undecided whether they are a call.
const UNDECIDED_BYTES_MAX: usize = 256 << 10;

#[derive(Debug)]
pub struct ToolParser {
    calls: Option<Calls>,
    reasoning: Option<Reasoning>,
    /// Parses the whole answer if the format consists of messages.
    channels: Option<ChannelReader>,
    tools: Arc<[Signature]>,
    state: ParserState,
    /// Bytes not consumed yet.
    pending: Held,
}

#[derive(Debug)]
enum ParserState {
    /// Nothing yet: reasoning may be opened.
    Opening,
    /// Reasoning. `begun`: some of it was emitted.
    Thinking { begun: bool },
    /// Text. `start`: a bare call may begin. `margin`: leading white space is dropped.
    Text { start: bool, margin: bool },
    /// A call. `raw` becomes text if it turns out not to be one; its first `lead` bytes are not parsed again.
    Call { body: Box<CallBody>, raw: Vec<u8>, lead: usize, bare: bool },
    /// The closer of a call.
    Closing,
}

impl ToolParser {
    pub fn new(format: &OutputFormat, tools: Arc<[Signature]>, thoughts: Thoughts) -> Self {
        let channels = format.channels.as_ref();
        let channels = channels.map(|channels| ChannelReader::new(channels, tools.clone(), thoughts));
        let calls = format.calls.clone().filter(|_| !tools.is_empty());
        let reasoning = format.reasoning.clone();
        let state = match thoughts {
            Thoughts::Begun if reasoning.is_some() => ParserState::Thinking { begun: false },
            Thoughts::Possible if reasoning.is_some() => ParserState::Opening,
            _ => ParserState::Text { start: calls.as_ref().is_some_and(Calls::may_begin), margin: false },
        };
        Self { calls, reasoning, channels, tools, state, pending: Held::default() }
    }

    pub fn push(&mut self, bytes: &[u8]) -> Vec<Delta> {
        if let Some(channels) = &mut self.channels {
            return channels.push(bytes);
        }
        self.pending.push(bytes);
        let mut out = Vec::new();
        while self.step(&mut out) == Advance::Done {}
        if let ParserState::Call { body, .. } = &mut self.state {
            body.flush(&mut out);
        }
        out
    }

    /// True if new text belongs to the answer itself; `None` while that is undecided.
    pub fn is_text(&self) -> Option<bool> {
        if let Some(channels) = &self.channels {
            return Some(channels.is_text());
        }
        match &self.state {
            ParserState::Text { .. } => Some(true),
            ParserState::Opening => None,
            ParserState::Call { body, .. } if body.calls() == 0 => None,
            _ => Some(false),
        }
    }

    /// Returns the rest at the end of the answer. `cut`: the answer was truncated.
    pub fn finish(&mut self, cut: bool) -> Vec<Delta> {
        if let Some(channels) = &mut self.channels {
            return channels.finish(cut);
        }
        let mut out = Vec::new();
        let mut pending = self.pending.take(self.pending.len());
        if cut {
            pending.truncate(whole(&pending));
            // An incomplete marker is not part of the reasoning.
            let marker = match (&self.state, &self.reasoning) {
                (ParserState::Opening, Some(reasoning)) => reasoning.open.as_bytes(),
                (ParserState::Thinking { .. }, Some(reasoning)) => reasoning.close.as_bytes(),
                _ => b"",
            };
            let half = overlap(&pending, marker);
            pending.truncate(pending.len() - if half > 1 { half } else { 0 });
        }
        match std::mem::replace(&mut self.state, ParserState::Closing) {
            ParserState::Opening => show(&mut out, &pending),
            ParserState::Thinking { .. } => think(&mut out, pending.trim_ascii_end()),
            ParserState::Text { margin, .. } => {
                let begun = self.calls.as_ref().map_or(0, |calls| begun(&pending, calls));
                let begun = if cut && begun > 1 { begun } else { 0 };
                let text = &pending[..pending.len() - begun];
                let text = if begun > 0 { text.trim_ascii_end() } else { text };
                show(&mut out, if margin { text.trim_ascii_start() } else { text });
            }
            ParserState::Call { mut body, raw, bare, .. } => {
                body.finish(cut, &mut out);
                if body.calls() == 0 && (bare || !cut) {
                    let raw = [raw, pending].concat();
                    show(&mut out, if cut { &raw[..whole(&raw)] } else { &raw });
                }
            }
            ParserState::Closing => {}
        }
        out
    }

    fn step(&mut self, out: &mut Vec<Delta>) -> Advance {
        match self.state {
            ParserState::Opening => self.open(),
            ParserState::Thinking { begun } => self.think(begun, out),
            ParserState::Text { start, margin } => self.text(start, margin, out),
            ParserState::Call { .. } => self.call(out),
            ParserState::Closing => self.close(),
        }
    }

    fn begin_text(&mut self, margin: bool) -> Advance {
        let start = self.calls.as_ref().is_some_and(Calls::may_begin);
        self.state = ParserState::Text { start, margin };
        Advance::Done
    }

    fn open(&mut self) -> Advance {
        let Some(reasoning) = &self.reasoning else { return self.begin_text(false) };
        let (space, open) = (self.pending.white(), reasoning.open.as_bytes());
        let rest = &self.pending[space..];
        if rest.starts_with(open) {
            self.pending.take(space + open.len());
            self.state = ParserState::Thinking { begun: false };
            return Advance::Done;
        }
        if open.starts_with(rest) { Advance::NeedsBytes } else { self.begin_text(false) }
    }

    fn think(&mut self, begun: bool, out: &mut Vec<Delta>) -> Advance {
        let close = self.reasoning.as_ref().map(|reasoning| reasoning.close.as_bytes()).unwrap_or_default();
        let end = self.pending.find(close);
        let mut upto = end.unwrap_or_else(|| self.pending.len() - overlap(&self.pending, close));
        let skipped = if begun { 0 } else { self.pending.white().min(upto) };
        let text = self.pending.trimmed(upto).max(skipped);
        let is_whole = end.is_some() || text < upto;
        let shown = if is_whole { text } else { skipped + whole(&self.pending[skipped..text]) };
        if shown > skipped {
            think(out, &self.pending[skipped..shown]);
            self.state = ParserState::Thinking { begun: true };
        }
        match end {
            Some(_) => {
                upto += close.len();
                self.pending.take(upto);
                self.begin_text(true)
            }
            None => {
                // Drop leading white space; keep later white space, as more text may follow.
                self.pending.take(if shown > skipped { shown } else { skipped });
                Advance::NeedsBytes
            }
        }
    }

    fn text(&mut self, start: bool, margin: bool, out: &mut Vec<Delta>) -> Advance {
        let Some(calls) = &self.calls else {
            let skipped = if margin { self.pending.white() } else { 0 };
            self.pending.take(skipped);
            self.release(whole(&self.pending), margin, out);
            return Advance::NeedsBytes;
        };
        if start {
            let between = |byte: &u8| byte.is_ascii_whitespace() || (margin && *byte == b';');
            let white = self.pending.white();
            let skipped = white + leading(&self.pending[white..], between);
            match self.pending.get(skipped) {
                None => return Advance::NeedsBytes,
                Some(b'{' | b'[') => {
                    let body = Box::new(CallBody::new(&calls.body, &calls.close, self.tools.clone(), true));
                    let raw = self.pending.take(skipped);
                    self.state = ParserState::Call { body, raw, lead: skipped + 1, bare: true };
                }
                Some(_) => self.state = ParserState::Text { start: false, margin },
            }
            return Advance::Done;
        }
        let found = opener(&self.pending, calls);
        let upto = found.map_or(self.pending.len() - begun(&self.pending, calls), |(place, ..)| place);
        let text = self.pending.trimmed(upto);
        match found {
            Some((place, length, unopened)) => {
                let tools = self.tools.clone();
                let body = match unopened {
                    Some(named) => CallBody::unopened(named, tools),
                    None => CallBody::new(&calls.body, &calls.close, tools, false),
                };
                let lead = place + length - text;
                self.release(text, margin, out);
                let raw = self.pending.take(lead);
                self.state = ParserState::Call { body: Box::new(body), raw, lead, bare: false };
                Advance::Done
            }
            None => {
                // Text before white space is complete.
                let shown = if text < upto { text } else { whole(&self.pending[..text]) };
                self.release(shown, margin, out);
                Advance::NeedsBytes
            }
        }
    }

    /// Emits the first `count` pending bytes as text. Anything but white space ends the margin.
    fn release(&mut self, count: usize, margin: bool, out: &mut Vec<Delta>) {
        let bytes = self.pending.take(count);
        let text = if margin { bytes.trim_ascii_start() } else { &bytes };
        if !text.is_empty() {
            show(out, text);
            self.state = ParserState::Text { start: false, margin: false };
        }
    }

    fn call(&mut self, out: &mut Vec<Delta>) -> Advance {
        let ParserState::Call { body, raw, lead, bare } = &mut self.state else { return Advance::NeedsBytes };
        if let (Some(calls), true) = (&self.calls, body.calls() == 0 && raw.len() == *lead && !*bare) {
            // Some models write the opener twice.
            let space = self.pending.white();
            let (open, rest) = (calls.open.as_bytes(), &self.pending[space..]);
            if rest.starts_with(open) {
                self.pending.take(space + open.len());
                return Advance::Done;
            }
            if open.starts_with(rest) {
                return Advance::NeedsBytes;
            }
        }
        for index in 0..self.pending.len() {
            let byte = self.pending[index];
            let fed = if raw.len() > UNDECIDED_BYTES_MAX { Fed::Broken } else { body.feed(byte, out) };
            match fed {
                Fed::Counted => {
                    raw.clear();
                    *lead = 0;
                }
                Fed::Open => raw.push(byte),
                Fed::Done => {
                    self.pending.take(index + 1);
                    self.state = ParserState::Closing;
                    return Advance::Done;
                }
                Fed::Ended => {
                    self.pending.replace(index, raw);
                    self.state = ParserState::Closing;
                    return Advance::Done;
                }
                Fed::Broken => {
                    // Not a call: parse it again as text, starting after the part that made it look like one.
                    let counted = body.calls() > 0;
                    let (shown, again) = raw.split_at((*lead).min(raw.len()));
                    let mut shown = shown.to_vec();
                    let short = *lead - shown.len();
                    self.pending.replace(index, again);
                    self.state = ParserState::Text { start: false, margin: counted };
                    shown.extend(self.pending.take(short.min(self.pending.len())));
                    if !shown.is_empty() {
                        show(out, &shown);
                        self.state = ParserState::Text { start: false, margin: false };
                    }
                    return Advance::Done;
                }
            }
        }
        self.pending.take(self.pending.len());
        Advance::NeedsBytes
    }

    fn close(&mut self) -> Advance {
        let close = self.calls.as_ref().map(|calls| calls.close.as_bytes()).unwrap_or_default();
        let mut space = self.pending.white();
        // Brackets too many, and the end of a fence.
        let fence = if close.first() == Some(&b'`') { b']' } else { b'`' };
        let is_extra = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b'}' | b']') || *byte == fence;
        if self.pending.get(space).is_some_and(is_extra) {
            space += leading(&self.pending[space..], is_extra);
        }
        let rest = &self.pending[space..];
        if !close.is_empty() && rest.starts_with(close) {
            self.pending.take(space + close.len());
        } else if close.starts_with(rest) && !close.is_empty() {
            return Advance::NeedsBytes;
        }
        self.begin_text(true)
    }
}

/// Finds the first opener in a text. Returns its position, its length and, for the marker of a single call, that call's
/// form.
fn opener<'a>(text: &Held, calls: &'a Calls) -> Option<(usize, usize, Option<&'a Named>)> {
    let opened = text.find(calls.open.as_bytes()).map(|place| (place, calls.open.len(), None));
    let named = calls.unopened();
    let unopened = named.and_then(|named| Some((text.find(named.before.as_bytes())?, named.before.len(), Some(named))));
    opened.into_iter().chain(unopened).min_by_key(|(place, ..)| *place)
}

/// Length of the longest suffix that may be the beginning of an opener.
fn begun(text: &[u8], calls: &Calls) -> usize {
    let unopened = calls.unopened().map_or(0, |named| overlap(text, named.before.as_bytes()));
    unopened.max(overlap(text, calls.open.as_bytes()))
}
