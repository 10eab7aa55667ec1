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
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use crate::{
    chat::{CacheMiss, Conversation, Divergence, DivergenceKind, EvictedBy, Eviction, Input, MissKind},
    fleet::Departure,
};
use pensieve_protocol::{
    job::{Evicted, Job},
    vocabulary::Vocabulary,
};

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
/// Jobs of which is remembered whose they were.
const JOBS_MAX: usize = 4096;
/// Prompts that clients may name in later requests.
const NAMED_MAX: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct PromptHistory {
    prompts: Mutex<VecDeque<Arc<Prompt>>>,
    /// Prompts by the ids of their answers.
    named: Mutex<VecDeque<(String, Arc<Prompt>)>>,
    jobs: Mutex<VecDeque<Submitted>>,
}

/// The request of a job, and its key's part of the cache.
#[derive(Debug)]
struct Submitted {
    job: u64,
    salt: Vec<u8>,
    request: String,
}

/// A prompt to compare with others.
#[derive(Debug)]
pub(crate) struct Prompt {
    model: String,
    /// The longest sequence of its model, in tokens.
    context: u32,
    salt: Vec<u8>,
    adapter: Option<(String, u32)>,
    tokens: Vec<u32>,
    /// Images: first tokens and digests.
    images: Vec<(u32, [u8; 32])>,
    outline: Outline,
    /// When it had been computed, so that its blocks were in the cache.
    computed: OnceLock<Instant>,
    /// The computed prompt whose place it has taken, which counts until this one is computed: its client may go before.
    earlier: OnceLock<Earlier>,
}

/// A prompt that has been computed and then replaced by another.
#[derive(Debug)]
struct Earlier {
    /// Tokens that the two begin with.
    common: usize,
    computed: Instant,
    relation: Relation,
}

/// The parts of a prompt, as hashes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outline {
    system: u64,
    tools: u64,
    /// Of the template.
    variables: u64,
    turns: Vec<u64>,
}

/// A prompt's relation to the closest earlier one, from which the reason of a miss follows.
#[derive(Debug)]
pub(crate) struct Comparison {
    prompt: Arc<Prompt>,
    /// Tokens that the two begin with; 0 if there is no earlier one.
    common: usize,
    /// The closest earlier one.
    other: Option<Arc<Prompt>>,
    relation: Relation,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Relation {
    /// It continues the earlier one, or repeats it.
    Continues,
    Differs(CacheMiss),
}

/// Events between an earlier prompt and this one that may have emptied the cache.
#[derive(Clone, Debug, Default)]
pub(crate) struct Losses {
    /// Of the block from which the prompt has to be computed, as its worker knows it.
    pub(crate) eviction: Option<Eviction>,
    pub(crate) departure: Option<Departure>,
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
            variables: hash(&serde_json::to_string(&conversation.variables).unwrap_or_default()),
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
    pub(crate) fn compare(&self, prompt: &Arc<Prompt>, vocabulary: &Vocabulary) -> Comparison {
        let mut prompts = lock(&self.prompts);
        let comparison = compare(&prompts, prompt, vocabulary);
        if let Some(replaced) = comparison.1 {
            prompts.remove(replaced);
            if let (common, Some(computed), relation) = comparison.0.basis(0) {
                let _ = prompt.earlier.set(Earlier { common, computed, relation: relation.clone() });
            }
        }
        prompts.push_back(prompt.clone());
        let mut tokens: usize = prompts.iter().map(|prompt| prompt.tokens.len()).sum();
        while prompts.len() > PROMPTS_MAX || (tokens > TOKENS_MAX && prompts.len() > 1) {
            tokens -= prompts.pop_front().map_or(0, |oldest| oldest.tokens.len());
        }
        comparison.0
    }

    /// Remembers a prompt by the id of its answer, so that a later request can name it.
    pub(crate) fn name(&self, answer: &str, prompt: Arc<Prompt>) {
        let mut named = lock(&self.named);
        named.push_back((answer.to_owned(), prompt));
        let mut tokens: usize = named.iter().map(|(_, prompt)| prompt.tokens.len()).sum();
        while named.len() > NAMED_MAX || (tokens > TOKENS_MAX && named.len() > 1) {
            tokens -= named.pop_front().map_or(0, |(_, oldest)| oldest.tokens.len());
        }
    }

    /// The first part in which a prompt differs from the one of an earlier answer to the same client; `None` if it only
    /// goes on.
    pub(crate) fn divergence(&self, answer: &str, prompt: &Prompt) -> Option<Divergence> {
        let named = lock(&self.named);
        let known = named.iter().rev().find(|(id, known)| id == answer && known.salt == prompt.salt);
        let Some((_, old)) = known else {
            return Some(Divergence { kind: DivergenceKind::Unknown, missed_tokens: 0 });
        };
        let (was, is) = (&old.outline, &prompt.outline);
        let kind = match () {
            () if old.model != prompt.model || old.adapter != prompt.adapter => DivergenceKind::Model,
            () if was.system != is.system => DivergenceKind::System,
            () if was.tools != is.tools => DivergenceKind::Tools,
            () if is.differs_at(was) < was.turns.len() => DivergenceKind::Messages,
            () if was.variables != is.variables => DivergenceKind::Other,
            () => return None,
        };
        let common = if kind == DivergenceKind::Model { 0 } else { old.common(prompt) };
        Some(Divergence { kind, missed_tokens: (old.tokens.len() - common) as u32 })
    }

    /// Remembers whose a job is.
    pub(crate) fn submitted(&self, job: u64, salt: &[u8], request: &str) {
        let mut jobs = lock(&self.jobs);
        jobs.push_back(Submitted { job, salt: salt.to_vec(), request: request.to_owned() });
        if jobs.len() > JOBS_MAX {
            jobs.pop_front();
        }
    }

    /// An eviction in the words of a client with this salt, who may not see the requests of others.
    pub(crate) fn eviction(&self, evicted: Evicted, salt: &[u8]) -> Eviction {
        let jobs = lock(&self.jobs);
        let own = jobs.iter().rev().find(|submitted| submitted.job == evicted.by && submitted.salt == salt);
        let by = own.map_or(EvictedBy::OtherClient, |own| EvictedBy::OwnRequest(own.request.clone()));
        Eviction { ago: evicted.ago, by }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
    let comparison = |common, other: Option<&Arc<Prompt>>, relation| {
        let (prompt, other) = (prompt.clone(), other.cloned());
        Comparison { prompt, common, other, relation }
    };
    let miss = |kind, at: usize| CacheMiss::new(kind, at as u32);
    let elsewhere = closest(false).map_or(0, |(common, ..)| *common);
    let here = closest(true).map_or(0, |(common, ..)| *common);
    if elsewhere >= here + LOSS_MIN {
        return (comparison(here, None, Relation::Differs(miss(MissKind::OtherAdapter, here))), None);
    }
    let Some(&(common, place, other)) = closest(true) else {
        return (comparison(0, None, Relation::Differs(miss(MissKind::FirstTime, 0))), None);
    };
    if other.tokens.len() < common + LOSS_MIN || prompt.tokens.len() < common + LOSS_MIN {
        return (comparison(common, Some(other), Relation::Continues), Some(place));
    }
    let change = change(&other.tokens[common..], &prompt.tokens[common..]);
    let (kind, message) = kind(&other.outline, &prompt.outline, change.is_some_and(|len| len <= LINE_MAX));
    let text = change.filter(|_| kind != MissKind::FirstTime);
    let text = text.map_or_else(String::new, |_| excerpt(&prompt.tokens, common, vocabulary));
    // A subagent has other tools than the conversation that has asked it, and both go on.
    let is_successor = !matches!(kind, MissKind::FirstTime | MissKind::ChangedTools);
    let replaced = is_successor.then_some(place);
    let miss = CacheMiss { message, text, ..CacheMiss::new(kind, common as u32) };
    (comparison(common, Some(other), Relation::Differs(miss)), replaced)
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
        () if is_same_conversation && turn == old.turns.len() && new.variables != old.variables => {
            (MissKind::ChangedTemplate, None)
        }
        () if is_same_conversation && turn == old.turns.len() => (MissKind::RewrittenByTemplate, None),
        () if is_same_conversation || alike => (MissKind::RewrittenHistory, message),
        () => (MissKind::FirstTime, message),
    }
}

impl Prompt {
    pub(crate) fn of(model: &str, context: u32, job: &Job, outline: Outline) -> Self {
        Self {
            model: model.to_owned(),
            context,
            salt: job.salt.clone(),
            adapter: job.adapter.as_ref().map(|adapter| (adapter.name.clone(), adapter.scale.to_bits())),
            tokens: job.tokens.clone(),
            images: job.media.iter().map(|item| (item.start, item.digest)).collect(),
            outline,
            computed: OnceLock::new(),
            earlier: OnceLock::new(),
        }
    }

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
    pub(crate) fn miss(&self, reused: u32, losses: Losses) -> Option<CacheMiss> {
        let (common, computed, relation) = self.basis(reused as usize);
        let is_lost = (reused as usize) + LOSS_MIN < common;
        match relation {
            _ if self.prompt.tokens.len() < reused as usize + LOSS_MIN => None,
            Relation::Continues => {
                let computed = computed.filter(|_| is_lost)?;
                Some(self.loss(reused, computed, losses))
            }
            // More than of any prompt that is remembered.
            Relation::Differs(_) if reused as usize >= common + LOSS_MIN => None,
            // Before the place where they differ, something else has happened.
            Relation::Differs(miss) => match computed.filter(|_| is_lost) {
                Some(computed) if losses.eviction.is_some() || losses.departed_after(computed).is_some() => {
                    Some(self.loss(reused, computed, losses))
                }
                _ => Some(miss.clone()),
            },
        }
    }

    /// The tokens in common with the closest earlier prompt, when it had been computed, and the relation to it. If it never
    /// was, and no more of it was `reused`, the computed one whose place it has taken stands for it.
    fn basis(&self, reused: usize) -> (usize, Option<Instant>, &Relation) {
        let other = self.other.as_ref();
        let computed = other.and_then(|other| other.computed.get().copied());
        match other.and_then(|other| other.earlier.get()).filter(|_| computed.is_none()) {
            None => (self.common, computed, &self.relation),
            Some(Earlier { common, computed, relation })
                if *common < self.common && reused + LOSS_MIN < self.common =>
            {
                (*common, Some(*computed), relation)
            }
            Some(earlier) => (self.common, Some(earlier.computed), &self.relation),
        }
    }

    /// Why a prompt that was computed then is not in the cache any more.
    fn loss(&self, reused: u32, computed: Instant, losses: Losses) -> CacheMiss {
        let departure = losses.departed_after(computed);
        let is_other_context = self.other.as_ref().is_some_and(|other| other.context != self.prompt.context);
        if losses.eviction.is_none() && is_other_context {
            return CacheMiss::new(MissKind::OtherContext, reused);
        }
        let unload = departure.map(|(ago, reason)| Eviction { ago, by: EvictedBy::Unload(reason) });
        CacheMiss { eviction: losses.eviction.or(unload), ..CacheMiss::new(MissKind::Evicted, reused) }
    }

    /// The key's part of the cache.
    pub(crate) fn salt(&self) -> &[u8] {
        &self.prompt.salt
    }

    /// Records that the prompt has been computed.
    pub(crate) fn computed(&self) {
        let _ = self.prompt.computed.set(Instant::now());
    }
}

impl Losses {
    fn departed_after(&self, computed: Instant) -> Option<(Duration, &'static str)> {
        let departure = self.departure.filter(|departure| departure.at > computed)?;
        Some((departure.at.elapsed(), departure.reason.name()))
    }
}

impl CacheMiss {
    fn new(kind: MissKind, at_token: u32) -> Self {
        Self { kind, at_token, message: None, text: String::new(), eviction: None }
    }
}

#[cfg(test)]
mod tests;
