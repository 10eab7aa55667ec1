//! `pensieve doctor --report FILE`: measures what only this machine can tell, and writes it as one JSON document that holds no
//! personal data.
//!
//! Each section is measured in a child process, so that a crash costs its section alone, and the file is rewritten after each,
//! so that an interrupted run keeps what it has. `tests/reference/metal_tables.py` reads reports into `docs/metal.md`.

mod crash;
mod device;
mod document;
mod event;
mod laws;
mod redaction;
mod section;
mod served;
mod served_sections;
mod system;
mod validation;

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{
    common_args::CommonArgs,
    error::{CliError, CliResult},
    terminal::{say, tell},
};
use document::{Document, Measured, State};
use pensieve_protocol::{job::Failure, outside::Outside};
use pensieve_server::fleet::{Claimed, Config, Fleet, plugins::Status};
use redaction::Redaction;
use tokio::signal::unix::SignalKind;

pub(super) use section::RunSection;

/// How a section is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// By the host, without a model.
    System,
    /// In this process, from what its children have found.
    Plugins,
    /// By the host, on children that crash.
    Crash,
    /// By the plugin's library, on the device that the model takes.
    Device(Validation),
    /// The contract's laws on the model.
    Laws(Validation),
    /// By a server's supervisor, on a worker of the model.
    Served,
}

/// Metal's own validation of calls and shaders while a section is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Validation {
    Off,
    On,
}

/// A section's name, how it is measured, and what it has.
type Section = (&'static str, Way, &'static str);

const SECTIONS: [Section; 17] = [
    ("system", Way::System, "version and build of the system, chip, memory, swap, limits, thermal state"),
    ("plugins", Way::Plugins, "which plugins were found, and what of the fence around children holds"),
    ("crash", Way::Crash, "how long a child that crashes keeps its parent waiting"),
    ("device", Way::Device(Validation::Off), "the device, its families and limits"),
    (
        "compiler",
        Way::Device(Validation::Off),
        "what Metal's compiler says of each library, its times, threads per pipeline",
    ),
    ("guards", Way::Device(Validation::Off), "what becomes of infinities in each math mode of that compiler"),
    ("kernels", Way::Device(Validation::Off), "our kernels against the formulas on the CPU"),
    ("ops", Way::Device(Validation::Off), "candle's ops against the same on the CPU"),
    ("laws", Way::Laws(Validation::Off), "the laws that every model obeys"),
    ("kernels_validated", Way::Device(Validation::On), "our kernels under Metal's validation of calls and shaders"),
    ("laws_validated", Way::Laws(Validation::On), "the laws under the same"),
    ("products", Way::Device(Validation::Off), "times of matrix products by format and shape"),
    ("attention", Way::Device(Validation::Off), "times of attention by shape"),
    ("speed", Way::Served, "prompts and answers of a model by length"),
    ("streams", Way::Served, "20 streams over a shared prefix"),
    ("idle", Way::Served, "the first token after a minute without work"),
    ("soak", Way::Served, "ten minutes of answers: memory, speed, errors"),
];

impl Way {
    fn validation(self) -> Validation {
        match self {
            Self::Device(validation) | Self::Laws(validation) => validation,
            Self::System | Self::Plugins | Self::Crash | Self::Served => Validation::Off,
        }
    }
}

/// Inputs that the sections of a report share.
struct Plan<'a> {
    common: &'a CommonArgs,
    model: Option<&'a str>,
    quick: bool,
    program: PathBuf,
    /// The plugin that takes the model, or why there is none.
    claimed: Result<Claimed, String>,
    /// Sections that run the plugin's own code do so behind a fence.
    fenced: bool,
}

/// Measures all sections and writes the report.
pub(super) fn write(common: &CommonArgs, model: Option<&str>, file: &Path, quick: bool) -> CliResult {
    let (mut resolved, id) = common.resolve_one(model)?;
    // Children share the home, and what one of them left in the prompt cache would be no measurement.
    resolved.config.cache.budget = 0;
    let target = document::target(file)?;
    // An older report stays until the model is found.
    let config = resolved.fleet()?;
    let program = std::env::current_exe().map_err(|error| CliError::system("this program's file", &error))?;
    let models: Vec<PathBuf> = config.models.iter().map(|model| model.source.clone()).collect();
    let redaction = Redaction::of_this_machine(&resolved.config, &models);
    let mut document = Document::begin(&target, quick, redaction)?;
    announce(file, quick)?;
    // Found with the fleet.
    let claimed = Err(String::new());
    let plan = Plan { common, model, quick, program, claimed, fenced: true };
    super::runtime()?.block_on(async {
        let ended = tokio::select! {
            biased;
            Ok(()) = tokio::signal::ctrl_c() => None,
            ended = measure_all(plan, config, &id, &mut document) => Some(ended),
        };
        let (name, all) = (Outside::path(&file), SECTIONS.len());
        let Some(ended) = ended else {
            tell(format_args!("\npensieve: interrupted; '{name}' has {} of {all} sections", document.written()));
            // 128 + N is what shells expect of a program ended by signal N.
            std::process::exit(128 + SignalKind::interrupt().as_raw_value());
        };
        ended?;
        let failed = match document.failed() {
            0 => String::new(),
            failed => format!("{failed} of {all} sections failed; "),
        };
        say(&format!("\n{failed}the report is in '{name}': it is JSON, to be read before it is sent"))
    })
}

async fn measure_all(mut plan: Plan<'_>, config: Config, id: &str, document: &mut Document) -> CliResult {
    // A machine on which no plugin is found, or none takes the model, is one to hear of.
    let fleet = Fleet::start(config).await.map_err(|refusal| refusal.to_string());
    plan.claimed = match &fleet {
        Ok(fleet) => claim(fleet, id, document).await.map_err(|failure| failure.to_string()),
        Err(why) => Err(why.clone()),
    };
    let mut said = None;
    for (number, section) in (1..).zip(&SECTIONS) {
        let label = format!("{number} of {}, {}", SECTIONS.len(), section.0);
        let started = Instant::now();
        let mut measured = match (section.1, &fleet) {
            (Way::Plugins, Ok(fleet)) => plugins(fleet).await,
            (Way::Plugins, Err(why)) => Measured::failed(section.0, why),
            _ => plan.measure(section, &label).await,
        };
        measured.seconds = started.elapsed().as_secs_f64();
        tell(measured.line(said.as_deref()));
        said.clone_from(&measured.why);
        document.add(measured)?;
    }
    if let Ok(fleet) = fleet {
        fleet.shutdown(Duration::ZERO).await;
    }
    document.complete()
}

/// Finds the plugin that takes the model, and notes the model in the report.
async fn claim(fleet: &Fleet, id: &str, document: &mut Document) -> Result<Claimed, Failure> {
    let target = fleet.target(id).await?;
    let card = target.card;
    let facts: Value = serde_json::from_str(&card.facts).unwrap_or_default();
    document.model = json!({
        "architecture": card.architecture, "weight_bytes": card.weight_bytes, "context": card.context, "facts": facts,
    });
    let source = fleet.models().iter().find(|model| model.id == target.id).map(|model| model.source.clone());
    fleet.claimed(id, &source.unwrap_or_default()).await
}

/// Says what the report will have before anything is measured.
fn announce(file: &Path, quick: bool) -> CliResult {
    let time = if quick { "two to five minutes" } else { "about half an hour" };
    let mut text = format!("This takes {time} and goes to '{}', section by section:\n\n", Outside::path(&file));
    for (name, _, about) in SECTIONS {
        text.push_str(&format!("  {name:<14} {about}\n"));
    }
    text.push_str(
        "\nThe report has no names of yours, no paths, no host name and no serial number, and nothing is sent anywhere. \
         The figures are better with other programs closed and the machine on mains.\n\n",
    );
    super::terminal::print(&text)
}

/// The plugins that the fleet found in its folders.
async fn plugins(fleet: &Fleet) -> Measured {
    let states = fleet.plugins().snapshot();
    let plugins: Vec<Value> = states
        .iter()
        .filter_map(|state| {
            let (plugin, what, why) = match &state.status {
                Status::Ready { plugin } => (Some(plugin), "ready", None),
                Status::Shadowed { plugin, .. } => (Some(plugin), "shadowed", None),
                Status::Rejected(refusal) => (None, "rejected", Some(refusal.to_string())),
                Status::Pending => (None, "pending", None),
                Status::Retired { .. } => return None,
            };
            let (id, version) = plugin.map_or((None, None), |plugin| (Some(&plugin.id), Some(&plugin.version)));
            Some(json!({ "id": id, "version": version, "state": what, "why": why }))
        })
        .collect();
    let fenced = fleet.fenced().await;
    let fence = json!({ "holds": fenced.holds, "missing": fenced.missing, "notes": fenced.notes });
    Measured::new("plugins", State::Measured, json!({ "plugins": plugins, "fence": fence }))
}

impl Plan<'_> {
    async fn measure(&mut self, section: &Section, label: &str) -> Measured {
        let (name, way, _) = *section;
        if cfg!(not(target_os = "macos")) && way.validation() == Validation::On {
            return Measured::not_here(name, "Metal's validation is a part of macOS");
        }
        if let (Way::Device(_) | Way::Laws(_), Err(why)) = (way, &self.claimed) {
            return Measured::failed(name, why);
        }
        match way {
            Way::Crash => crash::measure(&self.program, name).await,
            Way::Laws(_) => laws::measure(self, name, way, label).await,
            Way::Device(_) if name == "device" => {
                let measured = section::ask(self, name, way, label).await;
                if measured.state != State::Failed || cfg!(target_os = "linux") {
                    return measured;
                }
                // Behind a fence that keeps the device away, every section after this one would fail the same way.
                self.fenced = false;
                let unfenced = section::ask(self, name, way, label).await;
                self.fenced = unfenced.state == State::Failed;
                let why = measured.why.unwrap_or_default();
                unfenced.warning(format!("behind the fence it failed ({why}), so the device's sections run without it"))
            }
            _ => section::ask(self, name, way, label).await,
        }
    }

    /// Variables that a section's child gets beside those of every child.
    fn variables(&self, way: Way) -> Vec<(OsString, OsString)> {
        let own = |name: &str, value: &str| (OsString::from(name), OsString::from(value));
        match way {
            Way::Device(Validation::On) | Way::Laws(Validation::On) => validation::variables(),
            Way::Served => {
                let configured = |name: &str| ["PENSIEVE_", "HF_", "XDG_"].iter().any(|start| name.starts_with(start));
                let all = std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(configured));
                // The Objective-C runtime writes a line for each object that no pool will free.
                all.chain([own("OBJC_DEBUG_MISSING_POOLS", "YES")]).collect()
            }
            _ => Vec::new(),
        }
    }
}
