//! `pensieve probe`: answers questions about checkpoints and plugins for the server, `plugins check` and `bench
//! --quality`. Hidden, as it is not meant for users.
//!
//! One process answers one question and runs one plugin, so that a plugin that crashes on a checkpoint does not keep
//! the next claimant from being asked.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Subcommand;
use pensieve_plugin_api::{ArchitectureBox, ErrorCode, Source};
use serde::Serialize;

use super::{
    laws::RunLaws,
    quality::RunQuality,
    reply::{self, Reply},
    report::RunSection,
};
use pensieve_protocol::{
    checkpoint::CheckpointName,
    outside::Outside,
    questions::{Described, Named},
    refusal::{Refusal, RefusalKind},
};
use pensieve_worker::plugin::{self, LoadedPlugin};

#[derive(Subcommand)]
pub(super) enum Probe {
    /// Which architecture name does the checkpoint have?
    Name {
        /// The checkpoint.
        source: PathBuf,
    },
    /// Which card does an architecture return for the checkpoint?
    Describe {
        /// The plugin's library.
        plugin: PathBuf,
        /// The architecture in it.
        architecture: String,
        /// The checkpoint.
        source: PathBuf,
        /// Settings of the architecture, a JSON object; empty for none.
        #[arg(allow_hyphen_values = true)]
        options: String,
    },
    /// Which parts of the fence around this process are in force?
    Fence,
    /// Does the model obey the contract's laws?
    Laws(RunLaws),
    /// How far is the model from its own weights in f32?
    Quality(RunQuality),
    /// What does a section of a report have?
    Section(RunSection),
}

impl Probe {
    pub(super) fn run(self) -> ExitCode {
        match self {
            Self::Name { source } => name(&source),
            Self::Describe { plugin, architecture, source, options } => {
                answer(|| card(&plugin, &architecture, &source, &options))
            }
            Self::Fence => answer(pensieve_worker::fence::entered),
            Self::Laws(trial) => trial.run(),
            Self::Quality(measurement) => measurement.run(),
            Self::Section(section) => section.run(),
        }
    }
}

fn name(source: &Path) -> ExitCode {
    let read = || -> Named {
        let help = "a source is a .gguf file, or a folder with config.json and safetensors";
        CheckpointName::read(source).map_err(|what| Refusal::new(RefusalKind::Unnamed, what, help))
    };
    answer(read)
}

fn card(plugin: &Path, architecture: &str, source: &Path, options: &str) -> Described {
    let refused = |kind: RefusalKind, reason: String, help: &str| Described::Refused(Refusal::new(kind, reason, help));
    let Some(path) = source.to_str() else {
        return refused(RefusalKind::Invalid, format!("'{}' is not UTF-8", Outside::path(&source)), "rename the file");
    };
    let plugin = match LoadedPlugin::open(plugin) {
        Ok(plugin) => plugin,
        Err(error) => return refused(error.reason.kind(), error.reason.to_string(), &error.help()),
    };
    let architecture = plugin.architecture(architecture);
    let options = plugin.options(options);
    let source = Source { path: path.into(), options: options.as_str().into() };
    let describe = |architecture: ArchitectureBox| {
        let card = architecture.describe(&source).into_result()?;
        let rows = plugin::rows::ask(&architecture, &source, &card);
        let media = plugin::media::ask(&architecture, &source, &card);
        Ok((card, rows, media))
    };
    match architecture.and_then(describe) {
        Ok((card, rows, media)) => match plugin::card::read(&card, rows, media) {
            Ok(card) => Described::Card(Box::new(card)),
            Err(what) => refused(
                RefusalKind::BadCard,
                format!("returned an invalid card: {what}"),
                "report this to the plugin's author",
            ),
        },
        Err(error) => {
            let refusal = Refusal::new(RefusalKind::Describe, error.message.as_str(), error.help.as_str()).cleaned();
            if error.code == ErrorCode::DECLINED { Described::Declined(refusal) } else { Described::Refused(refusal) }
        }
    }
}

fn answer<T: Serialize>(question: impl FnOnce() -> T) -> ExitCode {
    reply::status(Reply::begin().and_then(|reply| reply.send(&question())))
}
