//! From requests to jobs: renders and tokenizes the prompt, checks its size, and derives the grammar and the sampler
//! chain. [`Chats`] turns a [`Request`] into a job for the fleet; `Generation` reads the job's answer.

mod context;
mod convention;
mod images;
mod infill;
mod pair_template;
mod permission;
mod pieces;
mod prepared;
mod row_limit;
mod rows;
mod rows_model;
mod rows_request;
mod sampling;
mod scores;
mod size;
pub mod summary;
mod thinking;
mod toolbox;

pub use self::context::Fitted;
pub use crate::rendering::ImageLimits;
pub use crate::upstream::UpstreamState;
pub use prepared::Prepared;
pub(crate) use rows::Rows;
pub(crate) use rows_request::{FieldNames, PromptChoice, RowText, RowsRequest, TextField};
pub(crate) use scores::{Ranking, Scores};

use std::{borrow::Cow, sync::Arc};

use self::{
    convention::{Convention, Conventions},
    images::ShownImages,
    prepared::PreparedJob,
    toolbox::{Arranged, Toolboxes},
};
use crate::{
    answers::{Outline, PromptHistory},
    chat::{Client, Conversation, Input, Request, ResponseFormat, Role, Tool, ToolChoice, prompt_too_long},
    constraints::Rules,
    fleet::{Config, Fleet, HandoverReason, HandoverRules, Target},
    formats::{Signature, Thoughts},
    rendering::{Depth, Expressed, GrammarPool, MediaPool, RendererPool},
    upstream::{Count, Upstreams},
};
use pensieve_protocol::{
    grammar::{Part, Rule, Spec, Then},
    job::{Failure, FailureCode, Job, Thinking},
    prompt::{ItemSpan, PromptTokens, Syntax},
    rows::Kind,
};

/// Number of tokens at a prompt's end in which opened reasoning is searched for.
const TAIL_TOKENS: usize = 32;

/// Serves the requests of all dialects.
#[derive(Debug)]
pub struct Chats {
    fleet: Arc<Fleet>,
    conventions: Conventions,
    grammars: GrammarPool,
    media: MediaPool,
    toolboxes: Toolboxes,
    history: Arc<PromptHistory>,
    upstreams: Upstreams,
    turns: rows::Turns,
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
    /// Where the request's images are.
    spans: Vec<ItemSpan>,
    spec: Option<Spec>,
    thinking: Option<Thinking>,
    reading: Reading,
}

impl Chats {
    pub fn new(fleet: Arc<Fleet>, images: ImageLimits) -> Self {
        let media = MediaPool::new(fleet.program().to_path_buf(), images);
        let pool = RendererPool::new(fleet.program().to_path_buf());
        let grammars = GrammarPool::new(fleet.program().to_path_buf());
        Self {
            fleet,
            conventions: Conventions::new(pool),
            grammars,
            media,
            toolboxes: Toolboxes::default(),
            history: Arc::default(),
            upstreams: Upstreams::default(),
            turns: rows::Turns::default(),
        }
    }

    pub fn fleet(&self) -> &Arc<Fleet> {
        &self.fleet
    }

    /// The models that other servers compute.
    pub fn upstreams(&self) -> &Upstreams {
        &self.upstreams
    }

    /// Renders, tokenizes and checks a request; the model need not be loaded. A prompt that leaves no room for a token
    /// is [`FailureCode::TooLong`].
    pub async fn prepare(&self, request: Request) -> Result<Prepared, Failure> {
        // Another model has no such adapter.
        self.permit(&request.client, &request.model)?;
        let rules = if request.adapter.name.is_some() { None } else { self.fleet.handover(&request.model)? };
        let Some(rules) = rules else { return self.prepare_as_named(request).await };
        if let Some(reason) = self.fleet.overflow(&rules).await
            && let Some(prepared) = self.hand_over(request.clone(), &rules, reason).await
        {
            return Ok(prepared);
        }
        let spare = rules.rules.too_long.then(|| request.clone());
        match (self.prepare_as_named(request).await, spare) {
            (Err(failure), Some(request)) if failure.code == FailureCode::TooLong => {
                self.hand_over(request, &rules, HandoverReason::TooLong).await.ok_or(failure)
            }
            (prepared, _) => prepared,
        }
    }

    /// Applies a new configuration while requests run. Returns what has changed, a line each.
    pub fn reconfigure(&self, config: Config) -> Vec<String> {
        let lines = self.fleet.reconfigure(config);
        let models = self.fleet.models();
        self.upstreams.keep(|id, upstream| {
            models.iter().any(|model| model.id == id && model.upstream.as_deref() == Some(upstream))
        });
        lines
    }

    async fn prepare_as_named(&self, request: Request) -> Result<Prepared, Failure> {
        self.permit(&request.client, &request.model)?;
        match self.fleet.elsewhere(&request.model)? {
            Some(elsewhere) => self.upstreams.prepare(&elsewhere, &request).await.map(Prepared::elsewhere),
            None => self.prepare_job(request).await.map(Prepared::here),
        }
    }

    /// Prepares a request for the model that takes over; `None` if that one cannot take it, and the request stays here.
    async fn hand_over(&self, request: Request, rules: &HandoverRules, reason: HandoverReason) -> Option<Prepared> {
        let HandoverRules { id, rules } = rules;
        match self.prepare_as_named(Request { model: rules.to.clone(), ..request }).await {
            Ok(prepared) if !prepared.can_be_taken() => {
                tracing::warn!(model = id, to = rules.to, "a request cannot be handed over: no server takes it now");
                None
            }
            Ok(prepared) => {
                tracing::info!(model = id, to = rules.to, reason = reason.word(), "a request is handed over");
                Some(prepared.handed_over(reason))
            }
            Err(failure) => {
                tracing::warn!(model = id, to = rules.to, code = ?failure.code, "a request cannot be handed over");
                None
            }
        }
    }

    async fn prepare_job(&self, request: Request) -> Result<PreparedJob, Failure> {
        let target = self.fleet.target(&request.model).await?;
        check_generates(&target)?;
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
        let is_infill = matches!(request.input, Input::Infill { .. });
        let client_stops = request.stops.len();
        // After the client's stops, so that their indices stay valid.
        let stops = request.stops.into_iter().chain(own_stops.iter().map(|stop| (*stop).to_owned()));
        let stops = stops.map(String::into_bytes).collect();
        let tokens = request.thinking_tokens.or_else(|| request.input.thinking_budget());
        let open = request.open_schemas.unwrap_or(target.answers.open_schemas);
        let shown = self.shown(&target, &request.client, &request.images, &request.input, Depth::Prepared).await?;
        let arranged = self.arranged(request.client.id, &target, request.input, request.deferred_tools);
        let is_formed = answer.is_some();
        let outline = Outline::of(&arranged.input);
        let prompt = arranged.write(&convention, answer, open, &shown, &request.client.salt, maximum).await?;
        let count = prompt.tokens.len();
        let input_tokens = u32::try_from(count).unwrap_or(u32::MAX);
        if input_tokens > maximum {
            return Err(prompt_too_long(count, maximum));
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
        let ends_of_infill = convention.infill.as_ref().filter(|_| is_infill).map(|infill| infill.ends.as_slice());
        let max_tokens = request.max_tokens.map_or(room, |tokens| tokens.min(room));
        let budget = thinking::budget(tokens, request.effort, is_formed, &target.answers.efforts, max_tokens);
        let job = Job {
            client: request.client.share,
            salt: request.client.salt,
            media: shown.media(&self.media, request.client.share, &prompt.spans, &target)?,
            tokens: prompt.tokens,
            max_tokens,
            seed: request.sampling.seed.unwrap_or_else(|| fastrand::u64(..)),
            stages: sampling::stages(&request.sampling, target.samplers.as_deref()),
            stop_tokens: [&convention.end_of_turn, ends_of_infill.unwrap_or_default()].concat(),
            stops,
            logprobs: request.logprobs,
            grammar: prompt.spec,
            thinking: prompt.thinking.map(|thinking| Box::new(Thinking { budget, ..thinking })),
            adapter: request.adapter.or_of_model(target.adapter.clone())?,
            ..Job::default()
        };
        Ok(PreparedJob {
            fleet: self.fleet.clone(),
            target,
            input_tokens,
            job,
            clamped: request.max_tokens.is_none_or(|tokens| tokens > room),
            client_stops,
            convention,
            reading: prompt.reading,
            history: self.history.clone(),
            outline: Some(outline),
        })
    }

    /// The input with the tools of its conversation where earlier requests had them.
    fn arranged(&self, client: u64, target: &Target, input: Input, deferred: Vec<Tool>) -> ArrangedInput {
        let Input::Chat(conversation) = input else { return ArrangedInput { input, deferred, bare: None } };
        let Arranged { conversation, deferred, bare } =
            self.toolboxes.arrange(client, &target.id, conversation, deferred);
        ArrangedInput { input: Input::Chat(conversation), deferred, bare: bare.map(Input::Chat) }
    }

    /// Converts formats of custom tools to regular expressions, in order, or returns why one has none. Fails only if no
    /// process could be asked at all.
    pub async fn expressions(&self, client: &Client, formats: &[(Syntax, &str)]) -> Result<Vec<Expressed>, Failure> {
        self.grammars.expressions(client, formats).await
    }

    /// Returns the number of tokens in a request's prompt, even if it does not fit, unless its size in bytes alone proves
    /// that. It is exact, but for upstreams that cannot count.
    pub async fn count(&self, request: Request) -> Result<Count, Failure> {
        self.permit(&request.client, &request.model)?;
        if let Some(elsewhere) = self.fleet.elsewhere(&request.model)? {
            return self.upstreams.count(&elsewhere, &request).await;
        }
        let target = self.fleet.target(&request.model).await?;
        check_tokens(&request, target.card.vocabulary)?;
        let convention = self.conventions.of(&target).await?;
        let maximum = target.context.saturating_sub(1);
        size::check(&request.input, &convention.vocabulary, maximum)?;
        let shown = self.shown(&target, &request.client, &request.images, &request.input, Depth::Measured).await?;
        let arranged =
            self.arranged(request.client.id, &target, request.input, request.deferred_tools).without_own_tools();
        let prompt = arranged.write(&convention, None, false, &shown, &request.client.salt, maximum).await?;
        let tokens = u32::try_from(prompt.tokens.len()).unwrap_or(u32::MAX);
        Ok(Count { tokens, is_estimate: false })
    }
}

/// An input that is ready to be written.
struct ArrangedInput {
    input: Input,
    deferred: Vec<Tool>,
    /// The client's own, to be written if the prompt is too long.
    bare: Option<Input>,
}

impl ArrangedInput {
    /// Without tools that the request does not have: clients count a conversation without them to learn what they cost.
    fn without_own_tools(self) -> Self {
        let Some(bare) = self.bare else { return self };
        Self { input: bare, deferred: Vec::new(), bare: None }
    }

    async fn write(
        self,
        convention: &Arc<Convention>,
        answer: Option<Part>,
        open: bool,
        shown: &ShownImages,
        salt: &[u8],
        tokens_max: u32,
    ) -> Result<Prompt, Failure> {
        let Self { input, deferred, bare } = self;
        let Some(bare) = bare else { return write(convention, input, deferred, answer, open, shown, salt).await };
        let prompt = write(convention, input, deferred, answer.clone(), open, shown, salt).await?;
        if prompt.tokens.len() <= tokens_max as usize {
            return Ok(prompt);
        }
        write(convention, bare, Vec::new(), answer, open, shown, salt).await
    }
}

/// Renders and tokenizes the prompt.
async fn write(
    convention: &Arc<Convention>,
    input: Input,
    deferred_tools: Vec<Tool>,
    answer: Option<Part>,
    open: bool,
    shown: &ShownImages,
    salt: &[u8],
) -> Result<Prompt, Failure> {
    let tokens = match input {
        Input::Chat(conversation) => {
            return converse(convention, conversation, deferred_tools, answer, open, shown, salt).await;
        }
        Input::Text(text) => convention.renderer.text(text, salt.to_vec()).await?,
        Input::Infill { prefix, suffix } => {
            let Some(infill) = &convention.infill else { return Err(infill::unknown()) };
            convention.renderer.text(infill.write(&prefix, &suffix), salt.to_vec()).await?
        }
        Input::Tokens(tokens) => tokens,
    };
    if tokens.is_empty() {
        return Err(Failure::new(FailureCode::Invalid, "the prompt is empty").at("prompt"));
    }
    let opened = |answer: Part| if open { Part { grammar: answer.grammar.opened(), ..answer } } else { answer };
    let spec = answer.map(|answer| Spec { reasoning: None, rules: vec![Rule::from_start(opened(answer), Then::Stop)] });
    let reading = Reading { is_taught: false, tools: Arc::new([]), thoughts: Thoughts::Never };
    Ok(Prompt { tokens, spans: Vec::new(), spec, thinking: None, reading })
}

/// Renders and tokenizes a conversation.
async fn converse(
    convention: &Arc<Convention>,
    mut conversation: Conversation,
    deferred_tools: Vec<Tool>,
    answer: Option<Part>,
    open: bool,
    shown: &ShownImages,
    salt: &[u8],
) -> Result<Prompt, Failure> {
    let has_deferred = !deferred_tools.is_empty();
    let tools = [conversation.tools.clone(), deferred_tools].concat();
    let choice = match conversation.tool_choice.clone() {
        ToolChoice::Auto if tools.iter().all(|tool| tool.barred) => ToolChoice::None,
        choice => choice,
    };
    // A tool that is asked for by name is called once, as by OpenAI.
    let single = conversation.single_call || matches!(choice, ToolChoice::Named(_));
    check(&tools, &choice)?;
    let continues = conversation.turns.last().is_some_and(|turn| turn.role == Role::Assistant);
    let (dialect, in_words) = convention.dialect(&mut conversation, has_deferred);
    let is_taught = in_words.is_some();
    let prompt = convention.renderer.conversation(conversation, in_words, shown.texts(), salt.to_vec()).await?;
    let PromptTokens { tokens, items: spans } = prompt;
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
        open,
    };
    let spec = rules.spec();
    let thinking = dialect.conclusions.thinking(thoughts, !tools.is_empty(), &choice);
    let callable = tools.iter().filter(|tool| choice != ToolChoice::None && !tool.barred);
    let tools: Vec<Signature> = callable.map(Signature::of).collect();
    Ok(Prompt { tokens, spans, spec, thinking, reading: Reading { is_taught, tools: tools.into(), thoughts } })
}

/// Checks that a model can write text.
fn check_generates(target: &Target) -> Result<(), Failure> {
    let Some(rows) = target.card.rows().filter(|rows| !rows.generates) else { return Ok(()) };
    let path = match rows.kind {
        Kind::Embed => "/v1/embeddings",
        Kind::Rank => "/v1/rerank",
        Kind::Classify => "/v1/classify",
    };
    let message = format!("'{}' {} and writes no text", target.id, rows.kind.verb());
    Err(Failure::new(FailureCode::Unsupported, message).at("model").with_help(format!("use {path}")))
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
        ToolChoice::Any if tools.iter().all(|tool| tool.barred) => {
            "a tool must be called, and there are none that may be".to_owned()
        }
        ToolChoice::Named(name) if !tools.iter().any(|tool| tool.name == *name) => {
            format!("the tool '{name}' must be called, and it is not among the tools")
        }
        _ => return Ok(()),
    };
    Err(Failure::new(FailureCode::Invalid, message))
}
