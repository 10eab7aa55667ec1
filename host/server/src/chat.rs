//! What a client wants of a model and what it gets back, in the words of no API: dialects turn their JSON into a
//! [`Request`], and [`Delta`]s into theirs; `prompt` stands between them and the fleet. Texts here are for people; only
//! below `prompt` are they tokens.

pub use pensieve_protocol::conversation::{Conversation, Part, Role, Tool, ToolChoice, Turn};

use pensieve_protocol::{
    grammar::Grammar,
    job::{AdapterUse, Failure, FailureCode, Finish, StageSpec, Usage},
};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Client {
    /// Equal for requests with the same key.
    pub id: u64,
    /// Clients take turns and have shares of what is limited: this is a key at an address, or [`ONLY_CLIENT`] where a server
    /// can have no other.
    ///
    /// [`ONLY_CLIENT`]: pensieve_protocol::share::ONLY_CLIENT
    pub share: u64,
    /// Keeps the cached prompts of one key out of reach of others.
    pub salt: Vec<u8>,
}

/// One generation that a client asks for. Dialects have checked every number's range.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    /// The model, as the client calls it; an adapter may stand behind a colon.
    pub model: String,
    pub client: Client,
    pub input: Input,
    /// How many tokens to generate at most; none for as many as fit. More than fit is as many as fit.
    pub max_tokens: Option<u32>,
    pub sampling: SamplingParams,
    /// Strings that end the generation and are not shown.
    pub stops: Vec<String>,
    /// Report log-probabilities, and those of this many of the most likely tokens in each place.
    pub logprobs: Option<u8>,
    /// What the answer must look like. Tool calls have rules of their own.
    pub format: ResponseFormat,
    /// The adapter, as far as the client says more of it than the model's id does.
    pub adapter: AdapterSelection,
}

/// What a client says of an adapter beside the model's id.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AdapterSelection {
    /// Which; none for the one in the model's id.
    pub name: Option<String>,
    /// How strongly; none for as strongly as the model's id says, which is as trained for most.
    pub scale: Option<f32>,
}

impl AdapterSelection {
    /// The adapter that is meant where the model's id stands for this one; an error if there is a strength of nothing.
    pub fn beside(self, own: Option<AdapterUse>) -> Result<Option<AdapterUse>, Failure> {
        match (self.name, self.scale, own) {
            (Some(name), scale, _) => Ok(Some(AdapterUse { name, scale: scale.unwrap_or(1.0) })),
            (None, Some(scale), Some(own)) => Ok(Some(AdapterUse { scale, ..own })),
            (None, Some(_), None) => {
                let message = "there is no adapter, neither beside it nor in the model's id";
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
    Tokens(Vec<u32>),
}

/// How tokens are picked. None is the model's own default, or else the neutral value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SamplingParams {
    /// 0 takes the most likely token.
    pub temperature: Option<f32>,
    /// 0 for all tokens.
    pub top_k: Option<u32>,
    pub top_p: Option<f32>,
    /// Among those at least so likely as this part of the most likely one.
    pub min_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
    pub presence_penalty: Option<f32>,
    pub frequency_penalty: Option<f32>,
    pub logit_bias: Vec<(u32, f32)>,
    /// Equal seeds give equal texts; none for a new one each time.
    pub seed: Option<u64>,
    /// A chain of samplers by name, instead of all the above but the seed.
    pub stages: Option<Vec<StageSpec>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ResponseFormat {
    #[default]
    Free,
    /// A text of this grammar, from its first byte to its last.
    Grammar {
        grammar: Grammar,
        /// The field of the request that has it, for errors.
        field: String,
    },
}

/// A piece of an answer, in order. Text, thinking and tool calls may alternate; one is open at a time, and each piece
/// belongs to the one that was begun last. Nothing follows [`Delta::Finished`] or [`Delta::Failed`].
#[derive(Clone, Debug, PartialEq)]
pub enum Delta {
    Loading {
        /// Bytes or steps done.
        done: u64,
        /// Bytes or steps in all; 0 for unknown.
        total: u64,
        what: String,
    },
    /// The prompt is about to be computed.
    Started {
        /// Tokens of it that need not be computed.
        reused_tokens: u32,
    },
    Prompt {
        computed: u32,
        total: u32,
    },
    Thinking(String),
    /// More of the answer. Whole characters only; may be empty where there are only log-probabilities.
    Text {
        text: String,
        /// One per token, if the request asked for them.
        logprobs: Vec<TokenLogprob>,
    },
    ToolCall {
        /// Names the call; unique in the conversation: 24 letters and digits, before which dialects put what they like.
        id: String,
        name: String,
    },
    /// More of the JSON text of the call's arguments.
    ToolArguments(String),
    Finished {
        reason: Finish,
        usage: Usage,
    },
    Failed(Failure),
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenLogprob {
    pub id: u32,
    /// Its bytes; half a character is possible.
    pub bytes: Vec<u8>,
    pub logprob: f32,
    /// The most likely tokens in its place, the most likely first; their own lists are empty.
    pub top: Vec<TokenLogprob>,
}

impl Default for Input {
    fn default() -> Self {
        Self::Text(String::new())
    }
}
