//! `--reference transformers`: computes a checkpoint's logits or hidden rows with Hugging Face transformers, in Python.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};
use tempfile::TempDir;

use super::error::{CliError, Exit};
use pensieve_protocol::outside::Outside;

/// Value of `--reference` that asks to compute one; also its default without a value.
pub(super) const TRANSFORMERS: &str = "transformers";
const SCRIPT: &str = include_str!("reference.py");
/// Longer than two cache blocks of most models, so that positions, caches and short windows all matter.
const TEXT: &str = "How do I check my plugin before I ship it? A prompt in chunks gives the logits of the whole, a sequence in \
                    company those that it gets alone, and any blocks in any order do. What is wrong each time in the same way, \
                    a norm's epsilon, a rotation of other pairs, two weights taken for each other, only the numbers of another \
                    implementation tell, and they are compared here, one row after the other, for 1, 2, 3, 5, 8 and 13 tokens.";

/// A computed reference; its file is deleted on drop.
pub(super) struct Computed {
    folder: TempDir,
}

impl Computed {
    pub(super) fn path(&self) -> PathBuf {
        self.folder.path().join("reference.safetensors")
    }
}

/// Runs the script with `PENSIEVE_PYTHON` or `python3`, in an empty folder.
pub(super) fn compute(checkpoint: &Path) -> Result<Computed, CliError> {
    let folder = tempfile::tempdir().map_err(|error| CliError::system("a temporary folder", &error))?;
    let script = folder.path().join("reference.py");
    fs::write(&script, SCRIPT).map_err(|error| CliError::system(Outside::path(&script), &error))?;
    let checkpoint =
        std::path::absolute(checkpoint).map_err(|error| CliError::system(Outside::path(&checkpoint), &error))?;
    let (parent, file) = match (checkpoint.is_dir(), checkpoint.parent(), checkpoint.file_name()) {
        (false, Some(parent), Some(file)) => (parent, file),
        _ => (checkpoint.as_path(), "".as_ref()),
    };
    let python = std::env::var_os("PENSIEVE_PYTHON").unwrap_or_else(|| "python3".into());
    let mut command = Command::new(&python);
    command.arg(&script).arg(parent).arg(file).arg(TEXT).current_dir(folder.path()).stdin(Stdio::null());
    let help = "it needs a Python with torch, transformers and safetensors (for GGUF files gguf and accelerate, too), which \
                PENSIEVE_PYTHON may name; --reference FILE uses one that was computed elsewhere";
    let failed =
        |what: String| CliError::new(Exit::Failed, format!("the reference cannot be computed: {what}; {help}"));
    let python = Outside::path(&python);
    let output = command.output().map_err(|error| failed(format!("'{python}' cannot be started: {error}")))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let last = stderr.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no output").to_owned();
        return Err(failed(format!("'{python}' ended with {}: {last}", output.status)));
    }
    let computed = Computed { folder };
    if computed.path().is_file() { Ok(computed) } else { Err(failed("the script wrote no file".into())) }
}
