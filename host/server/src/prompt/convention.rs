//! What is known of a model before a request: its script (template and tokenizer), what its tokens stand for, and how it
//! writes what is not text. Made once per card and kept for the models used lately.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use super::{
    formats::{Format, Markers, instruction},
    script::{Script, Scripts},
};
use crate::chat::Conversation;
use pensieve_protocol::{
    card::Card,
    job::{Failure, FailureCode},
    vocabulary::Vocabulary,
};

const KEPT_MAX: usize = 8;

/// Special tokens by which models of several families end a turn, or hand over for a tool's result. Cards name one of them
/// as a rule, and a model that was trained with another talks on without end.
const END_OF_TURN: [&str; 7] =
    ["<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|return|>"];

/// A model's convention.
#[derive(Debug)]
pub(super) struct Convention {
    pub script: Arc<Script>,
    pub vocabulary: Arc<Vocabulary>,
    /// How it writes calls if its template tells it of tools.
    pub own: Dialect,
    /// How it writes them if it is told in words.
    pub taught: Dialect,
    /// Whether its template tells it of tools in a way that is known.
    pub knows_tools: bool,
    /// Tokens that end its turn, besides those that the card names.
    pub end_of_turn: Vec<u32>,
}

/// A format, and the special tokens in it.
#[derive(Debug)]
pub(super) struct Dialect {
    pub format: Format,
    pub markers: Markers,
}

/// The conventions of the models used lately.
#[derive(Debug, Default)]
pub(super) struct Conventions {
    scripts: Scripts,
    kept: Mutex<VecDeque<(Arc<Card>, Arc<Convention>)>>,
}

impl Conventions {
    /// The convention of a card.
    pub async fn of(&self, card: &Arc<Card>) -> Result<Arc<Convention>, Failure> {
        if let Some(found) = self.find(card) {
            return Ok(found);
        }
        let script = self.scripts.of(card).await?;
        let of = card.clone();
        let made = tokio::task::spawn_blocking(move || Convention::new(&of, script)).await;
        let made = made.map_err(|_| Failure::new(FailureCode::Plugin, "the model's tokenizer cannot be read"))??;
        let made = Arc::new(made);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_front((card.clone(), made.clone()));
        kept.truncate(KEPT_MAX);
        Ok(made)
    }

    fn find(&self, card: &Arc<Card>) -> Option<Arc<Convention>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let place = kept.iter().position(|(known, _)| Arc::ptr_eq(known, card) || known == card)?;
        let found = kept.remove(place)?;
        let convention = found.1.clone();
        kept.push_front(found);
        Some(convention)
    }
}

impl Convention {
    fn new(card: &Card, script: Arc<Script>) -> Result<Self, Failure> {
        let vocabulary = Vocabulary::new(&card.tokenizer, card.vocabulary, &known(&card.eos, card.vocabulary));
        let vocabulary = vocabulary.map_err(|error| {
            Failure::new(FailureCode::Unsupported, format!("this model's texts cannot be read: {error}"))
        })?;
        let special = |name: &str| {
            (0..vocabulary.size())
                .find(|token| vocabulary.is_special(*token) && vocabulary.bytes(*token) == name.as_bytes())
        };
        let added = &script.tokens.specials().added;
        let has_token = |name: &str| added.iter().any(|(text, _)| text == name);
        let format = Format::of(&card.formats, Some(script.template.source()), has_token);
        let format = format.map_err(|error| Failure::new(FailureCode::Plugin, format!("the model's card: {error}")))?;
        let taught = instruction::format(format.reasoning.clone());
        Ok(Self {
            knows_tools: format.calls.is_some() && script.template.takes_tools(),
            end_of_turn: END_OF_TURN.iter().filter_map(|name| special(name)).collect(),
            own: Dialect { markers: Markers::of(&format, &vocabulary), format },
            taught: Dialect { markers: Markers::of(&taught, &vocabulary), format: taught },
            vocabulary: Arc::new(vocabulary),
            script,
        })
    }

    /// How calls are written in a conversation, and the words that its tools are put into, if they need to be.
    pub fn dialect(&self, conversation: &mut Conversation) -> (&Dialect, Option<String>) {
        if self.knows_tools || conversation.tools.is_empty() {
            return (&self.own, None);
        }
        let tools = std::mem::take(&mut conversation.tools);
        (&self.taught, Some(instruction::words(&tools)))
    }
}

/// Ids beyond the vocabulary can never come.
fn known(eos: &[u32], size: u32) -> Vec<u32> {
    eos.iter().copied().filter(|token| *token < size).collect()
}
