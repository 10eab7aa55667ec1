//! `pensieve probe laws`: tries the contract's laws on a checkpoint, as the child of `pensieve plugins check`.
//!
//! It says what it is at before it does it, so that the parent knows where a plugin was when it crashed, hung or
//! called `exit`. A law is code of the contract's; here stands only what comes before: who takes the checkpoint, whether
//! its card is one that a host believes, and what another implementation computed.

mod computed;
mod providers;

use pensieve_laws::{Options, Progress};
use pensieve_plugin_api::{
    AdapterData, ArchitectureBox, CacheGroup, Card as AbiCard, ErrorCode, LoadRequest, ModelBox, PluginError, Source,
};
use serde::{Deserialize, Serialize};
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;

use super::{
    error::{CliError, Exit},
    reply::{self, Reply, SharedReply},
};
use crate::config;
use pensieve_prompt::Model;
use pensieve_protocol::{
    card::{Card, State},
    checkpoint::CheckpointName,
    manifest::{Claim, Manifest},
    outside::Outside,
};
use pensieve_worker::plugin::{self, HostServices, LoadedPlugin};

/// Blocks that the laws have use for, with some to spare.
const BLOCKS: u64 = 128;
const SEQUENCES: u64 = 16;
/// What a model gets that does not say how much it needs.
const STATE_BYTES_MIN: u64 = 64 << 20;
/// How a model is tried; `plugins check` has these flags, too.
#[derive(Args, Clone, Debug)]
pub(super) struct LawOptions {
    /// Where the model runs: auto, cpu, cuda:N or metal:N, or several as cuda:0+cuda:1 or cuda:all.
    #[arg(long, default_value = "auto", requires = "model")]
    pub(super) device: String,
    /// The longest sequence that the model is loaded for; 0 is the checkpoint's own.
    #[arg(long, default_value_t = 0, value_name = "TOKENS", requires = "model")]
    pub(super) context: u32,
    /// Settings of the architecture, a JSON object.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "JSON", requires = "model")]
    pub(super) options: String,
    /// The longest text, which windows are tried on; 0 is one that leaves those of the checkpoint, up to 2048 tokens.
    #[arg(long, default_value_t = 0, value_name = "TOKENS", requires = "model")]
    pub(super) longest: u32,
    /// What another implementation computes: a safetensors file with `tokens` and a row of `logits` for each. Without a file,
    /// Hugging Face transformers computes it now.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = super::reference::TRANSFORMERS, requires = "model")]
    pub(super) reference: Option<PathBuf>,
    /// How far a logit may lie from the reference's [default: a twentieth of what the reference's spread over].
    #[arg(long, value_name = "NUMBER", requires = "reference")]
    pub(super) tolerance: Option<f32>,
    /// Try the laws of samplers on those of the plugin, with parameters for those that want some: {"top_k": {"k": 40}}.
    #[arg(long, value_name = "JSON", num_args = 0..=1, require_equals = true, default_missing_value = "{}")]
    pub(super) samplers: Option<String>,
    /// An adapter, a file or a folder: tries the laws of adapter formats on those of the plugin, and has the model take it.
    #[arg(long, value_name = "PATH")]
    pub(super) adapter: Option<PathBuf>,
    /// The plugin that reads the adapter for the model, if this one does not.
    #[arg(long, value_name = "FILE", requires = "adapter", requires = "model")]
    pub(super) formats: Option<PathBuf>,
}

impl LawOptions {
    /// Refuses what is wrong whichever plugin and checkpoint it is for.
    pub(super) fn check(&self) -> Result<(), CliError> {
        let Self { device, context, options, tolerance, samplers, .. } = self;
        let wrong = |what: String| Err(CliError::new(Exit::Usage, what));
        if let Some(samplers) = samplers {
            providers::parameters(samplers)?;
        }
        if let Err(what) = config::check_device(device) {
            return wrong(format!("--device {device}: {what}"));
        }
        if (1..pensieve_laws::TOKENS_MIN).contains(context) {
            let least = pensieve_laws::TOKENS_MIN;
            let help = format!("it takes {least} or more, or 0 for the checkpoint's own");
            return wrong(format!(
                "--context {context}: the laws are tried on texts of {least} tokens at least; {help}"
            ));
        }
        if !options.trim().is_empty()
            && let Err(error) = serde_json::from_str::<serde_json::Map<_, serde_json::Value>>(options)
        {
            return wrong(format!("--options {options}: it takes a JSON object, such as {{\"kv\": \"f32\"}}; {error}"));
        }
        match tolerance {
            Some(tolerance) if !(tolerance.is_finite() && *tolerance > 0.0) => {
                wrong(format!("--tolerance {tolerance}: it takes a number above 0, such as 0.0001"))
            }
            _ => Ok(()),
        }
    }
}

/// Tries the laws of the contract on a checkpoint.
#[derive(Args)]
pub(super) struct RunLaws {
    /// The plugin's library.
    plugin: PathBuf,
    /// The checkpoint, if there is a model to try.
    #[arg(id = "model", value_name = "SOURCE")]
    source: Option<PathBuf>,
    #[command(flatten)]
    setting: LawOptions,
}

/// What the child says while the laws are tried.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum LawEvent {
    /// This much of the checkpoint is loaded.
    Loads { done: u64, total: u64, what: String },
    /// The plugin has something to say of the checkpoint.
    Warns { message: String },
    /// The model is loaded.
    Loaded(TestedModel),
    /// This provider is tried next.
    Subject { subject: String },
    /// This law is tried next.
    Tries { law: String },
    /// The verdict on the law that was tried last.
    Found(Verdict),
    /// The laws cannot be tried.
    Stopped { exit: Exit, reason: String },
    /// All laws have been tried.
    Done,
}

/// The loaded model whose laws are tried.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct TestedModel {
    pub(super) architecture: String,
    pub(super) device: String,
    pub(super) note: String,
}

/// What came of one law; see [`pensieve_laws::Verdict`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Verdict {
    pub(super) law: String,
    /// Of which provider, where it is not the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) subject: Option<String>,
    pub(super) says: String,
    #[serde(flatten)]
    pub(super) outcome: LawOutcome,
}

/// See [`pensieve_laws::Outcome`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub(super) enum LawOutcome {
    Exact,
    WithinRounding { worst: f32 },
    Noted { what: String },
    NotTried { why: String },
    Broken { what: String, hint: String },
}

impl RunLaws {
    pub(super) fn run(self) -> ExitCode {
        reply::status(Reply::attended().and_then(|reply| {
            let tried = self.try_all(&reply, &mut |event| drop(reply.line(&event)));
            reply.line(&match tried {
                Ok(()) => LawEvent::Done,
                Err(error) => LawEvent::Stopped { exit: error.exit, reason: error.lines.join("; ") },
            })
        }))
    }

    /// The providers that need no checkpoint come first.
    fn try_all(&self, reply: &SharedReply, say: &mut dyn FnMut(LawEvent)) -> Result<(), CliError> {
        let plugin = open(&self.plugin)?;
        let LawOptions { samplers, adapter, formats, .. } = &self.setting;
        if let Some(parameters) = samplers {
            providers::try_samplers(&plugin, parameters, say)?;
        }
        if let Some(adapter) = adapter {
            providers::try_formats(&plugin, adapter, say)?;
        }
        let Some(source) = &self.source else { return Ok(()) };
        let others = formats.iter().map(|file| open(file)).collect::<Result<Vec<_>, _>>()?;
        let readers: Vec<&LoadedPlugin> = others.iter().chain([&plugin]).collect();
        let adapter = adapter.as_deref().map(|adapter| providers::read_adapter(&readers, adapter)).transpose()?;
        try_laws(self.load(&plugin, source, adapter, reply)?, say)
    }

    fn load(
        &self,
        plugin: &LoadedPlugin,
        checkpoint: &Path,
        adapter: Option<AdapterData>,
        reply: &SharedReply,
    ) -> Result<Loaded, CliError> {
        let name = CheckpointName::read(checkpoint);
        let name = name.map_err(|what| CliError::new(Exit::Failed, format!("the checkpoint {what}")))?;
        let LawOptions { device, context, options, longest, reference, tolerance, .. } = &self.setting;
        let source = source(checkpoint, options)?;
        let (architecture, abi_card) = claimant(plugin, &name, &source)?;
        let card = read_card(&abi_card.architecture, &abi_card)?;
        let reference = reference.as_deref().map(|file| computed::read(file, *tolerance, &card)).transpose()?;
        let shape = pensieve_laws::Shape::from(&abi_card);
        let references = reference.into_iter().collect();
        // Where some layers keep states, attention may do without positions: the order of tokens shows in the states.
        let positionless = shape.caches.iter().any(CacheGroup::has_slots);
        let options = Options { farthest: *longest, references, adapter, positionless, ..Options::default() };
        let compared = options.references.iter().map(|reference| reference.tokens.len() as u64).max();
        let tokens = compared.unwrap_or(0).max(u64::from(shape.farthest(&options)));
        let state_bytes = match card.state {
            State::Paged { tokens: block, bytes, beside } => {
                let blocks = BLOCKS + tokens / u64::from(block);
                bytes.saturating_mul(blocks).saturating_add(beside.saturating_mul(SEQUENCES))
            }
            State::PerSequence { bytes } => bytes.saturating_mul(SEQUENCES),
        };
        let state_bytes = state_bytes.max(STATE_BYTES_MIN);
        let (device, context) = (device.as_str().into(), *context);
        let request = LoadRequest { source, device, context, state_bytes, threads: 0 };
        let model = architecture.load(&request, services(reply).into_abi()).into_result();
        let model = model.map_err(|error| refused(&abi_card.architecture, "does not load the checkpoint", &error))?;
        Ok(Loaded { model, shape, card, options })
    }
}

/// A model, and what is needed to judge it.
struct Loaded {
    model: ModelBox,
    shape: pensieve_laws::Shape,
    card: Card,
    options: Options,
}

fn try_laws(loaded: Loaded, say: &mut dyn FnMut(LawEvent)) -> Result<(), CliError> {
    let Loaded { mut model, shape, card, options } = loaded;
    let resident = model.resident();
    let (device, note) = (resident.device.to_string(), resident.note.to_string());
    say(LawEvent::Loaded(TestedModel { architecture: card.architecture.clone(), device, note }));
    say(LawEvent::Tries { law: "tokenizer".into() });
    say(LawEvent::Found(tokenizer(card)?));
    pensieve_laws::check(&mut model, shape, &options, &mut |progress| tell(progress, None, say));
    Ok(())
}

fn tell(progress: Progress<'_>, subject: Option<&str>, say: &mut dyn FnMut(LawEvent)) {
    match progress {
        Progress::Tries(law) => say(LawEvent::Tries { law: law.into() }),
        Progress::Found(verdict) => {
            say(LawEvent::Found(Verdict { subject: subject.map(str::to_owned), ..verdict.into() }));
        }
    }
}

pub(super) fn open(file: &Path) -> Result<LoadedPlugin, CliError> {
    LoadedPlugin::open(file).map_err(|error| CliError::new(Exit::Failed, error.to_string()))
}

/// A checkpoint as it crosses to a plugin.
pub(super) fn source<'a>(checkpoint: &'a Path, options: &'a str) -> Result<Source<'a>, CliError> {
    let path = checkpoint.to_str().ok_or_else(|| {
        CliError::new(Exit::Usage, format!("'{}' is not UTF-8; rename the file", Outside::path(&checkpoint)))
    })?;
    Ok(Source { path: path.into(), options: options.into() })
}

/// A plugin's card as this host reads it.
pub(super) fn read_card(architecture: &str, card: &AbiCard) -> Result<Card, CliError> {
    plugin::card::read(card).map_err(|what| {
        let line = format!("architecture '{architecture}' describes the checkpoint wrongly: {what}");
        CliError::new(Exit::Failed, line)
    })
}

/// The one demand on a card that only a host can try: that it can read what texts are written with.
fn tokenizer(card: Card) -> Result<Verdict, CliError> {
    let outcome = if card.tokenizer.is_empty() {
        LawOutcome::Noted { what: "the card has no tokenizer: the model can be loaded, and not served".into() }
    } else {
        match Model::try_card(card) {
            Ok(()) => LawOutcome::Exact,
            Err(failure) => LawOutcome::Broken {
                what: failure.message,
                hint: "the card's tokenizer is the text of a tokenizer.json, and its chat template is Jinja".into(),
            },
        }
    };
    let says = "the card's tokenizer and chat template are ones that a host can read".into();
    Ok(Verdict { law: "tokenizer".into(), subject: None, says, outcome })
}

/// The first architecture of the plugin that claims the checkpoint and does not decline it.
fn claimant(
    plugin: &LoadedPlugin,
    name: &CheckpointName,
    source: &Source<'_>,
) -> Result<(ArchitectureBox, AbiCard), CliError> {
    let wants = |claim: &&Claim| match name {
        CheckpointName::Gguf(name) => claim.gguf.contains(name),
        CheckpointName::Class(class) => claim.classes.contains(class),
    };
    let mut declined = Vec::new();
    for claim in plugin.manifest().architectures.iter().filter(wants) {
        let name = &claim.architecture;
        let architecture = plugin.architecture(name).map_err(|error| refused(name, "cannot be made", &error))?;
        match architecture.describe(source).into_result() {
            Ok(card) => return Ok((architecture, card)),
            Err(error) if error.code == ErrorCode::DECLINED => declined.push(format!("{name}: {error}")),
            Err(error) => return Err(refused(name, "does not describe the checkpoint", &error)),
        }
    }
    let line = if declined.is_empty() {
        unclaimed(plugin.manifest(), name)
    } else {
        format!("plugin '{}' claims '{}' and declines it: {}", plugin.manifest().id, name.as_str(), declined.join("; "))
    };
    Err(CliError::new(Exit::Plugin, line))
}

fn unclaimed(manifest: &Manifest, name: &CheckpointName) -> String {
    let (what, list) = match name {
        CheckpointName::Gguf(_) => ("GGUF files that say", "GGUF"),
        CheckpointName::Class(_) => ("folders of class", "CLASSES"),
    };
    let claims = manifest.architectures.iter().flat_map(|claim| match name {
        CheckpointName::Gguf(_) => &claim.gguf,
        CheckpointName::Class(_) => &claim.classes,
    });
    let claims: Vec<String> = claims.map(|claim| format!("'{claim}'")).collect();
    let claims = if claims.is_empty() { "none".into() } else { claims.join(", ") };
    let (id, name) = (&manifest.id, name.as_str());
    format!(
        "plugin '{id}' does not claim the checkpoint, which says '{name}' (it claims {what}: {claims}); if it can \
             take it, add '{name}' to the {list} of its architecture"
    )
}

pub(super) fn refused(architecture: &str, what: &str, error: &PluginError) -> CliError {
    CliError::new(Exit::Failed, format!("architecture '{architecture}' {what}: {error}"))
}

fn services(reply: &SharedReply) -> HostServices {
    reply.services(|message| LawEvent::Warns { message }, |done, total, what| LawEvent::Loads { done, total, what })
}

impl From<&pensieve_laws::Verdict> for Verdict {
    fn from(verdict: &pensieve_laws::Verdict) -> Self {
        let outcome = match verdict.outcome.clone() {
            pensieve_laws::Outcome::Exact => LawOutcome::Exact,
            pensieve_laws::Outcome::WithinRounding { worst } => LawOutcome::WithinRounding { worst },
            pensieve_laws::Outcome::Noted { what } => LawOutcome::Noted { what },
            pensieve_laws::Outcome::NotApplicable { why } => LawOutcome::NotTried { why },
            pensieve_laws::Outcome::Broken { what, hint } => LawOutcome::Broken { what, hint },
        };
        Self { law: verdict.law.into(), subject: None, says: verdict.says.into(), outcome }
    }
}
