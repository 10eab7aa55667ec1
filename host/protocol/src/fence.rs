//! The fence around a child process: what it may read, write and take. The server writes it down as a policy before it starts
//! the child, and the child enters it before it opens anything that is foreign.
//!
//! A child is this very program until it maps its first plugin or interprets its first template, so it can be trusted to
//! close the door behind itself. The policy comes in one environment variable: a child's first frame arrives only after it
//! has started threads, and most of a fence holds for the thread that enters it and for later ones alone.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The variable that holds a child's policy, in JSON.
pub const VARIABLE: &str = "PENSIEVE_FENCE";

/// A child's purpose, which decides the system calls that it may make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// It opens a plugin, or the head of a checkpoint, for one question.
    #[default]
    Look,
    /// It renders templates, tokenizes and tries grammars.
    Prompt,
    /// It computes with a model on the processor.
    Worker,
    /// It computes with a model where a GPU's driver has to work: device files, shared memory, address space that is reserved.
    GpuWorker,
}

impl Kind {
    pub fn has_drivers(self) -> bool {
        self == Self::GpuWorker
    }

    /// Whether it serves a model, and so has a socket and may have a cache on disk.
    pub fn is_worker(self) -> bool {
        matches!(self, Self::Worker | Self::GpuWorker)
    }
}

/// What a child may do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    pub kind: Kind,
    /// Files and folders that it may read, besides the system's libraries.
    pub read: Vec<PathBuf>,
    /// Folders that it may also write to.
    pub write: Vec<PathBuf>,
    /// Bytes of private memory; none for no limit of its own.
    pub data_bytes: Option<u64>,
    /// Bytes of address space. None where drivers reserve more than they use.
    pub address_bytes: Option<u64>,
    /// How many files it may have open at once.
    pub files: u64,
    /// It ends when its standard input does, as its server has gone then; others see that by themselves.
    pub ends_with_input: bool,
    /// The operator has allowed a plugin of this child everything that the user may do; limits and privileges stay.
    pub open: bool,
}

impl Policy {
    pub fn to_variable(&self) -> String {
        // Paths that are not UTF-8 make no JSON; a child with an empty policy says so and ends.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// How much of a fence holds on this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fenced {
    /// What holds, in words for people.
    pub holds: Vec<String>,
    /// What does not, and why.
    pub missing: Vec<String>,
    /// Protections that this system lacks, where another part of the fence holds what it would have held.
    #[serde(default)]
    pub notes: Vec<String>,
}
