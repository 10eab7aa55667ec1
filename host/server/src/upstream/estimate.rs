//! Estimates from a request without a tokenizer: about how many tokens it has, and which conversation it belongs to.

use std::hash::{Hash, Hasher};

use siphasher::sip::SipHasher13;

use crate::chat::{Conversation, Input, Part, Request, Role};

/// Tokens of an answer that count at most for the choice of a server.
pub(super) const ANSWER_USUAL: u32 = 1024;
/// Bytes of text per token, roughly: English has four and a half, code three.
const BYTES_PER_TOKEN: usize = 4;
/// Tokens that a template adds to a turn.
const TURN_TOKENS: usize = 6;
const IMAGE_TOKENS: usize = 1000;

pub(super) fn tokens(input: &Input) -> u32 {
    let tokens = match input {
        Input::Chat(conversation) => of_conversation(conversation),
        Input::Text(text) => text.len() / BYTES_PER_TOKEN,
        Input::Infill { prefix, suffix } => (prefix.len() + suffix.len()) / BYTES_PER_TOKEN,
        Input::Tokens(tokens) => tokens.len(),
    };
    u32::try_from(tokens + 1).unwrap_or(u32::MAX)
}

fn of_conversation(conversation: &Conversation) -> usize {
    let tools: usize = conversation
        .tools
        .iter()
        .map(|tool| tool.name.len() + tool.description.len() + tool.schema.to_string().len())
        .sum();
    let (mut bytes, mut images) = (conversation.system.len() + tools, 0);
    for part in conversation.turns.iter().flat_map(|turn| &turn.parts) {
        images += part.items().count();
        bytes += match part {
            Part::Text(text) | Part::Thinking(text) | Part::ToolResult { text, .. } => text.len(),
            Part::ToolCall { name, arguments, .. } => name.len() + arguments.to_string().len(),
            Part::Image(_) => 0,
        };
    }
    bytes / BYTES_PER_TOKEN + images * IMAGE_TOKENS + conversation.turns.len() * TURN_TOKENS
}

/// Equal for requests of one conversation: by its client, its system prompt and the user's first words, which stay while it
/// grows.
pub(super) fn conversation(request: &Request) -> u64 {
    let mut hasher = SipHasher13::new();
    request.client.salt.hash(&mut hasher);
    match &request.input {
        Input::Chat(conversation) => {
            conversation.system.hash(&mut hasher);
            let first = conversation.turns.iter().find(|turn| turn.role == Role::User);
            for part in first.map(|turn| turn.parts.as_slice()).unwrap_or_default() {
                match part {
                    Part::Text(text) => text.hash(&mut hasher),
                    Part::Image(item) => item.hash(&mut hasher),
                    _ => {}
                }
            }
        }
        Input::Text(text) | Input::Infill { prefix: text, .. } => prefix(text).hash(&mut hasher),
        Input::Tokens(tokens) => tokens[..tokens.len().min(64)].hash(&mut hasher),
    }
    hasher.finish()
}

/// The beginning of a plain text, which is what a longer one of the same origin has in common with it.
fn prefix(text: &str) -> &str {
    &text[..text.floor_char_boundary(256)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::Turn;

    #[test]
    fn a_conversation_is_the_same_one_when_it_has_grown() {
        let turn = |role, text: &str| Turn { role, parts: vec![Part::Text(text.into())] };
        let of = |system: &str, turns: Vec<Turn>| {
            let input = Input::Chat(Conversation { system: system.into(), turns, ..Conversation::default() });
            conversation(&Request { input, ..Request::default() })
        };
        let first = of("s", vec![turn(Role::User, "a")]);
        let grown = vec![turn(Role::User, "a"), turn(Role::Assistant, "b"), turn(Role::User, "c")];
        assert_eq!(of("s", grown), first);
        assert_ne!(of("s", vec![turn(Role::User, "z")]), first);
        assert_ne!(of("t", vec![turn(Role::User, "a")]), first);
    }

    #[test]
    fn tokens_are_about_a_quarter_of_the_bytes() {
        assert_eq!(tokens(&Input::Text("x".repeat(400))), 101);
        assert_eq!(tokens(&Input::Tokens(vec![1, 2, 3])), 4);
    }
}
