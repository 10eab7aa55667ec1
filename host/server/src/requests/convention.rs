//! Per-model data that the server derives from the card before a request: the renderer, the vocabulary, the output
//! format and the stop tokens. Built once per card and cached for recently used models.

use std::{
    num::NonZeroUsize,
    sync::{Arc, Mutex, PoisonError},
};

use lru::LruCache;
use tokio::sync::OnceCell;

use super::{infill::Infill, thinking::Conclusions};
use crate::{
    chat::Conversation,
    fleet::Target,
    formats::{Markers, OutputFormat, instruction},
    rendering::{Model, Renderer, RendererPool},
};
use pensieve_protocol::{
    card::Card,
    job::{Failure, FailureCode},
    vocabulary::{Alphabet, Vocabulary},
};

const KEPT_MAX: NonZeroUsize = NonZeroUsize::new(8).unwrap();

/// Special tokens by which models of various families end a turn, or hand over for a tool's result. Cards usually name
/// only one of them, and a model trained with another one would never stop.
const END_OF_TURN: [&str; 17] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|eot|>",
    "<|eom|>",
    "<|end|>",
    "<end_of_turn>",
    "<turn|>",
    "<|endoftext|>",
    "<|return|>",
    "<|call|>",
    // These begin the turn after a call or an answer, which the model does not write itself.
    "<|tool_response>",
    "<start_function_response>",
    "<|user|>",
    "<|observation|>",
    "[e~[",
    "<seed:eos>",
];

/// Stop strings for a checkpoint without a chat template. Its prompt consists of names and colons (`PLAIN` of the
/// prompt processes), and a base model continues with the user's next message, as it knows no end-of-turn token.
const PLAIN_STOPS: [&str; 2] = ["\n\nUser:", "\nUser:"];

#[derive(Debug)]
pub(super) struct Convention {
    pub renderer: Arc<Renderer>,
    pub vocabulary: Arc<Vocabulary>,
    /// The part of the vocabulary with which grammars are compiled on trial.
    pub alphabet: Alphabet,
    /// The call format if its template supports tools.
    pub own: ToolDialect,
    /// The call format if the system prompt describes the tools.
    pub taught: ToolDialect,
    /// Its template supports tools, in a known format.
    pub knows_tools: bool,
    /// Tokens that end its turn, in addition to those in the card.
    pub end_of_turn: Vec<u32>,
    /// Strings that end its turn in a conversation.
    pub stops: &'static [&'static str],
    /// How it fills in the middle, if it was trained to.
    pub infill: Option<Infill>,
}

#[derive(Debug)]
pub(super) struct ToolDialect {
    pub format: OutputFormat,
    pub markers: Markers,
    pub conclusions: Conclusions,
}

impl ToolDialect {
    fn new(format: OutputFormat, vocabulary: &Vocabulary) -> Self {
        let (markers, conclusions) = (Markers::of(&format, vocabulary), Conclusions::new(&format, vocabulary));
        Self { format, markers, conclusions }
    }
}

/// The conventions of recently used models.
#[derive(Debug)]
pub(super) struct Conventions {
    pool: Arc<RendererPool>,
    /// Keyed by card.
    kept: Mutex<LruCache<Arc<str>, Arc<CachedConvention>>>,
}

/// A cache entry: concurrent requests share the convention that the first of them builds.
#[derive(Debug)]
struct CachedConvention {
    renderer: Arc<Renderer>,
    convention: OnceCell<Arc<Convention>>,
}

impl Conventions {
    pub fn new(pool: Arc<RendererPool>) -> Self {
        Self { pool, kept: Mutex::new(LruCache::new(KEPT_MAX)) }
    }

    pub async fn of(&self, target: &Target) -> Result<Arc<Convention>, Failure> {
        let entry = self.entry(target);
        let make = || async {
            let model = entry.renderer.model().await?;
            Convention::new(&target.card, model, entry.renderer.clone()).map(Arc::new)
        };
        entry.convention.get_or_try_init(make).await.cloned()
    }

    fn entry(&self, target: &Target) -> Arc<CachedConvention> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = kept.get_or_insert(target.card_key.clone(), || {
            let renderer = self.pool.renderer(&target.id, &target.card);
            Arc::new(CachedConvention { renderer, convention: OnceCell::new() })
        });
        entry.clone()
    }
}

impl Convention {
    fn new(card: &Card, model: &Model, renderer: Arc<Renderer>) -> Result<Self, Failure> {
        let vocabulary = model.vocabulary.clone();
        let named = |token: &u32, name: &str| vocabulary.bytes(*token) == name.as_bytes();
        let special =
            |name: &str| (0..vocabulary.size()).find(|token| vocabulary.is_special(*token) && named(token, name));
        let has_token = |name: &str| (0..vocabulary.size()).any(|token| named(&token, name));
        let format = OutputFormat::of(&card.formats, card.chat_template.as_deref(), has_token);
        let format = format.map_err(|error| Failure::new(FailureCode::Plugin, format!("the model's card: {error}")))?;
        let taught = instruction::format(format.reasoning.clone());
        // The marker between two messages of an answer does not end the turn.
        let between = format.channels.as_ref().and_then(|channels| channels.ends.first());
        let ends = END_OF_TURN.iter().filter(|name| between.is_none_or(|between| between != *name));
        Ok(Self {
            knows_tools: format.has_calls() && model.takes_tools,
            end_of_turn: ends.filter_map(|name| special(name)).collect(),
            stops: if card.chat_template.is_none() { &PLAIN_STOPS } else { &[] },
            infill: Infill::of(&vocabulary),
            own: ToolDialect::new(format, &vocabulary),
            taught: ToolDialect::new(taught, &vocabulary),
            alphabet: vocabulary.alphabet(&[]),
            vocabulary,
            renderer,
        })
    }

    /// Returns the call format for a conversation, and a description of its tools for the system prompt if the template
    /// does not support them. With `has_deferred`, its turns describe more tools.
    pub fn dialect(&self, conversation: &mut Conversation, has_deferred: bool) -> (&ToolDialect, Option<String>) {
        if self.knows_tools || (conversation.tools.is_empty() && !has_deferred) {
            return (&self.own, None);
        }
        let tools = std::mem::take(&mut conversation.tools);
        (&self.taught, Some(instruction::words(&tools)))
    }
}
