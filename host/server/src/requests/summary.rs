//! Summaries that stand for a conversation: the question for one, and the conversation that goes on from it.

use crate::chat::{Compaction, ContextEdit, Input, Part, Request, ResponseFormat, Role, ToolChoice, Turn};

/// Limit of a summary in tokens.
const TOKENS_MAX: u32 = 4096;
/// Limit of what follows a summary word for word.
const CARRIED_BYTES_MAX: usize = 16 << 10;

const ASK: &str = "Sum up this conversation so that the work can go on from your summary alone, as nothing else of it will be \
    there: what the user wants, what was decided and why, what was done and found (names, paths, values and errors as they \
    are), and what comes next. Answer with the summary only.";

/// Asks for a summary of a request's conversation. The prompt begins like that of the conversation, so that little of it has
/// to be read again.
pub fn question(request: &Request, instructions: Option<&str>) -> Request {
    let mut question = Request {
        model: request.model.clone(),
        client: request.client.clone(),
        input: request.input.clone(),
        images: request.images.clone(),
        deferred_tools: request.deferred_tools.clone(),
        // A conversation that fills its context is what needs a summary most: its oldest turns go first.
        context: vec![ContextEdit::Truncate],
        max_tokens: Some(TOKENS_MAX),
        sampling: request.sampling.clone(),
        format: ResponseFormat::Free,
        adapter: request.adapter.clone(),
        ..Request::default()
    };
    if let Input::Chat(conversation) = &mut question.input {
        let text = instructions.filter(|text| !text.trim().is_empty()).unwrap_or(ASK);
        conversation.turns.push(Turn { role: Role::User, parts: vec![Part::Text(text.to_owned())] });
        conversation.tool_choice = ToolChoice::None;
        conversation.thinking = Some(false);
    }
    question
}

/// The text that stands for a request's conversation: the summary, and what was said last word for word, as the answer is to
/// that; of the latter at most a byte for two tokens of `trigger`, so that the next request is below that. `None`
/// without a summary.
pub fn text(request: &Request, summary: &str, trigger: Option<u32>) -> Option<String> {
    let summary = summary.trim();
    let Input::Chat(conversation) = &request.input else { return None };
    if summary.is_empty() {
        return None;
    }
    let asked = conversation.turns.iter().rev().find_map(|turn| Some(words(turn)).filter(|text| !text.is_empty()));
    let results = conversation.turns.iter().rev().take_while(|turn| turn.role != Role::Assistant);
    let results: Vec<&str> = results.flat_map(|turn| turn.parts.iter().rev()).filter_map(result).collect();
    let mut text = summary.to_owned();
    let mut left = trigger.map_or(CARRIED_BYTES_MAX, |trigger| CARRIED_BYTES_MAX.min(trigger as usize / 2));
    let asked = asked.iter().map(|asked| ("the latest message of the user", asked.as_str()));
    let results = results.into_iter().rev().map(|result| ("the latest result of a tool", result));
    for (what, words) in asked.chain(results) {
        let shown = &words[..words.floor_char_boundary(left)];
        left -= shown.len();
        let cut = if shown.len() < words.len() { " …" } else { "" };
        text.push_str(&format!("\n\n[{what}]\n{shown}{cut}"));
    }
    Some(text)
}

/// The turn that stands in a prompt for the conversation before it.
pub fn turn(text: &str) -> Turn {
    let text = format!("[summary of the conversation before this point]\n{text}");
    Turn { role: Role::User, parts: vec![Part::Text(text)] }
}

/// The request with the text in place of its conversation.
#[must_use]
pub fn applied(mut request: Request, text: &str) -> Request {
    if let Input::Chat(conversation) = &mut request.input {
        conversation.turns = vec![turn(text)];
    }
    request.context = Vec::new();
    request
}

impl Compaction {
    /// A summary of whatever there is, and nothing after it.
    pub fn now(instructions: Option<String>) -> Self {
        Self { trigger: Some(0), pause: true, instructions }
    }
}

/// The text of a message of the user; empty for other turns.
fn words(turn: &Turn) -> String {
    if turn.role != Role::User || turn.parts.iter().any(|part| result(part).is_some()) {
        return String::new();
    }
    let texts =
        turn.parts.iter().filter_map(|part| if let Part::Text(text) = part { Some(text.as_str()) } else { None });
    texts.collect::<Vec<_>>().join("\n")
}

fn result(part: &Part) -> Option<&str> {
    if let Part::ToolResult { text, .. } = part { Some(text.as_str()) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::Conversation;

    fn turn_of(role: Role, parts: Vec<Part>) -> Turn {
        Turn { role, parts }
    }

    fn request(turns: Vec<Turn>) -> Request {
        Request { input: Input::Chat(Conversation { turns, ..Conversation::default() }), ..Request::default() }
    }

    #[test]
    fn what_was_said_last_follows_a_summary() {
        let text_of = |text: &str| Part::Text(text.into());
        let result =
            |text: &str| Part::ToolResult { id: "a".into(), text: text.into(), images: Vec::new(), is_error: false };
        let question = turn_of(Role::User, vec![text_of("count"), text_of("files")]);
        let call = Part::ToolCall { id: "a".into(), name: "ls".into(), arguments: serde_json::json!({}) };
        let results = turn_of(Role::User, vec![result("x"), result("y")]);
        let asked = "sum\n\n[the latest message of the user]\ncount\nfiles";
        for (turns, summary, expect) in [
            (vec![question.clone()], " sum\n", Some(asked.to_owned())),
            (
                vec![question.clone(), turn_of(Role::Assistant, vec![call]), results],
                "sum",
                Some(format!("{asked}\n\n[the latest result of a tool]\nx\n\n[the latest result of a tool]\ny")),
            ),
            (vec![question.clone(), turn_of(Role::Assistant, vec![text_of("2")])], "sum", Some(asked.to_owned())),
            (vec![question], " \n", None),
            (Vec::new(), "sum", Some("sum".to_owned())),
        ] {
            assert_eq!(text(&request(turns), summary, None), expect);
        }
        let long = turn_of(Role::User, vec![text_of(&"é".repeat(CARRIED_BYTES_MAX))]);
        for (trigger, bytes) in [(None, CARRIED_BYTES_MAX), (Some(1000), 500), (Some(u32::MAX), CARRIED_BYTES_MAX)] {
            let carried = text(&request(vec![long.clone()]), "sum", trigger).unwrap_or_default();
            assert!(carried.ends_with("é …") && carried.len() < bytes + 100);
        }
    }
}
