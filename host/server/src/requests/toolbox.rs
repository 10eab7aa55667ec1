//! Keeps the head of a conversation's prompt when its tools change.
//!
//! Templates write all tools in the head, so that one more in the middle of a conversation (a server of the Model Context
//! Protocol that took a while to start) would have its whole prompt computed again. The tools of the first request are
//! remembered instead, and later ones are described where they appeared: after the turns of the request before.
//!
//! A request without tools that continues such a conversation (Codex asks for summaries that way) shows them again, but
//! they cannot be called.

use std::{
    collections::HashSet,
    hash::{DefaultHasher, Hash, Hasher},
    num::NonZeroUsize,
    sync::{Mutex, PoisonError},
};

use lru::LruCache;
use pensieve_protocol::conversation::{Conversation, Part, Role, Tool, ToolChoice, Turn};

use crate::formats::instruction;

/// Limits of what is remembered: conversations, and bytes of their tools.
const KEPT_MAX: NonZeroUsize = NonZeroUsize::new(512).unwrap();
const BYTES_MAX: usize = 16 << 20;

/// The tools of recent conversations.
#[derive(Debug)]
pub(super) struct Toolboxes(Mutex<Kept>);

#[derive(Debug)]
struct Kept {
    boxes: LruCache<u64, Toolbox>,
    /// Sum over the boxes.
    bytes: usize,
}

/// The tools of one conversation, in the order in which they appeared.
#[derive(Clone, Debug, Default)]
struct Toolbox {
    /// The definitions, as a request had them, and their size.
    tools: Vec<Tool>,
    bytes: usize,
    /// By digest.
    head: Vec<u64>,
    /// Tools that were added, each with the number of turns before its description.
    added: Vec<(u64, usize)>,
    /// Turns of the latest request.
    turns: usize,
}

/// A conversation whose tools stand where the earlier requests had them.
#[derive(Debug)]
pub(super) struct Arranged {
    pub(super) conversation: Conversation,
    /// Tools that the turns describe.
    pub(super) deferred: Vec<Tool>,
    /// The conversation as it was, if tools were put back into it: they are not worth a refusal for its length.
    pub(super) bare: Option<Conversation>,
}

impl Default for Toolboxes {
    fn default() -> Self {
        Self(Mutex::new(Kept { boxes: LruCache::new(KEPT_MAX), bytes: 0 }))
    }
}

impl Toolboxes {
    /// Moves tools that were added to a conversation from its head to its turns, and to `deferred`: they can be called
    /// like the others. Puts its tools back if the request has none.
    pub(super) fn arrange(
        &self,
        client: u64,
        model: &str,
        mut conversation: Conversation,
        mut deferred: Vec<Tool>,
    ) -> Arranged {
        let key = key(client, model, &conversation);
        let mut shelf = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bare = None;
        let is_open = matches!(conversation.tool_choice, ToolChoice::Auto | ToolChoice::None);
        if !conversation.tools.is_empty() {
            shelf.arrange(key, &mut conversation, &mut deferred);
        } else if is_open
            && deferred.is_empty()
            && let Some(toolbox) = shelf.boxes.get(&key).filter(|toolbox| toolbox.is_continued_by(&conversation))
        {
            bare = Some(conversation.clone());
            toolbox.put_back(&mut conversation, &mut deferred);
        }
        Arranged { conversation, deferred, bare }
    }
}

impl Kept {
    fn arrange(&mut self, key: u64, conversation: &mut Conversation, deferred: &mut Vec<Tool>) {
        let mut toolbox = self.boxes.pop(&key).unwrap_or_default();
        self.bytes -= toolbox.bytes;
        toolbox.arrange(conversation, deferred);
        self.bytes += toolbox.bytes;
        if let Some((_, dropped)) = self.boxes.push(key, toolbox) {
            self.bytes -= dropped.bytes;
        }
        while self.bytes > BYTES_MAX
            && let Some((_, dropped)) = self.boxes.pop_lru()
        {
            self.bytes -= dropped.bytes;
        }
    }
}

impl Toolbox {
    fn arrange(&mut self, conversation: &mut Conversation, deferred: &mut Vec<Tool>) {
        let digests: Vec<u64> = conversation.tools.iter().map(digest).collect();
        let present: HashSet<u64> = digests.iter().copied().collect();
        let known: HashSet<u64> = self.known().collect();
        let is_missing = !known.is_subset(&present);
        let is_new = |digest: &&u64| !known.contains(*digest);
        let new: Vec<u64> = digests.iter().filter(is_new).copied().collect();
        // Another conversation may begin with the same words.
        if known.is_empty() || !new.is_empty() && (is_missing || !self.is_continued_by(conversation)) {
            *self = Self { head: digests, turns: conversation.turns.len(), ..Self::default() };
            self.remember(&conversation.tools);
            return;
        }
        if is_missing {
            // A choice among the tools, for this request only.
            return;
        }
        if !new.is_empty() {
            self.remember(&conversation.tools);
        }
        // The answer comes first.
        let place = self.turns + 1;
        self.added.extend(new.into_iter().map(|digest| (digest, place)));
        self.turns = conversation.turns.len();
        self.apply(&digests, conversation, deferred);
    }

    fn is_continued_by(&self, conversation: &Conversation) -> bool {
        conversation.turns.len() > self.turns
    }

    fn remember(&mut self, tools: &[Tool]) {
        let bytes = |tool: &Tool| tool.name.len() + tool.description.len() + tool.schema.to_string().len();
        self.bytes = tools.iter().map(bytes).sum();
        self.tools = tools.to_vec();
    }

    /// The model sees the tools, but cannot call them.
    fn put_back(&self, conversation: &mut Conversation, deferred: &mut Vec<Tool>) {
        conversation.tools.clone_from(&self.tools);
        conversation.tool_choice = ToolChoice::None;
        let digests: Vec<u64> = self.tools.iter().map(digest).collect();
        self.apply(&digests, conversation, deferred);
    }

    fn known(&self) -> impl Iterator<Item = u64> {
        self.head.iter().copied().chain(self.added.iter().map(|(digest, _)| *digest))
    }

    /// Orders the tools of the head as they were, and describes the others in the turns.
    fn apply(&self, digests: &[u64], conversation: &mut Conversation, deferred: &mut Vec<Tool>) {
        let mut tools: Vec<Option<Tool>> = std::mem::take(&mut conversation.tools).into_iter().map(Some).collect();
        let mut take = |digest: u64| {
            let place = digests.iter().position(|known| *known == digest)?;
            tools[place].take()
        };
        conversation.tools = self.head.iter().filter_map(|digest| take(*digest)).collect();
        // From the end, so that the places before stay valid.
        let mut places: Vec<usize> = self.added.iter().map(|(_, place)| *place).collect();
        places.sort_unstable();
        places.dedup();
        // A client may have gone back to an earlier turn; the last one is the question.
        let last = conversation.turns.len().saturating_sub(1);
        let mut found = Vec::new();
        for place in places.into_iter().rev() {
            let here = self.added.iter().filter(|(_, at)| *at == place).filter_map(|(digest, _)| take(*digest));
            let here: Vec<Tool> = here.collect();
            let lines: Vec<String> = here.iter().map(instruction::definition).collect();
            let text = format!("These tools can be called from now on:\n{}", lines.join("\n"));
            let turn = Turn { role: Role::System, parts: vec![Part::Text(text)] };
            conversation.turns.insert(place.min(last), turn);
            found.extend(here);
        }
        deferred.extend(found);
    }
}

/// Identifies a conversation by what its later requests repeat.
fn key(client: u64, model: &str, conversation: &Conversation) -> u64 {
    let mut hasher = DefaultHasher::new();
    (client, model, &conversation.system).hash(&mut hasher);
    for part in conversation.turns.first().into_iter().flat_map(|turn| &turn.parts) {
        if let Part::Text(text) = part {
            text.hash(&mut hasher);
        }
    }
    hasher.finish()
}

fn digest(tool: &Tool) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&tool.name, &tool.description, tool.schema.to_string()).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;

    fn tools(names: &str) -> Vec<Tool> {
        names.chars().map(|name| Tool { name: name.into(), ..Tool::default() }).collect()
    }

    /// Asks with this many turns, and returns the head, the tools in the turns, and the places of their descriptions.
    fn ask(boxes: &Toolboxes, first: &str, turns: usize, names: &str) -> (String, String, Vec<usize>) {
        let role = |place: usize| if place.is_multiple_of(2) { Role::User } else { Role::Assistant };
        let turn = |place: usize| Turn { role: role(place), parts: vec![Part::Text(first.into())] };
        let turns = (0..turns).map(turn).collect();
        let conversation = Conversation { turns, tools: tools(names), ..Conversation::default() };
        let Arranged { conversation, deferred, bare } = boxes.arrange(1, "m", conversation, Vec::new());
        let is_put_back = names.is_empty() && !conversation.tools.is_empty();
        assert_eq!(bare.is_some_and(|bare| bare.tools.is_empty()), is_put_back);
        assert_eq!(conversation.tool_choice == ToolChoice::None, is_put_back);
        let of = |tools: &[Tool]| tools.iter().map(|tool| tool.name.as_str()).collect::<String>();
        let places = conversation.turns.iter().enumerate().filter(|(_, turn)| turn.role == Role::System);
        (of(&conversation.tools), of(&deferred), places.map(|(place, _)| place).collect())
    }

    #[test]
    fn tools_that_are_added_stand_where_they_appeared() {
        let boxes = Toolboxes::default();
        let steps: [(usize, &str, &str, &str, &[usize]); 12] = [
            (1, "ab", "ab", "", &[]),
            (3, "cab", "ab", "c", &[2]),
            (5, "cba", "ab", "c", &[2]),
            (7, "abcde", "ab", "dec", &[2, 7]),
            // A choice among them, and all again.
            (7, "b", "b", "", &[]),
            (9, "abcde", "ab", "dec", &[2, 7]),
            // None at all: they are shown again, unless the request does not continue the conversation.
            (11, "", "ab", "dec", &[2, 7]),
            (9, "", "", "", &[]),
            (11, "abcde", "ab", "dec", &[2, 7]),
            // Back at an earlier turn.
            (3, "abcde", "ab", "dec", &[2, 3]),
            // Another conversation that begins like this one.
            (1, "abcdef", "abcdef", "", &[]),
            // One is gone and another is new: all are written anew.
            (3, "acdefg", "acdefg", "", &[]),
        ];
        for (turns, names, head, added, places) in steps {
            let expected = (head.to_owned(), added.to_owned(), places.to_vec());
            assert_eq!(ask(&boxes, "first", turns, names), expected, "{turns} {names}");
        }
        assert_eq!(ask(&boxes, "other", 3, "xa"), ("xa".into(), String::new(), vec![]));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let boxes = Toolboxes::default();
        for place in 0..2 * KEPT_MAX.get() {
            ask(&boxes, &place.to_string(), 1, "a");
        }
        assert_eq!(boxes.0.lock().unwrap().boxes.len(), KEPT_MAX.get());
        for place in 0..8 {
            let tool = Tool { description: "x".repeat(BYTES_MAX / 5), ..Tool::default() };
            let turn = Turn { role: Role::User, parts: vec![Part::Text(place.to_string())] };
            let conversation = Conversation { turns: vec![turn], tools: vec![tool], ..Conversation::default() };
            boxes.arrange(1, "m", conversation, Vec::new());
            let shelf = boxes.0.lock().unwrap();
            assert_eq!(shelf.bytes, shelf.boxes.iter().map(|(_, toolbox)| toolbox.bytes).sum::<usize>());
            assert!(shelf.bytes <= BYTES_MAX);
        }
    }
}
