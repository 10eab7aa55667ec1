//! Why a prompt was not found in the prefix cache. The server remembers the latest prompt of each conversation and
//! compares every new one with the closest of them: what both begin with should be cached, and what differs tells why
//! the rest is not. Only prompts of the same model and key are compared.
//!
//! A prompt that goes on where an earlier one ended needs no reason. If the two are equal again soon after they differ,
//! a line has changed (a time, an id, a count of tokens) and everything behind it is computed again; otherwise another
//! conversation begins there.

use std::{
    collections::{HashMap, VecDeque},
    hash::{DefaultHasher, Hash, Hasher},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::chat::{CacheMiss, Conversation, Input, MissKind};
use pensieve_protocol::{job::Job, vocabulary::Vocabulary};

/// Limits of what is remembered: 16 MiB of tokens.
const PROMPTS_MAX: usize = 256;
const TOKENS_MAX: usize = 4 << 20;
/// Prompts whose beginnings in common differ by less are equally close.
const GRAIN: usize = 64;
/// A loss of fewer tokens is none: a block or two, or the end of a prompt that its answer replaces.
const LOSS_MIN: usize = 96;
/// Tokens after a difference within which the prompts have to be equal again, and how many of them.
const WINDOW: usize = 1024;
const EQUAL_MIN: usize = 16;
/// Tokens of a line that changes; more of them are another text.
const LINE_MAX: usize = 128;
const EXCERPT_CHARS: usize = 80;

#[derive(Debug, Default)]
pub(crate) struct PromptHistory(Mutex<VecDeque<Arc<Prompt>>>);

/// A prompt to compare with others.
#[derive(Debug)]
struct Prompt {
    model: String,
    salt: Vec<u8>,
    adapter: Option<(String, u32)>,
    tokens: Vec<u32>,
    /// Images: first tokens and digests.
    images: Vec<(u32, [u8; 32])>,
    outline: Outline,
    /// It has been computed, so its blocks were in the cache.
    is_computed: AtomicBool,
}

/// The parts of a prompt, as hashes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outline {
    system: u64,
    tools: u64,
    turns: Vec<u64>,
}

/// A prompt's relation to the closest earlier one, from which the reason of a miss follows.
#[derive(Debug)]
pub(crate) struct Comparison {
    prompt: Arc<Prompt>,
    /// Tokens that the two begin with; 0 if there is no earlier one.
    common: usize,
    relation: Relation,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Relation {
    /// It continues the earlier one, or repeats it. False if that is still being computed.
    Continues(bool),
    Differs(CacheMiss),
}

impl Outline {
    pub(crate) fn of(input: &Input) -> Self {
        match input {
            Input::Chat(conversation) => Self::of_chat(conversation),
            Input::Text(_) | Input::Infill { .. } | Input::Tokens(_) => Self::default(),
        }
    }

    fn of_chat(conversation: &Conversation) -> Self {
        let mut tools = DefaultHasher::new();
        for tool in &conversation.tools {
            (&tool.name, &tool.description, tool.schema.to_string()).hash(&mut tools);
        }
        let turn = |turn| hash(&format!("{turn:?}"));
        Self {
            system: hash(&conversation.system),
            tools: tools.finish(),
            turns: conversation.turns.iter().map(turn).collect(),
        }
    }

    /// Number of equal parts.
    fn likeness(&self, other: &Self) -> usize {
        usize::from(self.system == other.system) + usize::from(self.tools == other.tools) + self.differs_at(other)
    }

    /// Index of the first turn that differs.
    fn differs_at(&self, other: &Self) -> usize {
        self.turns.iter().zip(&other.turns).take_while(|(a, b)| a == b).count()
    }
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

impl PromptHistory {
    /// Compares a job's prompt with the closest earlier one, and remembers it in the place of one that it continues.
    pub(crate) fn compare(&self, model: &str, job: &Job, outline: Outline, vocabulary: &Vocabulary) -> Comparison {
        let prompt = Arc::new(Prompt {
            model: model.to_owned(),
            salt: job.salt.clone(),
            adapter: job.adapter.as_ref().map(|adapter| (adapter.name.clone(), adapter.scale.to_bits())),
            tokens: job.tokens.clone(),
            images: job.media.iter().map(|item| (item.start, item.digest)).collect(),
            outline,
            is_computed: AtomicBool::new(false),
        });
        let mut prompts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let comparison = compare(&prompts, &prompt, vocabulary);
        if let Some(replaced) = comparison.1 {
            prompts.remove(replaced);
        }
        prompts.push_back(prompt);
        let mut tokens: usize = prompts.iter().map(|prompt| prompt.tokens.len()).sum();
        while prompts.len() > PROMPTS_MAX || (tokens > TOKENS_MAX && prompts.len() > 1) {
            tokens -= prompts.pop_front().map_or(0, |oldest| oldest.tokens.len());
        }
        comparison.0
    }
}

/// The comparison with the closest of earlier prompts, and the index of one that the new prompt replaces.
fn compare(
    earlier: &VecDeque<Arc<Prompt>>,
    prompt: &Arc<Prompt>,
    vocabulary: &Vocabulary,
) -> (Comparison, Option<usize>) {
    let is_near = |other: &Prompt| other.model == prompt.model && other.salt == prompt.salt;
    let near = earlier.iter().enumerate().filter(|(_, other)| is_near(other));
    let near: Vec<_> = near.map(|(place, other)| (other.common(prompt), place, other)).collect();
    // Of prompts that are equally close in tokens, a conversation with the same turns is closer, then the latest.
    let closest = |of_adapter: bool| {
        let of_adapter = near.iter().filter(|(_, _, other)| (other.adapter == prompt.adapter) == of_adapter);
        of_adapter
            .max_by_key(|(common, place, other)| (common / GRAIN, other.outline.likeness(&prompt.outline), *place))
    };
    let comparison = |common, relation| Comparison { prompt: prompt.clone(), common, relation };
    let miss = |kind, at: usize| CacheMiss { kind, at_token: at as u32, message: None, text: String::new() };
    let elsewhere = closest(false).map_or(0, |(common, ..)| *common);
    let here = closest(true).map_or(0, |(common, ..)| *common);
    if elsewhere >= here + LOSS_MIN {
        return (comparison(here, Relation::Differs(miss(MissKind::OtherAdapter, here))), None);
    }
    let Some(&(common, place, other)) = closest(true) else {
        return (comparison(0, Relation::Differs(miss(MissKind::FirstTime, 0))), None);
    };
    if other.tokens.len() < common + LOSS_MIN || prompt.tokens.len() < common + LOSS_MIN {
        let is_computed = other.is_computed.load(Ordering::Relaxed);
        return (comparison(common, Relation::Continues(is_computed)), Some(place));
    }
    let change = change(&other.tokens[common..], &prompt.tokens[common..]);
    let (kind, message) = kind(&other.outline, &prompt.outline, change.is_some_and(|len| len <= LINE_MAX));
    let text = change.filter(|_| kind != MissKind::FirstTime);
    let text = text.map_or_else(String::new, |_| excerpt(&prompt.tokens, common, vocabulary));
    // A subagent has other tools than the conversation that has asked it, and both go on.
    let is_successor = matches!(kind, MissKind::RewrittenHistory | MissKind::ChangedSystem);
    let replaced = is_successor.then_some(place);
    let miss = CacheMiss { kind, at_token: common as u32, message, text };
    (comparison(common, Relation::Differs(miss)), replaced)
}

/// Names the first part in which two prompts differ, which are `alike` but for a line there.
fn kind(old: &Outline, new: &Outline, alike: bool) -> (MissKind, Option<u32>) {
    let turn = new.differs_at(old);
    let is_same_conversation = turn > 0;
    let message = Some(turn as u32).filter(|_| !new.turns.is_empty());
    match () {
        // Tools are long: where little differs before the texts go on alike, the system prompt comes first.
        () if alike && is_same_conversation && new.tools != old.tools && new.system != old.system => {
            (MissKind::ChangedSystem, None)
        }
        () if new.tools != old.tools && is_same_conversation => (MissKind::ChangedTools, None),
        () if new.system != old.system && (is_same_conversation || (alike && new.tools == old.tools)) => {
            (MissKind::ChangedSystem, None)
        }
        () if new.system != old.system || new.tools != old.tools => (MissKind::FirstTime, None),
        () if is_same_conversation || alike => (MissKind::RewrittenHistory, message),
        () => (MissKind::FirstTime, message),
    }
}

impl Prompt {
    /// Number of tokens that two prompts begin with. Two images have the same tokens.
    fn common(&self, other: &Self) -> usize {
        let images = self.images.iter().zip(&other.images);
        let first_other = images.into_iter().find(|(a, b)| a != b).map(|((a, _), (b, _))| *a.min(b) as usize);
        common(&self.tokens, &other.tokens).min(first_other.unwrap_or(usize::MAX))
    }
}

fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Number of the new text's tokens that differ from the old text until both go on in the same way.
fn change(old: &[u32], new: &[u32]) -> Option<usize> {
    let (old, new) = (&old[..old.len().min(WINDOW)], &new[..new.len().min(WINDOW)]);
    let places: HashMap<&[u32], usize> = old.windows(EQUAL_MIN).zip(0..).collect();
    new.windows(EQUAL_MIN).position(|window| places.contains_key(window))
}

/// The line in which a change begins, or its part from there on if it is long.
fn excerpt(tokens: &[u32], start: usize, vocabulary: &Vocabulary) -> String {
    let before = vocabulary.text_of(&tokens[start.saturating_sub(EQUAL_MIN)..start]);
    let changed = vocabulary.text_of(&tokens[start..tokens.len().min(start + LINE_MAX)]);
    let line = before.rsplit('\n').next().unwrap_or_default();
    let changed = changed.lines().next().unwrap_or_default();
    let text = format!("{line}{changed}");
    text.trim().chars().take(EXCERPT_CHARS).collect()
}

impl Comparison {
    /// The reason why only the first `reused` tokens were found; `None` if nothing was lost.
    pub(crate) fn miss(&self, reused: u32) -> Option<CacheMiss> {
        let found = reused as usize + LOSS_MIN >= self.common;
        match &self.relation {
            _ if self.prompt.tokens.len() < reused as usize + LOSS_MIN => None,
            Relation::Continues(true) if !found => {
                let (kind, text) = (MissKind::Evicted, String::new());
                Some(CacheMiss { kind, at_token: reused, message: None, text })
            }
            Relation::Continues(_) => None,
            // More than of any prompt that is remembered.
            Relation::Differs(_) if reused as usize >= self.common + LOSS_MIN => None,
            Relation::Differs(miss) => Some(miss.clone()),
        }
    }

    /// Records that the prompt has been computed.
    pub(crate) fn computed(&self) {
        self.prompt.is_computed.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
