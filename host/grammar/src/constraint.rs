//! The state of one sequence under its rules.
//!
//! Matching is by bytes: a token may contain the end of a trigger and the start of the grammar's text, or the end of
//! that text and free text after it. Tokens that lie within one phase are consumed whole, by id; those that span phases
//! are fed byte by byte.

use std::{
    panic::{self, AssertUnwindSafe},
    sync::Arc,
};

use llguidance::Matcher;

use crate::patterns::{ROOT, StateId};
use crate::token_trie::TokenTrie;
use crate::{
    completion,
    constraint_error::ConstraintError,
    outline::{Outline, is_numeric},
    rules::Rules,
};

/// A way to find the rest of a text; see [`completion`].
type Search = fn(&mut Matcher, Outline, &completion::Advance<'_>) -> Option<Vec<u8>>;

/// A number of JSON gets no more characters; doubles and 64-bit integers have fewer.
const DIGITS_MAX: usize = 24;

/// An active grammar, or a trigger being watched for, in one sequence.
#[derive(Clone)]
pub struct Constraint {
    rules: Arc<Rules>,
    phase: Phase,
    mask: Mask,
    /// Length of the number that the output ends with.
    digits: usize,
    /// The output has more than white space; models part their answer from their reasoning by a blank line.
    is_begun: bool,
    /// First byte of a rule's text that is not white space; 0 for a special token.
    first: Option<u8>,
    /// Where a JSON answer stands.
    outline: Outline,
    /// Number of tokens that the output may have.
    room: u32,
}

#[derive(Clone)]
enum Phase {
    /// The output may open the reasoning block, of whose opener `written` bytes are out, or begin with the answer.
    Opening { written: usize, answer: Option<Box<Matcher>>, at: StateId },
    /// Inside the reasoning block.
    Reasoning { at: StateId },
    /// Everything is allowed until a trigger.
    Free { at: StateId },
    /// A rule is in force.
    Bound { rule: usize, matcher: Box<Matcher> },
    /// The output is complete.
    Complete,
}

#[derive(Clone)]
enum Mask {
    Unknown,
    Free,
    Bits(Arc<[u32]>),
    Failed(ConstraintError),
}

impl Constraint {
    pub(crate) fn new(rules: Arc<Rules>) -> Self {
        let phase = if rules.begin.is_some() {
            let answer = rules.start.map(|rule| Box::new(rules.rules[rule].template.start()));
            Phase::Opening { written: 0, answer, at: ROOT }
        } else if rules.end.is_some() {
            Phase::Reasoning { at: ROOT }
        } else {
            rules.answer()
        };
        Self {
            rules,
            phase,
            mask: Mask::Unknown,
            digits: 0,
            is_begun: false,
            first: None,
            outline: Outline::default(),
            room: u32::MAX,
        }
    }

    /// Expects at most this many tokens, so that no list in a JSON answer uses up the room for what must follow it.
    #[must_use]
    pub fn within(self, room: u32) -> Self {
        Self { room, ..self }
    }

    /// Returns the logits mask for the next token, one bit per token, lowest bit first; `None` if every token is
    /// allowed. Bits beyond the vocabulary are meaningless. Computes the mask unless [`Self::prepare`] already has.
    pub fn mask(&mut self) -> Result<Option<&[u32]>, ConstraintError> {
        self.prepare();
        match &self.mask {
            Mask::Bits(bits) => Ok(Some(bits)),
            Mask::Failed(error) => Err(error.clone()),
            Mask::Free | Mask::Unknown => Ok(None),
        }
    }

    /// Computes the mask. This is the expensive part, so call it while the model runs.
    pub fn prepare(&mut self) {
        if matches!(self.mask, Mask::Unknown) {
            self.mask = match panic::catch_unwind(AssertUnwindSafe(|| self.make_mask())) {
                Ok(Ok(Some(bits))) => Mask::Bits(bits),
                Ok(Ok(None)) => Mask::Free,
                Ok(Err(error)) => Mask::Failed(self.about(error)),
                Err(_) => Mask::Failed(ConstraintError::new("its mask could not be made")),
            };
        }
    }

    /// True if the mask has yet to be computed and is expensive enough to compute on another thread.
    pub fn is_pending(&self) -> bool {
        matches!(self.mask, Mask::Unknown) && !matches!(self.phase, Phase::Complete)
    }

    pub fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        self.mask = Mask::Unknown;
        let bytes = self.rules.vocabulary.bytes(token);
        let tail = bytes.iter().rev().take_while(|byte| is_numeric(**byte)).count();
        self.digits = if tail == bytes.len() { self.digits + tail } else { tail };
        self.outline.count_token();
        let is_bound = matches!(self.phase, Phase::Bound { .. });
        self.is_begun |= !is_bound || !bytes.iter().all(u8::is_ascii_whitespace);
        let result = self.take(token).map_err(|error| self.about(error));
        // Keep whatever a panic left behind from the next sequence.
        if let (Err(_), Phase::Bound { rule, .. }) = (&result, &self.phase) {
            self.rules.rules[*rule].template.spoil();
        }
        result
    }

    /// Adds the field of the active rule to an error.
    fn about(&self, error: ConstraintError) -> ConstraintError {
        let rule = match &self.phase {
            Phase::Bound { rule, .. } => Some(*rule),
            Phase::Opening { .. } => self.rules.start,
            _ => None,
        };
        let field = rule.map(|rule| self.rules.rules[rule].field.clone()).unwrap_or_default();
        ConstraintError { field, ..error }
    }

    pub fn is_complete(&self) -> bool {
        matches!(self.phase, Phase::Complete)
    }

    /// Returns tokens that complete the answer from here, if it is JSON that has begun and can be completed.
    pub fn completion(&self) -> Option<Vec<u32>> {
        self.rules.tokens_of(&self.ending()?)
    }

    /// True once the output has begun an answer that is JSON.
    pub fn is_answering(&self) -> bool {
        self.answer().is_some()
    }

    /// True if a token begins an object or a list of an answer that is JSON.
    pub fn opens(&self, token: u32) -> bool {
        let bytes = self.rules.vocabulary.bytes(token);
        if self.answer().is_none() || !bytes.iter().any(|byte| matches!(byte, b'{' | b'[')) {
            return false;
        }
        let mut outline = self.outline.clone();
        bytes.iter().any(|byte| {
            let depth = outline.depth();
            outline.push(*byte);
            outline.depth() > depth
        })
    }

    /// True within a string of an answer that is JSON.
    pub fn in_text(&self) -> bool {
        self.answer().is_some() && self.outline.in_text()
    }

    /// Returns the tokens of about the shortest answer, if it is JSON.
    pub fn shortest(&self) -> Option<Vec<u32>> {
        self.whole(completion::complete)
    }

    /// Returns the tokens of a short answer with an item in each of its lists, if it is JSON.
    pub fn filled(&self) -> Option<Vec<u32>> {
        self.whole(completion::fill)
    }

    fn whole(&self, search: Search) -> Option<Vec<u32>> {
        let rule = self.rules.start.map(|rule| &self.rules.rules[rule])?;
        if !rule.is_answer && !rule.may_be_answer {
            return None;
        }
        let begun: &[u8] = if rule.is_answer { b"" } else { b"{" };
        let search = || {
            let (mut matcher, mut outline) = (rule.template.start(), Outline::default());
            for byte in begun {
                advance(&self.rules.vocabulary, &mut matcher, *byte).ok().filter(|taken| *taken)?;
                outline.push(*byte);
            }
            Some([begun, &self.rules.search(matcher, outline, search)?].concat())
        };
        self.rules.tokens_of(&panic::catch_unwind(AssertUnwindSafe(search)).ok()??)
    }

    /// The state of an answer that is JSON.
    fn answer(&self) -> Option<&Matcher> {
        match &self.phase {
            Phase::Bound { rule, matcher } => {
                let rule = &self.rules.rules[*rule];
                (rule.is_answer || rule.may_be_answer && self.first == Some(b'{')).then_some(matcher)
            }
            _ => None,
        }
    }

    /// Ends a list that has become too long for its room.
    fn decide_on_lists(&mut self) {
        let Some(place) = self.outline.overlong(self.room) else { return };
        if self.answer().is_some() {
            let ending = self.ending();
            self.outline.decide(place, ending.as_deref());
        }
    }

    /// Returns the bytes that complete an answer that is JSON.
    fn ending(&self) -> Option<Vec<u8>> {
        let matcher = self.answer()?.clone();
        let search = || self.rules.search(matcher, self.outline.clone(), completion::complete);
        panic::catch_unwind(AssertUnwindSafe(search)).ok()?
    }

    fn make_mask(&mut self) -> Result<Option<Arc<[u32]>>, ConstraintError> {
        self.decide_on_lists();
        let (rules, digits, is_begun) = (self.rules.clone(), self.digits, self.is_begun);
        let is_answer = self.answer().is_some();
        let ended = if is_answer { self.outline.ended() } else { None };
        match &mut self.phase {
            Phase::Complete => Err(ConstraintError::new("nothing may follow its end")),
            Phase::Free { at } => Ok(rules.barred(&rules.free, *at)),
            Phase::Reasoning { at } => {
                let barred = rules.end.as_ref().and_then(|watch| rules.barred(watch, *at));
                Ok(if rules.start.is_some() { Some(rules.without_end(barred.as_deref())) } else { barred })
            }
            Phase::Opening { at, .. } if rules.start.is_none() => Ok(rules.barred(&rules.free, *at)),
            Phase::Opening { answer, written, .. } => {
                let mut bits = match answer {
                    Some(matcher) => rules.compute(matcher)?,
                    None => vec![0; rules.vocabulary.mask_words()],
                };
                rules.allow_openers(*written, &mut bits);
                Ok(Some(bits.into()))
            }
            Phase::Bound { rule, matcher } => {
                // A text that may end here leaves the output free: any token that does not continue it may follow,
                // except those that contain the next trigger and continue it wrongly.
                if rules.resumes(*rule) && accepts(matcher)? {
                    let Some(barred) = rules.barred(&rules.free, ROOT) else { return Ok(None) };
                    let continuing = matcher.compute_mask().map_err(|error| ConstraintError::failed(&error))?;
                    let continuing = continuing.as_slice().iter().chain(std::iter::repeat(&0));
                    return Ok(Some(barred.iter().zip(continuing).map(|(allowed, more)| allowed | more).collect()));
                }
                let mut bits = rules.compute(matcher).inspect_err(|_| rules.rules[*rule].template.spoil())?;
                if digits >= DIGITS_MAX && (rules.rules[*rule].has_json || is_answer) {
                    rules.end_number(matcher, &mut bits)?;
                }
                if !is_begun && rules.rules[*rule].is_answer {
                    rules.bar_first(&mut bits, |byte| byte.is_ascii_whitespace());
                }
                if let Some(place) = ended {
                    rules.bar(&mut bits, |bytes| self.outline.adds_item(place, bytes));
                }
                Ok(Some(bits.into()))
            }
        }
    }

    fn take(&mut self, token: u32) -> Result<(), ConstraintError> {
        let rules = self.rules.clone();
        if rules.vocabulary.ends_turn(token) {
            return self.end();
        }
        let special = rules.vocabulary.is_special(token);
        match &mut self.phase {
            Phase::Bound { rule, matcher } => {
                let rule = *rule;
                if !rules.resumes(rule) || continues(matcher, token)? {
                    let is_over = consume(matcher, token)?;
                    let bytes = rules.vocabulary.bytes(token);
                    if special {
                        self.first.get_or_insert(0);
                    }
                    bytes.iter().for_each(|byte| self.follow(*byte));
                    if is_over {
                        self.phase = rules.after(rule);
                    }
                    return Ok(());
                }
                if (special || rules.free.target_of(token).is_some()) && accepts(matcher)? {
                    self.phase = Phase::Free { at: ROOT };
                }
            }
            // A grammar that begins with a special token recognizes it only by id.
            Phase::Opening { answer, .. } if special => {
                if let (Some(matcher), Some(rule)) = (answer, rules.start)
                    && continues(matcher, token)?
                {
                    let matcher = matcher.clone();
                    self.phase = Phase::Bound { rule, matcher };
                    return self.take(token);
                }
            }
            _ => {}
        }
        let watch = match &self.phase {
            Phase::Free { .. } => Some(&rules.free),
            Phase::Opening { .. } if rules.start.is_none() => Some(&rules.free),
            Phase::Reasoning { .. } => rules.end.as_ref(),
            _ => None,
        };
        match watch.and_then(|watch| watch.target_of(token)) {
            Some(target) => self.phase = rules.enter(target),
            None => self.feed(rules.vocabulary.bytes(token))?,
        }
        Ok(())
    }

    /// Accepts the end of a turn, which a grammar allows only where its text may end.
    fn end(&mut self) -> Result<(), ConstraintError> {
        let allowed = match &mut self.phase {
            Phase::Bound { matcher, .. } | Phase::Opening { answer: Some(matcher), .. } => accepts(matcher)?,
            Phase::Opening { answer: None, .. } => self.rules.start.is_none(),
            _ => true,
        };
        if !allowed {
            return Err(ConstraintError::new("its text is not complete"));
        }
        self.phase = Phase::Complete;
        Ok(())
    }

    /// Feeds the bytes of one token, across as many phases as they span.
    fn feed(&mut self, bytes: &[u8]) -> Result<(), ConstraintError> {
        let rules = self.rules.clone();
        let mut index = 0;
        // Position within these bytes at which the active grammar's text may have ended.
        let mut ended = None;
        while let Some(byte) = bytes.get(index) {
            if let Phase::Bound { rule, matcher } = &mut self.phase {
                let rule = *rule;
                if rules.resumes(rule) && accepts(matcher)? {
                    ended = Some(index);
                }
                if !advance(&rules.vocabulary, matcher, *byte)? {
                    index = ended.take().ok_or_else(|| ConstraintError::new("its text goes on otherwise"))?;
                    self.phase = Phase::Free { at: ROOT };
                    continue;
                }
                let is_over = matcher.is_stopped();
                self.follow(*byte);
                if is_over {
                    self.phase = rules.after(rule);
                    ended = None;
                }
            } else {
                ended = None;
                self.watch(&rules, *byte)?;
            }
            index += 1;
        }
        Ok(())
    }

    /// Feeds a byte outside any grammar.
    fn watch(&mut self, rules: &Rules, byte: u8) -> Result<(), ConstraintError> {
        let (watch, at) = match (&mut self.phase, &rules.end) {
            (Phase::Free { at }, _) => (&rules.free, at),
            (Phase::Reasoning { at }, Some(end)) => (end, at),
            (Phase::Opening { .. }, _) => return self.open(rules, byte),
            _ => return Err(ConstraintError::new("nothing may follow its end")),
        };
        *at = watch.patterns.step(*at, byte);
        if let Some(found) = watch.patterns.found(*at) {
            self.phase = rules.enter(watch.targets[found]);
        }
        Ok(())
    }

    /// Takes note of a byte of a rule's text.
    fn follow(&mut self, byte: u8) {
        if !byte.is_ascii_whitespace() {
            self.first.get_or_insert(byte);
        }
        self.outline.push(byte);
    }

    /// Feeds a byte that may belong to the reasoning opener, to the answer, or to both.
    fn open(&mut self, rules: &Rules, byte: u8) -> Result<(), ConstraintError> {
        let Phase::Opening { written, answer, at } = &mut self.phase else { return Ok(()) };
        let begin = rules.begin.as_deref().unwrap_or_default();
        let opens = begin.get(*written) == Some(&byte);
        let is_margin = *written == 0 && byte.is_ascii_whitespace();
        if let Some(matcher) = answer
            && !advance(&rules.vocabulary, matcher, byte)?
        {
            *answer = None;
        }
        if rules.start.is_some() && answer.is_none() && !opens {
            return Err(ConstraintError::new("this is neither reasoning nor an answer"));
        }
        *at = rules.free.patterns.step(*at, byte);
        let first = if *written == 0 { byte } else { begin[0] };
        *written += usize::from(opens);
        if opens && *written == begin.len() {
            self.phase = Phase::Reasoning { at: ROOT };
        } else if !opens && !is_margin {
            self.phase = match (rules.start, answer.take(), rules.free.patterns.found(*at)) {
                (Some(rule), Some(matcher), _) if matcher.is_stopped() => rules.after(rule),
                (Some(rule), Some(matcher), _) => Phase::Bound { rule, matcher },
                (_, _, Some(found)) => rules.enter(rules.free.targets[found]),
                _ => Phase::Free { at: *at },
            };
            if matches!(self.phase, Phase::Bound { .. }) {
                self.first.get_or_insert(first);
                self.outline.push(byte);
            }
        }
        Ok(())
    }
}

impl Rules {
    /// Removes the tokens that make a number longer, unless the output is within a string.
    fn end_number(&self, matcher: &Matcher, bits: &mut [u32]) -> Result<(), ConstraintError> {
        if advance(&self.vocabulary, &mut matcher.clone(), b'x')? {
            return Ok(());
        }
        self.bar_first(bits, is_numeric);
        Ok(())
    }

    fn search(&self, mut matcher: Matcher, outline: Outline, search: Search) -> Option<Vec<u8>> {
        search(&mut matcher, outline, &|matcher, byte| advance(&self.vocabulary, matcher, byte))
    }

    fn tokens_of(&self, bytes: &[u8]) -> Option<Vec<u32>> {
        let tokens = self.vocabulary.env().ok()?.tok_trie().greedy_tokenize(bytes);
        tokens.iter().all(|token| *token < self.vocabulary.size()).then_some(tokens)
    }

    /// The phase in which the answer begins.
    fn answer(&self) -> Phase {
        self.enter(self.start)
    }

    fn enter(&self, target: Option<usize>) -> Phase {
        match target {
            Some(rule) => Phase::Bound { rule, matcher: Box::new(self.rules[rule].template.start()) },
            None => Phase::Free { at: ROOT },
        }
    }

    fn after(&self, rule: usize) -> Phase {
        if self.resumes(rule) { Phase::Free { at: ROOT } } else { Phase::Complete }
    }
}

/// True if the text may end here.
fn accepts(matcher: &mut Matcher) -> Result<bool, ConstraintError> {
    matcher.is_accepting().map_err(|error| ConstraintError::failed(&error))
}

/// True if the whole token continues the text.
fn continues(matcher: &mut Matcher, token: u32) -> Result<bool, ConstraintError> {
    matcher.validate_tokens(&[token]).map(|valid| valid == 1).map_err(|error| ConstraintError::failed(&error))
}

/// Accepts a token. Returns true if nothing may follow it.
fn consume(matcher: &mut Matcher, token: u32) -> Result<bool, ConstraintError> {
    matcher.consume_token(token).map_err(|error| ConstraintError::failed(&error))?;
    Ok(matcher.is_stopped())
}

/// Accepts a byte if it continues the text.
fn advance(vocabulary: &TokenTrie, matcher: &mut Matcher, byte: u8) -> Result<bool, ConstraintError> {
    let Some(token) = vocabulary.byte_token(byte) else { return Ok(false) };
    matcher.try_consume_tokens(&[token]).map(|taken| taken == 1).map_err(|error| ConstraintError::failed(&error))
}
