//! `pensieve plugins`: what a plugin file is, told by opening it. It runs the plugin's code, in this process.
//!
//! With `--json`, `check` is how a server looks at a file without mapping it: see [`Checked`] for the line that it prints.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Subcommand;
use serde::{Deserialize, Serialize};

use super::{answer::Answer, exit::end, folder::List};
use crate::{
    fleet::Refusal,
    plugin::{LoadedPlugin, Manifest},
};

#[derive(Subcommand)]
pub(super) enum Plugins {
    /// Open a plugin, and say what it provides or what is wrong with it.
    Check {
        /// The library.
        file: PathBuf,
        /// Print one line of JSON, for programs.
        #[arg(long)]
        json: bool,
    },
    /// List the files in the plugin folders, what they provide, and why some are rejected.
    List(List),
}

/// What the check of a file found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Checked {
    /// It is a plugin.
    Manifest(Manifest),
    /// It is none; the reason is what a sentence about the file goes on with.
    Refusal(Refusal),
}

impl Plugins {
    pub(super) fn run(self) -> ExitCode {
        match self {
            Self::Check { file, json: true } => check_for_programs(&file),
            Self::Check { file, json: false } => check(&file),
            Self::List(list) => end(list.run()),
        }
    }
}

fn check(file: &Path) -> ExitCode {
    match LoadedPlugin::open(file) {
        Ok(plugin) => {
            print(plugin.manifest());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn check_for_programs(file: &Path) -> ExitCode {
    let answered = Answer::begin().and_then(|answer| {
        let (checked, code) = match LoadedPlugin::open(file) {
            Ok(plugin) => (Checked::Manifest(plugin.manifest().clone()), ExitCode::SUCCESS),
            Err(error) => {
                let refusal = Refusal::new(error.reason.kind(), error.reason.to_string(), error.help());
                (Checked::Refusal(refusal), ExitCode::FAILURE)
            }
        };
        answer.send(&checked).map(|()| code)
    });
    answered.unwrap_or_else(|error| {
        eprintln!("the answer cannot be written: {error}");
        ExitCode::FAILURE
    })
}

fn print(manifest: &Manifest) {
    println!("{} {}: {}", manifest.id, manifest.version, manifest.description);
    let architectures: Vec<&str> = manifest.architectures.iter().map(|claim| claim.architecture.as_str()).collect();
    for (kind, names) in [
        ("architectures", architectures),
        ("samplers", manifest.samplers.iter().map(String::as_str).collect()),
        ("adapter formats", manifest.adapter_formats.iter().map(String::as_str).collect()),
    ] {
        if !names.is_empty() {
            println!("  {kind}: {}", names.join(", "));
        }
    }
}
