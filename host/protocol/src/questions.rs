//! Answers of short-lived child processes to the server: one line of JSON.
//!
//! A plugin or checkpoint may crash, hang or compromise the process that opens it, so the server never opens one. It
//! runs this program with a subcommand that prints one of these and exits.

use serde::{Deserialize, Serialize};

use crate::{card::Card, checkpoint::CheckpointName, manifest::Manifest, refusal::Refusal};

/// The answer to `plugins check --json FILE`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Checked {
    Manifest(Manifest),
    /// The file is not a plugin; the reason completes a sentence about it.
    Refusal(Refusal),
}

/// The answer to `probe name SOURCE`.
pub type Named = Result<CheckpointName, Refusal>;

/// The answer to `probe describe PLUGIN ARCHITECTURE SOURCE OPTIONS`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Described {
    /// The architecture accepts the checkpoint.
    Card(Box<Card>),
    /// The architecture leaves the checkpoint to the next claimant.
    Declined(Refusal),
    /// The architecture claims the checkpoint but cannot load it.
    Refused(Refusal),
}
