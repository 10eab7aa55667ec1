//! A running job: its usage, its sampling and its stop conditions. The scheduler has its tokens and blocks; everything
//! here survives a preemption, so that the job continues as if nothing had happened.

use std::sync::Arc;

use pensieve_plugin_api::Card;

use super::{
    adapters::AdapterLease,
    chain::{Chain, Picked, Samplers},
    logits::{self, Row},
    repetition::RepetitionDetector,
    stops::Stops,
};
use pensieve_grammar::{Constraint, ConstraintError};
use pensieve_protocol::job::{Failure, FailureCode, Finish, Job, TokenLogprobs, Usage};
use pensieve_protocol::vocabulary::Vocabulary;

const LOGPROBS_MAX: u8 = 64;
const STOP_TOKENS_MAX: usize = 1024;

pub struct ActiveJob {
    /// The server knows that it is running.
    pub started: bool,
    /// Prompt tokens that came from the prefix cache.
    pub reused: u32,
    pub adapter: Option<AdapterLease>,
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
        let Some(prompt) = u32::try_from(tokens).ok().filter(|tokens| *tokens < context) else {
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
        let end_of_turn = if job.ignore_end_of_turn { &[][..] } else { &text.end_of_turn };
        let stops = Stops::new(&job.stops, end_of_turn)
            .map_err(|error| Failure::new(FailureCode::Invalid, error.to_string()))?;
        Ok(Self {
            started: false,
            reused: 0,
            adapter: None,
            prompt,
            generated: 0,
            max_tokens: job.max_tokens,
            context,
            chain: samplers.chain(&job.stages, text.size, job.seed)?,
            stops,
            stop_tokens: job.stop_tokens.clone(),
            logprobs: job.logprobs,
            constraint,
            repetition: None,
        })
    }

    /// Ends the job when its last `tokens` tokens repeat in a loop.
    #[must_use]
    pub fn ending_in_loops_of(self, tokens: u32) -> Self {
        Self { repetition: RepetitionDetector::new(tokens), ..self }
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
            Row::Best(token) => return token.map(Some).ok_or_else(broken),
        };
        let top = logits::highest(row.values()).ok_or_else(broken)?;
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

    /// Completes a picked token with the log-probabilities of its row.
    pub fn pick(&self, token: u32, row: Row<'_>) -> Pick {
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
        }
        let loops = self.repetition.as_mut().is_some_and(|detector| detector.push(token));
        if finish.is_none() && loops {
            finish = Some(Finish::Repetition);
        }
        if finish.is_none() && self.is_full() {
            finish = Some(Finish::Length);
        }
        if finish.is_none() && self.prompt + self.generated >= self.context {
            finish = Some(Finish::ContextFull);
        }
        Ok(DecodeStep { bytes, finish })
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
