//! `pensieve plugins check`: validates a plugin before it is shipped or dropped in. The plugin's code runs in a child
//! process, so that even a crash or a hang is reported.
//!
//! With `--json` and without `--model` it is itself the child in which a server inspects a file without mapping it; it
//! prints one [`Checked`].

mod depth;
mod monitor;

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::{ArgGroup, Args};

use super::{
    common_args,
    error::{CliError, CliResult, Exit},
    inspect::{exit_of, inspect},
    laws::LawOptions,
    packages::certificate::SignedCertificate,
    progress::Spinner,
    reference::{self, Computed, TRANSFORMERS},
    reply::Reply,
    terminal::{end, tell},
};
use crate::config::units::Amount;
use depth::Depth;
use monitor::{LawMonitor, further, provides};
use pensieve_protocol::{
    checkpoint_files::readable, manifest::Manifest, outside::Outside, questions::Checked, refusal::Refusal,
};
use pensieve_server::fleet::child::{self, ChildError};
use pensieve_worker::plugin::LoadedPlugin;

/// Open a plugin and report what it provides or what is wrong with it; given a model, samplers or an adapter, test the
/// contract's laws on it.
#[derive(Args)]
#[group(skip)]
#[command(group = ArgGroup::new("tried").multiple(true).args(["model", "samplers", "adapter"]))]
#[command(after_help = "Examples:
  pensieve plugins check target/release/libmine.so
  pensieve plugins check target/release/libmine.so --model ./checkpoint
  pensieve plugins check target/release/libmine.so --model m.gguf --reference reference.safetensors
  pensieve plugins check target/release/libmine.so --samplers
  pensieve plugins check target/release/libmine.so --adapter ./adapter

docs/writing-a-plugin.md explains the laws and how to make a reference.")]
pub(super) struct Check {
    /// The plugin's library.
    file: PathBuf,
    /// Print one line of JSON, for programs.
    #[arg(long)]
    json: bool,
    /// The checkpoint to test with: a .gguf file, a folder, hf:OWNER/REPO or starter.
    #[arg(long, value_name = "SOURCE")]
    model: Option<String>,
    #[command(flatten)]
    setting: LawOptions,
    /// Time limit for each law, and for each step of loading.
    #[arg(long, default_value = "5m", value_name = "DURATION", value_parser = duration, requires = "tried")]
    timeout: Duration,
    /// Write a signed statement that this library obeyed the laws on this checkpoint, for `pensieve plugins pack`.
    #[arg(long, value_name = "FILE", requires = "model", requires = "key")]
    certify: Option<PathBuf>,
    /// The file with your secret key, to sign the certificate with.
    #[arg(long, value_name = "FILE", requires = "certify")]
    key: Option<PathBuf>,
}

impl Check {
    pub(super) fn run(self) -> ExitCode {
        let LawOptions { samplers, adapter, .. } = &self.setting;
        if self.model.is_some() || samplers.is_some() || adapter.is_some() {
            let mut monitor = LawMonitor::new(self.json);
            let tried = self.try_laws(&mut monitor);
            let certificate = tried.as_ref().ok().map(|()| self.certificate(&monitor));
            return end(monitor.end(tried).and_then(|()| certificate.map_or(Ok(()), |written| written?.write())));
        }
        if self.json {
            return check_for_programs(&self.file);
        }
        end(inspect(&self.file).map(|manifest| {
            drop(super::terminal::say(provides(&manifest).trim_end_matches('\n')));
            tell(format_args!("only its manifest was read; nothing that it provides was run{}", further(&manifest)));
        }))
    }

    /// The certificate to write, if one is asked for.
    fn certificate(&self, monitor: &LawMonitor) -> Result<SignedCertificate, CliError> {
        let shown = Outside::path(&self.file);
        let digest = pensieve_packages::of_file(&self.file);
        let (sha256, _) = digest.map_err(|error| CliError::system(format!("'{shown}'"), &error))?;
        let asked = self.certify.clone().zip(self.key.clone());
        let source = asked.as_ref().and(self.model.as_deref()).map(common_args::locate_checkpoint).transpose()?;
        let digest = source.map(|source| {
            let failed = |error| CliError::system(format!("'{}'", Outside::path(&source)), &error);
            pensieve_packages::of_checkpoint(&source).map_err(failed)
        });
        SignedCertificate::new(asked, monitor.certificate(sha256, digest.transpose()?))
    }

    /// Has a child process test the laws, to the last one or the first failure that stops it.
    fn try_laws(&self, monitor: &mut LawMonitor) -> CliResult {
        self.setting.check()?;
        let manifest = inspect(&self.file)?;
        monitor.begin(&manifest);
        self.refuse_unused_flags(&manifest)?;
        for file in self.setting.adapter.iter().chain(&self.setting.formats) {
            file.metadata().map_err(|error| CliError::system(format_args!("'{}'", Outside::path(&file)), &error))?;
        }
        let requested = self.setting.reference.as_deref();
        let is_computed = requested.is_some_and(|reference| reference.as_os_str() == TRANSFORMERS);
        if let Some(reference) = requested.filter(|_| !is_computed) {
            let metadata = reference.metadata();
            metadata.map_err(|error| {
                CliError::system(format_args!("the reference '{}'", Outside::path(&reference)), &error)
            })?;
        }
        let source = self.model.as_deref().map(common_args::locate_checkpoint).transpose()?;
        for path in source.iter().chain(&self.setting.adapter) {
            readable(path)?;
        }
        let computing = (is_computed && !self.json).then(Spinner::new);
        if let Some(spinner) = &computing {
            spinner.at("computing a reference with transformers");
        }
        let computed = source.as_deref().filter(|_| is_computed).map(reference::compute).transpose()?;
        drop(computing);
        let reference = computed.as_ref().map(Computed::path).or(requested.map(Path::to_owned));
        let arguments = self.arguments(source.as_deref(), reference.as_deref());
        self.follow(&arguments, monitor, &manifest)?;
        if is_computed
            && monitor.differs() == Some(true)
            && let Some(depth) = source.as_deref().and_then(Depth::of)
        {
            match self.first_layer(&depth, monitor, &manifest) {
                Ok(found) => monitor.found_layer(found),
                Err(error) => {
                    let why = error.lines.join("; ");
                    monitor.found_layer(format!("which layer differs first could not be found: {why}"));
                }
            }
        }
        Ok(())
    }

    /// Has a child process test laws, and follows it.
    fn follow(&self, arguments: &[OsString], monitor: &mut LawMonitor, manifest: &Manifest) -> CliResult {
        let followed = super::runtime()?.block_on(async {
            child::ask_for_lines(&program()?, arguments, None, self.timeout, |event| monitor.on_event(event)).await
        });
        followed.map_err(|error| monitor.describe_end(&error, manifest))?;
        monitor.stopped.take().map_or(Ok(()), Err)
    }

    /// Compares models of fewer layers with transformers, and says which layer is the first that differs.
    fn first_layer(&self, depth: &Depth<'_>, monitor: &LawMonitor, manifest: &Manifest) -> Result<String, CliError> {
        let setting = LawOptions { only_reference: true, adapter: None, formats: None, ..self.setting.clone() };
        let found = depth::first_that_differs(depth.layers, |count| {
            monitor.at(&format!("comparing {count} of {} layers", depth.layers));
            let folder = depth.cut(count)?;
            let reference = reference::compute(folder.path())?;
            let mut cut = LawMonitor::new(true);
            let arguments = self.arguments_of(&setting, Some(folder.path()), Some(&reference.path()));
            self.follow(&arguments, &mut cut, manifest)?;
            let unknown = || CliError::new(Exit::Failed, format!("a model of {count} layers was not compared"));
            cut.differs().ok_or_else(unknown)
        })?;
        Ok(depth::describe(found, depth.layers))
    }

    /// Refuses flags for kinds of providers that the plugin does not have.
    fn refuse_unused_flags(&self, manifest: &Manifest) -> CliResult {
        let Manifest { id, architectures, samplers, adapter_formats, .. } = manifest;
        let model = self.model.is_some();
        let adapter = self.setting.adapter.is_some() && !model;
        for (asked, is_empty, what, flag) in [
            (model, architectures.is_empty(), "architecture", "--model"),
            (self.setting.samplers.is_some(), samplers.is_empty(), "sampler", "--samplers"),
            (adapter, adapter_formats.is_empty(), "adapter format", "--adapter"),
        ] {
            if asked && is_empty {
                let line = format!("plugin '{id}' has no {what}, so {flag} has nothing to test");
                return Err(CliError::new(Exit::Usage, line));
            }
        }
        Ok(())
    }

    /// A certificate tells the speed, which takes a few more steps.
    fn is_timed(&self, setting: &LawOptions) -> bool {
        self.certify.is_some() && !setting.only_reference
    }

    fn arguments(&self, source: Option<&Path>, reference: Option<&Path>) -> Vec<OsString> {
        self.arguments_of(&self.setting, source, reference)
    }

    fn arguments_of(&self, setting: &LawOptions, source: Option<&Path>, reference: Option<&Path>) -> Vec<OsString> {
        let LawOptions { device, context, options, longest, tolerance, samplers, adapter, formats, .. } = setting;
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
        for (flag, is_set) in [("--only-reference", setting.only_reference), ("--timed", self.is_timed(setting))] {
            if is_set {
                arguments.push(flag.into());
            }
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
    let sent = Reply::begin().and_then(|reply| {
        let (checked, code) = match LoadedPlugin::open(file) {
            Ok(plugin) => (Checked::Manifest(plugin.manifest().clone()), ExitCode::SUCCESS),
            Err(error) => {
                let refusal = Refusal::new(error.reason.kind(), error.reason.to_string(), error.help());
                let exit = exit_of(&refusal);
                (Checked::Refusal(refusal), ExitCode::from(exit as u8))
            }
        };
        reply.send(&checked).map(|()| code)
    });
    sent.unwrap_or_else(|error| {
        tell(format_args!("the reply cannot be written: {error}"));
        ExitCode::FAILURE
    })
}
