//! A worker's stderr: lines go to the log at a bounded rate, and the last ones into the reason for its exit, where they
//! are often the only trace of a plugin's fault.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    process::ChildStderr,
    task::JoinHandle,
    time::timeout,
};

use super::pace::LogLimiter;
use pensieve_protocol::refusal::clean;

/// Number of lines kept for the reason of an exit.
const LINES_KEPT: usize = 3;
/// Lines older than this are unrelated to the exit.
const LINE_AGE_MAX: Duration = Duration::from_secs(15);
const LINE_BYTES_MAX: u64 = 4096;

type Lines = Arc<Mutex<VecDeque<(Instant, String)>>>;

pub(super) struct StderrTail {
    kept: Lines,
    listening: Option<JoinHandle<()>>,
}

impl StderrTail {
    pub(super) fn listen(pipe: Option<ChildStderr>, model: &str) -> Self {
        let kept = Lines::default();
        let listening = pipe.map(|pipe| tokio::spawn(copy_to_log(pipe, model.to_owned(), kept.clone())));
        Self { kept, listening }
    }

    /// Returns the lines written shortly before the worker exited. Its pipe may still contain some of them, or be held
    /// open by a process that it left behind.
    pub(super) async fn last(self) -> String {
        let exited = Instant::now();
        if let Some(listening) = self.listening {
            let _ = timeout(Duration::from_millis(200), listening).await;
        }
        recent(&self.kept.lock().unwrap_or_else(PoisonError::into_inner), exited)
    }
}

async fn copy_to_log(pipe: ChildStderr, model: String, kept: Lines) {
    let (mut reader, mut line, mut log) = (BufReader::new(pipe), Vec::new(), LogLimiter::default());
    while (&mut reader).take(LINE_BYTES_MAX).read_until(b'\n', &mut line).await.is_ok_and(|read| read > 0) {
        let text = clean(String::from_utf8_lossy(&line).trim_end());
        line.clear();
        let now = Instant::now();
        if let Some(dropped) = log.admit(now) {
            if dropped > 0 {
                tracing::warn!(model, "{dropped} lines of its worker's stderr were dropped: it writes too many");
            }
            tracing::info!(model, "its worker says: {text}");
        }
        let mut lines = kept.lock().unwrap_or_else(PoisonError::into_inner);
        lines.push_back((now, text));
        if lines.len() > LINES_KEPT {
            lines.pop_front();
        }
    }
}

fn recent(lines: &VecDeque<(Instant, String)>, exited: Instant) -> String {
    let recent = lines.iter().filter(|(written, line)| *written + LINE_AGE_MAX >= exited && !line.trim().is_empty());
    recent.map(|(_, line)| line.as_str()).collect::<Vec<_>>().join(" / ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_from_long_before_the_exit_are_no_reason_for_it() {
        let start = Instant::now();
        let line = |second, text: &str| (start + Duration::from_secs(second), text.to_owned());
        let lines = [line(0, "a warning"), line(100, " "), line(101, "no licence"), line(110, "exiting")].into();
        let at = |second| recent(&lines, start + Duration::from_secs(second));
        assert_eq!(at(1), "a warning / no licence / exiting");
        assert_eq!(at(111), "no licence / exiting");
        assert_eq!(at(200), "");
    }
}
