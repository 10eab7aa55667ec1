//! A model family: it reads a checkpoint's headers into a card, and loads it into a model.

use abi_stable::{
    StableAbi, sabi_trait,
    std_types::{RBox, ROption, RResult, RStr, RString, RVec},
};

use crate::{AdapterData, Batch, CacheGroup, Extension, Outputs, PluginError, ServicesArc};

/// Where a checkpoint lies.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct Source<'a> {
    /// A `.gguf` file, or a folder with `config.json` and safetensors.
    pub path: RStr<'a>,
    /// A JSON object of settings that only this architecture knows, from the host's configuration; empty for none.
    pub options: RStr<'a>,
}

/// What a host wants loaded.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct LoadRequest<'a> {
    /// The checkpoint.
    pub source: Source<'a>,
    /// `auto`, `cpu`, `cuda:0`, `metal:0`, or several as `cuda:0+cuda:1` or `cuda:all`. By name, a device that is missing is an
    /// error; `auto` takes the best that works.
    pub device: RStr<'a>,
    /// The longest sequence, in tokens; 0 for the card's.
    pub context: u32,
    /// How many bytes the blocks and slots of all groups may take; the model divides them among its groups.
    pub state_bytes: u64,
    /// How many CPU threads may compute; 0 for the machine's cores.
    pub threads: u32,
}

/// What a host knows of a checkpoint that is not loaded: enough to route, to count tokens and to plan memory.
#[repr(C)]
#[derive(StableAbi, Clone, Debug)]
pub struct Card {
    /// The architecture that will load it: `llama`.
    pub architecture: RString,
    /// Tokens in the vocabulary: the length of a row of logits.
    pub vocabulary: u32,
    /// The longest sequence that the checkpoint was made for.
    pub context: u32,
    /// Tokens from one border of the caches' grid to the next, at least 1: the length of a block.
    pub block_tokens: u32,
    /// How it remembers sequences, group by group.
    pub caches: RVec<CacheGroup>,
    /// The most candidates that a row of [`crate::Output::CANDIDATES`] can have; 0 for a model that makes none.
    pub candidates: u32,
    /// The length of a row of [`crate::Output::HIDDEN`]; 0 for a model that gives none.
    pub hidden: u32,
    /// Bytes of scratch that one token of a batch needs.
    pub token_bytes: u64,
    /// Bytes of the weights once loaded.
    pub weight_bytes: u64,
    /// The text of a `tokenizer.json`.
    pub tokenizer: RString,
    /// The chat template, in Jinja.
    pub chat_template: ROption<RString>,
    /// The token that opens a text.
    pub bos: ROption<u32>,
    /// Whether a text must be opened with it.
    pub add_bos: bool,
    /// The tokens that end a turn.
    pub eos: RVec<u32>,
    /// A JSON object: how tool calls and reasoning are written, where the chat template does not tell; empty for unknown.
    pub formats: RString,
    /// A JSON object of facts for people: name, parameters, quantization.
    pub facts: RString,
    /// Names caches of the model's states: another one for other weights or another tokenizer.
    pub fingerprint: RString,
}

/// What a loaded model occupies.
#[repr(C)]
#[derive(StableAbi, Clone, Debug)]
pub struct Resident {
    /// The device that was taken: `cpu`, `metal:0`.
    pub device: RString,
    /// Why it was taken and which kernels run, for a person.
    pub note: RString,
    /// Bytes of weights there, those of attached adapters included: a host learns an adapter's size by asking before and
    /// after.
    pub weight_bytes: u64,
    /// Bytes of blocks, slots or opaque states there.
    pub state_bytes: u64,
    /// For each group of the card, in its order: how many blocks or slots there are, whose ids run from 0 up to this; of an
    /// opaque group how many sequences may live at once, and 0 for as many as memory holds.
    pub places: RVec<u32>,
    /// The longest sequence, in tokens.
    pub context: u32,
}

/// A model family.
#[sabi_trait]
pub trait Architecture: Send + Sync {
    /// `[any thread]` Reads headers and tokenizer, never the weights. [`crate::ErrorCode::DECLINED`] passes the checkpoint on to the
    /// next claimant.
    fn describe(&self, source: &Source<'_>) -> RResult<Card, PluginError>;

    /// `[control thread]` Loads the checkpoint. Reports progress, and gives up with [`crate::ErrorCode::CANCELLED`] soon after the
    /// services say so. The services may be kept for the model's life.
    fn load(&self, request: &LoadRequest<'_>, services: ServicesArc) -> RResult<ModelBox, PluginError>;

    /// `[any thread]` An ability beyond contract 1. The functions of its table take this object first.
    #[sabi(last_prefix_field)]
    fn extension(&self, id: RStr<'_>) -> ROption<Extension>;
}

/// A loaded model: weights and the states of the sequences that it is computing. Dropping it frees both.
#[sabi_trait]
pub trait Model: Send {
    /// `[engine thread, loaded]` What it occupies.
    fn resident(&self) -> Resident;

    /// `[engine thread, loaded]` Computes one step. `outputs` has room for exactly the wanted rows, in the order of the spans and
    /// of the tokens within them. Batch and outputs belong to the host. A batch that breaks the rules of [`Batch`] is
    /// [`crate::ErrorCode::INVALID`], and changes no sequence.
    fn forward(&mut self, batch: &Batch<'_>, outputs: &mut Outputs<'_>) -> RResult<(), PluginError>;

    /// `[engine thread, loaded]` Takes in an adapter, which the model copies, and names it by an id other than
    /// [`crate::NO_ADAPTER`]. An adapter that does not fit is an error that names the tensor.
    fn attach(&mut self, adapter: &AdapterData) -> RResult<u32, PluginError>;

    /// `[engine thread, loaded]` Drops an adapter. The host has no sequence left that uses it.
    fn detach(&mut self, adapter: u32) -> RResult<(), PluginError>;

    /// `[engine thread, loaded]` Forgets what it keeps under a sequence's id; one that it does not know is no error. Blocks and
    /// slots are the host's to reuse.
    fn release(&mut self, sequence: u64);

    /// `[engine thread, loaded]` An ability beyond contract 1. The functions of its table take this object first.
    #[sabi(last_prefix_field)]
    fn extension(&self, id: RStr<'_>) -> ROption<Extension>;
}

/// An architecture as it crosses.
pub type ArchitectureBox = Architecture_TO<'static, RBox<()>>;
/// A model as it crosses.
pub type ModelBox = Model_TO<'static, RBox<()>>;
