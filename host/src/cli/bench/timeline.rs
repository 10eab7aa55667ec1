//! `bench --trace`: a round whose threads are recorded, as a file for trace viewers and a summary by function.

use serde::Serialize;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use super::figures::rounded;
use crate::cli::error::CliError;
use pensieve_protocol::timeline::{Span, Timeline};

/// Tokens generated per stream in a recorded round; a long recording is hard to read, and is cut.
pub(super) const TOKENS: u32 = 16;

/// How the time of all threads was spent.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    /// Where the trace is.
    file: PathBuf,
    threads: usize,
    /// From the first step's start to the last one's end.
    ms: f64,
    /// Share of the threads' time in tasks of loops.
    work_share: f64,
    /// Share of the time that the engine's thread waits for others to finish a loop.
    wait_share: f64,
    /// The recording was cut off at its end.
    is_cut: bool,
    /// By time, the longest first.
    functions: Vec<Function>,
}

/// All loops of a function.
#[derive(Debug, Serialize)]
pub(super) struct Function {
    name: String,
    loops: usize,
    /// From their starts to their ends.
    ms: f64,
    /// Share of the threads' time in it that was work.
    work_share: f64,
}

impl Summary {
    pub(super) fn of(timeline: &Timeline, file: PathBuf) -> Self {
        let name = |span: &Span| timeline.names.get(usize::from(span.name)).map_or("", String::as_str);
        let is_step = |span: &Span| name(span).starts_with("step of ");
        let (mut start, mut end, mut recorded, mut work, mut wait) = (u64::MAX, 0, 0, 0, 0);
        // Loops, nanoseconds on the engine's thread, and nanoseconds of work.
        let mut functions: BTreeMap<&str, (usize, u64, u64)> = BTreeMap::new();
        let mut latest = "";
        for span in &timeline.spans {
            match name(span) {
                "model" => {}
                _ if is_step(span) => (start, end) = (start.min(span.start_ns), end.max(span.start_ns + span.ns)),
                "wait" => {
                    wait += span.ns;
                    functions.entry(latest).or_default().1 += span.ns;
                }
                function => {
                    work += span.ns;
                    recorded = recorded.max(span.start_ns + span.ns);
                    let all = functions.entry(function).or_default();
                    all.2 += span.ns;
                    if span.thread == 0 {
                        (all.0, all.1) = (all.0 + 1, all.1 + span.ns);
                        latest = function;
                    }
                }
            }
        }
        if timeline.is_cut {
            end = recorded;
        }
        let (threads, all) = (timeline.threads.len(), end.saturating_sub(start));
        let of_threads = |part: u64, whole: u64| share(part, whole.saturating_mul(threads as u64));
        let function = |(name, (loops, ns, work)): (&str, (usize, u64, u64))| Function {
            name: name.to_owned(),
            loops,
            ms: ms(ns),
            work_share: of_threads(work, ns),
        };
        let mut functions: Vec<Function> = functions.into_iter().map(function).collect();
        functions.sort_by(|a, b| b.ms.total_cmp(&a.ms));
        Self {
            file,
            threads,
            ms: ms(all),
            work_share: of_threads(work, all),
            wait_share: share(wait, all),
            is_cut: timeline.is_cut,
            functions,
        }
    }

    pub(super) fn table(&self) -> String {
        let mut text = format!(
            "\n{} threads for {:.1} ms: {:.0} % of their time in loops; the engine's thread waited for others for {:.0} %\n\n",
            self.threads,
            self.ms,
            self.work_share * 100.0,
            self.wait_share * 100.0
        );
        text.push_str("     ms   loops   busy  function\n");
        for Function { name, loops, ms, work_share } in &self.functions {
            text.push_str(&format!("{ms:>7.1} {loops:>7} {:>5.0}%  {name}\n", work_share * 100.0));
        }
        if self.is_cut {
            text.push_str(
                "\nThe timeline is cut: it has as many spans as are kept. Fewer streams or a shorter prompt fit.\n",
            );
        }
        let file = self.file.display();
        text.push_str(&format!("\nWritten to {file}; open it at https://ui.perfetto.dev or chrome://tracing\n"));
        text
    }
}

/// The file that Perfetto and Chrome read.
pub(super) struct TraceFile {
    path: PathBuf,
    file: File,
}

impl TraceFile {
    /// Creates it, before anything is measured for it.
    pub(super) fn create(path: &Path) -> Result<Self, CliError> {
        let file = File::create(path).map_err(|error| failed(path, &error))?;
        Ok(Self { path: path.to_path_buf(), file })
    }

    /// Writes the timeline, and returns its summary.
    pub(super) fn write(self, timeline: &Timeline) -> Result<Summary, CliError> {
        write(timeline, BufWriter::new(self.file)).map_err(|error| failed(&self.path, &error))?;
        Ok(Summary::of(timeline, self.path))
    }
}

fn failed(path: &Path, error: &io::Error) -> CliError {
    CliError::system(format!("cannot write {}", path.display()), error)
}

fn write(timeline: &Timeline, mut out: impl Write) -> io::Result<()> {
    out.write_all(b"{\"traceEvents\":[\n")?;
    for (thread, name) in timeline.threads.iter().enumerate() {
        let event = json!({"ph": "M", "name": "thread_name", "pid": 1, "tid": thread, "args": {"name": name}});
        writeln!(out, "{event},")?;
    }
    for span in &timeline.spans {
        writeln!(out, "{},", event(timeline, span))?;
    }
    // JSON has no comma after the last element.
    out.write_all(b"{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":1,\"args\":{\"name\":\"pensieve worker\"}}\n]}\n")?;
    out.flush()
}

fn event(timeline: &Timeline, span: &Span) -> Value {
    #[allow(clippy::cast_precision_loss, reason = "microseconds of an hour are exact")]
    let us = |ns: u64| ns as f64 / 1e3;
    let name = timeline.names.get(usize::from(span.name)).map_or("", String::as_str);
    json!({"ph": "X", "name": name, "pid": 1, "tid": span.thread, "ts": us(span.start_ns), "dur": us(span.ns)})
}

#[allow(clippy::cast_precision_loss, reason = "a figure for people")]
fn ms(ns: u64) -> f64 {
    rounded(ns as f64 / 1e6)
}

#[allow(clippy::cast_precision_loss, reason = "a share needs no more digits")]
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { rounded(part as f64 / whole as f64) }
}
