//! Model families: an architecture describes a checkpoint by a card, and loads it into a model.

use abi_stable::{
    StableAbi, sabi_trait,
    std_types::{RBox, ROption, RResult, RStr, RString, RVec},
};

use crate::{AdapterData, Batch, CacheGroup, Extension, Outputs, PluginError, ServicesArc};

/// A checkpoint on disk, and how to read it.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct Source<'a> {
    /// A `.gguf` file, or a folder with `config.json` and safetensors.
    pub path: RStr<'a>,
    /// Settings specific to this architecture, from the host's configuration: a JSON object, or empty.
    pub options: RStr<'a>,
}

/// A checkpoint, and the resources to load it with.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct LoadRequest<'a> {
    /// The checkpoint that was described.
    pub source: Source<'a>,
    /// `auto`, `cpu`, `cuda:0`, `metal:0`, or several as `cuda:0+cuda:1` or `cuda:all`. Naming a missing device is an
    /// error; `auto` takes the best one that works.
    pub device: RStr<'a>,
    /// The longest sequence, in tokens; 0 for the card's context.
    pub context: u32,
    /// Bytes for the blocks and slots of all cache groups; the model divides them among its groups.
    pub state_bytes: u64,
    /// CPU threads to compute with; 0 for all cores.
    pub threads: u32,
}

/// A description of a checkpoint that is not loaded: enough to route requests, count tokens and plan memory.
#[repr(C)]
#[derive(StableAbi, Clone, Debug)]
pub struct Card {
    /// The architecture that will load it: `llama`.
    pub architecture: RString,
    /// Vocabulary size: the length of a row of logits.
    pub vocabulary: u32,
    /// The longest sequence that the checkpoint supports, in tokens.
    pub context: u32,
    /// Tokens in a block, at least 1; the grid of all cache groups.
    pub block_tokens: u32,
    /// Its cache groups.
    pub caches: RVec<CacheGroup>,
    /// Maximum number of candidates in a row of [`crate::Output::CANDIDATES`]; 0 if unsupported.
    pub candidates: u32,
    /// The length of a row of [`crate::Output::HIDDEN`]; 0 if unsupported.
    pub hidden: u32,
    /// Scratch bytes per token of a batch.
    pub token_bytes: u64,
    /// Bytes of the loaded weights: all that a step may read, and that has to fit memory therefore. A table that stays in
    /// its file, of which a step reads a few rows, does not count; facts may give its size as `mapped_bytes`.
    pub weight_bytes: u64,
    /// Contents of a `tokenizer.json`.
    pub tokenizer: RString,
    /// The chat template, in Jinja.
    pub chat_template: ROption<RString>,
    /// The token that begins a text (BOS).
    pub bos: ROption<u32>,
    /// Whether texts must begin with it.
    pub add_bos: bool,
    /// The tokens that end a turn.
    pub eos: RVec<u32>,
    /// How the model writes tool calls and reasoning, if the chat template does not show it: a JSON object, or empty.
    pub formats: RString,
    /// Facts for display, such as name, parameters and quantization: a JSON object.
    pub facts: RString,
    /// Identifies cached states: differs for different weights or another tokenizer.
    pub fingerprint: RString,
}

/// A loaded model's device and memory.
#[repr(C)]
#[derive(StableAbi, Clone, Debug)]
pub struct Resident {
    /// The device in use: `cpu`, `metal:0`.
    pub device: RString,
    /// Why it was chosen and which kernels run, for display.
    pub note: RString,
    /// Bytes of weights as in [`Card::weight_bytes`], attached adapters included: a host learns an adapter's size by asking before and after.
    pub weight_bytes: u64,
    /// Bytes of blocks, slots or opaque states.
    pub state_bytes: u64,
    /// For each group of the card, in order: the number of blocks or slots, whose ids start at 0; for an opaque group
    /// the number of sequences alive at once, or 0 for as many as fit in memory.
    pub places: RVec<u32>,
    /// The longest sequence, in tokens.
    pub context: u32,
}

/// A model family, such as Llama: a factory of its models.
#[sabi_trait]
pub trait Architecture: Send + Sync {
    /// `[any thread]` Reads headers and tokenizer, never the weights. [`crate::ErrorCode::DECLINED`] passes the
    /// checkpoint to the next claimant.
    fn describe(&self, source: &Source<'_>) -> RResult<Card, PluginError>;

    /// `[control thread]` Loads the checkpoint. Reports progress, and returns [`crate::ErrorCode::CANCELLED`] soon
    /// after the services report cancellation. The model may keep the services.
    fn load(&self, request: &LoadRequest<'_>, services: ServicesArc) -> RResult<ModelBox, PluginError>;

    /// `[any thread]` An extension by id. The functions of its table take this object as their first argument.
    #[sabi(last_prefix_field)]
    fn extension(&self, id: RStr<'_>) -> ROption<Extension>;
}

/// A loaded model: weights and the caches of its sequences. Dropping it frees both.
#[sabi_trait]
pub trait Model: Send {
    /// `[engine thread, loaded]` Returns its current device and memory.
    fn resident(&self) -> Resident;

    /// `[engine thread, loaded]` Computes one step. `outputs` has room for exactly the wanted rows, in the order of the
    /// spans and of the tokens within them. A batch that breaks the rules of [`Batch`] is
    /// [`crate::ErrorCode::INVALID`], and changes no sequence.
    ///
    /// The row of a token depends on that token and those before it in its sequence, and on no later one, unless an
    /// extension that the model offers says otherwise: a host may cut a prompt into steps where it likes.
    fn forward(&mut self, batch: &Batch<'_>, outputs: &mut Outputs<'_>) -> RResult<(), PluginError>;

    /// `[engine thread, loaded]` Copies an adapter into the model and returns an id for it other than
    /// [`crate::NO_ADAPTER`]. An adapter that does not fit is an error that names the tensor.
    fn attach(&mut self, adapter: &AdapterData) -> RResult<u32, PluginError>;

    /// `[engine thread, loaded]` Drops an adapter that no sequence uses any more.
    fn detach(&mut self, adapter: u32) -> RResult<(), PluginError>;

    /// `[engine thread, loaded]` Drops everything kept under a sequence's id; an unknown id is not an error. The host
    /// may reuse the sequence's blocks and slots.
    fn release(&mut self, sequence: u64);

    /// `[engine thread, loaded]` An extension by id. The functions of its table take this object as their first
    /// argument.
    #[sabi(last_prefix_field)]
    fn extension(&self, id: RStr<'_>) -> ROption<Extension>;
}

/// [`Architecture`] as it crosses the boundary.
pub type ArchitectureBox = Architecture_TO<'static, RBox<()>>;
/// [`Model`] as it crosses the boundary.
pub type ModelBox = Model_TO<'static, RBox<()>>;
