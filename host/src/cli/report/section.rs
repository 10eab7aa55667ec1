//! Sections of a report in their child processes, on both sides.

use clap::Args;
use serde_json::Value;
use std::{ffi::OsString, ops::ControlFlow, path::PathBuf, process::ExitCode, time::Duration};

use super::{
    super::{
        common_args::CommonArgs,
        progress::LoadProgress,
        reply::{self, Reply},
    },
    Plan, Validation, Way, crash, device,
    document::{Measured, State},
    event::{SectionEvent, predicate},
    served_sections, system, validation,
};
use pensieve_protocol::refusal::clean;
use pensieve_server::fleet::child::{self, ChildError, signal_name};

/// How long a child may be silent: a prompt of 18,000 tokens takes a small machine ten minutes.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(1200);

/// Measure a section of a report.
#[derive(Args)]
pub(in crate::cli) struct RunSection {
    /// The section's name.
    name: String,
    /// The plugin's library, for sections about its device.
    #[arg(long)]
    plugin: Option<PathBuf>,
    /// Small sizes and short times.
    #[arg(long)]
    quick: bool,
    #[arg(long)]
    model: Option<String>,
    #[command(flatten)]
    common: CommonArgs,
}

impl RunSection {
    pub(in crate::cli) fn run(self) -> ExitCode {
        reply::status(Reply::attended().and_then(|reply| {
            let mut say = |event: SectionEvent| drop(reply.line(&event));
            let Self { name, plugin, quick, model, common } = &self;
            crash::end(name, || say(SectionEvent::Reaches { done: 0, total: 1, what: name.clone() }));
            let measured = match plugin {
                Some(plugin) => device::measure(plugin, name, common.device(), *quick, &reply),
                None if name == "system" => Ok(SectionEvent::Found(system::facts())),
                None => served_sections::measure(common, model.as_deref(), name, *quick, &mut say),
            };
            match measured {
                Ok(event) => {
                    reply.line(&event)?;
                    reply.line(&SectionEvent::Done)
                }
                Err(error) => reply.line(&SectionEvent::Stopped { reason: error.lines.join("; ") }),
            }
        }))
    }
}

/// Has a child measure a section.
pub(super) async fn ask(plan: &Plan<'_>, name: &'static str, way: Way, label: &str) -> Measured {
    // Validated or not, it is one measurement.
    let measurement = name.strip_suffix("_validated").unwrap_or(name);
    let mut arguments: Vec<OsString> = ["probe", "section", measurement].map(OsString::from).into();
    if plan.quick {
        arguments.push("--quick".into());
    }
    let claimed = plan.claimed.as_ref().ok().filter(|_| matches!(way, Way::Device(_)));
    let policy = claimed.filter(|_| plan.fenced).map(|claimed| &claimed.policy);
    if let Some(claimed) = claimed {
        arguments.extend(["--plugin".into(), claimed.plugin.clone().into()]);
        arguments.extend(["--device".into(), claimed.spec.device.clone().into()]);
    } else {
        arguments.extend(plan.common.arguments());
        arguments.extend(plan.model.into_iter().flat_map(|model| ["--model".into(), model.into()]));
    }
    let mut monitor = Monitor::new(label);
    let variables = plan.variables(way);
    let followed = child::ask_for_lines_with(&plan.program, &arguments, policy, &variables, SILENCE_MAX, |event| {
        monitor.on_event(event)
    });
    let followed = followed.await;
    monitor.end(name, way, followed)
}

/// Follows a section's events.
struct Monitor {
    label: String,
    progress: LoadProgress,
    at: Option<String>,
    warnings: Vec<String>,
    result: Value,
    why: Option<(State, String)>,
}

impl Monitor {
    fn new(label: &str) -> Self {
        let (label, progress) = (label.to_owned(), LoadProgress::default());
        Self { label, progress, at: None, warnings: Vec::new(), result: Value::Null, why: None }
    }

    fn on_event(&mut self, event: SectionEvent) -> ControlFlow<()> {
        match event {
            SectionEvent::Reaches { done, total, what } => {
                let what = clean(&what);
                self.progress.reach(done, total, &format!("{}: {what}", self.label));
                self.at = Some(what);
            }
            SectionEvent::Warns { message } => self.warnings.push(clean(&message)),
            SectionEvent::Found(value) => self.result = value,
            SectionEvent::NotHere { why } => self.why = Some((State::NotHere, clean(&why))),
            SectionEvent::Stopped { reason } => {
                self.why = Some((State::Failed, clean(&reason)));
                return ControlFlow::Break(());
            }
            SectionEvent::Done => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }

    fn end(mut self, name: &'static str, way: Way, followed: Result<String, ChildError>) -> Measured {
        self.progress.end();
        let (state, why) = self.why.map_or((State::Measured, None), |(state, why)| (state, Some(why)));
        let measured = Measured { why, warnings: self.warnings, ..Measured::new(name, state, self.result) };
        ended(way, measured, followed, self.at)
    }
}

/// A section as its child's end leaves it: after a crash or a hang it has what was found before.
pub(super) fn ended(
    way: Way,
    measured: Measured,
    followed: Result<String, ChildError>,
    at: Option<String>,
) -> Measured {
    let at = at.filter(|_| followed.is_err() || measured.state == State::Failed);
    let error = match followed {
        Ok(stderr) if way.validation() == Validation::On => {
            return validation::judged(Measured { at, ..measured }, &stderr);
        }
        Ok(_) => return Measured { at, ..measured },
        Err(error) => error,
    };
    let signal = match &error {
        ChildError::Crashed { signal, .. } => Some(signal_name(*signal)),
        _ => None,
    };
    Measured { state: State::Failed, why: Some(format!("its process {}", predicate(&error))), signal, at, ..measured }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::path::Path;

    /// The section that comes of a child which is this script.
    async fn section(script: &str) -> Measured {
        section_by(Way::Device(Validation::Off), script).await
    }

    async fn section_by(way: Way, script: &str) -> Measured {
        let arguments = ["-c".into(), script.into()];
        let mut monitor = Monitor::new("1 of 1");
        let hear = |event| monitor.on_event(event);
        let followed =
            child::ask_for_lines_with(Path::new("/bin/sh"), &arguments, None, &[], Duration::from_secs(5), hear).await;
        monitor.end("kernels", way, followed)
    }

    #[tokio::test]
    async fn a_crash_leaves_what_was_found_before_it_and_says_where_it_was() {
        let script = r#"echo '{"found":{"cases":[1]}}'; echo '{"reaches":{"done":1,"total":2,"what":"gemma"}}'
            echo 'no such pipeline' >&2; kill -SEGV $$"#;
        let measured = section(script).await;
        assert_eq!((measured.state, measured.signal.as_deref()), (State::Failed, Some("SIGSEGV")));
        assert_eq!((measured.result, measured.at.as_deref()), (json!({ "cases": [1] }), Some("gemma")));
        assert!(measured.why.unwrap().contains("no such pipeline"));
    }

    #[tokio::test]
    async fn a_section_that_is_silent_or_gives_up_has_failed_and_one_without_a_device_is_not_here() {
        let measured = section("sleep 20").await;
        assert_eq!((measured.state, measured.signal), (State::Failed, None));
        let measured = section(r#"echo '{"stopped":{"reason":"no memory"}}'"#).await;
        assert_eq!((measured.state, measured.why.as_deref()), (State::Failed, Some("no memory")));
        let measured = section(r#"echo '{"not_here":{"why":"no Metal"}}'; echo '"done"'"#).await;
        assert_eq!((measured.state, measured.why.as_deref()), (State::NotHere, Some("no Metal")));
        let measured =
            section(r#"echo '{"reaches":{"done":1,"total":2,"what":"x"}}'; echo '{"found":{}}'; echo '"done"'"#).await;
        assert_eq!((measured.state, measured.at), (State::Measured, None));
    }

    #[tokio::test]
    async fn a_section_fails_by_what_validation_writes_beside_its_results() {
        let script = r#"echo 'Metal API Validation Enabled' >&2; echo '{"found":{"cases":[1]}}'
            for n in $(seq 5000); do echo "Invalid device load at offset $n, executing kernel function 'store'"; done >&2
            echo '"done"'"#;
        let measured = section_by(Way::Device(Validation::On), script).await;
        assert_eq!((measured.state, &measured.result["cases"]), (State::Failed, &json!([1])));
        assert!(measured.why.unwrap().contains("Invalid device load"));
        assert_eq!(section_by(Way::Device(Validation::Off), script).await.state, State::Measured);
    }
}
