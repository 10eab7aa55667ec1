//! Answers that consist of messages, as OpenAI's harmony has it: each names its channel, and thus whether it is a thought,
//! a call or text, and a call names the tool as its recipient:
//!
//! `<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.f
//! <|constrain|>json<|message|>{"a": 1}<|call|>`

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{
    Signature, Thoughts,
    body::Body,
    call::Fed,
    pieces::{find, overlap, show, think, whole},
};
use crate::chat::Delta;

/// A header that is longer, with what ends it, is none.
const HEADER_BYTES_MAX: usize = 1024;

/// Between texts of two messages.
const GAP: &[u8] = b"\n\n";

/// How the messages of an answer are written. What is left out is harmony's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Channels {
    /// What begins a message; the prompt ends with it.
    pub start: String,
    /// What stands before the channel's name.
    pub channel: String,
    /// What stands between a message's header and its text.
    pub message: String,
    /// What may end a message. The first stands between two messages of one answer, the others end a turn as well.
    pub ends: Vec<String>,
    /// What stands between a channel and the form that a message is bound to.
    pub constrain: String,
    /// What stands before a tool's name.
    pub recipient: String,
    /// The channel of thoughts.
    pub thoughts: String,
    /// The channel of calls, and of what is said before them.
    pub calls: String,
    /// The channel of answers.
    pub answer: String,
}

impl Default for Channels {
    fn default() -> Self {
        Self {
            start: "<|start|>assistant".into(),
            channel: "<|channel|>".into(),
            message: "<|message|>".into(),
            ends: ["<|end|>", "<|call|>", "<|return|>"].map(Into::into).to_vec(),
            constrain: "<|constrain|>".into(),
            recipient: " to=functions.".into(),
            thoughts: "analysis".into(),
            calls: "commentary".into(),
            answer: "final".into(),
        }
    }
}

impl Channels {
    /// What the end of a prompt means for the thoughts of the answer behind it.
    pub(super) fn thoughts(&self, prompt: &str) -> Thoughts {
        let open = prompt.rfind(&self.message).filter(|open| prompt.rfind(&self.start) < Some(*open));
        let Some(open) = open else { return Thoughts::Possible };
        if self.ends.iter().any(|end| prompt[open..].contains(end)) {
            return Thoughts::Possible;
        }
        let header = &prompt[prompt.rfind(&self.start).unwrap_or(0)..open];
        if header.contains(&self.thoughts) { Thoughts::Begun } else { Thoughts::Never }
    }

    pub(super) fn markers(&self) -> Vec<(&str, bool)> {
        let words =
            [&self.start, &self.channel, &self.message, &self.recipient, &self.thoughts, &self.calls, &self.answer];
        let words = words.into_iter().chain(&self.ends).map(|word| (word.as_str(), false));
        // There must be an end.
        let first = self.ends.first().map_or("", String::as_str);
        words.chain([(first, false), (self.constrain.as_str(), true)]).collect()
    }
}

#[derive(Debug)]
pub(super) struct ChannelReader {
    channels: Channels,
    tools: Arc<[Signature]>,
    state: State,
    /// Bytes that are not decided upon.
    pending: Vec<u8>,
    /// Whether there has been text, and whether the next one is that of another message.
    has_text: bool,
    gap: bool,
}

#[derive(Debug)]
enum State {
    Header,
    Thinking,
    Text,
    /// A call, and what becomes text if it is none.
    Call {
        body: Box<Body>,
        raw: Vec<u8>,
    },
    /// What stands behind a call, up to the message's end.
    Rest,
}

#[derive(PartialEq, Eq)]
enum Step {
    Some,
    None,
}

impl ChannelReader {
    pub fn new(channels: &Channels, tools: Arc<[Signature]>, thoughts: Thoughts) -> Self {
        let state = match thoughts {
            Thoughts::Possible => State::Header,
            Thoughts::Begun => State::Thinking,
            Thoughts::Never => State::Text,
        };
        Self { channels: channels.clone(), tools, state, pending: Vec::new(), has_text: false, gap: false }
    }

    pub fn push(&mut self, bytes: &[u8]) -> Vec<Delta> {
        self.pending.extend_from_slice(bytes);
        let mut out = Vec::new();
        while self.step(&mut out) == Step::Some {}
        if let State::Call { body, .. } = &mut self.state {
            body.flush(&mut out);
        }
        out
    }

    /// Whether new text belongs to the answer itself.
    pub fn is_text(&self) -> bool {
        matches!(self.state, State::Text)
    }

    /// What is left once nothing follows. `cut`: the answer would have gone on.
    pub fn finish(&mut self, cut: bool) -> Vec<Delta> {
        let mut out = Vec::new();
        let mut pending = std::mem::take(&mut self.pending);
        if cut {
            let half = self.begun(&pending);
            pending.truncate(pending.len() - if half > 1 { half } else { 0 });
            pending.truncate(whole(&pending));
        }
        match std::mem::replace(&mut self.state, State::Rest) {
            // Half a header is no text.
            State::Header | State::Rest => {}
            State::Thinking => think(&mut out, &pending),
            State::Text => self.show(&mut out, &pending),
            State::Call { mut body, raw } => {
                body.finish(cut, &mut out);
                if body.calls() == 0 && !cut {
                    self.show(&mut out, &raw);
                }
            }
        }
        out
    }

    fn step(&mut self, out: &mut Vec<Delta>) -> Step {
        match self.state {
            State::Header => self.header(),
            State::Call { .. } => self.call(out),
            State::Thinking | State::Text | State::Rest => self.content(out),
        }
    }

    fn header(&mut self) -> Step {
        let channels = &self.channels;
        // An answer without a header, which no grammar held to the form, is text, whatever comes later in it.
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
            return Step::Some;
        }
        if is_header && bytes < HEADER_BYTES_MAX {
            return Step::None;
        }
        self.state = State::Text;
        Step::Some
    }

    fn begin(&mut self, header: &str) {
        let channels = &self.channels;
        let recipient = header.split_once(channels.recipient.as_str()).map(|(_, rest)| rest);
        let tool = recipient.and_then(|rest| rest.split(|char: char| char.is_whitespace() || char == '<').next());
        let channel = header.split_once(channels.channel.as_str()).map_or("", |(_, rest)| rest.trim_start());
        self.state = match tool {
            Some(tool) if self.tools.iter().any(|known| known.name == tool) => {
                State::Call { body: Box::new(Body::arguments_of(tool, self.tools.clone())), raw: Vec::new() }
            }
            None if channel.starts_with(&channels.thoughts) => State::Thinking,
            _ => {
                self.gap = self.has_text;
                State::Text
            }
        };
    }

    /// The text of a message, up to what ends it.
    fn content(&mut self, out: &mut Vec<Delta>) -> Step {
        let ends = self.channels.ends.iter().chain([&self.channels.start]);
        let found = ends.filter_map(|end| Some((find(&self.pending, end.as_bytes())?, end.len()))).min();
        let upto = match found {
            Some((place, _)) => place,
            None => whole(&self.pending[..self.pending.len() - self.begun(&self.pending)]),
        };
        let text: Vec<u8> = self.pending.drain(..upto).collect();
        match self.state {
            State::Thinking => think(out, &text),
            State::Text => self.show(out, &text),
            _ => {}
        }
        let Some((_, length)) = found else { return Step::None };
        self.pending.drain(..length);
        self.state = State::Header;
        Step::Some
    }

    fn call(&mut self, out: &mut Vec<Delta>) -> Step {
        let State::Call { body, raw } = &mut self.state else { return Step::None };
        for index in 0..self.pending.len() {
            match body.feed(self.pending[index], out) {
                Fed::Counted => raw.clear(),
                Fed::Open => raw.push(self.pending[index]),
                Fed::Done => {
                    self.pending.drain(..=index);
                    self.state = State::Rest;
                    return Step::Some;
                }
                Fed::Broken | Fed::Ended => {
                    let is_call = body.calls() > 0;
                    let raw = std::mem::take(raw);
                    self.pending.splice(..index, raw);
                    self.gap = self.has_text;
                    self.state = if is_call { State::Rest } else { State::Text };
                    return Step::Some;
                }
            }
        }
        self.pending.clear();
        Step::None
    }

    /// How many bytes at the end may be the beginning of what ends a message.
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
