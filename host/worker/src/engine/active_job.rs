//! A running job: its usage, its sampling and its stop conditions. The scheduler has its tokens and blocks; everything
//! here survives a preemption, so that the job continues as if nothing had happened.

use std::{collections::VecDeque, sync::Arc};

use pensieve_plugin_api::Card;

use super::{
    adapters::AdapterLease,
    chain::{Chain, Picked, Samplers},
    logits::{self, Row},
    pooled::Pool,
    repetition::RepetitionDetector,
    stops::Stops,
    thoughts::ThoughtWatch,
};
use pensieve_grammar::{Constraint, ConstraintError};
use pensieve_protocol::job::{Failure, FailureCode, Finish, Job, Thinking, TokenLogprobs, Usage};
use pensieve_protocol::vocabulary::Vocabulary;

const LOGPROBS_MAX: u8 = 64;
const STOP_TOKENS_MAX: usize = 1024;
/// Rounds that make a loop of an answer.
const ROUNDS: usize = 8;
/// A string in JSON counts as a loop once this many tokens are one sequence repeated this often; unlike free text, it is
/// never a table.
const TEXT_LOOP_TOKENS: u32 = 256;
const TEXT_ROUNDS: usize = 4;
/// Once fewer tokens are left than this multiple of the shortest JSON, plus some, each token must leave the answer
/// completable. The factor is smaller for the text with an item in each list, and for the rest of what has begun.
const ENDING_FACTOR: u32 = 4;
const BEGUN_FACTOR: u32 = 2;
const ENDING_TOKENS: u32 = 64;
/// Every so many tokens, those that would complete the JSON are counted, unless more are left than surely suffice. Where no
/// completion is found, none is looked for as long, then twice as long.
const ENDING_STEP: u32 = 16;
const ENDING_ROOM_MAX: u32 = 16 << 10;

pub struct ActiveJob {
    /// The server knows that it is running.
    pub started: bool,
    /// Prompt tokens that came from the prefix cache.
    pub reused: u32,
    pub adapter: Option<AdapterLease>,
    /// The row that it makes instead of text.
    pub pool: Option<Pool>,
    prompt: u32,
    generated: u32,
    max_tokens: u32,
    context: u32,
    chain: Chain,
    stops: Stops,
    stop_tokens: Vec<u32>,
    logprobs: Option<u8>,
    constraint: Option<Constraint>,
    repetition: Option<RepetitionDetector>,
    /// Watches the string of a JSON answer that is being written.
    text_repetition: Option<RepetitionDetector>,
    thoughts: Option<ThoughtWatch>,
    /// Tokens that come next, whatever the model picks.
    forced: VecDeque<u32>,
    /// Tokens that would complete the answer's JSON here, while its limit is near.
    ending: Vec<u32>,
    /// Remaining tokens below which that is checked.
    ending_from: u32,
    /// Number of generated tokens before which no completion is looked for, and the next pause.
    ending_pause: (u32, u32),
    /// The reason for which the answer is being completed by `forced`.
    cut: Option<Finish>,
}

/// The parts of a model's vocabulary that answers need.
pub struct Text {
    /// Bytes of each token, or the reason why they are unknown.
    pub vocabulary: Result<Arc<Vocabulary>, String>,
    pub end_of_turn: Vec<u32>,
    pub size: u32,
}

#[derive(Debug)]
pub struct Pick {
    pub token: u32,
    /// Log-probabilities, if the job asked for them.
    pub logprobs: Option<TokenLogprobs>,
}

/// The result of appending a token.
#[derive(Debug)]
pub struct DecodeStep {
    /// Bytes of text that are final and may be sent.
    pub bytes: Vec<u8>,
    /// Set if the job ends with this token.
    pub finish: Option<Finish>,
}

impl Text {
    pub fn of(card: &Card) -> Self {
        let size = card.vocabulary;
        // Ids beyond the vocabulary never occur.
        let end_of_turn: Vec<u32> = card.eos.iter().copied().filter(|token| *token < size).collect();
        let vocabulary = Vocabulary::new(&card.tokenizer, size, &end_of_turn);
        Self { vocabulary: vocabulary.map(Arc::new).map_err(|error| error.to_string()), end_of_turn, size }
    }
}

impl ActiveJob {
    /// Validates a job against the model and prepares its sampling state.
    pub fn new(
        job: &Job,
        constraint: Option<Constraint>,
        text: &Text,
        context: u32,
        samplers: &mut Samplers,
    ) -> Result<Self, Failure> {
        let invalid = |message: String| Err(Failure::new(FailureCode::Invalid, message));
        let tokens = job.tokens.len();
        // Text that is not continued may fill the context.
        let fits = |tokens: &u32| *tokens < context || job.row.is_some() && *tokens == context;
        let Some(prompt) = u32::try_from(tokens).ok().filter(fits) else {
            let message = format!("the prompt has {tokens} tokens, this model's context has room for {context}");
            return Err(Failure::new(FailureCode::TooLong, message).with_help("shorten the prompt"));
        };
        if let Some(token) = job.tokens.iter().chain(&job.stop_tokens).find(|token| **token >= text.size) {
            return invalid(format!("token {token} is outside the vocabulary of {}", text.size));
        }
        if job.stop_tokens.len() > STOP_TOKENS_MAX {
            return invalid(format!("{} stop tokens are more than {STOP_TOKENS_MAX}", job.stop_tokens.len()));
        }
        if job.logprobs.is_some_and(|count| count > LOGPROBS_MAX) {
            return invalid(format!("no more than {LOGPROBS_MAX} log-probabilities per token can be had"));
        }
        if let (Err(why), false) = (&text.vocabulary, job.stops.is_empty()) {
            return Err(Failure::new(FailureCode::Unsupported, format!("this model has no stop strings: {why}")));
        }
        let room = job.max_tokens.min(context.saturating_sub(prompt));
        let end_of_turn = if job.ignore_end_of_turn { &[][..] } else { &text.end_of_turn };
        let stops = Stops::new(&job.stops, end_of_turn)
            .map_err(|error| Failure::new(FailureCode::Invalid, error.to_string()))?;
        Ok(Self {
            started: false,
            reused: 0,
            adapter: None,
            pool: None,
            prompt,
            generated: 0,
            max_tokens: job.max_tokens,
            context,
            chain: samplers.chain(&job.stages, text.size, job.seed)?,
            stops,
            stop_tokens: job.stop_tokens.clone(),
            logprobs: job.logprobs,
            constraint: constraint.map(|constraint| constraint.within(room)),
            repetition: None,
            text_repetition: None,
            thoughts: None,
            forced: VecDeque::new(),
            ending: Vec::new(),
            ending_from: 0,
            ending_pause: (0, ENDING_STEP),
            cut: None,
        }
        .ready())
    }

    /// Ends the job when the last `answer` tokens of its answer repeat in a loop, and concludes reasoning whose last
    /// `thought` tokens do.
    #[must_use]
    pub fn ending_in_loops_of(mut self, answer: u32, thinking: Option<&Thinking>, thought: u32) -> Self {
        self.repetition = RepetitionDetector::new(answer, ROUNDS);
        self.text_repetition = RepetitionDetector::new(answer.min(TEXT_LOOP_TOKENS), TEXT_ROUNDS);
        self.thoughts = thinking.map(|thinking| ThoughtWatch::new(thinking, thought));
        if let Some(tokens) = self.thoughts.as_mut().and_then(ThoughtWatch::due) {
            self.force(tokens);
        }
        self
    }

    /// Measures the shortest JSON that the answer may have.
    fn ready(mut self) -> Self {
        let Some(constraint) = &self.constraint else { return self };
        let tokens_of = |tokens: Option<Vec<u32>>, factor: u32| {
            tokens.map_or(0, |tokens| (tokens.len() as u32).saturating_mul(factor) + ENDING_TOKENS)
        };
        self.ending_from =
            tokens_of(constraint.shortest(), ENDING_FACTOR).max(tokens_of(constraint.filled(), BEGUN_FACTOR));
        self
    }

    /// Measures what is still required to complete the answer's JSON.
    fn measure_ending(&mut self) {
        let is_due = self.generated.is_multiple_of(ENDING_STEP) && self.generated >= self.ending_pause.0;
        if self.ending_from == 0 || !is_due || self.room() > ENDING_ROOM_MAX || self.room() <= self.ending_from {
            return;
        }
        let Some(constraint) = self.constraint.as_ref().filter(|constraint| constraint.is_answering()) else { return };
        match constraint.completion() {
            Some(ending) => self.end_within(ending.len()),
            None => self.pause_endings(),
        }
    }

    /// Takes note of how many tokens would complete the answer.
    fn end_within(&mut self, tokens: usize) {
        let tokens = (tokens as u32).saturating_mul(BEGUN_FACTOR) + ENDING_TOKENS;
        self.ending_from = self.ending_from.max(tokens);
    }

    /// A search that finds nothing takes long.
    fn pause_endings(&mut self) {
        let (_, pause) = self.ending_pause;
        self.ending_pause = (self.generated.saturating_add(pause), pause.saturating_mul(2));
    }

    /// Makes these tokens come next if the grammar allows them.
    fn force(&mut self, tokens: Vec<u32>) {
        let fits = match &self.constraint {
            None => true,
            Some(constraint) => {
                let mut constraint = constraint.clone();
                tokens.iter().all(|token| !constraint.is_complete() && constraint.accept(*token).is_ok())
            }
        };
        if fits {
            self.forced.extend(tokens);
        }
    }

    /// Number of tokens that may still be generated.
    fn room(&self) -> u32 {
        let context = self.context.saturating_sub(self.prompt + self.generated);
        context.min(self.max_tokens.saturating_sub(self.generated))
    }

    /// Replaces a token after which the answer's JSON could no longer be completed within the limit by one that
    /// completes it.
    fn within_room(&mut self, token: u32) -> u32 {
        let room = self.room();
        let Some(constraint) = &self.constraint else { return token };
        // What an object requires is known only once it has begun, when it may be too late.
        let is_near = room <= self.ending_from || room <= ENDING_ROOM_MAX && constraint.opens(token);
        let is_paused = self.generated < self.ending_pause.0;
        if !self.forced.is_empty() || self.ending_from == 0 || !is_near || is_paused || room < 1 {
            self.ending.clear();
            return token;
        }
        if self.ending.is_empty() {
            self.ending = constraint.completion().unwrap_or_default();
        }
        if self.ending.first() == Some(&token) && self.ending.len() <= room as usize {
            self.ending.remove(0);
            return token;
        }
        let mut after = constraint.clone();
        if after.accept(token).is_err() || after.is_complete() {
            return token;
        }
        match after.completion() {
            Some(ending) if ending.len() < room as usize => {
                self.end_within(ending.len());
                self.ending = ending;
                token
            }
            _ if self.ending.is_empty() || self.ending.len() > room as usize => {
                if after.is_answering() {
                    self.pause_endings();
                }
                token
            }
            _ => {
                self.cut =
                    Some(if room < self.max_tokens - self.generated { Finish::ContextFull } else { Finish::Length });
                self.forced.extend(std::mem::take(&mut self.ending));
                self.forced.front().copied().unwrap_or(token)
            }
        }
    }

    /// True once `max_tokens` tokens are generated.
    pub fn is_full(&self) -> bool {
        self.generated >= self.max_tokens
    }

    pub fn usage(&self) -> Usage {
        Usage { prompt: self.prompt, reused: self.reused, generated: self.generated }
    }

    /// The number of prompt tokens.
    pub fn prompt(&self) -> u32 {
        self.prompt
    }

    /// True for plain greedy decoding, which needs only the best token of a row.
    pub fn takes_best(&self) -> bool {
        self.chain.is_empty() && self.constraint.is_none() && self.logprobs.is_none()
    }

    pub fn constraint_mut(&mut self) -> Option<&mut Constraint> {
        self.constraint.as_mut()
    }

    /// Starts picking the token after `tokens`, the sequence so far. Returns the token unless samplers decide; theirs
    /// comes from [`Samplers::wait`] under `id`.
    pub fn begin_pick(
        &mut self,
        id: u64,
        row: Row<'_>,
        tokens: &[u32],
        samplers: &mut Samplers,
    ) -> Result<Option<u32>, Failure> {
        let broken = || {
            Failure::new(FailureCode::NotANumber, "the model computed logits that are not numbers")
                .with_help("its weights or its plugin are broken; try another quantization or device")
        };
        let row = match row {
            Row::Logits(row) => row,
            Row::Best(token) => {
                let token = token.ok_or_else(broken)?;
                return Ok(Some(self.forced.front().copied().unwrap_or(token)));
            }
        };
        let top = logits::highest(row.values()).ok_or_else(broken)?;
        if let Some(token) = self.forced.front() {
            return Ok(Some(*token));
        }
        let mask = match &mut self.constraint {
            Some(constraint) => constraint.mask().map_err(|error| astray(&error))?,
            None => None,
        };
        if self.chain.is_empty() && mask.is_none() {
            return Ok(Some(logits::leader(row.values(), top)));
        }
        samplers.pick(id, std::mem::take(&mut self.chain), row.share(), mask, tokens, self.prompt as usize);
        Ok(None)
    }

    /// Takes the sampler chain back after it has picked a token.
    pub fn take_back(&mut self, picked: Picked) -> Result<u32, Failure> {
        self.chain = picked.chain;
        picked.token
    }

    /// Completes a picked token with the log-probabilities of its row. Near the limit another token may take its place.
    pub fn pick(&mut self, token: u32, row: Row<'_>) -> Pick {
        let token = self.within_room(token);
        let of = |count| match row {
            Row::Logits(row) => {
                let row = row.values();
                Some(logits::logprobs(row, logits::highest(row)?, token, usize::from(count)))
            }
            Row::Best(_) => None,
        };
        Pick { token, logprobs: self.logprobs.and_then(of) }
    }

    pub fn push(&mut self, token: u32, text: &Text) -> Result<DecodeStep, Failure> {
        self.generated += 1;
        if self.forced.front() == Some(&token) {
            self.forced.pop_front();
        }
        let mut bytes = Vec::new();
        let mut finish = if self.stops.ends(token) {
            Some(Finish::EndOfTurn)
        } else if self.stop_tokens.contains(&token) {
            Some(Finish::StopToken(token))
        } else {
            None
        };
        if finish.is_none()
            && let Ok(vocabulary) = &text.vocabulary
            && !vocabulary.is_special(token)
        {
            let emit = self.stops.push(vocabulary.bytes(token));
            bytes = emit.text;
            finish = emit.stopped.map(|index| Finish::StopString(index as u32));
        }
        if let (None, Some(constraint)) = (finish, &mut self.constraint) {
            constraint.accept(token).map_err(|error| astray(&error))?;
            finish = constraint.is_complete().then_some(Finish::GrammarDone);
            self.measure_ending();
        }
        if finish.is_none() && self.forced.is_empty() {
            finish = self.cut.take();
        } else if finish == Some(Finish::GrammarDone) {
            finish = self.cut.take().or(finish);
        }
        // Of tokens that are forced it only needs to know.
        let due = match (&mut self.thoughts, &text.vocabulary) {
            (Some(thoughts), Ok(vocabulary)) => thoughts.push(token, vocabulary.bytes(token)),
            _ => None,
        };
        if finish.is_none() && self.forced.is_empty() {
            finish = self.guard(token, due, text);
        }
        if finish.is_none() && self.is_full() {
            finish = Some(Finish::Length);
        }
        if finish.is_none() && self.prompt + self.generated >= self.context {
            finish = Some(Finish::ContextFull);
        }
        Ok(DecodeStep { bytes, finish })
    }

    /// Concludes reasoning that is too long or loops, and ends an answer that loops.
    fn guard(&mut self, token: u32, due: Option<Vec<u32>>, text: &Text) -> Option<Finish> {
        if self.thoughts.as_ref().is_some_and(ThoughtWatch::is_inside) {
            if let Some(tokens) = due {
                self.force(tokens);
            }
            return None;
        }
        let loops = self.repetition.as_mut().is_some_and(|detector| detector.push(token));
        if !self.text_loops(token, text) && !loops {
            return None;
        }
        // JSON is completed first, so that it stays of use.
        match self.constraint.as_ref().and_then(Constraint::completion) {
            Some(ending) if !ending.is_empty() && ending.len() <= self.room() as usize => {
                self.cut = Some(Finish::Repetition);
                self.forced.extend(ending);
                None
            }
            _ => Some(Finish::Repetition),
        }
    }

    /// True if a string of a JSON answer loops.
    fn text_loops(&mut self, token: u32, text: &Text) -> bool {
        let (Some(detector), Some(constraint)) = (&mut self.text_repetition, &self.constraint) else { return false };
        let bytes = text.vocabulary.as_ref().map_or(&[][..], |vocabulary| vocabulary.bytes(token));
        // A string ends, or another one begins.
        if bytes.contains(&b'"') || !constraint.in_text() {
            detector.clear();
            return false;
        }
        detector.push(token)
    }

    /// Returns the bytes held back as a possible stop string, at the end of the answer.
    pub fn rest(&mut self) -> Vec<u8> {
        self.stops.finish()
    }
}

/// Converts a grammar's error: a token broke the grammar, or the grammar allows no token.
fn astray(error: &ConstraintError) -> Failure {
    if let Some(fault) = error.fault() {
        return fault.failure();
    }
    Failure::new(FailureCode::Internal, format!("the grammar cannot be kept to: {error}"))
}
