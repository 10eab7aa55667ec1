//! What the author of a model family writes: an [`Architecture`] that describes and loads checkpoints, and a [`Model`].
//!
//! These are the contract's types in plain Rust. A batch that reaches [`Model::forward`] has been checked against the
//! model's own [`Resident`]: ids, lengths, block tables and the room for logits are right, so that an author need not.
//! Most authors do not write a `Model` at all: `nn::Paged` makes one out of a decoder.

use crate::{AdapterData, Batch, Error, Merged, Outputs, Result, Services};
use std::path::{Path, PathBuf};

/// A model family.
pub trait Architecture: Send + Sync + 'static {
    /// Its name: `llama`.
    fn name(&self) -> &'static str;

    /// Values of `general.architecture` in the GGUF files that it claims.
    fn gguf(&self) -> &'static [&'static str] {
        &[]
    }

    /// Values of `architectures` in the `config.json` files that it claims.
    fn classes(&self) -> &'static [&'static str] {
        &[]
    }

    /// Reads headers and tokenizer, never the weights. [`Error::declined`] passes the checkpoint on to the next claimant.
    fn describe(&self, source: &Source) -> Result<Card>;

    /// Loads the checkpoint.
    fn load(&self, request: &LoadRequest, services: &Services) -> Result<Box<dyn Model>>;

    /// Whether it can load a checkpoint with adapters added to its weights (`merge/1`).
    fn merges(&self) -> bool {
        false
    }

    /// Does so. What does not fit is an error that names the tensor.
    fn load_merged(&self, request: &LoadRequest, services: &Services, merged: &[Merged]) -> Result<Box<dyn Model>> {
        let _ = (request, services, merged);
        Err(Error::unsupported("this architecture merges no adapters"))
    }
}

/// A loaded model: weights and the states of the sequences that it is computing. One thread drives it.
pub trait Model: Send {
    /// What it occupies and what it can take.
    fn resident(&self) -> Resident;

    /// Computes one step: the new tokens of every span. `logits` holds the wanted rows, in order.
    fn forward(&mut self, batch: &Batch<'_>, logits: &mut [f32]) -> Result<()>;

    /// Computes one step of which rows are wanted that are not all logits. A model that leaves this as it is has its candidates
    /// chosen out of its logits, and gives no hidden rows.
    fn forward_to(&mut self, batch: &Batch<'_>, outputs: &mut Outputs<'_>) -> Result<()> {
        outputs.fill_from_logits(batch, |batch, logits| self.forward(batch, logits))
    }

    /// Forgets what it keeps under a sequence's id; one it does not know is no error. A model whose caches are all in blocks
    /// and slots does nothing.
    fn release(&mut self, sequence: u64);

    /// Takes in an adapter and names it by an id above 0.
    fn attach(&mut self, adapter: &AdapterData) -> Result<u32> {
        let _ = adapter;
        Err(Error::unsupported("this architecture takes no adapters"))
    }

    /// Drops an adapter that no sequence uses any more.
    fn detach(&mut self, adapter: u32) -> Result<()> {
        Err(Error::not_found(format!("no adapter {adapter} is attached")))
    }

    /// The ability to copy blocks out and in (`kv-transfer/1`).
    fn kv_transfer(&mut self) -> Option<&mut dyn KvTransfer> {
        None
    }

    /// The ability to copy whole sequences (`sequence-state/1`).
    fn sequence_state(&mut self) -> Option<&mut dyn SequenceState> {
        None
    }
}

/// Copies blocks and slots out of a model's memory and back. Groups and ids are in range.
pub trait KvTransfer {
    /// The length of an exported block or slot of a group.
    fn bytes(&self, group: usize) -> usize;
    /// Copies block or slot `id` into `bytes`, which has that length.
    fn export(&self, group: usize, id: u32, bytes: &mut [u8]) -> Result<()>;
    /// Overwrites block or slot `id` with `bytes`, which has that length.
    fn import(&mut self, group: usize, id: u32, bytes: &[u8]) -> Result<()>;
}

/// Copies whole sequences of an opaque model.
pub trait SequenceState {
    /// Makes `to`, a new sequence, equal to `from`.
    fn fork(&mut self, from: u64, to: u64) -> Result<()>;
    /// The state as bytes.
    fn snapshot(&self, sequence: u64) -> Result<Vec<u8>>;
    /// Makes a new sequence out of a snapshot; the bytes are checked.
    fn restore(&mut self, sequence: u64, bytes: &[u8]) -> Result<()>;
}

/// Where a checkpoint lies.
#[derive(Clone, Debug)]
pub struct Source {
    /// A `.gguf` file, or a folder with `config.json` and safetensors.
    pub path: PathBuf,
    /// A JSON object of settings of this architecture's own; empty for none.
    pub options: String,
}

impl Source {
    /// A source without options.
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self { path: path.as_ref().to_path_buf(), options: String::new() }
    }
}

/// What a host wants loaded.
#[derive(Clone, Debug)]
pub struct LoadRequest {
    /// The checkpoint.
    pub source: Source,
    /// `auto`, `cpu`, `cuda:0`, `metal:0`, `cuda:0+cuda:1`.
    pub device: String,
    /// The longest sequence, in tokens; 0 for the card's.
    pub context: u32,
    /// How many bytes the blocks and slots of all groups may take.
    pub state_bytes: u64,
    /// How many CPU threads may compute; 0 for the machine's cores.
    pub threads: u32,
}

/// How a group of layers remembers. A model has one opaque group, or any number of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// In blocks of tokens that the host deals out, `bytes` each over all layers of the group.
    Tokens {
        /// Bytes of a block.
        bytes: u64,
    },
    /// In such blocks, of which a token reads the last `tokens` tokens, its own included.
    Window {
        /// Tokens that a token reads.
        tokens: u32,
        /// Bytes of a block.
        bytes: u64,
    },
    /// In slots that the host deals out; each holds the whole past up to one token.
    State {
        /// Bytes of a slot.
        bytes: u64,
    },
    /// By itself, under the sequence's id.
    Opaque {
        /// Bytes of one sequence, at the card's context if it grows.
        bytes: u64,
    },
}

impl Cache {
    /// How many of a sequence's first blocks a step after `past` tokens does not read.
    pub fn blocks_behind(self, past: usize, block_tokens: usize) -> usize {
        match self {
            Self::Window { tokens, .. } => (past + 1).saturating_sub(tokens as usize) / block_tokens.max(1),
            _ => 0,
        }
    }
}

/// What a host knows of a checkpoint that is not loaded.
#[derive(Clone, Debug)]
pub struct Card {
    /// The architecture's name.
    pub architecture: String,
    /// The length of a row of logits.
    pub vocabulary: u32,
    /// The longest sequence that the checkpoint was made for.
    pub context: u32,
    /// Tokens in a block: the grid of all caches.
    pub block_tokens: u32,
    /// How it remembers sequences, group by group.
    pub caches: Vec<Cache>,
    /// The length of a row of [`Output::Hidden`](crate::Output::Hidden); 0 for a model that gives none.
    pub hidden: u32,
    /// Bytes of scratch that one token of a batch needs.
    pub token_bytes: u64,
    /// Bytes of the weights once loaded.
    pub weight_bytes: u64,
    /// The text of a `tokenizer.json`.
    pub tokenizer: String,
    /// The chat template, in Jinja.
    pub chat_template: Option<String>,
    /// The token that opens a text.
    pub bos: Option<u32>,
    /// Whether a text must be opened with it.
    pub add_bos: bool,
    /// The tokens that end a turn.
    pub eos: Vec<u32>,
    /// A JSON object: how tool calls and reasoning are written, where the template does not tell.
    pub formats: String,
    /// A JSON object of facts for people.
    pub facts: String,
    /// Names caches of the model's states: another one for other weights or another tokenizer.
    pub fingerprint: String,
}

/// What a loaded model occupies and what it can take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resident {
    /// The device that was taken.
    pub device: String,
    /// Why, and which kernels run, for a person.
    pub note: String,
    /// Bytes of weights there, those of attached adapters included.
    pub weight_bytes: u64,
    /// Bytes of blocks, slots or opaque states there.
    pub state_bytes: u64,
    /// The length of a row of logits.
    pub vocabulary: u32,
    /// The length of a hidden row; 0 for none.
    pub hidden: u32,
    /// The longest sequence, in tokens.
    pub context: u32,
    /// Tokens in a block.
    pub block_tokens: u32,
    /// The groups of the card, and how many blocks or slots of each there are; of an opaque group how many sequences may live
    /// at once, and 0 for no limit but memory.
    pub caches: Vec<(Cache, u32)>,
}
