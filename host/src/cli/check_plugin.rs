//! `pensieve plugins check`: what an author asks before shipping, and a user before dropping in. The plugin's code runs in a
//! child, so that whatever it does there can be render.
//!
//! With `--json` and without `--model` it is itself the child by which a server looks at a file without mapping it: see
//! [`Checked`] for the line that it prints.

use std::{
    ffi::OsString,
    fmt::Write as _,
    ops::ControlFlow,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::{ArgGroup, Args};
use pensieve_plugin_api::CONTRACT;
use serde_json::json;

use super::{
    common_args,
    error::{CliError, CliResult, Exit, end},
    laws::{LawEvent, LawOptions, LawOutcome, TestedModel, Verdict},
    progress::{LoadProgress, Spinner},
    reference::{self, Computed, TRANSFORMERS},
    reply::Reply,
};
use crate::config::units::Amount;
use pensieve_protocol::{
    manifest::Manifest,
    questions::Checked,
    refusal::{Refusal, clean},
};
use pensieve_server::fleet::{
    child::{self, ChildError},
    fence::{hide_from_children, inspection},
};
use pensieve_worker::plugin::LoadedPlugin;

/// How long a plugin may take to say who it is.
const INSPECTION_TIME_MAX: Duration = Duration::from_secs(20);
const COLUMNS: usize = 110;

/// Open a plugin, and say what it provides or what is wrong with it; with what it takes, try the contract's laws on it.
#[derive(Args)]
#[group(skip)]
#[command(group = ArgGroup::new("tried").multiple(true).args(["model", "samplers", "adapter"]))]
#[command(after_help = "Examples:
  pensieve plugins check target/release/libmine.so
  pensieve plugins check target/release/libmine.so --model ./checkpoint
  pensieve plugins check target/release/libmine.so --model m.gguf --reference reference.safetensors
  pensieve plugins check target/release/libmine.so --samplers
  pensieve plugins check target/release/libmine.so --adapter ./adapter

docs/writing-a-plugin.md tells what the laws are and how a reference is made.")]
pub(super) struct Check {
    /// The library.
    file: PathBuf,
    /// Print one line of JSON, for programs.
    #[arg(long)]
    json: bool,
    /// The checkpoint to try: a .gguf file, a folder, hf:OWNER/REPO or starter.
    #[arg(long, value_name = "SOURCE")]
    model: Option<String>,
    #[command(flatten)]
    setting: LawOptions,
    /// How long a law, or the plugin's next word while it loads, may take.
    #[arg(long, default_value = "5m", value_name = "DURATION", value_parser = duration, requires = "tried")]
    timeout: Duration,
}

impl Check {
    pub(super) fn run(self) -> ExitCode {
        let LawOptions { samplers, adapter, .. } = &self.setting;
        if self.model.is_some() || samplers.is_some() || adapter.is_some() {
            let mut monitor = LawMonitor::new(self.json);
            let tried = self.try_laws(&mut monitor);
            return end(monitor.end(tried));
        }
        if self.json {
            return check_for_programs(&self.file);
        }
        end(self.inspect().map(|manifest| {
            drop(super::say(provides(&manifest).trim_end_matches('\n')));
            eprintln!("it was opened and asked what it provides, and none of that was run{}", further(&manifest));
        }))
    }

    /// Asks a child what the file is.
    fn inspect(&self) -> Result<Manifest, CliError> {
        let arguments = ["plugins", "check", "--json"].map(OsString::from);
        let arguments = [&arguments[..], &["--".into(), self.file.clone().into()]].concat();
        hide_from_children();
        let asked = super::runtime()?.block_on(async {
            child::ask(&program()?, &arguments, &inspection(&self.file), INSPECTION_TIME_MAX).await
        });
        let name = self.file.display();
        match asked {
            Ok(Checked::Manifest(manifest)) => Ok(manifest),
            Ok(Checked::Refusal(refusal)) => {
                Err(CliError::new(exit_of(&refusal), format!("plugin '{name}' {}", refusal.cleaned())))
            }
            Err(error) => Err(CliError::new(Exit::Failed, format!("plugin '{name}' {error}"))),
        }
    }

    /// Has a child try the laws, to the last one or to what keeps them from being tried.
    fn try_laws(&self, monitor: &mut LawMonitor) -> CliResult {
        self.setting.check()?;
        let manifest = self.inspect()?;
        monitor.begin(&manifest);
        self.refuse_nothing(&manifest)?;
        for file in self.setting.adapter.iter().chain(&self.setting.formats) {
            file.metadata().map_err(|error| CliError::system(format_args!("'{}'", file.display()), &error))?;
        }
        let given = self.setting.reference.as_deref();
        let is_computed = given.is_some_and(|reference| reference.as_os_str() == TRANSFORMERS);
        if let Some(reference) = given.filter(|_| !is_computed) {
            let there = reference.metadata();
            there.map_err(|error| CliError::system(format_args!("the reference '{}'", reference.display()), &error))?;
        }
        let source = self.model.as_deref().map(common_args::locate_checkpoint).transpose()?;
        let computed = source.as_deref().filter(|_| is_computed).map(reference::compute).transpose()?;
        let reference = computed.as_ref().map(Computed::path).or(given.map(Path::to_owned));
        let arguments = self.arguments(source.as_deref(), reference.as_deref());
        let followed = super::runtime()?.block_on(async {
            child::ask_for_lines(&program()?, &arguments, self.timeout, |event| monitor.on_event(event)).await
        });
        followed.map_err(|error| monitor.describe_end(&error, &manifest))?;
        monitor.stopped.take().map_or(Ok(()), Err)
    }

    /// Refuses flags that ask for what the plugin does not have.
    fn refuse_nothing(&self, manifest: &Manifest) -> CliResult {
        let Manifest { id, architectures, samplers, adapter_formats, .. } = manifest;
        let model = self.model.is_some();
        let adapter = self.setting.adapter.is_some() && !model;
        for (asked, is_empty, what, flag) in [
            (model, architectures.is_empty(), "architecture", "--model"),
            (self.setting.samplers.is_some(), samplers.is_empty(), "sampler", "--samplers"),
            (adapter, adapter_formats.is_empty(), "adapter format", "--adapter"),
        ] {
            if asked && is_empty {
                let line = format!("plugin '{id}' has no {what}, so that {flag} has nothing to try");
                return Err(CliError::new(Exit::Usage, line));
            }
        }
        Ok(())
    }

    fn arguments(&self, source: Option<&Path>, reference: Option<&Path>) -> Vec<OsString> {
        let LawOptions { device, context, options, longest, tolerance, samplers, adapter, formats, .. } = &self.setting;
        let mut arguments: Vec<OsString> = vec!["probe".into(), "laws".into()];
        let mut flag = |name: &str, value: OsString| {
            let mut flag = OsString::from(format!("--{name}="));
            flag.push(value);
            arguments.push(flag);
        };
        if source.is_some() {
            flag("device", device.into());
            flag("context", context.to_string().into());
            flag("options", options.into());
            flag("longest", longest.to_string().into());
        }
        let tolerance = tolerance.map(|tolerance| tolerance.to_string());
        for (name, value) in [
            ("reference", reference.map(OsString::from)),
            ("tolerance", tolerance.map(OsString::from)),
            ("samplers", samplers.as_ref().map(OsString::from)),
            ("adapter", adapter.as_ref().map(OsString::from)),
            ("formats", formats.as_ref().map(OsString::from)),
        ] {
            value.into_iter().for_each(|value| flag(name, value));
        }
        arguments.extend(["--".into(), self.file.clone().into()]);
        arguments.extend(source.map(OsString::from));
        arguments
    }
}

fn program() -> Result<PathBuf, ChildError> {
    std::env::current_exe().map_err(ChildError::Spawn)
}

fn duration(text: &str) -> Result<Duration, String> {
    let duration = Duration::parse(text).filter(|duration| !duration.is_zero());
    duration.ok_or_else(|| "it takes a duration, such as 90s or 5m".into())
}

fn check_for_programs(file: &Path) -> ExitCode {
    let answered = Reply::begin().and_then(|answer| {
        let (checked, code) = match LoadedPlugin::open(file) {
            Ok(plugin) => (Checked::Manifest(plugin.manifest().clone()), ExitCode::SUCCESS),
            Err(error) => {
                let refusal = Refusal::new(error.reason.kind(), error.reason.to_string(), error.help());
                let exit = exit_of(&refusal);
                (Checked::Refusal(refusal), ExitCode::from(exit as u8))
            }
        };
        answer.send(&checked).map(|()| code)
    });
    answered.unwrap_or_else(|error| {
        eprintln!("the answer cannot be written: {error}");
        ExitCode::FAILURE
    })
}

fn exit_of(refusal: &Refusal) -> Exit {
    if refusal.kind == "not-found" { Exit::Absent } else { Exit::Failed }
}

/// What can be tried on a plugin, for people.
fn further(manifest: &Manifest) -> String {
    let ways = [
        (manifest.architectures.is_empty(), "--model CHECKPOINT tries the contract's laws on an architecture"),
        (manifest.samplers.is_empty(), "--samplers tries the contract's laws on samplers"),
        (manifest.adapter_formats.is_empty(), "--adapter PATH tries the contract's laws on adapter formats"),
    ];
    ways.iter().filter(|(is_empty, _)| !is_empty).map(|(_, way)| format!("; {way}")).collect()
}

/// Who a plugin is, for people.
fn provides(manifest: &Manifest) -> String {
    let Manifest { id, version, description, toolchain, sdk, architectures, samplers, adapter_formats } = manifest;
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

/// What is heard of a trial: render at once to people, and kept for the end.
struct LawMonitor {
    silent: bool,
    manifest: Option<Manifest>,
    loading: LoadProgress,
    spinner: Option<Spinner>,
    law: Option<String>,
    /// The provider that is tried, where it is not the model.
    provider: Option<String>,
    subject: Option<TestedModel>,
    warnings: Vec<String>,
    verdicts: Vec<Verdict>,
    stopped: Option<CliError>,
}

impl LawMonitor {
    fn new(silent: bool) -> Self {
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
            stopped: None,
        }
    }

    fn begin(&mut self, manifest: &Manifest) {
        self.show(|| drop(super::say(&provides(manifest))));
        self.manifest = Some(manifest.clone());
    }

    fn on_event(&mut self, event: LawEvent) -> ControlFlow<()> {
        match event {
            LawEvent::Loads { done, total, what } => self.loading.reach(done, total, &clean(&what)),
            LawEvent::Warns { message } => {
                let message = clean(&message);
                self.show(|| eprintln!("warning: {message}"));
                self.warnings.push(message);
            }
            LawEvent::Loaded(TestedModel { architecture, device, note }) => {
                self.loading.end();
                let [architecture, device, note] = [architecture, device, note].map(|text| clean(&text));
                let line = format!("architecture '{architecture}' on {device} ({note})\n");
                self.show(|| drop(super::say(&line)));
                self.subject = Some(TestedModel { architecture, device, note });
                self.provider = None;
                self.spinner = (!self.silent).then(Spinner::new);
            }
            LawEvent::Subject { subject } => {
                let subject = clean(&subject);
                self.show(|| drop(super::say(&subject)));
                self.provider = Some(subject);
            }
            LawEvent::Tries { law } => {
                if let Some(spinner) = &self.spinner {
                    spinner.at(format!("trying '{law}'"));
                }
                self.law = Some(law);
            }
            LawEvent::Found(verdict) => {
                let verdict = verdict.cleaned();
                self.show(|| drop(super::say(render(&verdict).trim_end_matches('\n'))));
                self.law = None;
                self.verdicts.push(verdict);
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

    /// Lays the end of a child to what it was at.
    fn describe_end(&self, error: &ChildError, manifest: &Manifest) -> CliError {
        let during = match (&self.law, &self.subject) {
            (Some(law), _) => format!("law '{law}'{} was tried", of(self.provider.as_deref())),
            (None, Some(_)) => "the laws were tried".into(),
            (None, None) => "the checkpoint was loaded".into(),
        };
        CliError::new(Exit::Failed, format!("while {during}, plugin '{}' {error}", manifest.id))
    }

    /// Says what came of it. Programs get the same object whatever kept the laws from being tried.
    fn end(mut self, tried: CliResult) -> CliResult {
        self.loading.end();
        self.spinner = None;
        let stopped = tried.as_ref().err().map(|error| error.lines.join("; "));
        let judged = tried.and_then(|()| self.judge());
        if self.silent {
            let found = json!({
                "plugin": self.manifest, "model": self.subject, "warnings": self.warnings, "laws": self.verdicts,
                "passed": judged.is_ok(), "stopped": stopped, "stopped_at": self.law,
            });
            super::say(&found.to_string())?;
        } else if judged.is_ok() {
            let is_compared = |verdict: &Verdict| {
                verdict.law == "reference" && !matches!(verdict.outcome, LawOutcome::NotTried { .. })
            };
            let compared = if self.subject.is_none() || self.verdicts.iter().any(is_compared) {
                ""
            } else {
                "; whether the numbers are the right ones, only another implementation's tell: --reference"
            };
            super::say(&format!("\nno law is broken{compared}"))?;
        }
        judged
    }

    fn judge(&self) -> CliResult {
        let broken: Vec<&Verdict> = self.verdicts.iter().filter(|verdict| verdict.is_broken()).collect();
        let Some(first) = broken.first() else { return Ok(()) };
        let (law, of) = (&first.law, of(first.subject.as_deref()));
        let line = match broken.len() {
            1 => format!("1 law is broken: '{law}'{of}"),
            count => {
                format!("{count} laws are broken; begin with the first, '{law}'{of}, as others may follow from it")
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

    /// Fit for a terminal: a plugin's own words may be in it.
    fn cleaned(mut self) -> Self {
        match &mut self.outcome {
            LawOutcome::Noted { what } | LawOutcome::NotTried { why: what } => *what = clean(what),
            LawOutcome::Broken { what, hint } => (*what, *hint) = (clean(what), clean(hint)),
            LawOutcome::Exact | LawOutcome::WithinRounding { .. } => {}
        }
        self
    }
}

/// A verdict, for people.
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

/// Words in lines of a readable width, the first behind a head and the others below its end.
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
