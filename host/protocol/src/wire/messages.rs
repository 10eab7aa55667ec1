//! Messages about a worker as a whole. Variants may only be added at the end, as frames contain their index.

use std::{path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    job::{Event, Failure, Job},
    media::PreparedBytes,
};

/// Bumped whenever the frames change. A running server whose binary was replaced on disk starts workers of the new
/// version, and both sides must notice.
pub const PROTOCOL: u32 = 8;

/// Server to worker.
#[allow(clippy::large_enum_variant, reason = "the large variant is the common one, and is moved only a few times")]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Command {
    /// Load this model. Sent once, as the first command.
    Load(Box<Load>),
    Submit(Job),
    /// Cancel a job. It ends with [`crate::job::Finish::Cancelled`] unless it has ended already.
    Cancel {
        id: u64,
    },
    /// Read an adapter and keep it with the model.
    Attach {
        /// Identifies this attempt in the answer. A name may be retried while an earlier attempt is still being read.
        attempt: u64,
        name: String,
        location: Location,
    },
    /// Drop an adapter once its last job has ended.
    Detach {
        name: String,
    },
    Stats,
    /// Accept no more jobs, finish the current ones, write the cache to disk, and exit.
    Drain,
    /// A piece of an item's prepared bytes, for the job that is submitted next.
    Prepared {
        /// The item's index in the job.
        item: u32,
        bytes: PreparedBytes,
    },
}

/// Everything that a worker needs to load its model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Load {
    pub architecture: Provider,
    /// Plugins with samplers.
    pub samplers: Vec<PathBuf>,
    /// Plugins with adapter formats.
    pub adapter_formats: Vec<PathBuf>,
    /// Adapters to merge into the weights.
    pub merged: Vec<MergedAdapter>,
    /// How long jobs wait for an adapter to be reloaded before its format counts as hung.
    pub adapter_deadline: Duration,
    pub source: PathBuf,
    /// Its `kv_budget` is always set.
    pub spec: ModelSpec,
}

/// A model's settings, as the operator configures them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelSpec {
    /// Options of the architecture, a JSON object; empty for none.
    pub options: String,
    /// `auto`, `cpu`, `cuda:0`, `metal:0`, `cuda:0+cuda:1`.
    pub device: String,
    /// The longest sequence, in tokens; 0 for the checkpoint's own limit.
    pub context: u32,
    /// Bytes for KV blocks or sequence states; `None` for as much as fits.
    pub kv_budget: Option<u64>,
    /// CPU threads; 0 for one per core.
    pub threads: u32,
    /// Where evicted cache blocks go; `None` discards them.
    pub disk: Option<DiskTier>,
    pub limits: Limits,
    /// Bytes for all adapters that requests can select; unused ones are evicted for others.
    pub adapter_memory: u64,
}

impl Default for ModelSpec {
    fn default() -> Self {
        Self {
            options: String::new(),
            device: "auto".into(),
            context: 0,
            kv_budget: None,
            threads: 0,
            disk: None,
            limits: Limits::default(),
            // Room for six adapters of rank 16 on an 8 B model.
            adapter_memory: 512 << 20,
        }
    }
}

/// One provider of a plugin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provider {
    /// The library: a private copy that is never modified.
    pub plugin: PathBuf,
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Location {
    pub path: PathBuf,
    /// No link may lead out of these folders, checked at every read. Empty for a path that the operator configured, to whose
    /// links the rules for checkpoints apply.
    pub folders: Vec<PathBuf>,
}

impl Location {
    /// A location that may be anywhere.
    pub fn trusted(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), folders: Vec::new() }
    }
}

/// An adapter that is merged into the weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MergedAdapter {
    pub name: String,
    pub path: PathBuf,
    /// Strength; 1 is as trained.
    pub scale: f32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskTier {
    /// May be shared by several models.
    pub folder: PathBuf,
    /// Limit for this model.
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    pub sequences_max: u32,
    /// Queue length; further jobs are refused.
    pub waiting_max: u32,
    pub step_tokens_max: u32,
    /// The worker exits when a step takes longer, as the plugin must be hung.
    pub step_timeout: Duration,
    /// An answer ends when its last `loop_tokens` tokens only repeat one sequence; 0 turns this off.
    pub loop_tokens: u32,
    /// The same for reasoning, which is then concluded.
    pub thought_loop_tokens: u32,
}

/// Default lengths of loops. Ordinary text repeats itself, too: rules in tables, rows of zeros, base64 of empty space.
/// docs/configuration.md says what was measured.
const LOOP_TOKENS: u32 = 4096;
const THOUGHT_LOOP_TOKENS: u32 = 256;

impl Default for Limits {
    fn default() -> Self {
        Self {
            sequences_max: 64,
            waiting_max: 1024,
            step_tokens_max: 1024,
            step_timeout: Duration::from_secs(60),
            loop_tokens: LOOP_TOKENS,
            thought_loop_tokens: THOUGHT_LOOP_TOKENS,
        }
    }
}

/// Worker to server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Report {
    /// The first report; any other report before it is an error.
    Hello {
        /// The worker's [`PROTOCOL`].
        protocol: u32,
    },
    Progress {
        /// Bytes or steps so far.
        done: u64,
        /// Bytes or steps in all.
        total: u64,
        what: String,
    },
    Log {
        level: Level,
        message: String,
    },
    Loaded(Box<Loaded>),
    /// The model did not load; the worker exits.
    LoadFailed(Failure),
    /// Events by job id, in order; all events of a step are in one frame.
    Events(Vec<(u64, Event)>),
    /// Result of [`Command::Attach`].
    Attached {
        attempt: u64,
        result: Attachment,
    },
    /// An adapter has been dropped, or never existed.
    Detached {
        name: String,
    },
    /// The answer to [`Command::Stats`].
    Stats(Box<Stats>),
    /// Sent every second, even while a step runs.
    Heartbeat {
        /// Iterations of the engine's loop so far.
        steps: u64,
        /// Milliseconds since the current step began; `None` between steps.
        step_ms: Option<u64>,
    },
    /// All jobs are done and the worker exits.
    Drained,
    /// The worker exits now and loses all of its jobs.
    Dying(Failure),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Level {
    Error,
    Warn,
    Info,
    Debug,
}

/// Properties and memory use of a loaded model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loaded {
    pub architecture: String,
    pub device: String,
    /// Why this device was chosen, and the kernels in use, as text for people.
    pub note: String,
    pub weight_bytes: u64,
    /// Bytes of KV blocks or sequence states.
    pub state_bytes: u64,
    /// The longest sequence, in tokens.
    pub context: u32,
    /// Length of a row of logits.
    pub vocabulary: u32,
    /// Number of KV blocks; 0 for a per-sequence model.
    pub blocks: u32,
    /// Tokens per block; 0 for a per-sequence model.
    pub block_tokens: u32,
    /// Maximum number of concurrent sequences.
    pub sequences: u32,
    /// Blocks found on disk from an earlier run.
    pub disk_blocks: u64,
    pub samplers: Vec<String>,
    /// Reason why stop strings and grammars cannot be used, if so.
    pub no_text: Option<String>,
}

/// The result of [`Command::Attach`].
pub type Attachment = Result<AttachedAdapter, Failure>;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachedAdapter {
    pub format: String,
    /// Number of weight matrices that it changes.
    pub pairs: u64,
    /// Bytes in the model's memory.
    pub bytes: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    pub running: u64,
    pub waiting: u64,
    pub steps: u64,
    /// Prompt and answer tokens that went through the model.
    pub computed_tokens: u64,
    /// Prompt tokens found in the prefix cache.
    pub reused_tokens: u64,
    pub generated_tokens: u64,
    /// Number of times that a sequence was preempted and lost its blocks.
    pub preemptions: u64,
    /// Microseconds in the model's `forward`.
    pub forward_us: u64,
    /// Microseconds of steps outside `forward`.
    pub overhead_us: u64,
    /// Images and sounds that were encoded.
    pub encoded_items: u64,
    /// Microseconds in the model's encoder.
    pub encode_us: u64,
    pub blocks_free: u64,
    /// Blocks of the prefix cache that no sequence uses.
    pub blocks_cached: u64,
    pub blocks_active: u64,
    pub blocks_disk: u64,
    pub adapters: Vec<AdapterStats>,
    /// Number of adapter loads.
    pub adapter_loads: u64,
    /// Number of adapters evicted to make room.
    pub adapter_unloads: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdapterStats {
    pub name: String,
    pub format: String,
    /// Number of weight matrices that it changes.
    pub pairs: u64,
    /// Bytes in the model's memory.
    pub bytes: u64,
    /// False if it was evicted; the next job that names it reloads it.
    pub loaded: bool,
    /// Jobs that use it or wait for it.
    pub jobs: u64,
}

/// Size limit for an adapter's file, given the memory for adapters: a file may hold f32 where memory has f16, and has headers.
pub fn adapter_file_bytes_max(adapter_memory: u64) -> u64 {
    adapter_memory.saturating_mul(2).saturating_add(1 << 20)
}
