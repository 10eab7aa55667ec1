//! The fence (sandbox) around a child process: the files and resources that it may use. The server writes a policy
//! before it starts the child, and the child enters the fence before it opens anything untrusted.
//!
//! Until it maps its first plugin or interprets its first template, a child runs only this program's code, so it can be
//! trusted to restrict itself. The policy comes in an environment variable: the first frame arrives only after the child has
//! started threads, and most restrictions apply only to the calling thread and those it starts later.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The environment variable that holds a child's policy, in JSON.
pub const VARIABLE: &str = "PENSIEVE_FENCE";

/// A child's purpose, which selects the system calls that it may make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// Inspects a plugin or the header of a checkpoint, for one question.
    #[default]
    Look,
    /// Renders templates, tokenizes and compiles grammars.
    Prompt,
    /// Runs a model on the CPU.
    Worker,
    /// Runs a model on a GPU, whose driver needs device files, shared memory and large reservations of address space.
    GpuWorker,
}

impl Kind {
    pub fn has_drivers(self) -> bool {
        self == Self::GpuWorker
    }

    /// Workers have a socket and may have a cache on disk.
    pub fn is_worker(self) -> bool {
        matches!(self, Self::Worker | Self::GpuWorker)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    pub kind: Kind,
    /// Readable files and folders, besides the system's libraries.
    pub read: Vec<PathBuf>,
    /// Folders that are also writable.
    pub write: Vec<PathBuf>,
    /// Limit of private memory (RLIMIT_DATA); `None` for unlimited.
    pub data_bytes: Option<u64>,
    /// Limit of address space; `None` where drivers reserve more than they use.
    pub address_bytes: Option<u64>,
    /// Limit of open file descriptors.
    pub files: u64,
    /// The child ends at the end of its standard input, which means that the server is gone. Other children notice that by
    /// themselves.
    pub ends_with_input: bool,
    /// The operator has listed a plugin of this child as unfenced: files and system calls are unrestricted, while resource
    /// limits stay and privileges are still dropped.
    pub open: bool,
}

impl Policy {
    pub fn to_variable(&self) -> String {
        // Non-UTF-8 paths cannot be serialized; a child with an empty policy reports that and ends.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// The parts of the fence that this machine supports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fenced {
    /// Restrictions in force, as text for people.
    pub holds: Vec<String>,
    /// Restrictions that are missing, and why.
    pub missing: Vec<String>,
    /// Features that this system lacks, but whose restriction another part of the fence enforces.
    #[serde(default)]
    pub notes: Vec<String>,
}
