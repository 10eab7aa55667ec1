//! `pensieve probe laws`: tests the contract's laws on a checkpoint, as the child of `pensieve plugins check`.
//!
//! It announces each step beforehand, so that the parent knows where a plugin was when it crashed, hung or called
//! `exit`. The laws themselves are in the contract crate; this module prepares them: it finds the claiming
//! architecture, validates the card, and reads the results of another implementation.

mod computed;
mod providers;

use pensieve_laws::{MediaSample, Options, Progress};
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

/// Blocks that the laws need, with some to spare.
const BLOCKS: u64 = 128;
const SEQUENCES: u64 = 16;
/// Tokens beside each image in texts with images, at most.
const BESIDE: u64 = 8;
/// For models whose card asks for little or nothing.
const STATE_BYTES_MIN: u64 = 64 << 20;

/// Flags of the test run, shared with `plugins check`.
#[derive(Args, Clone, Debug)]
pub(super) struct LawOptions {
    /// Where the model runs: auto, cpu, cuda:N or metal:N, or several as cuda:0+cuda:1 or cuda:all.
    #[arg(long, default_value = "auto", requires = "model")]
    pub(super) device: String,
    /// The context to load the model with; 0 is the checkpoint's own.
    #[arg(long, default_value_t = 0, value_name = "TOKENS", requires = "model")]
    pub(super) context: u32,
    /// Settings of the architecture, a JSON object.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "JSON", requires = "model")]
    pub(super) options: String,
    /// The longest sequence to test; 0 is one that exceeds the checkpoint's windows, up to 2048 tokens.
    #[arg(long, default_value_t = 0, value_name = "TOKENS", requires = "model")]
    pub(super) longest: u32,
    /// Results of another implementation to compare with: a safetensors file with `tokens`, and for each a row of
    /// `logits`, of `hidden` values, or of both. Without a file, Hugging Face transformers computes them now.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = super::reference::TRANSFORMERS, requires = "model")]
    pub(super) reference: Option<PathBuf>,
    /// Tests only whether the model agrees with the reference.
    #[arg(long, hide = true, requires = "reference")]
    pub(super) only_reference: bool,
    /// Also measures the speed of one stream.
    #[arg(long, hide = true, requires = "model")]
    pub(super) timed: bool,
    /// How much a value may differ from the reference [default: a twentieth of the range of the reference's values].
    #[arg(long, value_name = "NUMBER", requires = "reference")]
    pub(super) tolerance: Option<f32>,
    /// Test the plugin's samplers, with parameters where they need some: {"top_k": {"k": 40}}.
    #[arg(long, value_name = "JSON", num_args = 0..=1, require_equals = true, default_missing_value = "{}")]
    pub(super) samplers: Option<String>,
    /// An adapter, a file or a folder, to test the plugin's adapter formats with, and to run the model under.
    #[arg(long, value_name = "PATH")]
    pub(super) adapter: Option<PathBuf>,
    /// The plugin that reads the adapter, if this one does not.
    #[arg(long, value_name = "FILE", requires = "adapter", requires = "model")]
    pub(super) formats: Option<PathBuf>,
}

impl LawOptions {
    /// Rejects values that are wrong for every plugin and checkpoint.
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
            return wrong(format!("--context {context}: the laws need at least {least} tokens; {help}"));
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

/// Test the laws of the contract on a checkpoint.
#[derive(Args)]
pub(super) struct RunLaws {
    /// The plugin's library.
    plugin: PathBuf,
    /// The checkpoint, if a model is to be tested.
    #[arg(id = "model", value_name = "SOURCE")]
    source: Option<PathBuf>,
    #[command(flatten)]
    setting: LawOptions,
}

/// The child's messages to `plugins check`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum LawEvent {
    /// Progress of loading the checkpoint.
    Loads { done: u64, total: u64, what: String },
    /// A warning that the plugin logged.
    Warns { message: String },
    /// The model is loaded.
    Loaded(TestedModel),
    /// This sampler or adapter format is tested next.
    Subject { subject: String },
    /// This law is tested next.
    Tries { law: String },
    /// The verdict on the law that was announced last.
    Found(Verdict),
    /// The speed of one stream, once the laws have been tested.
    Timed { tokens_per_second: f64 },
    /// The laws cannot be tested.
    Stopped { exit: Exit, reason: String },
    /// All laws have been tested.
    Done,
}

/// The model under test, as it was loaded.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct TestedModel {
    pub(super) architecture: String,
    pub(super) device: String,
    pub(super) note: String,
    /// The card's name for its weights and tokenizer.
    pub(super) fingerprint: String,
    /// The checkpoint's own name, if it has one.
    pub(super) name: String,
}

/// The result of one law; see [`pensieve_laws::Verdict`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Verdict {
    pub(super) law: String,
    /// The sampler or adapter format; `None` for the model.
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

    /// Samplers and adapter formats come first, as they need no checkpoint.
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
        try_laws(self.load(&plugin, source, adapter, reply)?, self.setting.timed, say)
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
        let options = plugin.options(options);
        let source = source(checkpoint, &options)?;
        let (architecture, abi_card) = claimant(plugin, &name, &source)?;
        let card = Card {
            rows: plugin::rows::ask(&architecture, &source, &abi_card).map(|rows| rows.map(Box::new)),
            media: plugin::media::ask(&architecture, &source, &abi_card).map(|media| media.map(Box::new)),
            ..read_card(&abi_card.architecture, &abi_card)?
        };
        let reference = reference
            .as_deref()
            .map(|file| computed::read(file, *tolerance, &card, abi_card.hidden as usize))
            .transpose()?;
        let shape = pensieve_laws::Shape::from(&abi_card);
        let references = reference.into_iter().collect();
        // With recurrent layers, attention may go without positions: the order of tokens shows in the states.
        let positionless = shape.caches.iter().any(CacheGroup::has_slots);
        let media = samples(&architecture, &card)?;
        let (farthest, only_references) = (*longest, self.setting.only_reference);
        let options =
            Options { farthest, references, only_references, adapter, positionless, media, ..Options::default() };
        let compared = options.references.iter().map(|reference| reference.tokens.len() as u64).max();
        let seen: u64 = options.media.iter().map(|sample| u64::from(sample.rows) + BESIDE).sum();
        let tokens = compared.unwrap_or(0).max(4 * seen).max(u64::from(shape.farthest(&options)));
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

/// A loaded model with everything that the laws need.
struct Loaded {
    model: ModelBox,
    shape: pensieve_laws::Shape,
    card: Card,
    options: Options,
}

fn try_laws(loaded: Loaded, is_timed: bool, say: &mut dyn FnMut(LawEvent)) -> Result<(), CliError> {
    let Loaded { mut model, shape, card, options } = loaded;
    let resident = model.resident();
    let (device, note) = (resident.device.to_string(), resident.note.to_string());
    let facts: serde_json::Value = serde_json::from_str(&card.facts).unwrap_or_default();
    let name = facts["name"].as_str().unwrap_or_default().to_owned();
    let (architecture, fingerprint) = (card.architecture.clone(), card.fingerprint.clone());
    say(LawEvent::Loaded(TestedModel { architecture, device, note, fingerprint, name }));
    for (law, refused) in [("rows", card.rows.as_ref().err()), ("media", card.media.as_ref().err())] {
        if let Some(what) = refused {
            say(LawEvent::Tries { law: law.into() });
            say(LawEvent::Found(undescribed(law, what)));
        }
    }
    say(LawEvent::Tries { law: "tokenizer".into() });
    say(LawEvent::Found(tokenizer(card)?));
    let timed_shape = is_timed.then(|| shape.clone());
    let report = pensieve_laws::check(&mut model, shape, &options, &mut |progress| tell(progress, None, say));
    // One that breaks a law gets no certificate, and may crash where it is read a token at a time.
    if let Some(shape) = timed_shape.filter(|_| report.passed())
        && let Some(tokens_per_second) = pensieve_laws::tokens_per_second(&mut model, shape, &options)
    {
        say(LawEvent::Timed { tokens_per_second });
    }
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

/// A checkpoint's path and options in the contract's form.
pub(super) fn source<'a>(checkpoint: &'a Path, options: &'a str) -> Result<Source<'a>, CliError> {
    let path = checkpoint.to_str().ok_or_else(|| {
        CliError::new(Exit::Usage, format!("'{}' is not UTF-8; rename the file", Outside::path(&checkpoint)))
    })?;
    Ok(Source { path: path.into(), options: options.into() })
}

/// Converts and validates a plugin's card.
pub(super) fn read_card(architecture: &str, card: &AbiCard) -> Result<Card, CliError> {
    plugin::card::read(card, Ok(None), Ok(None)).map_err(|what| {
        let line = format!("architecture '{architecture}' returned an invalid card: {what}");
        CliError::new(Exit::Failed, line)
    })
}

/// A description of hidden rows or of media that the host cannot use.
fn undescribed(law: &str, what: &str) -> Verdict {
    let hint = format!("the contract's ext/{law}.rs says what a description has");
    let says = format!("the host can use the description of the model's {law}");
    Verdict { law: law.into(), subject: None, says, outcome: LawOutcome::Broken { what: what.into(), hint } }
}

/// Images for the laws, if the model reads some.
fn samples(architecture: &ArchitectureBox, card: &Card) -> Result<Vec<MediaSample>, CliError> {
    let Some(image) = card.media().and_then(|media| media.image.as_ref()) else { return Ok(Vec::new()) };
    let samples = MediaSample::images(architecture, image.slot, image.whole, &image.processor);
    samples.map_err(|error| refused(&card.architecture, "does not prepare an image", &error))
}

/// The one check of a card that only a host can do: that tokenizer and chat template parse.
fn tokenizer(card: Card) -> Result<Verdict, CliError> {
    let outcome = if card.tokenizer.is_empty() {
        LawOutcome::Noted { what: "the card has no tokenizer, so the model can be loaded but not served".into() }
    } else {
        match Model::try_card(card) {
            Ok(()) => LawOutcome::Exact,
            Err(failure) => LawOutcome::Broken {
                what: failure.message,
                hint: "the card's tokenizer is the text of a tokenizer.json, and its chat template is Jinja".into(),
            },
        }
    };
    let says = "the host can parse the card's tokenizer and chat template".into();
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
        let architecture = plugin.architecture(name).map_err(|error| refused(name, "cannot be created", &error))?;
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
