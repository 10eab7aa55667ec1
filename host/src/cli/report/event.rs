//! Messages of a section's child process to the report.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A message; the last one is `Stopped` or `Done`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SectionEvent {
    Reaches {
        done: u64,
        total: u64,
        what: String,
    },
    Warns {
        message: String,
    },
    /// The findings so far.
    Found(Value),
    NotHere {
        why: String,
    },
    Stopped {
        reason: String,
    },
    Done,
}
