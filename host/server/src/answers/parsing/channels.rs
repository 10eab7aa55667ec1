//! Parses answers that consist of messages ([`Channels`]) into text, reasoning and calls.

use std::sync::Arc;

use super::{
    call::{Call, Fed},
    call_body::CallBody,
    pieces::{Advance, find, overlap, show, think, whole},
};
use crate::{
    chat::Delta,
    formats::{Channels, Signature, Thoughts},
};

/// Maximum length of a header, including its end marker.
const HEADER_BYTES_MAX: usize = 1024;

/// Separator between the texts of two messages.
const GAP: &[u8] = b"\n\n";

#[derive(Debug)]
pub(super) struct ChannelReader {
    channels: Channels,
    tools: Arc<[Signature]>,
    state: MessagePart,
    /// Bytes not consumed yet.
    pending: Vec<u8>,
    /// Text was emitted, and the next text belongs to another message.
    has_text: bool,
    gap: bool,
}

#[derive(Debug)]
enum MessagePart {
    Header,
    Thinking,
    Text,
    /// A call. `raw` becomes text if it turns out not to be one.
    Call {
        body: Box<CallBody>,
        raw: Vec<u8>,
    },
    /// The rest of a message after a call.
    Rest,
}

impl ChannelReader {
    pub fn new(channels: &Channels, tools: Arc<[Signature]>, thoughts: Thoughts) -> Self {
        let state = match thoughts {
            Thoughts::Possible => MessagePart::Header,
            Thoughts::Begun => MessagePart::Thinking,
            Thoughts::Never => MessagePart::Text,
        };
        Self { channels: channels.clone(), tools, state, pending: Vec::new(), has_text: false, gap: false }
    }

    pub fn push(&mut self, bytes: &[u8]) -> Vec<Delta> {
        self.pending.extend_from_slice(bytes);
        let mut out = Vec::new();
        while self.step(&mut out) == Advance::Done {}
        if let MessagePart::Call { body, .. } = &mut self.state {
            body.flush(&mut out);
        }
        out
    }

    /// True if new text belongs to the answer itself.
    pub fn is_text(&self) -> bool {
        matches!(self.state, MessagePart::Text)
    }

    /// Returns the rest at the end of the answer. `cut`: the answer was truncated.
    pub fn finish(&mut self, cut: bool) -> Vec<Delta> {
        let mut out = Vec::new();
        let mut pending = std::mem::take(&mut self.pending);
        if cut {
            let half = self.begun(&pending);
            pending.truncate(pending.len() - if half > 1 { half } else { 0 });
            pending.truncate(whole(&pending));
        }
        match std::mem::replace(&mut self.state, MessagePart::Rest) {
            // An incomplete header is not text.
            MessagePart::Header | MessagePart::Rest => {}
            MessagePart::Thinking => think(&mut out, &pending),
            MessagePart::Text => self.show(&mut out, &pending),
            MessagePart::Call { mut body, raw } => {
                body.finish(cut, &mut out);
                if body.calls() == 0 && !cut {
                    self.show(&mut out, &raw);
                }
            }
        }
        out
    }

    fn step(&mut self, out: &mut Vec<Delta>) -> Advance {
        match self.state {
            MessagePart::Header => self.header(),
            MessagePart::Call { .. } => self.call(out),
            MessagePart::Thinking | MessagePart::Text | MessagePart::Rest => self.content(out),
        }
    }

    fn header(&mut self) -> Advance {
        let channels = &self.channels;
        // An answer without a header, which can occur if no grammar enforces the format, is text to its end.
        let begun = self.pending.trim_ascii_start();
        let beginnings = [&channels.start, &channels.channel, &channels.recipient, &channels.message];
        let is_header = beginnings.into_iter().any(|beginning| {
            let beginning = beginning.trim_start().as_bytes();
            beginning.starts_with(begun) || begun.starts_with(beginning)
        });
        let (message, bytes) = (channels.message.as_bytes(), self.pending.len().min(HEADER_BYTES_MAX));
        if is_header && let Some(end) = find(&self.pending[..bytes], message) {
            let header = String::from_utf8_lossy(&self.pending[..end]).into_owned();
            self.pending.drain(..end + message.len());
            self.begin(&header);
            return Advance::Done;
        }
        if is_header && bytes < HEADER_BYTES_MAX {
            return Advance::NeedsBytes;
        }
        self.state = MessagePart::Text;
        Advance::Done
    }

    fn begin(&mut self, header: &str) {
        let channels = &self.channels;
        let recipient = header.split_once(channels.recipient.as_str()).map(|(_, rest)| rest);
        let close = channels.ends.get(1).map_or("", String::as_str);
        let tool = recipient.and_then(|rest| rest.split(|char: char| char.is_whitespace() || char == '<').next());
        let channel = header.split_once(channels.channel.as_str()).map_or("", |(_, rest)| rest.trim_start());
        self.state = match tool {
            Some(tool) if Call::new(self.tools.clone()).tool(tool).is_some() => MessagePart::Call {
                body: Box::new(CallBody::arguments_of(tool, close, self.tools.clone())),
                raw: Vec::new(),
            },
            None if channel.starts_with(&channels.thoughts) => MessagePart::Thinking,
            _ => {
                self.gap = self.has_text;
                MessagePart::Text
            }
        };
    }

    /// Consumes the text of a message, up to its end marker.
    fn content(&mut self, out: &mut Vec<Delta>) -> Advance {
        let ends = self.channels.ends.iter().chain([&self.channels.start]);
        let found = ends.filter_map(|end| Some((find(&self.pending, end.as_bytes())?, end.len()))).min();
        let upto = match found {
            Some((position, _)) => position,
            None => whole(&self.pending[..self.pending.len() - self.begun(&self.pending)]),
        };
        let text: Vec<u8> = self.pending.drain(..upto).collect();
        match self.state {
            MessagePart::Thinking => think(out, &text),
            MessagePart::Text => self.show(out, &text),
            _ => {}
        }
        let Some((_, length)) = found else { return Advance::NeedsBytes };
        self.pending.drain(..length);
        self.state = MessagePart::Header;
        Advance::Done
    }

    fn call(&mut self, out: &mut Vec<Delta>) -> Advance {
        let MessagePart::Call { body, raw } = &mut self.state else { return Advance::NeedsBytes };
        for index in 0..self.pending.len() {
            match body.feed(self.pending[index], out) {
                Fed::Counted => raw.clear(),
                Fed::Open => raw.push(self.pending[index]),
                Fed::Done => {
                    self.pending.drain(..=index);
                    self.state = MessagePart::Rest;
                    return Advance::Done;
                }
                Fed::Broken | Fed::Ended => {
                    let is_call = body.calls() > 0;
                    let raw = std::mem::take(raw);
                    self.pending.splice(..index, raw);
                    self.gap = self.has_text;
                    self.state = if is_call { MessagePart::Rest } else { MessagePart::Text };
                    return Advance::Done;
                }
            }
        }
        self.pending.clear();
        Advance::NeedsBytes
    }

    /// Length of the longest suffix that may be the beginning of an end marker.
    fn begun(&self, bytes: &[u8]) -> usize {
        let ends = self.channels.ends.iter().chain([&self.channels.start]);
        ends.map(|end| overlap(bytes, end.as_bytes())).max().unwrap_or(0)
    }

    fn show(&mut self, out: &mut Vec<Delta>, text: &[u8]) {
        if text.is_empty() {
            return;
        }
        if std::mem::take(&mut self.gap) {
            show(out, GAP);
        }
        self.has_text = true;
        show(out, text);
    }
}
