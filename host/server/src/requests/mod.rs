//! From requests to jobs: renders and tokenizes the prompt, checks its size, and derives the grammar and the sampler
//! chain. [`Chats`] turns a [`Request`] into a job for the fleet; [`Generation`] reads the job's answer.

mod convention;
mod sampling;
mod size;

use std::{borrow::Cow, sync::Arc};

use self::convention::{Convention, Conventions, ToolDialect};
use crate::{
    answers::{AnswerReader, Generation, ToolParser},
    chat::{Client, Conversation, Input, Request, ResponseFormat, Role, Tool, ToolChoice},
    constraints::Rules,
    fleet::{Fleet, Target},
    formats::{OutputFormat, Signature, Thoughts},
    rendering::{Expressed, GrammarPool, RendererPool},
};
use pensieve_protocol::{
    grammar::{Part, Rule, Spec, Then},
    job::{Failure, FailureCode, Job},
    prompt::Syntax,
};

/// Number of tokens at a prompt's end in which opened reasoning is searched for.
const TAIL_TOKENS: usize = 32;

/// Serves the requests of all dialects.
#[derive(Debug)]
pub struct Chats {
    fleet: Arc<Fleet>,
    conventions: Conventions,
    grammars: GrammarPool,
}

/// A request that has been rendered, tokenized, counted and checked, but not queued.
#[derive(Clone, Debug)]
pub struct Prepared {
    fleet: Arc<Fleet>,
    target: Target,
    input_tokens: u32,
    job: Job,
    /// The limit on generated tokens was lowered because the context has no room for more.
    clamped: bool,
    /// Number of the job's stop strings that come from the client.
    client_stops: usize,
    convention: Arc<Convention>,
    reading: Reading,
}

/// Inputs of the answer parser.
#[derive(Clone, Debug)]
struct Reading {
    is_taught: bool,
    tools: Arc<[Signature]>,
    thoughts: Thoughts,
}

/// A prompt, with the grammar and the parser's settings for its answer.
struct Prompt {
    tokens: Vec<u32>,
    spec: Option<Spec>,
    reading: Reading,
}

impl Chats {
    pub fn new(fleet: Arc<Fleet>) -> Self {
        let pool = RendererPool::new(fleet.program().to_path_buf());
        let grammars = GrammarPool::new(fleet.program().to_path_buf());
        Self { fleet, conventions: Conventions::new(pool), grammars }
    }

    pub fn fleet(&self) -> &Arc<Fleet> {
        &self.fleet
    }

    /// Renders, tokenizes and checks a request; the model need not be loaded. A prompt that leaves no room for a token
    /// is [`FailureCode::TooLong`] with the message `prompt is too long: N tokens > M maximum`.
    pub async fn prepare(&self, request: Request) -> Result<Prepared, Failure> {
        let target = self.fleet.target(&request.model).await?;
        check_tokens(&request, target.card.vocabulary)?;
        let convention = self.conventions.of(&target).await?;
        let maximum = target.context.saturating_sub(1);
        size::check(&request.input, &convention.vocabulary, maximum)?;
        let answer = match request.format {
            ResponseFormat::Free => None,
            ResponseFormat::Grammar { grammar, field } => Some(Part::new(field, grammar)),
        };
        // If there is a grammar, it may allow text that contains these stop strings.
        let is_open_chat = answer.is_none() && matches!(request.input, Input::Chat(_));
        let own_stops = if is_open_chat { convention.stops } else { &[] };
        let client_stops = request.stops.len();
        // After the client's stops, so that their indices stay valid.
        let stops = request.stops.into_iter().chain(own_stops.iter().map(|stop| (*stop).to_owned()));
        let stops = stops.map(String::into_bytes).collect();
        let prompt = write(&convention, request.input, answer, &request.client.salt).await?;
        let count = prompt.tokens.len();
        let input_tokens = u32::try_from(count).unwrap_or(u32::MAX);
        if input_tokens > maximum {
            let message = format!("prompt is too long: {count} tokens > {maximum} maximum");
            return Err(Failure::new(FailureCode::TooLong, message));
        }
        if let Some(spec) = &prompt.spec {
            let written = spec.written_tokens();
            let alphabet = if written.is_empty() {
                Cow::Borrowed(&convention.alphabet)
            } else {
                Cow::Owned(convention.vocabulary.alphabet(&written))
            };
            self.grammars.try_grammar(&request.client, &alphabet, spec).await?;
        }
        let room = target.context - input_tokens;
        let job = Job {
            client: request.client.share,
            salt: request.client.salt,
            tokens: prompt.tokens,
            max_tokens: request.max_tokens.map_or(room, |tokens| tokens.min(room)),
            seed: request.sampling.seed.unwrap_or_else(|| fastrand::u64(..)),
            stages: sampling::stages(&request.sampling, target.samplers.as_deref()),
            stop_tokens: convention.end_of_turn.clone(),
            stops,
            logprobs: request.logprobs,
            grammar: prompt.spec,
            adapter: request.adapter.or_of_model(target.adapter.clone())?,
            ..Job::default()
        };
        Ok(Prepared {
            fleet: self.fleet.clone(),
            target,
            input_tokens,
            job,
            clamped: request.max_tokens.is_none_or(|tokens| tokens > room),
            client_stops,
            convention,
            reading: prompt.reading,
        })
    }

    /// Converts formats of custom tools to regular expressions, in order, or returns why one has none. Fails only if no
    /// process could be asked at all.
    pub async fn expressions(&self, client: &Client, formats: &[(Syntax, &str)]) -> Result<Vec<Expressed>, Failure> {
        self.grammars.expressions(client, formats).await
    }

    /// Returns the exact number of tokens in a request's prompt, even if it does not fit, unless its size in bytes
    /// alone proves that.
    pub async fn count(&self, request: Request) -> Result<u32, Failure> {
        let target = self.fleet.target(&request.model).await?;
        check_tokens(&request, target.card.vocabulary)?;
        let convention = self.conventions.of(&target).await?;
        size::check(&request.input, &convention.vocabulary, target.context.saturating_sub(1))?;
        let prompt = write(&convention, request.input, None, &request.client.salt).await?;
        Ok(u32::try_from(prompt.tokens.len()).unwrap_or(u32::MAX))
    }
}

impl Prepared {
    /// Maximum sequence length of the model in tokens.
    pub fn context(&self) -> u32 {
        self.target.context
    }

    pub fn input_tokens(&self) -> u32 {
        self.input_tokens
    }

    /// The id of the model that answers, whatever name the client used.
    pub fn model(&self) -> &str {
        &self.target.id
    }

    /// Equal for equal weights and tokenizer.
    pub fn fingerprint(&self) -> &str {
        &self.target.card.fingerprint
    }

    /// Returns the request for one of several answers (`n`), from index 0; each has its own seed.
    #[must_use]
    pub fn choice(&self, index: u32) -> Self {
        let mut choice = self.clone();
        choice.job.seed = self.job.seed.wrapping_add(u64::from(index));
        choice
    }

    pub fn start(self) -> Result<Generation, Failure> {
        let Reading { is_taught, tools, thoughts } = self.reading;
        let ToolDialect { format, markers } = if is_taught { &self.convention.taught } else { &self.convention.own };
        let format = OutputFormat {
            calls: format.calls.clone().filter(|_| !tools.is_empty()),
            reasoning: format.reasoning.clone().filter(|_| thoughts != Thoughts::Never),
            channels: format.channels.clone(),
        };
        let reader = AnswerReader {
            parser: ToolParser::new(&format, tools, thoughts),
            markers: markers.within(&format),
            vocabulary: self.convention.vocabulary.clone(),
            logprobs: self.job.logprobs.is_some(),
            clamped: self.clamped,
            end_of_turn: self.convention.end_of_turn.clone(),
            client_stops: self.client_stops,
        };
        let stream = self.fleet.submit(&self.target, self.job)?;
        Ok(Generation::new(stream, &self.target.id, reader))
    }
}

/// Renders and tokenizes the prompt.
async fn write(
    convention: &Arc<Convention>,
    input: Input,
    answer: Option<Part>,
    salt: &[u8],
) -> Result<Prompt, Failure> {
    let tokens = match input {
        Input::Chat(conversation) => return converse(convention, conversation, answer, salt).await,
        Input::Text(text) => convention.renderer.text(text, salt.to_vec()).await?,
        Input::Tokens(tokens) => tokens,
    };
    if tokens.is_empty() {
        return Err(Failure::new(FailureCode::Invalid, "the prompt is empty").at("prompt"));
    }
    let spec = answer.map(|answer| Spec { reasoning: None, rules: vec![Rule::from_start(answer, Then::Stop)] });
    let reading = Reading { is_taught: false, tools: Arc::new([]), thoughts: Thoughts::Never };
    Ok(Prompt { tokens, spec, reading })
}

/// Renders and tokenizes a conversation.
async fn converse(
    convention: &Arc<Convention>,
    mut conversation: Conversation,
    answer: Option<Part>,
    salt: &[u8],
) -> Result<Prompt, Failure> {
    let (tools, choice, single) =
        (conversation.tools.clone(), conversation.tool_choice.clone(), conversation.single_call);
    check(&tools, &choice)?;
    let continues = conversation.turns.last().is_some_and(|turn| turn.role == Role::Assistant);
    let (dialect, in_words) = convention.dialect(&mut conversation);
    let is_taught = in_words.is_some();
    let tokens = convention.renderer.conversation(conversation, in_words, salt.to_vec()).await?;
    let tail = convention.vocabulary.text_of(&tokens[tokens.len().saturating_sub(TAIL_TOKENS)..]);
    let thoughts = match dialect.format.thoughts(&tail) {
        // A continued answer contains no further reasoning.
        Thoughts::Possible if continues => Thoughts::Never,
        thoughts => thoughts,
    };
    let rules = Rules {
        format: &dialect.format,
        markers: &dialect.markers,
        tools: &tools,
        choice: &choice,
        single,
        answer: answer.as_ref(),
        thoughts,
    };
    let spec = rules.spec();
    let tools = if choice == ToolChoice::None { Vec::new() } else { tools.iter().map(Signature::of).collect() };
    Ok(Prompt { tokens, spec, reading: Reading { is_taught, tools: tools.into(), thoughts } })
}

/// Checks that the tokens of a request are in the model's vocabulary.
fn check_tokens(request: &Request, size: u32) -> Result<(), Failure> {
    let prompt: &[u32] = if let Input::Tokens(tokens) = &request.input { tokens } else { &[] };
    let biased = request.sampling.logit_bias.iter().map(|(token, _)| (*token, "logit_bias"));
    let mut named = biased.chain(prompt.iter().map(|token| (*token, "prompt")));
    match named.find(|(token, _)| *token >= size) {
        None => Ok(()),
        Some((token, field)) => {
            let message = format!("token {token} is outside the model's vocabulary of {size}");
            Err(Failure::new(FailureCode::Invalid, message).at(field))
        }
    }
}

/// Checks that a tool that must be called is among the tools.
fn check(tools: &[Tool], choice: &ToolChoice) -> Result<(), Failure> {
    let message = match choice {
        ToolChoice::Any if tools.is_empty() => "a tool must be called, and there are none".to_owned(),
        ToolChoice::Named(name) if !tools.iter().any(|tool| tool.name == *name) => {
            format!("the tool '{name}' must be called, and it is not among the tools")
        }
        _ => return Ok(()),
    };
    Err(Failure::new(FailureCode::Invalid, message))
}
