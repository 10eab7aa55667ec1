//! What the server asks of short-lived children, and what they answer: one line of JSON.
//!
//! A plugin or a checkpoint may crash, hang or deceive whatever process looks at it, so the server never does. It starts
//! this program again under a hidden verb, which answers with one of these and ends.

use serde::{Deserialize, Serialize};

use crate::{card::Card, checkpoint::CheckpointName, manifest::Manifest, refusal::Refusal};

/// The answer to `plugins check --json FILE`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Checked {
    Manifest(Manifest),
    /// The file is none; a sentence about it ends with the reason.
    Refusal(Refusal),
}

/// The answer to `probe name SOURCE`: what the checkpoint calls its architecture.
pub type Named = Result<CheckpointName, Refusal>;

/// The answer to `probe describe PLUGIN ARCHITECTURE SOURCE OPTIONS`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Described {
    /// The architecture will load the checkpoint.
    Card(Box<Card>),
    /// The architecture leaves the checkpoint to the next claimant.
    Declined(Refusal),
    /// The architecture claims the checkpoint and cannot load it.
    Refused(Refusal),
}
