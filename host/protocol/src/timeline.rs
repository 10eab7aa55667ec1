//! The timeline of a worker's threads while a job ran: recorded for one job that asks for it, and written as a Chrome trace
//! by `pensieve bench --trace`.

use serde::{Deserialize, Serialize};

/// Limits of a timeline, so that it fits into one frame whatever its numbers are.
pub const SPANS_MAX: usize = 80_000;
pub const NAMES_MAX: usize = 512;
pub const NAME_CHARS_MAX: usize = 80;
/// Nanoseconds: an hour and a bit.
pub const TIME_NS_MAX: u64 = 1 << 42;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeline {
    /// The threads' names. The first is the engine's.
    pub threads: Vec<String>,
    /// What spans are about.
    pub names: Vec<String>,
    pub spans: Vec<Span>,
    /// It was longer than what is here.
    pub is_cut: bool,
}

/// A stretch of time of one thread, in nanoseconds since the recording began. Spans of a thread nest or follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// Index in [`Timeline::threads`].
    pub thread: u16,
    /// Index in [`Timeline::names`].
    pub name: u16,
    pub start_ns: u64,
    pub ns: u64,
}
