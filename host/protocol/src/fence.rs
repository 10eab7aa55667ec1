//! The fence around a child process: what it may read, write and take. The server writes it down as a policy before it starts
//! the child, and the child enters it before it opens anything that is foreign.
//!
//! A child is this very program until it maps its first plugin, so it can be trusted to close the door behind itself. The
//! policy comes in one environment variable, since a worker's first frame arrives only after it has started threads.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The variable that holds a child's policy, in JSON.
pub const VARIABLE: &str = "PENSIEVE_FENCE";

/// What a child may do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// Files and folders that it may read, besides the system's libraries.
    pub read: Vec<PathBuf>,
    /// Folders that it may also write to.
    pub write: Vec<PathBuf>,
    /// Bytes of private memory; none for no limit of its own.
    pub data_bytes: Option<u64>,
    /// Bytes of address space. None where drivers reserve more than they use.
    pub address_bytes: Option<u64>,
    /// Open files.
    pub files: u64,
    /// Whether a GPU's driver has to work in it: device files, sockets on this machine, processes of its own.
    pub drivers: bool,
    /// The operator has allowed a plugin of this child everything that the user may do; limits and privileges stay.
    pub open: bool,
}

/// How much of a fence holds on this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fenced {
    /// What holds, in words for people.
    pub holds: Vec<String>,
    /// What does not, and why.
    pub missing: Vec<String>,
}
