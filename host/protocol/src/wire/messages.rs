//! What is said about a worker as a whole. Variants are only ever added at the end: the order is what a frame holds.

use std::{path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

use crate::job::{Event, Failure, Job};

/// Changes whenever frames do. A server keeps running when its file on disk is replaced, and must not be misunderstood
/// by a worker of the new kind.
pub const PROTOCOL: u32 = 3;

/// Server to worker.
#[allow(clippy::large_enum_variant, reason = "the large one is the common one, and is moved a few times in its life")]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Command {
    /// Load this model; the first command, and the only one of its kind.
    Load(Box<Load>),
    Submit(Job),
    /// Give a job up. It ends with [`crate::job::Finish::Cancelled`] unless it has ended already.
    Cancel {
        id: u64,
    },
    /// Read an adapter and keep it with the model.
    Attach {
        /// What the answer calls this attempt. A name may be tried anew while an earlier attempt is still being read.
        attempt: u64,
        name: String,
        location: Location,
    },
    /// Forget an adapter once its last job has ended.
    Detach {
        name: String,
    },
    Stats,
    /// Take no more jobs, finish those at hand, put the cache on disk, and end.
    Drain,
}

/// A model and all that its worker needs to know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Load {
    pub architecture: Provider,
    /// Plugins whose samplers jobs may name.
    pub samplers: Vec<PathBuf>,
    /// Plugins whose formats adapters may have.
    pub adapter_formats: Vec<PathBuf>,
    /// Adapters that become part of the weights.
    pub merged: Vec<MergedAdapter>,
    /// How long jobs wait for an adapter to be read again: beyond that its format hangs.
    pub adapter_deadline: Duration,
    pub source: PathBuf,
    /// How it runs; its `kv_budget` is always set.
    pub spec: ModelSpec,
}

/// How a model runs: what an operator may set of it, from the configuration to the worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelSpec {
    /// Settings that only the architecture knows, a JSON object; empty for none.
    pub options: String,
    /// `auto`, `cpu`, `cuda:0`, `metal:0`, `cuda:0+cuda:1`.
    pub device: String,
    /// The longest sequence, in tokens; 0 for the model's own.
    pub context: u32,
    /// Bytes for KV blocks or sequence states; none for what fits.
    pub kv_budget: Option<u64>,
    /// CPU threads that compute; 0 for the machine's cores.
    pub threads: u32,
    /// Where cold blocks go; none to forget them.
    pub disk: Option<DiskTier>,
    pub limits: Limits,
    /// Bytes that the adapters which requests choose may take together; those that no job needs make room for others.
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
            // Half a dozen of rank 16 for a model of 8 B.
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
    /// Folders that it must not lead out of by any link, whenever it is read; none for one that the operator configured, whose
    /// links keep to the rule for checkpoints.
    pub folders: Vec<PathBuf>,
}

impl Location {
    /// One that may lie anywhere.
    pub fn trusted(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), folders: Vec::new() }
    }
}

/// An adapter that becomes part of the weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MergedAdapter {
    pub name: String,
    pub path: PathBuf,
    /// Its strength; 1 is as trained.
    pub scale: f32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskTier {
    /// The folder, which many models may share.
    pub folder: PathBuf,
    /// How many bytes this model may keep there.
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    pub sequences_max: u32,
    /// Jobs that wait; more are refused.
    pub waiting_max: u32,
    pub step_tokens_max: u32,
    /// The worker ends itself when a step takes longer: the plugin hangs.
    pub step_timeout: Duration,
    /// An answer ends when its last `loop_tokens` tokens repeat one sequence over and over; 0 for never.
    pub loop_tokens: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            sequences_max: 64,
            waiting_max: 1024,
            step_tokens_max: 1024,
            step_timeout: Duration::from_secs(60),
            loop_tokens: 0,
        }
    }
}

/// Worker to server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Report {
    /// The first report, before anything else is believed.
    Hello {
        /// The worker's [`PROTOCOL`].
        protocol: u32,
    },
    Progress {
        /// Bytes or steps done.
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
    /// The model did not load; the worker ends.
    LoadFailed(Failure),
    /// What became of jobs, in order: everything of one step is one frame.
    Events(Vec<(u64, Event)>),
    /// An adapter is there, or is not.
    Attached {
        attempt: u64,
        result: Attachment,
    },
    /// An adapter is gone, or was never there.
    Detached {
        name: String,
    },
    /// The answer to [`Command::Stats`].
    Stats(Box<Stats>),
    /// Sent every second, whatever the model does.
    Heartbeat {
        /// Turns of the loop so far.
        steps: u64,
        /// How long the current step has been running, in milliseconds; none between steps.
        step_ms: Option<u64>,
    },
    /// All jobs are done and the worker ends.
    Drained,
    /// The worker ends now, and all its jobs with it.
    Dying(Failure),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Level {
    Error,
    Warn,
    Info,
    Debug,
}

/// What a loaded model is and takes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loaded {
    pub architecture: String,
    pub device: String,
    /// Why, and which kernels run, for a person.
    pub note: String,
    pub weight_bytes: u64,
    /// Bytes of blocks or states there.
    pub state_bytes: u64,
    /// The longest sequence, in tokens.
    pub context: u32,
    /// The length of a row of logits.
    pub vocabulary: u32,
    /// How many blocks there are; 0 for a per-sequence model.
    pub blocks: u32,
    /// Tokens in a block; 0 for a per-sequence model.
    pub block_tokens: u32,
    /// How many sequences run at once.
    pub sequences: u32,
    /// Blocks that an earlier run left on disk.
    pub disk_blocks: u64,
    pub samplers: Vec<String>,
    /// Why stop strings and grammars cannot be used, if they cannot.
    pub no_text: Option<String>,
}

/// What came of [`Command::Attach`].
pub type Attachment = Result<AttachedAdapter, Failure>;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachedAdapter {
    pub format: String,
    /// How many weights it changes.
    pub pairs: u64,
    /// What it takes in the model.
    pub bytes: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    pub running: u64,
    pub waiting: u64,
    pub steps: u64,
    /// Tokens computed, prompts and answers.
    pub computed_tokens: u64,
    /// Prompt tokens that were taken over instead.
    pub reused_tokens: u64,
    pub generated_tokens: u64,
    /// How often a sequence gave its blocks up.
    pub preemptions: u64,
    /// Time in the model, in microseconds.
    pub forward_us: u64,
    /// Time in steps besides the model, in microseconds.
    pub overhead_us: u64,
    pub blocks_free: u64,
    /// Prefix-cache blocks: unused now, kept for requests that continue their text.
    pub blocks_cached: u64,
    pub blocks_active: u64,
    pub blocks_disk: u64,
    pub adapters: Vec<AdapterStats>,
    /// How often an adapter was taken into the model.
    pub adapter_loads: u64,
    /// How often one had to leave it to make room.
    pub adapter_unloads: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdapterStats {
    pub name: String,
    pub format: String,
    /// How many weights it changes.
    pub pairs: u64,
    /// What it takes in the model.
    pub bytes: u64,
    /// Whether it is there. If not, it is read again for the next job that names it.
    pub loaded: bool,
    /// Jobs that run under it or wait for it.
    pub jobs: u64,
}

/// The largest file of an adapter, where all adapters of a model may take `adapter_memory` bytes: what is kept in half precision takes
/// twice as much in a file, and a file has headers.
pub fn adapter_file_bytes_max(adapter_memory: u64) -> u64 {
    adapter_memory.saturating_mul(2).saturating_add(1 << 20)
}
