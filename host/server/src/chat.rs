//! Requests and answers independent of any API: dialects convert their JSON to a [`Request`], and [`Delta`]s back to
//! JSON; `requests` connects them to the fleet. Everything here is text; tokens exist only below `requests`.

mod cache;
mod context;
mod image;
mod unknown;

pub use cache::{CacheMiss, CacheReport, Divergence, DivergenceKind, EvictedBy, Eviction, MissKind};
pub use context::{AppliedEdit, ClearTrigger, ClearedInputs, Compaction, ContextEdit, ToolClearing};
pub use image::{Image, ImageFile};
pub use pensieve_protocol::conversation::{Conversation, Part, PlacedImage, Role, Tool, ToolChoice, Turn};
pub use unknown::{Form, Unknown, add_fields};

use std::{fmt::Display, sync::Arc};

use serde_json::{Map, Value};

use crate::keys::{Account, DEFAULT_NAME};

use pensieve_protocol::{
    grammar::Grammar,
    job::{AdapterUse, Failure, FailureCode, Finish, StageSpec, Usage},
};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Client {
    /// Equal for requests with the same key.
    pub id: u64,
    /// Identifies the client for fair scheduling and shares of limited resources: a key at an address, or
    /// [`ONLY_CLIENT`] on a server with a single client.
    ///
    /// [`ONLY_CLIENT`]: pensieve_protocol::share::ONLY_CLIENT
    pub share: u64,
    /// Separates the prefix cache by key.
    pub salt: Vec<u8>,
    /// Of a named key; `None` for one of the server's own, which may use everything.
    pub(crate) account: Option<Arc<Account>>,
}

impl Client {
    /// The name under which its usage is counted.
    pub(crate) fn key_name(&self) -> &str {
        self.account.as_ref().map_or(DEFAULT_NAME, |account| account.name())
    }
}

/// A generation that a client asks for. Dialects have checked the range of every number.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    /// The model name from the client, optionally `MODEL:ADAPTER`.
    pub model: String,
    pub client: Client,
    pub input: Input,
    /// The pictures that the conversation's turns show, by index.
    pub images: Vec<Arc<Image>>,
    /// Tools that may be called, in addition to those of the conversation, and that its turns describe.
    pub deferred_tools: Vec<Tool>,
    /// How the conversation is shortened if it has grown long.
    pub context: Vec<ContextEdit>,
    /// Maximum number of tokens to generate, capped at what fits the context; `None` for as many as fit.
    pub max_tokens: Option<u32>,
    /// `max_tokens` is this server's default, not the client's wish.
    pub limit_is_usual: bool,
    pub sampling: SamplingParams,
    /// Strings that end the generation and are not shown.
    pub stops: Vec<String>,
    /// Report log-probabilities, with this many of the most likely alternatives per position.
    pub logprobs: Option<u8>,
    /// Maximum number of tokens of reasoning, after which it is concluded; it takes precedence over `effort`.
    pub thinking_tokens: Option<u32>,
    /// The share of the answer's room that reasoning may take; `None` for no limit.
    pub effort: Option<Effort>,
    /// Constraint on the answer's text. Tool calls are constrained separately.
    pub format: ResponseFormat,
    /// Lets objects have properties that their schemas do not list; `None` as configured for the model.
    pub open_schemas: Option<bool>,
    /// Adapter settings outside of the model name.
    pub adapter: AdapterSelection,
    /// Fields of a chat completion that this server does not know, for an upstream that may.
    pub unknown: Map<String, Value>,
    /// The API that it came by.
    pub form: Form,
}

impl Request {
    /// With this server's default limit of tokens, if the client names none.
    #[must_use]
    pub fn or_usual_limit(self, usual: Option<u32>) -> Self {
        match self.max_tokens {
            Some(_) => self,
            None => Self { max_tokens: usual, limit_is_usual: usual.is_some(), ..self },
        }
    }
}

impl Input {
    /// The budget of reasoning among the template's variables, where Qwen's clients and Anthropic's have it.
    pub fn thinking_budget(&self) -> Option<u32> {
        let Self::Chat(conversation) = self else { return None };
        let budget = conversation.variables.get("thinking_budget")?.as_u64()?;
        Some(u32::try_from(budget).unwrap_or(u32::MAX))
    }
}

/// The refusal of a prompt without room for an answer. Clients recognize it by its words, and compact or say what to do:
/// Claude Code, opencode, Qwen Code and LangChain by the first half, LiteLLM, aider and pydantic-ai by the second.
pub fn prompt_too_long(tokens: impl Display, tokens_max: u32) -> Failure {
    let context = tokens_max.saturating_add(1);
    let first = format!("prompt is too long: {tokens} tokens > {tokens_max} maximum");
    let message = format!("{first}; this model's maximum context length is {context} tokens");
    Failure::new(FailureCode::TooLong, message)
}

/// How much reasoning a client asks for, in the APIs' words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    Minimal,
    Low,
    Medium,
    High,
    XHigh,
    Max,
}

impl Effort {
    pub const ALL: [(&'static str, Self); 6] = [
        ("minimal", Self::Minimal),
        ("low", Self::Low),
        ("medium", Self::Medium),
        ("high", Self::High),
        ("xhigh", Self::XHigh),
        ("max", Self::Max),
    ];

    /// `None` for a word that is no level, such as `none`.
    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.iter().find(|(name, _)| *name == word).map(|(_, effort)| *effort)
    }
}

/// Adapter settings of a request outside of the model name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AdapterSelection {
    /// `None` for the adapter in the model name.
    pub name: Option<String>,
    /// `None` for the configured strength, usually 1, which is as trained.
    pub scale: Option<f32>,
}

impl AdapterSelection {
    /// Combines these settings with the adapter from the model name (`own`). A scale without an adapter is an error.
    pub fn or_of_model(self, own: Option<AdapterUse>) -> Result<Option<AdapterUse>, Failure> {
        match (self.name, self.scale, own) {
            (Some(name), scale, _) => Ok(Some(AdapterUse { name, scale: scale.unwrap_or(1.0) })),
            (None, Some(scale), Some(own)) => Ok(Some(AdapterUse { scale, ..own })),
            (None, Some(_), None) => {
                let message = "the request names no adapter, neither here nor in the model's name";
                Err(Failure::new(FailureCode::Invalid, message).at("pensieve.adapter_scale"))
            }
            (None, None, own) => Ok(own),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    Chat(Conversation),
    Text(String),
    /// The text between these two, for models that were trained to fill in the middle.
    Infill {
        prefix: String,
        suffix: String,
    },
    Tokens(Vec<u32>),
}

/// Sampling parameters. `None` stands for the model's default, or else the neutral value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SamplingParams {
    /// 0 takes the most likely token.
    pub temperature: Option<f32>,
    /// 0 disables it.
    pub top_k: Option<u32>,
    pub top_p: Option<f32>,
    /// Minimum probability relative to the most likely token.
    pub min_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
    pub presence_penalty: Option<f32>,
    pub frequency_penalty: Option<f32>,
    pub logit_bias: Vec<(u32, f32)>,
    /// `None` for a new seed each time.
    pub seed: Option<u64>,
    /// A chain of samplers by name, which replaces all parameters above except the seed.
    pub stages: Option<Vec<StageSpec>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ResponseFormat {
    #[default]
    Free,
    /// The whole text must match this grammar.
    Grammar {
        grammar: Grammar,
        /// The request field that holds it, for errors.
        field: String,
    },
}

/// A piece of an answer, in order. Text, thinking and tool calls may alternate; one is open at a time, and each piece
/// belongs to the latest one. Nothing follows [`Delta::Finished`] or [`Delta::Failed`].
#[derive(Clone, Debug, PartialEq)]
pub enum Delta {
    Loading {
        /// Bytes or steps so far.
        done: u64,
        /// Bytes or steps in total; 0 if unknown.
        total: u64,
        what: String,
    },
    /// A summary was made of the conversation, and stands in its place.
    Compacted {
        /// `None` if the model gave no summary, and the conversation stays as it was.
        summary: Option<String>,
        /// Of making the summary.
        usage: Usage,
        /// The answer ends here.
        is_last: bool,
    },
    /// Prefill is about to start.
    Started {
        /// Prompt tokens found in the prefix cache.
        reused_tokens: u32,
    },
    Prompt {
        computed: u32,
        total: u32,
    },
    /// Where the prompt's tokens come from; follows [`Delta::Started`].
    Cache(CacheReport),
    Thinking(String),
    /// More of the answer, in whole characters; may be empty if there are only log-probabilities.
    Text {
        text: String,
        /// One per token, if the request asked for them.
        logprobs: Vec<TokenLogprob>,
    },
    ToolCall {
        /// Unique in the conversation: 24 letters and digits, to which dialects add their prefix.
        id: String,
        name: String,
    },
    /// More of the JSON text of the call's arguments.
    ToolArguments(String),
    /// Fields beside what follows, from an upstream of the client's own API.
    Unknown(Box<Unknown>),
    Finished {
        reason: Finish,
        usage: Usage,
    },
    Failed(Failure),
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenLogprob {
    pub id: u32,
    /// The token's bytes, possibly an incomplete character.
    pub bytes: Vec<u8>,
    pub logprob: f32,
    /// The most likely tokens at this position, in descending order; their own lists are empty.
    pub top: Vec<TokenLogprob>,
}

impl Default for Input {
    fn default() -> Self {
        Self::Text(String::new())
    }
}
