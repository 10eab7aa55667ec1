//! Limits on reasoning: the budget that a request gives it, and the words with which a model is made to conclude.
//!
//! The worker counts, and takes the conclusion's tokens instead of the model's own at the end of the budget. A conclusion
//! is a line of ours, the marker with which the template closes reasoning, and what the template writes after it.

use crate::{
    chat::{Effort, ToolChoice},
    fleet::Efforts,
    formats::{Channels, OutputFormat, Thoughts},
};
use pensieve_protocol::{job::Thinking, vocabulary::Vocabulary};

const LINE: &str = "\n\nI have thought about this long enough, so I answer now.\n";
/// A budget leaves this share of the room for the answer.
const ANSWER_SHARE: u32 = 8;

/// Conclusions in the words of a format, spelled in a model's tokens once.
#[derive(Debug, Default)]
pub(super) struct Conclusions {
    open: String,
    close: String,
    anywhere: bool,
    /// After reasoning the model goes on as it likes.
    free: Vec<u32>,
    /// A call follows, where the format has channels.
    call: Vec<u32>,
    /// An answer follows.
    answer: Vec<u32>,
    /// An answer follows at once.
    again: Vec<u32>,
}

/// Returns the number of tokens that reasoning may take of `room`; `None` for all. An answer that must have a form,
/// `is_formed`, is useless if reasoning leaves no room for it.
pub(super) fn budget(
    tokens: Option<u32>,
    effort: Option<Effort>,
    is_formed: bool,
    efforts: &Efforts,
    room: u32,
) -> Option<u32> {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "shares are from 0 to 1")]
    let share = |effort: Effort| (f64::from(room) * efforts[effort as usize]) as u32;
    let most = room - room / ANSWER_SHARE;
    tokens.or_else(|| effort.map(share)).or(is_formed.then_some(most)).map(|tokens| tokens.min(most))
}

impl Conclusions {
    pub fn new(format: &OutputFormat, vocabulary: &Vocabulary) -> Self {
        if let Some(channels) = &format.channels {
            return Self::of_channels(channels, vocabulary);
        }
        let Some(reasoning) = &format.reasoning else { return Self::default() };
        let (open, close) = (reasoning.open.clone(), reasoning.close.clone());
        // After a tag that is text, templates leave a line empty; special tokens stand alone.
        let space = if close.starts_with("</") { "\n\n" } else { "" };
        let free = vocabulary.spell(&format!("{LINE}{close}{space}"));
        let again = vocabulary.spell(&close);
        Self { open, close, again, free, ..Self::default() }
    }

    fn of_channels(channels: &Channels, vocabulary: &Vocabulary) -> Self {
        let Channels { start, channel, message, recipient, thoughts, calls, answer, .. } = channels;
        let close = channels.ends.first().cloned().unwrap_or_default();
        let next = format!("{close}{start}");
        let answered = format!("{next}{channel}{answer}{message}");
        Self {
            open: format!("{channel}{thoughts}{message}"),
            close,
            anywhere: true,
            free: vocabulary.spell(&format!("{LINE}{next}")),
            call: vocabulary.spell(&format!("{LINE}{next}{channel}{calls}{recipient}")),
            answer: vocabulary.spell(&format!("{LINE}{answered}")),
            again: vocabulary.spell(&answered),
        }
    }

    /// Returns how the reasoning of an answer is concluded, without a budget; `None` if there will be none.
    pub fn thinking(&self, thoughts: Thoughts, has_tools: bool, choice: &ToolChoice) -> Option<Thinking> {
        if self.free.is_empty() || (thoughts == Thoughts::Never && !self.anywhere) {
            return None;
        }
        let must_call = matches!(choice, ToolChoice::Any | ToolChoice::Named(_));
        let conclusion = match (self.anywhere, has_tools && *choice != ToolChoice::None) {
            (true, true) if must_call => &self.call,
            (true, false) => &self.answer,
            _ => &self.free,
        };
        Some(Thinking {
            open: self.open.clone(),
            close: self.close.clone(),
            begun: thoughts == Thoughts::Begun,
            anywhere: self.anywhere,
            budget: None,
            conclusion: conclusion.clone(),
            again: if must_call { self.call.clone() } else { self.again.clone() },
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::formats::Reasoning;

    /// A vocabulary of single bytes and these special tokens, from 256 up.
    fn vocabulary(special: &[&str]) -> Vocabulary {
        let bytes: serde_json::Map<_, _> = (0..256).map(|byte| (format!("<0x{byte:02X}>"), byte.into())).collect();
        let added = special
            .iter()
            .zip(256..)
            .map(|(content, id)| serde_json::json!({ "id": id, "content": content, "special": true }));
        let added: Vec<_> = added.collect();
        let document = serde_json::json!({ "decoder": { "type": "ByteFallback" }, "added_tokens": added,
            "model": { "vocab": bytes } });
        Vocabulary::new(&document.to_string(), 300, &[]).unwrap()
    }

    #[test]
    fn an_explicit_budget_comes_before_an_effort_and_leaves_room_for_the_answer() {
        let efforts = crate::fleet::AnswerSettings::default().efforts;
        for (tokens, effort, room, expect) in [
            (None, None, 8000, None),
            (Some(1024), None, 8000, Some(1024)),
            (Some(1024), Some(Effort::Max), 8000, Some(1024)),
            (Some(8000), None, 8000, Some(7000)),
            (Some(0), None, 8000, Some(0)),
            (None, Some(Effort::Minimal), 8000, Some(500)),
            (None, Some(Effort::Low), 8000, Some(1000)),
            (None, Some(Effort::Medium), 8000, Some(2000)),
            (None, Some(Effort::High), 8000, Some(4000)),
            (None, Some(Effort::XHigh), 8000, Some(6000)),
            (None, Some(Effort::Max), 8000, Some(7000)),
        ] {
            assert_eq!(budget(tokens, effort, false, &efforts, room), expect, "{tokens:?}, {effort:?}");
            assert_eq!(budget(tokens, effort, true, &efforts, room), expect.or(Some(7000)), "{tokens:?}, {effort:?}");
        }
    }

    #[test]
    fn each_form_is_concluded_in_its_own_words() {
        let tags = |open: &str, close: &str| OutputFormat {
            reasoning: Some(Reasoning { open: open.into(), close: close.into() }),
            ..OutputFormat::default()
        };
        let harmony = OutputFormat { channels: Some(Channels::default()), ..OutputFormat::default() };
        let specials = ["</think>", "[/THINK]", "<channel|>", "<|start|>", "<|channel|>", "<|message|>", "<|end|>"];
        let vocabulary = vocabulary(&specials);
        let must = ToolChoice::Any;
        for (format, has_tools, choice, expect) in [
            (tags("<think>", "</think>"), true, ToolChoice::Auto, "</think>\n\n"),
            (tags("[THINK]", "[/THINK]"), false, ToolChoice::Auto, "[/THINK]"),
            (tags("<|channel>thought", "<channel|>"), true, must.clone(), "<channel|>"),
            (tags("<reasoning>", "</reasoning>"), false, ToolChoice::Auto, "</reasoning>\n\n"),
            (harmony.clone(), false, ToolChoice::Auto, "<|end|><|start|>assistant<|channel|>final<|message|>"),
            (harmony.clone(), true, ToolChoice::None, "<|end|><|start|>assistant<|channel|>final<|message|>"),
            (harmony.clone(), true, ToolChoice::Auto, "<|end|><|start|>assistant"),
            (harmony, true, must, "<|end|><|start|>assistant<|channel|>commentary to=functions."),
        ] {
            let conclusions = Conclusions::new(&format, &vocabulary);
            let thinking = conclusions.thinking(Thoughts::Possible, has_tools, &choice).unwrap();
            assert_eq!(vocabulary.text_of(&thinking.conclusion), format!("{LINE}{expect}"));
            let named = thinking.conclusion.iter().filter(|token| **token >= 256).count();
            assert_eq!(named, specials.iter().filter(|name| expect.contains(**name)).count(), "{expect}");
        }
        assert!(
            Conclusions::new(&OutputFormat::default(), &vocabulary)
                .thinking(Thoughts::Begun, false, &ToolChoice::Auto)
                .is_none()
        );
        let tags = Conclusions::new(&tags("<think>", "</think>"), &vocabulary);
        assert!(tags.thinking(Thoughts::Never, false, &ToolChoice::Auto).is_none());
    }
}
