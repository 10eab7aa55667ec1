//! The report's document, version 1 of its schema.

use serde::Serialize;
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use super::{super::error::CliError, redaction::Redaction};
use crate::config::Config;
use pensieve_protocol::outside::Outside;

/// Changed when a reader of old reports would misread new ones.
const SCHEMA: &str = "pensieve-report/1";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    Measured,
    /// There is nothing to measure on this machine.
    NotHere,
    /// It crashed, hung or gave up; `result` has what was known before.
    Failed,
}

/// One section of the report.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Measured {
    pub(super) name: &'static str,
    pub(super) state: State,
    pub(super) seconds: f64,
    /// Why it was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) why: Option<String>,
    /// The signal that ended its process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) signal: Option<String>,
    /// What it was about to measure when it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) at: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) warnings: Vec<String>,
    pub(super) result: Value,
}

impl Measured {
    pub(super) fn new(name: &'static str, state: State, result: Value) -> Self {
        Self { name, state, seconds: 0.0, why: None, signal: None, at: None, warnings: Vec::new(), result }
    }

    pub(super) fn not_here(name: &'static str, why: impl Into<String>) -> Self {
        Self { why: Some(why.into()), ..Self::new(name, State::NotHere, Value::Null) }
    }

    pub(super) fn failed(name: &'static str, why: &str) -> Self {
        Self { why: Some(why.to_owned()), ..Self::new(name, State::Failed, Value::Null) }
    }

    pub(super) fn warning(mut self, line: String) -> Self {
        self.warnings.push(line);
        self
    }

    /// For the terminal.
    pub(super) fn line(&self) -> String {
        let (mark, why) = (self.state.mark(), self.why.as_deref().unwrap_or_default());
        let at = self.at.as_ref().map_or_else(String::new, |at| format!(" at '{at}'"));
        format!("{mark}  {:<14} {:.1} s{at} {why}", self.name, self.seconds).trim_end().to_owned()
    }
}

impl State {
    fn mark(self) -> &'static str {
        match self {
            Self::Measured => "ok",
            Self::NotHere => "--",
            Self::Failed => "!!",
        }
    }
}

/// The whole report, and its file.
pub(super) struct Document {
    file: PathBuf,
    redaction: Redaction,
    head: Head,
    pub(super) model: Value,
    sections: Vec<Measured>,
}

#[derive(Clone, Serialize)]
struct Head {
    schema: &'static str,
    /// False for a run that was interrupted.
    complete: bool,
    quick: bool,
    began_unix_s: u64,
    program: Program,
}

#[derive(Clone, Serialize)]
struct Program {
    version: &'static str,
    system: &'static str,
    machine: &'static str,
    optimized: bool,
}

#[derive(Serialize)]
struct Whole<'a> {
    #[serde(flatten)]
    head: &'a Head,
    model: &'a Value,
    sections: &'a [Measured],
}

impl Document {
    /// Writes an empty report, so that a file that cannot be written is known before anything is measured.
    pub(super) fn begin(file: &Path, quick: bool, config: &Config) -> Result<Self, CliError> {
        let began_unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let program = Program {
            version: env!("CARGO_PKG_VERSION"),
            system: std::env::consts::OS,
            machine: std::env::consts::ARCH,
            optimized: !cfg!(debug_assertions),
        };
        let head = Head { schema: SCHEMA, complete: false, quick, began_unix_s, program };
        let redaction = Redaction::of_this_machine(config);
        let document = Self { file: file.to_path_buf(), redaction, head, model: Value::Null, sections: Vec::new() };
        document.write()?;
        Ok(document)
    }

    pub(super) fn add(&mut self, mut measured: Measured) -> Result<(), CliError> {
        let texts = [&mut measured.why, &mut measured.at].into_iter().flatten().chain(&mut measured.warnings);
        texts.for_each(|text| *text = self.redaction.apply(text));
        self.redaction.apply_to(&mut measured.result);
        self.sections.push(measured);
        self.write()
    }

    pub(super) fn complete(mut self) -> Result<(), CliError> {
        self.head.complete = true;
        self.write()
    }

    /// Replaces the file at once, so that a reader never sees half of it.
    fn write(&self) -> Result<(), CliError> {
        let failed = |error: std::io::Error| CliError::system(format!("'{}'", Outside::path(&self.file)), &error);
        let mut model = self.model.clone();
        self.redaction.apply_to(&mut model);
        let whole = Whole { head: &self.head, model: &model, sections: &self.sections };
        let text = serde_json::to_string_pretty(&whole).map_err(|error| failed(error.into()))?;
        let mut partial = self.file.clone().into_os_string();
        partial.push(".partial");
        let written = fs::write(&partial, text + "\n").and_then(|()| fs::rename(&partial, &self.file));
        written.map_err(|error| {
            let _ = fs::remove_file(&partial);
            failed(error)
        })
    }
}
