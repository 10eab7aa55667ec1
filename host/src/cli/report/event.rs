//! Messages of a section's child process to the report, and the words about its end.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use pensieve_server::fleet::child::{ChildError, signal_name};

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

/// The end of a section's process; [`ChildError`]'s own words are about a plugin's file.
pub(super) fn predicate(error: &ChildError) -> String {
    let said = |stderr: &str| if stderr.is_empty() { String::new() } else { format!("; it said: {stderr}") };
    match error {
        ChildError::Crashed { signal, stderr } => format!("was ended by {}{}", signal_name(*signal), said(stderr)),
        ChildError::Ended { status, stderr } => format!("ended early with {status}{}", said(stderr)),
        ChildError::TimedOut(limit) => format!("was silent for {} s", limit.as_secs()),
        other => other.to_string(),
    }
}
