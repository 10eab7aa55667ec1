//! `pensieve plugins`: plugin files and packages.

use std::process::ExitCode;

use clap::Subcommand;

use super::{
    check_plugin::Check,
    list_plugins::List,
    packages::{
        Add, ListOutdated, Remove, Search, UpdatePlugins,
        pack::{MakeKey, Pack},
        publish::Publish,
    },
    terminal::end,
};

#[derive(Subcommand)]
pub(super) enum Plugins {
    Check(Check),
    /// List the files in the plugin folders, what they provide, and why some are rejected.
    List(List),
    Add(Add),
    Remove(Remove),
    Update(UpdatePlugins),
    Outdated(ListOutdated),
    Search(Search),
    Key(MakeKey),
    Pack(Pack),
    Publish(Publish),
}

impl Plugins {
    pub(super) fn run(self) -> ExitCode {
        match self {
            Self::Check(check) => check.run(),
            Self::List(list) => end(list.run()),
            Self::Add(add) => end(add.run()),
            Self::Remove(remove) => end(remove.run()),
            Self::Update(update) => end(update.run()),
            Self::Outdated(outdated) => end(outdated.run()),
            Self::Search(search) => end(search.run()),
            Self::Key(key) => end(key.run()),
            Self::Pack(pack) => end(pack.run()),
            Self::Publish(publish) => end(publish.run()),
        }
    }
}
