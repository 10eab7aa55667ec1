//! `pensieve plugins check FILE`: loads one plugin into this process and says who it is, or what is wrong with it.
//!
//! For people, it prints a few lines. With `--json` it is how a server looks at a file without mapping it: see
//! [`Checked`] for the line that it prints.

use serde::{Deserialize, Serialize};
use std::{fmt::Write as _, path::Path, process::ExitCode};

use super::answer::Answer;
use crate::{
    fleet::Refusal,
    plugin::{LoadedPlugin, Manifest},
};

/// What the check of a file found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Checked {
    /// It is a plugin.
    Manifest(Manifest),
    /// It is none; the reason is what a sentence about the file goes on with.
    Refusal(Refusal),
}

/// Checks a file. Ends with 0 for a plugin and with 1 for anything else.
pub fn check(file: &Path, json: bool) -> ExitCode {
    let answer = if json { Answer::begin().map(Some) } else { Ok(None) };
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => return complain(&format!("cannot run this check: {error}")),
    };
    let opened = LoadedPlugin::open(file);
    let Some(answer) = answer else {
        return match opened {
            Ok(plugin) => {
                print!("{}", description(plugin.manifest()));
                ExitCode::SUCCESS
            }
            Err(error) => complain(&error.to_string()),
        };
    };
    let (checked, code) = match &opened {
        Ok(plugin) => (Checked::Manifest(plugin.manifest().clone()), ExitCode::SUCCESS),
        Err(error) => {
            let refusal = Refusal::new(error.reason.kind(), error.reason.to_string(), error.help());
            (Checked::Refusal(refusal), ExitCode::FAILURE)
        }
    };
    match answer.send(&checked) {
        Ok(()) => code,
        Err(error) => complain(&format!("the answer cannot be written: {error}")),
    }
}

fn complain(what: &str) -> ExitCode {
    eprintln!("{what}");
    ExitCode::FAILURE
}

fn description(manifest: &Manifest) -> String {
    let mut text = format!("{} {}: {}\n", manifest.id, manifest.version, manifest.description);
    let mut line = |what: &str, names: Vec<&str>| {
        if !names.is_empty() {
            let _ = writeln!(text, "  {what}: {}", names.join(", "));
        }
    };
    line("architectures", manifest.architectures.iter().map(|claim| claim.architecture.as_str()).collect());
    line("samplers", manifest.samplers.iter().map(String::as_str).collect());
    line("adapter formats", manifest.adapter_formats.iter().map(String::as_str).collect());
    line("built by", [&manifest.toolchain, &manifest.sdk].iter().map(|name| name.as_str()).collect());
    text
}
