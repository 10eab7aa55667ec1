//! Output of `plugins check`: the manifest and the verdicts, line by line as text or as one JSON object.

use std::{fmt::Write as _, ops::ControlFlow};

use super::super::terminal::tell;
use pensieve_plugin_api::CONTRACT;
use serde_json::json;

use super::super::{
    error::{CliError, CliResult, Exit},
    laws::{LawEvent, LawOutcome, TestedModel, Verdict},
    progress::{LoadProgress, Spinner},
};
use pensieve_packages::{Certificate, Sha256Hex};
use pensieve_protocol::{manifest::Manifest, refusal::clean};
use pensieve_server::fleet::child::ChildError;

const COLUMNS: usize = 110;

/// Hints at the flags that would test this plugin.
pub(super) fn further(manifest: &Manifest) -> String {
    let ways = [
        (manifest.architectures.is_empty(), "--model CHECKPOINT tests the contract's laws on an architecture"),
        (manifest.samplers.is_empty(), "--samplers tests the contract's laws on samplers"),
        (manifest.adapter_formats.is_empty(), "--adapter PATH tests the contract's laws on adapter formats"),
    ];
    ways.iter().filter(|(is_empty, _)| !is_empty).map(|(_, way)| format!("; {way}")).collect()
}

/// The manifest as text.
pub(super) fn provides(manifest: &Manifest) -> String {
    let Manifest { id, version, description, toolchain, sdk, architectures, samplers, adapter_formats, .. } = manifest;
    let with = if sdk.is_empty() { String::new() } else { format!(" with {sdk}") };
    let mut text =
        format!("{id} {version}: {description}\n  built by {toolchain}{with} for contract {}\n", CONTRACT.major);
    let mut list = |what: &str, names: &[String]| {
        if !names.is_empty() {
            let _ = writeln!(text, "  {what}: {}", names.join(", "));
        }
    };
    for claim in architectures {
        list("architecture", std::slice::from_ref(&claim.architecture));
        list("  GGUF files that say", &claim.gguf);
        list("  folders of class", &claim.classes);
    }
    list("samplers", samplers);
    list("adapter formats", adapter_formats);
    text
}

/// Follows the events of a test run: prints them at once, and collects them for the summary.
pub(super) struct LawMonitor {
    silent: bool,
    manifest: Option<Manifest>,
    loading: LoadProgress,
    spinner: Option<Spinner>,
    law: Option<String>,
    /// The sampler or adapter format under test; `None` for the model.
    provider: Option<String>,
    subject: Option<TestedModel>,
    warnings: Vec<String>,
    verdicts: Vec<Verdict>,
    /// The first layer that differs from the reference, in words.
    first_layer: Option<String>,
    tokens_per_second: Option<f64>,
    pub(super) stopped: Option<CliError>,
}

impl LawMonitor {
    pub(super) fn new(silent: bool) -> Self {
        Self {
            silent,
            manifest: None,
            loading: LoadProgress::default(),
            spinner: None,
            law: None,
            provider: None,
            subject: None,
            warnings: Vec::new(),
            verdicts: Vec::new(),
            first_layer: None,
            tokens_per_second: None,
            stopped: None,
        }
    }

    pub(super) fn begin(&mut self, manifest: &Manifest) {
        self.show(|| drop(super::super::terminal::say(&provides(manifest))));
        self.manifest = Some(manifest.clone());
    }

    pub(super) fn on_event(&mut self, event: LawEvent) -> ControlFlow<()> {
        match event {
            LawEvent::Loads { done, total, what } => self.loading.reach(done, total, &clean(&what)),
            LawEvent::Warns { message } => {
                let message = clean(&message);
                self.show(|| tell(format_args!("warning: {message}")));
                self.warnings.push(message);
            }
            LawEvent::Loaded(TestedModel { architecture, device, note, fingerprint, name }) => {
                self.loading.end();
                let [architecture, device, note] = [architecture, device, note].map(|text| clean(&text));
                let [fingerprint, name] = [fingerprint, name].map(|text| clean(&text));
                let line = format!("architecture '{architecture}' on {device} ({note})\n");
                self.show(|| drop(super::super::terminal::say(&line)));
                self.subject = Some(TestedModel { architecture, device, note, fingerprint, name });
                self.provider = None;
                self.spinner = (!self.silent).then(Spinner::new);
            }
            LawEvent::Subject { subject } => {
                let subject = clean(&subject);
                self.show(|| drop(super::super::terminal::say(&subject)));
                self.provider = Some(subject);
            }
            LawEvent::Tries { law } => {
                if let Some(spinner) = &self.spinner {
                    spinner.at(&format!("testing '{law}'"));
                }
                self.law = Some(law);
            }
            LawEvent::Found(verdict) => {
                let verdict = verdict.cleaned();
                self.show(|| drop(super::super::terminal::say(render(&verdict).trim_end_matches('\n'))));
                self.law = None;
                self.verdicts.push(verdict);
            }
            LawEvent::Timed { tokens_per_second } => {
                self.tokens_per_second = Some(tokens_per_second).filter(|rate| rate.is_finite() && *rate > 0.0);
            }
            LawEvent::Stopped { exit, reason } => {
                self.stopped = Some(CliError::new(exit, clean(&reason)));
                return ControlFlow::Break(());
            }
            LawEvent::Done => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }

    fn show(&self, write: impl FnOnce()) {
        match &self.spinner {
            _ if self.silent => {}
            Some(spinner) => spinner.pause(write),
            None => write(),
        }
    }

    /// Error for a child that ended early, with what it was doing.
    pub(super) fn describe_end(&self, error: &ChildError, manifest: &Manifest) -> CliError {
        let during = match (&self.law, &self.subject) {
            (Some(law), _) => format!("law '{law}'{} was tested", of(self.provider.as_deref())),
            (None, Some(_)) => "the laws were tested".into(),
            (None, None) => "the checkpoint was loaded".into(),
        };
        CliError::new(Exit::Failed, format!("while {during}, plugin '{}' {error}", manifest.id))
    }

    /// Prints the summary. The JSON object has the same form if the laws could not be tested.
    pub(super) fn end(mut self, tried: CliResult) -> CliResult {
        self.loading.end();
        self.spinner = None;
        let stopped = tried.as_ref().err().map(|error| error.lines.join("; "));
        let judged = tried.and_then(|()| self.judge());
        if self.silent {
            let report = json!({
                "plugin": self.manifest, "model": self.subject, "warnings": self.warnings, "laws": self.verdicts,
                "first_layer": self.first_layer,
                "passed": judged.is_ok(), "stopped": stopped, "stopped_at": self.law,
            });
            super::super::terminal::say_json(&report.to_string())?;
        } else if judged.is_ok() {
            let is_compared = |verdict: &Verdict| {
                verdict.law == "reference" && !matches!(verdict.outcome, LawOutcome::NotTried { .. })
            };
            let compared = if self.subject.is_none() || self.verdicts.iter().any(is_compared) {
                ""
            } else {
                "; whether the numbers are right, only a comparison with another implementation can tell: --reference"
            };
            super::super::terminal::say(&format!("\nno law is broken{compared}"))?;
        }
        judged
    }

    /// Whether the model differs from the reference; `None` if they were not compared.
    pub(super) fn differs(&self) -> Option<bool> {
        let verdict = self.verdicts.iter().find(|verdict| verdict.law == "reference")?;
        match verdict.outcome {
            LawOutcome::NotTried { .. } => None,
            _ => Some(verdict.is_broken()),
        }
    }

    /// Keeps what was found out about a model that differs from the reference.
    pub(super) fn found_layer(&mut self, what: String) {
        self.show(|| {
            drop(super::super::terminal::say(wrapped("       first layer    ", &what).trim_end_matches('\n')));
        });
        self.first_layer = Some(what);
    }

    /// Shows what goes on between laws.
    pub(super) fn at(&self, what: &str) {
        if let Some(spinner) = &self.spinner {
            spinner.at(what);
        }
    }

    /// The statement that a library obeyed the laws on a checkpoint; `None` if no model was tested.
    pub(super) fn certificate(&self, plugin: Sha256Hex, checkpoint: Option<Sha256Hex>) -> Option<Certificate> {
        let TestedModel { architecture, device, fingerprint, name, .. } = self.subject.clone()?;
        let is_law =
            |verdict: &&Verdict| !matches!(verdict.outcome, LawOutcome::NotTried { .. } | LawOutcome::Noted { .. });
        let reference = self.verdicts.iter().find(|verdict| verdict.law == "reference");
        let difference = reference.and_then(|verdict| match verdict.outcome {
            LawOutcome::Exact => Some(0.0),
            LawOutcome::WithinRounding { worst } => Some(f64::from(worst)),
            _ => None,
        });
        Some(Certificate {
            plugin,
            architecture,
            fingerprint,
            checkpoint,
            model: name,
            device,
            laws: u32::try_from(self.verdicts.iter().filter(is_law).count()).unwrap_or(u32::MAX),
            difference,
            tokens_per_second: self.tokens_per_second,
        })
    }

    fn judge(&self) -> CliResult {
        let broken: Vec<&Verdict> = self.verdicts.iter().filter(|verdict| verdict.is_broken()).collect();
        let Some(first) = broken.first() else { return Ok(()) };
        let (law, of) = (&first.law, of(first.subject.as_deref()));
        let line = match broken.len() {
            1 => format!("1 law is broken: '{law}'{of}"),
            count => {
                format!("{count} laws are broken; begin with the first, '{law}'{of}, as it may have caused the others")
            }
        };
        Err(CliError::new(Exit::Failed, line))
    }
}

fn of(provider: Option<&str>) -> String {
    provider.map_or(String::new(), |provider| format!(" of {provider}"))
}

impl Verdict {
    fn is_broken(&self) -> bool {
        matches!(self.outcome, LawOutcome::Broken { .. })
    }

    /// Makes the plugin's text safe for a terminal.
    fn cleaned(mut self) -> Self {
        match &mut self.outcome {
            LawOutcome::Noted { what } | LawOutcome::NotTried { why: what } => *what = clean(what),
            LawOutcome::Broken { what, hint } => (*what, *hint) = (clean(what), clean(hint)),
            LawOutcome::Exact | LawOutcome::WithinRounding { .. } => {}
        }
        self
    }
}

/// A verdict as text.
fn render(verdict: &Verdict) -> String {
    let mark = match &verdict.outcome {
        LawOutcome::Exact | LawOutcome::WithinRounding { .. } => "ok",
        LawOutcome::Noted { .. } => "note",
        LawOutcome::NotTried { .. } => "-",
        LawOutcome::Broken { .. } => "BROKEN",
    };
    let head = format!("{mark:<6} {:<14} ", verdict.law);
    let mut text = wrapped(&head, &verdict.says);
    let indent = " ".repeat(head.len());
    match &verdict.outcome {
        LawOutcome::Exact => {}
        LawOutcome::WithinRounding { worst } => {
            text += &wrapped(&indent, &format!("up to {:.2} % of the spread", worst * 100.0));
        }
        LawOutcome::Noted { what } => text += &wrapped(&indent, what),
        LawOutcome::NotTried { why } => text += &wrapped(&indent, &format!("not tried: {why}")),
        LawOutcome::Broken { what, hint } => {
            text += &wrapped(&indent, &format!("seen: {what}"));
            text += &wrapped(&indent, hint);
        }
    }
    text
}

/// Wraps words after `head`, with continuation lines indented to its width.
fn wrapped(head: &str, words: &str) -> String {
    let (mut text, mut width) = (head.to_owned(), 0);
    let indent = head.chars().count();
    for word in words.split_whitespace() {
        let length = word.chars().count();
        if width > 0 && indent + width + 1 + length > COLUMNS {
            let _ = write!(text, "\n{:indent$}", "");
            width = 0;
        }
        if width > 0 {
            text.push(' ');
            width += 1;
        }
        text.push_str(word);
        width += length;
    }
    text.push('\n');
    text
}
