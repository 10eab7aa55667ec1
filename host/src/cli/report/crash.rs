//! How long a child that crashes keeps its parent waiting. macOS may hold the process until a report of the crash is written.
//! Children behind the fence clear the exception ports of their own, and only a Mac can tell whether the one that the system has
//! for all processes delays them still.

use serde_json::json;
use std::{
    ffi::OsString,
    ops::ControlFlow,
    path::Path,
    process,
    time::{Duration, Instant},
};

use super::{
    document::{Measured, State},
    event::{SectionEvent, predicate},
};
use pensieve_protocol::fence::Policy;
use pensieve_server::fleet::{
    child::{self, ChildError},
    fence,
};

/// Names under which the section's children run.
const CRASH: &str = "crash";
const EXIT: &str = "exit";

const ROUNDS: usize = 5;
const WAIT_MAX: Duration = Duration::from_secs(120);

/// Ends this process, if it is one of the section's children.
pub(super) fn end(name: &str, last_words: impl FnOnce()) {
    match name {
        CRASH => {
            last_words();
            process::abort()
        }
        EXIT => {
            last_words();
            process::exit(0)
        }
        _ => {}
    }
}

/// Has children exit, crash as the system has it, and crash behind the fence.
pub(super) async fn measure(program: &Path, name: &'static str) -> Measured {
    let policy = fence::inspection(program);
    let mut ends = Vec::new();
    for (end, verb, policy) in [("exit", EXIT, None), ("crash", CRASH, None), ("fenced crash", CRASH, Some(&policy))] {
        let mut waits = Vec::new();
        for _ in 0..ROUNDS {
            match wait(program, verb, policy).await {
                Ok(waited) => waits.push((waited.as_secs_f64() * 1e4).round() / 10.0),
                Err(why) => return Measured { at: Some(end.into()), ..Measured::failed(name, &why) },
            }
        }
        ends.push(json!({ "end": end, "ms": waits }));
    }
    Measured::new(name, State::Measured, json!({ "ends": ends }))
}

/// Time from a child's last words to the news of its end.
async fn wait(program: &Path, verb: &str, policy: Option<&Policy>) -> Result<Duration, String> {
    let arguments = ["probe", "section", verb].map(OsString::from);
    let mut last_words = None;
    let hear = |_: SectionEvent| {
        last_words = Some(Instant::now());
        ControlFlow::Continue(())
    };
    let ended = child::ask_for_lines_with(program, &arguments, policy, &[], WAIT_MAX, hear).await;
    match (&ended, last_words) {
        (Err(ChildError::Crashed { .. }), Some(began)) if verb == CRASH => Ok(began.elapsed()),
        (Err(ChildError::Ended { .. }), Some(began)) if verb == EXIT => Ok(began.elapsed()),
        (Err(error), _) => Err(format!("its process {}", predicate(error))),
        (Ok(_), _) => Err("its process did not end".into()),
    }
}
