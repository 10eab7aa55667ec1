//! The rules of a request, shared by all its sequences, with their triggers and the masks that depend on nothing else.

use std::sync::Arc;

use llguidance::Matcher;

use crate::patterns::{Patterns, StateId};
use crate::token_trie::TokenTrie;
use crate::{barred::Barred, cache::Template, constraint_error::ConstraintError, error::GrammarError};
use pensieve_protocol::grammar::{Grammar, Marker, Part, Spec, Then, Trigger};

/// Shared by all constraints of one compilation.
pub(crate) struct Rules {
    pub vocabulary: Arc<TokenTrie>,
    pub rules: Vec<CompiledRule>,
    pub start: Option<usize>,
    pub begin: Option<Vec<u8>>,
    pub end: Option<Watch>,
    pub free: Watch,
}

pub(crate) struct CompiledRule {
    pub field: String,
    pub template: Arc<Template>,
    pub then: Then,
    /// It is the JSON that the whole answer consists of.
    pub is_answer: bool,
    /// It is that JSON if it begins with a brace, and calls of tools otherwise.
    pub may_be_answer: bool,
    /// Its numbers are JSON.
    pub has_json: bool,
}

/// Markers to watch for and the rules they start; a target of `None` means the output becomes free.
pub(crate) struct Watch {
    pub patterns: Patterns,
    pub targets: Vec<Option<usize>>,
    tokens: Vec<(u32, Option<usize>)>,
    barred: Barred,
}

impl Rules {
    pub(crate) fn new(
        vocabulary: Arc<TokenTrie>,
        spec: &Spec,
        templates: Vec<Arc<Template>>,
    ) -> Result<Arc<Self>, GrammarError> {
        let start = spec.rules.iter().position(|rule| rule.trigger == Trigger::Start);
        let begin = spec.reasoning.as_ref().and_then(|reasoning| reasoning.begin.as_ref());
        let begin = begin.map(|marker| bytes_of(marker, &vocabulary)).transpose()?;
        let end =
            spec.reasoning.as_ref().map(|reasoning| Watch::new(&vocabulary, [(&reasoning.end, start)])).transpose()?;
        let triggers = spec.rules.iter().enumerate().filter_map(|(index, rule)| match &rule.trigger {
            Trigger::After(marker) => Some((marker, Some(index))),
            Trigger::Start => None,
        });
        let free = Watch::new(&vocabulary, triggers)?;
        let rules = spec.rules.iter().zip(templates);
        let rules = rules
            .map(|(rule, template)| {
                let is_json = matches!(rule.grammar, Grammar::JsonSchema { .. });
                let is_alone = rule.open.is_none() && rule.close.is_none() && rule.then == Then::Stop;
                let is_whole = is_alone && rule.trigger == Trigger::Start;
                let is_answer = is_json && is_whole;
                let is_schema = |part: &Part| matches!(part.grammar, Grammar::JsonSchema { .. });
                let may_be_answer = match &rule.grammar {
                    Grammar::Framed { parts, .. } => {
                        is_whole && parts.iter().any(|part| part.is_answer && is_schema(part))
                    }
                    _ => false,
                };
                let has_json = match &rule.grammar {
                    Grammar::Framed { parts, .. } => parts.iter().all(is_schema),
                    _ => is_json,
                };
                let (field, then) = (rule.field.clone(), rule.then);
                CompiledRule { field, template, then, is_answer, may_be_answer, has_json }
            })
            .collect();
        Ok(Arc::new(Self { vocabulary, rules, start, begin, end, free }))
    }

    /// True if the output is free again after a rule.
    pub(crate) fn resumes(&self, rule: usize) -> bool {
        self.rules[rule].then == Then::Resume
    }

    /// Computes the mask of tokens that continue a grammar's text.
    pub(crate) fn compute(&self, matcher: &mut Matcher) -> Result<Vec<u32>, ConstraintError> {
        let mask = matcher.compute_mask().map_err(|error| ConstraintError::failed(&error))?;
        let mut bits = mask.as_slice().to_vec();
        bits.resize(self.vocabulary.mask_words(), 0);
        // The trie has tokens that the model lacks.
        if let (Some(last), used @ 1..) = (bits.last_mut(), self.vocabulary.size() % u32::BITS) {
            *last &= (1 << used) - 1;
        }
        if bits.iter().all(|word| *word == 0) {
            return Err(ConstraintError::new("no token of the model continues its text"));
        }
        Ok(bits)
    }

    /// Allows the tokens that continue the reasoning opener, of which `written` bytes are out.
    pub(crate) fn allow_openers(&self, written: usize, bits: &mut [u32]) {
        let rest = self.begin.as_deref().unwrap_or_default().get(written..).unwrap_or_default();
        for token in 0..self.vocabulary.size() {
            let bytes = self.vocabulary.bytes(token);
            let ends = bytes.starts_with(rest) && !self.vocabulary.is_special(token);
            let continues = ends || (!bytes.is_empty() && rest.starts_with(bytes));
            if continues && !rest.is_empty() && !self.vocabulary.ends_turn(token) {
                bits[(token / u32::BITS) as usize] |= 1 << (token % u32::BITS);
            }
        }
    }

    /// Returns the mask of all tokens except those that complete a marker wrongly; `None` if nothing is barred.
    pub(crate) fn barred(&self, watch: &Watch, at: StateId) -> Option<Arc<[u32]>> {
        let start = |rule: usize| self.rules[rule].template.start();
        watch.barred.mask(&self.vocabulary, &start, &watch.patterns, &watch.targets, at)
    }

    /// Removes the tokens that begin with such a byte, unless no other is left.
    pub(crate) fn bar_first(&self, bits: &mut [u32], is_barred: impl Fn(u8) -> bool) {
        self.bar(bits, |bytes| bytes.first().is_some_and(|byte| is_barred(*byte)));
    }

    /// Removes the tokens with such bytes, unless no other is left.
    pub(crate) fn bar(&self, bits: &mut [u32], is_barred: impl Fn(&[u8]) -> bool) {
        let mut rest = bits.to_vec();
        for token in 0..self.vocabulary.size() {
            if is_barred(self.vocabulary.bytes(token)) {
                rest[(token / u32::BITS) as usize] &= !(1 << (token % u32::BITS));
            }
        }
        if rest.iter().any(|word| *word != 0) {
            bits.copy_from_slice(&rest);
        }
    }

    /// Removes the end-of-turn tokens from a mask: a model must not skip a required answer by ending its turn while it
    /// reasons.
    pub(crate) fn without_end(&self, mask: Option<&[u32]>) -> Arc<[u32]> {
        let mut bits = mask.map_or_else(|| vec![u32::MAX; self.vocabulary.mask_words()], <[u32]>::to_vec);
        for token in self.vocabulary.end_of_turn() {
            if let Some(word) = bits.get_mut((token / u32::BITS) as usize) {
                *word &= !(1 << (token % u32::BITS));
            }
        }
        bits.into()
    }
}

impl Watch {
    fn new<'a>(
        vocabulary: &TokenTrie,
        markers: impl IntoIterator<Item = (&'a Marker, Option<usize>)>,
    ) -> Result<Self, GrammarError> {
        let (mut texts, mut targets, mut tokens) = (Vec::new(), Vec::new(), Vec::new());
        for (marker, target) in markers {
            bytes_of(marker, vocabulary)?;
            match marker {
                Marker::Text(text) => {
                    texts.push(text.as_str());
                    targets.push(target);
                }
                Marker::Token(token) => tokens.push((*token, target)),
            }
        }
        Ok(Self { patterns: Patterns::new(&texts), targets, tokens, barred: Barred::default() })
    }

    /// Returns the rule that this token starts, if it is a marker.
    pub(crate) fn target_of(&self, token: u32) -> Option<Option<usize>> {
        self.tokens.iter().find(|(marker, _)| *marker == token).map(|(_, target)| *target)
    }
}

fn bytes_of(marker: &Marker, vocabulary: &TokenTrie) -> Result<Vec<u8>, GrammarError> {
    match marker {
        Marker::Text(text) => Ok(text.clone().into_bytes()),
        Marker::Token(token) if !vocabulary.bytes(*token).is_empty() => Ok(vocabulary.bytes(*token).to_vec()),
        Marker::Token(token) => Err(GrammarError::Invalid(format!("the model has no token {token}"))),
    }
}
