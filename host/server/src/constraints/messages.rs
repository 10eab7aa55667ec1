//! Grammars for answers that consist of messages: which messages, in which order, with which content.
//!
//! The whole answer is a single grammar, reasoning included, because heavily quantized models get headers wrong. The
//! special tokens of a header never occur in a text, so a text ends where the model ends it.

use super::{Rules, TOOLS, Writer, json};
use crate::{
    chat::ToolChoice,
    formats::{Channels, Thoughts},
};
use pensieve_protocol::grammar::{Part, Rule, Then};

/// Returns the rule for an answer; `None` without tools and response format, or if the vocabulary lacks the tokens of
/// headers.
pub(super) fn rule(rules: &Rules<'_>, channels: &Channels) -> Option<Rule> {
    let lark = |text: &str| rules.markers.lark(text);
    let is_token = |text: &str| lark(text) != json(text);
    let end = channels.ends.first()?;
    let headed = [&channels.channel, &channels.message, end].into_iter().all(|marker| is_token(marker));
    if !headed || rules.tools.is_empty() && rules.answer.is_none() {
        return None;
    }
    let tools = rules.callable();
    let (open, channel, message) = (lark(&channels.message), lark(&channels.channel), &channels.message);
    let mut writer = Writer::new(rules.markers, rules.answer);
    // The markers that end a turn are not always among the checkpoint's EOS tokens.
    let ends = channels.ends.iter().skip(1).filter(|end| is_token(end)).map(|end| lark(end)).collect::<Vec<_>>();
    let last = if ends.is_empty() { String::new() } else { format!("({})?", ends.join(" | ")) };
    writer.line(&format!("start: {} {last}", order(rules, !tools.is_empty())));
    writer.line(&format!("next: {} {}", lark(end), lark(&channels.start)));
    writer.line(&format!("thought: {} FREE", lark(&format!("{}{}{message}", channels.channel, channels.thoughts))));
    let form = if is_token(&channels.constrain) {
        format!("(\" \"? {} \"json\" | \" json\")?", lark(&channels.constrain))
    } else {
        "\" json\"?".to_owned()
    };
    let said = |name: &str| lark(&format!("{}{name}{message}", channels.channel));
    match rules.answer {
        Some(_) => writer.line(&format!("said: {channel} {} {form} {open} SPACE @part0", json(&channels.answer))),
        None => writer.line(&format!("said: ({} | {}) FREE", said(&channels.answer), said(&channels.calls))),
    }
    if !tools.is_empty() {
        let calls = tools.iter().map(|tool| {
            let to = json(&format!("{}{}", channels.recipient, tool.name));
            let (thoughts, calls) = (json(&channels.thoughts), json(&channels.calls));
            // The recipient comes after the role, as templates write it, or after the channel, as models do.
            let header = format!("{to} {channel} {calls} {form} | {channel} ({calls} | {thoughts})? {to} {form}");
            format!("({header}) {open} SPACE {}", writer.json(tool))
        });
        let calls = calls.collect::<Vec<_>>().join("\n  | ");
        writer.line(&format!("call: {calls}"));
    }
    writer.line("FREE: /(?s:.*)/");
    let field = rules.answer.filter(|_| tools.is_empty()).map_or(TOOLS, |answer| answer.field.as_str()).to_owned();
    Some(Rule::from_start(Part::new(field, writer.finish()), Then::Stop))
}

/// The order of messages. The prompt has begun the first one, possibly including its text.
fn order(rules: &Rules<'_>, has_calls: bool) -> String {
    let calls = if rules.single { "call" } else { "call (next call)*" };
    let must_call = matches!(rules.choice, ToolChoice::Any | ToolChoice::Named(_));
    let body = match (has_calls, must_call, rules.answer.is_some()) {
        (true, true, _) => format!("(thought next)* {calls}"),
        (true, false, true) => format!("(thought next)* (said | {calls})"),
        (false, _, true) => "(thought next)* said".to_owned(),
        (true, false, false) if rules.single => "((thought | said) next)* (thought | said | call)".to_owned(),
        (true, false, false) => "(thought | said | call) (next (thought | said | call))*".to_owned(),
        (false, _, false) => "(thought | said) (next (thought | said))*".to_owned(),
    };
    match (rules.thoughts, rules.answer) {
        (Thoughts::Possible, _) => format!("({body})"),
        (Thoughts::Begun, _) => format!("FREE next ({body})"),
        (Thoughts::Never, Some(_)) if !must_call => "SPACE @part0".to_owned(),
        (Thoughts::Never, _) if must_call => format!("FREE next ({body})"),
        (Thoughts::Never, _) => format!("FREE (next ({body}))?"),
    }
}
