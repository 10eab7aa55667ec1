//! The traits of a model family: an [`Architecture`] describes and loads checkpoints, a [`Model`] computes.
//!
//! These are the contract's types in plain Rust. A batch that reaches [`Model::forward`] has been checked against the
//! model's own [`Resident`]: ids, lengths, block tables and the size of the outputs are valid. Most authors do not
//! implement `Model` at all: `nn::Paged` creates one from a decoder.

use std::{
    any::Any,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    AdapterData, Batch, Error, Measured, MediaItem, MediaSize, Merged, Outputs, Placement, Result, Services,
    abi::Extension,
};

/// A model family.
pub trait Architecture: Any + Send + Sync {
    /// The name in the plugin's manifest and in cards, such as `llama`.
    fn name(&self) -> &'static str;

    /// Values of `general.architecture` in the GGUF files that it claims.
    fn gguf(&self) -> &'static [&'static str] {
        &[]
    }

    /// Values of `architectures` in the `config.json` files that it claims.
    fn classes(&self) -> &'static [&'static str] {
        &[]
    }

    /// Reads headers and tokenizer, never the weights. [`Error::declined`] passes the checkpoint on to the next
    /// claimant.
    fn describe(&self, source: &Source) -> Result<Card>;

    /// Loads the checkpoint.
    fn load(&self, request: &LoadRequest, services: &Services) -> Result<Box<dyn Model>>;

    /// Describes what the checkpoint's hidden rows are for, as the JSON of the contract's `draft/rows/1`; empty if
    /// nothing is known.
    fn rows(&self, source: &Source) -> Result<String> {
        let _ = source;
        Ok(String::new())
    }

    /// Images and sounds in prompts (`media/1`), if the architecture reads some.
    fn media(&self) -> Option<&dyn Prepare> {
        None
    }

    /// Returns whether [`Architecture::load_merged`] is supported (`merge/1`).
    fn merges(&self) -> bool {
        false
    }

    /// Loads the checkpoint with adapters added to its weights. For an adapter that does not fit, the error names the
    /// tensor.
    fn load_merged(&self, request: &LoadRequest, services: &Services, merged: &[Merged]) -> Result<Box<dyn Model>> {
        let _ = (request, services, merged);
        Err(Error::unsupported("this architecture merges no adapters"))
    }

    /// An extension of the author's own ([`extension`](crate::extension)), if the architecture offers one of this id.
    fn extension(&self, id: &str) -> Option<Extension> {
        let _ = id;
        None
    }
}

/// A loaded model: weights and the states of its sequences. All calls come from one thread.
pub trait Model: Any + Send {
    /// Returns its memory and its limits.
    fn resident(&self) -> Resident;

    /// Computes one step: the new tokens of all spans. Fills `logits` with the wanted rows, in order.
    fn forward(&mut self, batch: &Batch<'_>, logits: &mut [f32]) -> Result<()>;

    /// Computes one step in which not all wanted rows are logits. The default picks candidates from the logits, and
    /// does not support hidden rows.
    fn forward_to(&mut self, batch: &Batch<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        outputs.fill_from_logits(batch, |batch, logits| self.forward(batch, logits))
    }

    /// Width of a row of [`Model::finish`]; 0 if nothing follows the pooling of hidden rows.
    fn finish_width(&self) -> usize {
        0
    }

    /// Computes what follows pooling: for each of the pooled `rows` one of [`Model::finish_width`] values. The lengths of
    /// both slices have been checked.
    fn finish(&mut self, rows: &[f32], out: &mut [f32]) -> Result<()> {
        let _ = (rows, out);
        Err(Error::unsupported("nothing follows the pooling of this model's hidden rows"))
    }

    /// Forgets a sequence; an unknown id is not an error. Nothing to do for models that keep all caches in blocks and
    /// slots.
    fn release(&mut self, sequence: u64);

    /// Attaches an adapter and returns its id, which is above 0.
    fn attach(&mut self, adapter: &AdapterData) -> Result<u32> {
        let _ = adapter;
        Err(Error::unsupported("this architecture takes no adapters"))
    }

    /// Removes an adapter that no sequence uses any more.
    fn detach(&mut self, adapter: u32) -> Result<()> {
        Err(Error::not_found(format!("no adapter {adapter} is attached")))
    }

    /// Copying of blocks (`kv-transfer/1`), if supported.
    fn kv_transfer(&mut self) -> Option<&mut dyn KvTransfer> {
        None
    }

    /// Copying of whole sequences (`sequence-state/1`), if supported.
    fn sequence_state(&mut self) -> Option<&mut dyn SequenceState> {
        None
    }

    /// Images and sounds in prompts (`media/1`), if the model reads some.
    fn media(&mut self) -> Option<&mut dyn Encode> {
        None
    }

    /// A record of what its threads do (`draft/timeline/1`), if the model keeps one.
    fn timeline(&mut self) -> Option<&mut dyn Timeline> {
        None
    }

    /// An extension of the author's own ([`extension`](crate::extension)), if the model offers one of this id.
    fn extension(&self, id: &str) -> Option<Extension> {
        let _ = id;
        None
    }
}

/// Records what a model's threads do.
pub trait Timeline {
    /// Begins to record; what was recorded before is dropped.
    fn start(&mut self);
    /// Ends the recording and returns it.
    fn finish(&mut self) -> Vec<TimelineSpan>;
}

/// A stretch of time of one thread. Times are since the recording began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimelineSpan {
    /// 0 is the thread that calls the model.
    pub thread: usize,
    /// What it worked on, such as a function's name; `None` while it waits for other threads.
    pub what: Option<String>,
    pub start: Duration,
    pub end: Duration,
}

/// Copies blocks and slots out of a model's memory and back. Groups and ids are in range.
pub trait KvTransfer {
    /// Length of an exported block or slot of a group.
    fn bytes(&self, group: usize) -> usize;
    /// Copies block or slot `id` into `bytes`, which has that length.
    fn export(&self, group: usize, id: u32, bytes: &mut [u8]) -> Result<()>;
    /// Overwrites block or slot `id` with `bytes`, which has that length.
    fn import(&mut self, group: usize, id: u32, bytes: &[u8]) -> Result<()>;
}

/// Copies whole sequences of an opaque model.
pub trait SequenceState {
    /// Copies the sequence `from` to the new sequence `to`.
    fn fork(&mut self, from: u64, to: u64) -> Result<()>;
    /// Returns the state as bytes.
    fn snapshot(&self, sequence: u64) -> Result<Vec<u8>>;
    /// Creates a new sequence from a snapshot, whose bytes an implementation must validate.
    fn restore(&mut self, sequence: u64, bytes: &[u8]) -> Result<()>;
}

/// Describes, measures and prepares items, without the weights.
pub trait Prepare {
    /// The description of a checkpoint, as the contract's JSON; an empty text if it reads text alone.
    fn describe(&self, source: &Source) -> Result<String>;

    /// An item's part of a prompt. `processor` is the description's member for this kind, as JSON.
    fn measure(&self, processor: &str, size: MediaSize) -> Result<Measured>;

    /// The bytes that [`Encode::open`] takes.
    fn prepare(&self, processor: &str, item: &MediaItem<'_>) -> Result<Vec<u8>>;
}

/// Computes the rows of prepared items, and puts them into sequences.
pub trait Encode {
    /// Takes an item under a handle that is not in use. The bytes may come from a damaged process.
    fn open(&mut self, handle: u64, size: MediaSize, layout: &[u8], prepared: &[u8]) -> Result<()>;

    /// Computes rows of these items for about `budget` microseconds, but at least one piece; returns the number of pieces
    /// left.
    fn encode(&mut self, handles: &[u64], budget: u32) -> Result<u32>;

    /// Replaces the items of a sequence by these, in order and disjoint.
    fn place(&mut self, sequence: u64, placements: &[Placement<'_>]) -> Result<()>;

    /// Drops an item; an unknown handle is not an error.
    fn close(&mut self, handle: u64);
}

/// The location of a checkpoint, and the architecture's options.
#[derive(Clone, Debug)]
pub struct Source {
    /// A `.gguf` file, or a folder with `config.json` and safetensors.
    pub path: PathBuf,
    /// A JSON object with settings of the architecture; empty for none.
    pub options: String,
}

impl Source {
    /// A source without options.
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self { path: path.as_ref().to_path_buf(), options: String::new() }
    }
}

/// A host's request to load a model.
#[derive(Clone, Debug)]
pub struct LoadRequest {
    /// The checkpoint to load.
    pub source: Source,
    /// `auto`, `cpu`, `cuda:0`, `metal:0`, `cuda:0+cuda:1`.
    pub device: String,
    /// The longest sequence, in tokens; 0 for the card's.
    pub context: u32,
    /// Limit on the bytes of all groups' blocks and slots.
    pub state_bytes: u64,
    /// Number of CPU threads; 0 for the machine's cores.
    pub threads: u32,
}

/// A kind of cache group. A model has one opaque group, or any number of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// Blocks of tokens that the host allocates; `bytes` is for all layers of the group.
    Tokens {
        /// Bytes of a block.
        bytes: u64,
    },
    /// The same, with a sliding window.
    Window {
        /// The window, including the token itself.
        tokens: u32,
        /// Bytes of a block.
        bytes: u64,
    },
    /// Slots that the host allocates, each with a recurrent state.
    State {
        /// Bytes of a slot.
        bytes: u64,
    },
    /// State that the model keeps itself, by the sequence's id.
    Opaque {
        /// Bytes of one sequence, at the card's context if it grows.
        bytes: u64,
    },
}

impl Cache {
    /// Number of a sequence's first blocks that a step after `past` tokens does not read.
    pub fn blocks_behind(self, past: usize, block_tokens: usize) -> usize {
        match self {
            Self::Window { tokens, .. } => (past + 1).saturating_sub(tokens as usize) / block_tokens.max(1),
            _ => 0,
        }
    }
}

/// The description of a checkpoint, made without loading it.
#[derive(Clone, Debug)]
pub struct Card {
    /// [`Architecture::name`].
    pub architecture: String,
    /// Logits per token.
    pub vocabulary: u32,
    /// The longest sequence that the checkpoint supports, in tokens.
    pub context: u32,
    /// Tokens in a block, for all groups.
    pub block_tokens: u32,
    /// The groups of caches.
    pub caches: Vec<Cache>,
    /// Width of a row of [`Output::Hidden`](crate::Output::Hidden); 0 if the model does not support them.
    pub hidden: u32,
    /// Scratch memory for each token of a batch.
    pub token_bytes: u64,
    /// Bytes of the weights once loaded.
    pub weight_bytes: u64,
    /// The text of a `tokenizer.json`.
    pub tokenizer: String,
    /// The chat template, in Jinja.
    pub chat_template: Option<String>,
    /// The token that opens a text.
    pub bos: Option<u32>,
    /// A text must begin with `bos`.
    pub add_bos: bool,
    /// The tokens that end a turn.
    pub eos: Vec<u32>,
    /// A JSON object with the forms of tool calls and reasoning, if the template does not show them.
    pub formats: String,
    /// A JSON object of facts to show to users.
    pub facts: String,
    /// Identifies weights and tokenizer, so that stored caches are used only with the model that made them.
    pub fingerprint: String,
}

/// The memory and the limits of a loaded model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resident {
    /// The device in use.
    pub device: String,
    /// The reason for the device, and the kernels in use, for the log.
    pub note: String,
    /// Bytes of the weights, attached adapters included.
    pub weight_bytes: u64,
    /// Bytes of blocks, slots or opaque states.
    pub state_bytes: u64,
    /// Logits per token.
    pub vocabulary: u32,
    /// Width of a hidden row; 0 if there are none.
    pub hidden: u32,
    /// The longest sequence, in tokens.
    pub context: u32,
    /// Tokens in a block.
    pub block_tokens: u32,
    /// The card's groups, each with its number of blocks or slots; for an opaque group the limit on sequences, 0 for no
    /// limit but memory.
    pub caches: Vec<(Cache, u32)>,
}
