//! The report's document, version 1 of its schema.

use serde::Serialize;
use serde_json::Value;
use std::{
    fs::Permissions,
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use super::{
    super::error::{CliError, Exit},
    redaction::Redaction,
};
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
    /// The measurement during which it failed.
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

    /// For the terminal. A reason that has just been said is not said again.
    pub(super) fn line(&self, said: Option<&str>) -> String {
        let mark = self.state.mark();
        let why = self.why.as_deref().map_or("", |why| if said == Some(why) { "for the same reason" } else { why });
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

/// The file of a report behind its links, which has to be a regular one if it is there. Nothing is left written.
pub(super) fn target(file: &Path) -> Result<PathBuf, CliError> {
    let failed = |error: io::Error| CliError::system(format!("'{}'", Outside::path(&file)), &error);
    let refused = |why: &str| Err(CliError::new(Exit::Usage, format!("--report '{}': {why}", Outside::path(&file))));
    let target = match file.canonicalize() {
        Ok(target) if target.is_file() => target,
        Ok(_) => return refused("it is there, and no regular file"),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        Err(_) if file.is_symlink() => return refused("it is a link to a file that is not there"),
        Err(_) => {
            let Some(name) = file.file_name() else { return refused("it names no file") };
            let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            folder.canonicalize().map_err(failed)?.join(name)
        }
    };
    partial(&target).map_err(failed)?;
    Ok(target)
}

/// A new file beside the report's, removed unless it takes the report's place.
fn partial(target: &Path) -> io::Result<tempfile::NamedTempFile> {
    let folder = target.parent().unwrap_or(Path::new("/"));
    let mut builder = tempfile::Builder::new();
    // As files usually are, within the user's mask.
    builder
        .prefix(".pensieve-report.")
        .suffix(".partial")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder)
}

impl Document {
    /// Writes an empty report to a file of [`target`].
    pub(super) fn begin(file: &Path, quick: bool, redaction: Redaction) -> Result<Self, CliError> {
        let began_unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let program = Program {
            version: env!("CARGO_PKG_VERSION"),
            system: std::env::consts::OS,
            machine: std::env::consts::ARCH,
            optimized: !cfg!(debug_assertions),
        };
        let head = Head { schema: SCHEMA, complete: false, quick, began_unix_s, program };
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

    /// How many sections there are so far.
    pub(super) fn written(&self) -> usize {
        self.sections.len()
    }

    pub(super) fn failed(&self) -> usize {
        self.sections.iter().filter(|section| section.state == State::Failed).count()
    }

    pub(super) fn complete(&mut self) -> Result<(), CliError> {
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
        let written = partial(&self.file).and_then(|mut partial| {
            partial.write_all((text + "\n").as_bytes())?;
            partial.persist(&self.file).map_err(|error| error.error)
        });
        written.map(drop).map_err(failed)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink};

    #[test]
    fn a_report_goes_through_links_and_into_regular_files_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("old.json"), "old").unwrap();
        symlink("old.json", path("link.json")).unwrap();
        symlink("nowhere", path("torn.json")).unwrap();
        for wrong in [Path::new("/dev/full"), Path::new("/dev/null"), folder.path(), &path("torn.json"), Path::new("/")]
        {
            assert_eq!(target(wrong).unwrap_err().exit, Exit::Usage, "{}", wrong.display());
        }
        assert_eq!(target(&path("nowhere/new.json")).unwrap_err().exit, Exit::Absent);
        let file = target(&path("link.json")).unwrap();
        assert_eq!(fs::read_to_string(path("old.json")).unwrap(), "old");
        let mut document = Document::begin(&file, true, Redaction::default()).unwrap();
        document.add(Measured::failed("system", "no")).unwrap();
        assert_eq!((document.written(), document.failed()), (1, 1));
        assert!(path("link.json").is_symlink());
        assert!(fs::read_to_string(path("old.json")).unwrap().contains("pensieve-report"));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3, "a partial file is left");
    }
}
