//! `pensieve plugins`: checks and lists plugin files.

use std::process::ExitCode;

use clap::Subcommand;

use super::{check_plugin::Check, list_plugins::List, terminal::end};

#[derive(Subcommand)]
pub(super) enum Plugins {
    Check(Check),
    /// List the files in the plugin folders, what they provide, and why some are rejected.
    List(List),
}

impl Plugins {
    pub(super) fn run(self) -> ExitCode {
        match self {
            Self::Check(check) => check.run(),
            Self::List(list) => end(list.run()),
        }
    }
}
