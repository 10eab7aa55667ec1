//! What the author of a model family writes: an [`Architecture`] that describes and loads checkpoints, and a [`Model`].
//!
//! These are the contract's types in plain Rust. A batch that reaches [`Model::forward`] has been checked against the
//! model's own [`Resident`]: ids, lengths, block tables and the room for logits are right, so that an author need not.
//! Most authors do not write a `Model` at all: `nn::Paged` makes one out of a decoder.

use crate::{AdapterData, Error, Merged, Result, Services};
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

    /// Forgets a sequence; one it does not know is no error. Paged models that keep nothing per sequence do nothing.
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

/// Copies blocks out of a paged model's memory and back.
pub trait KvTransfer {
    /// The length of an exported block.
    fn block_bytes(&self) -> usize;
    /// Copies block `block`, which is in range, into `bytes`, which has that length.
    fn export(&self, block: u32, bytes: &mut [u8]) -> Result<()>;
    /// Overwrites block `block`, which is in range, with `bytes`, which has that length.
    fn import(&mut self, block: u32, bytes: &[u8]) -> Result<()>;
}

/// Copies the state of whole sequences of a per-sequence model.
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
    /// `auto`, `cpu`, `cuda:0`, `metal:0`.
    pub device: String,
    /// The longest sequence, in tokens; 0 for the card's.
    pub context: u32,
    /// How many bytes blocks or sequence states may take.
    pub state_bytes: u64,
    /// How many CPU threads may compute; 0 for the machine's cores.
    pub threads: u32,
}

/// How a model remembers a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateKind {
    /// In blocks of `tokens` tokens, `bytes` each over all layers, that the host deals out.
    Paged {
        /// Tokens in a block.
        tokens: u32,
        /// Bytes of a block.
        bytes: u64,
    },
    /// In a state of its own, of `bytes` bytes.
    PerSequence {
        /// Bytes of one sequence's state, at the length of the card's context if it grows.
        bytes: u64,
    },
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
    /// How it remembers sequences.
    pub state: StateKind,
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
    /// Bytes of blocks or sequence states there.
    pub state_bytes: u64,
    /// The length of a row of logits.
    pub vocabulary: u32,
    /// The longest sequence, in tokens.
    pub context: u32,
    /// How sequences are remembered, and how many.
    pub capacity: Capacity,
}

/// How many sequences or blocks a loaded model has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capacity {
    /// `blocks` blocks of `tokens` tokens.
    Blocks {
        /// How many; ids run from 0 up to this.
        blocks: u32,
        /// Tokens in each.
        tokens: u32,
    },
    /// This many sequences; 0 for no limit but memory.
    Sequences(u32),
}

/// For which tokens of a span the host wants logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// For none.
    None,
    /// For the last.
    Last,
    /// For all.
    All,
}

impl Want {
    /// How many rows of logits a span of `len` tokens yields.
    pub fn rows(self, len: usize) -> usize {
        match self {
            Self::None => 0,
            Self::Last => len.min(1),
            Self::All => len,
        }
    }
}

/// One step: the new tokens of many sequences, checked.
#[derive(Clone, Debug)]
pub struct Batch<'a> {
    /// All new tokens.
    pub tokens: &'a [u32],
    /// Their positions.
    pub positions: &'a [u32],
    /// The sequences that they belong to; they tile `tokens` in order.
    pub spans: Vec<Span<'a>>,
}

/// The new tokens of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    /// The sequence's name.
    pub sequence: u64,
    /// The index of its first new token in the batch.
    pub start: usize,
    /// How many new tokens; at least one.
    pub len: usize,
    /// How many tokens of it the model has already seen. A per-sequence model compares it with its own count and refuses
    /// what does not follow, with [`Error::invalid`].
    pub past: usize,
    /// For which tokens logits are wanted.
    pub want: Want,
    /// The adapter's id; 0 for none.
    pub adapter: u32,
    /// Its strength.
    pub adapter_scale: f32,
    /// Its blocks, enough for `past + len` tokens; empty for per-sequence models.
    pub blocks: &'a [u32],
}

impl Batch<'_> {
    /// The indices of the tokens whose logits are wanted, in order.
    pub fn wanted(&self) -> Vec<u32> {
        let mut rows = Vec::new();
        for span in &self.spans {
            let end = span.start + span.len;
            // Token counts of a batch arrived as u32.
            rows.extend((end - span.want.rows(span.len)..end).map(|row| row as u32));
        }
        rows
    }
}
