//! Answers that consist of messages, as in OpenAI's harmony format: each message names its channel, which determines
//! whether it is reasoning, a call or text, and a call names the tool as its recipient:
//!
//! `<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.f
//! <|constrain|>json<|message|>{"a": 1}<|call|>`

use serde::{Deserialize, Serialize};

use super::Thoughts;

/// Markers and channel names of messages. The defaults are harmony's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Channels {
    /// Begins a message; prompts end with it.
    pub start: String,
    /// Comes before the channel's name.
    pub channel: String,
    /// Comes between a message's header and its content.
    pub message: String,
    /// End markers of a message. The first one separates two messages of an answer; the others also end the turn.
    pub ends: Vec<String>,
    /// Comes between the channel and the format that the message is constrained to.
    pub constrain: String,
    /// Comes before a tool's name.
    pub recipient: String,
    /// The channel of reasoning.
    pub thoughts: String,
    /// The channel of calls, and of text that precedes them.
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
    /// State of the reasoning after this prompt.
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
        // There is always at least one end marker.
        let first = self.ends.first().map_or("", String::as_str);
        words.chain([(first, false), (self.constrain.as_str(), true)]).collect()
    }
}
