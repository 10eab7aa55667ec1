//! The laws of a model in a report: what each verdict was, and which law a crash was in.

use serde_json::{Value, json};
use std::{ffi::OsString, ops::ControlFlow};

use super::{
    super::{
        laws::{LawEvent, LawOutcome, Verdict},
        progress::LoadProgress,
    },
    Plan, Way,
    document::{Measured, State},
    section::{SILENCE_MAX, ended},
};
use pensieve_protocol::refusal::clean;
use pensieve_server::fleet::child;

/// The longest sequence where little time is to be spent.
const QUICK_LONGEST: &str = "256";

pub(super) async fn measure(plan: &Plan<'_>, name: &'static str, way: Way, label: &str) -> Measured {
    let claimed = match &plan.claimed {
        Ok(claimed) => claimed,
        Err(why) => return Measured::failed(name, why),
    };
    let longest = if plan.quick { QUICK_LONGEST } else { "0" };
    let mut arguments: Vec<OsString> = ["probe", "laws", "--longest", longest].map(OsString::from).into();
    arguments.push(format!("--device={}", claimed.spec.device).into());
    arguments.push(format!("--options={}", claimed.spec.options).into());
    arguments.extend(["--".into(), claimed.plugin.clone().into(), claimed.source.clone().into()]);
    let policy = plan.fenced.then_some(&claimed.policy);
    let mut heard = Heard { label: label.to_owned(), ..Heard::default() };
    let variables = plan.variables(way);
    let followed = child::ask_for_lines_with(&plan.program, &arguments, policy, &variables, SILENCE_MAX, |event| {
        heard.on_event(event)
    });
    let followed = followed.await;
    heard.loading.end();
    let state = if heard.stopped.is_some() { State::Failed } else { State::Measured };
    let result = json!({ "model": heard.model, "verdicts": heard.verdicts, "broken": heard.broken });
    let measured = Measured { why: heard.stopped, warnings: heard.warnings, ..Measured::new(name, state, result) };
    ended(way, measured, followed, heard.law)
}

#[derive(Default)]
struct Heard {
    label: String,
    loading: LoadProgress,
    law: Option<String>,
    model: Value,
    warnings: Vec<String>,
    verdicts: Vec<Value>,
    broken: Vec<String>,
    stopped: Option<String>,
}

impl Heard {
    fn on_event(&mut self, event: LawEvent) -> ControlFlow<()> {
        match event {
            LawEvent::Loads { done, total, what } => {
                self.loading.reach(done, total, &format!("{}: {}", self.label, clean(&what)));
            }
            LawEvent::Warns { message } => self.warnings.push(clean(&message)),
            LawEvent::Loaded(model) => {
                self.loading.end();
                self.model = json!({ "device": clean(&model.device), "note": clean(&model.note) });
            }
            LawEvent::Subject { .. } | LawEvent::Timed { .. } => {}
            LawEvent::Tries { law } => self.law = Some(law),
            LawEvent::Found(verdict) => self.judge(&verdict),
            LawEvent::Stopped { reason, .. } => {
                self.stopped = Some(clean(&reason));
                return ControlFlow::Break(());
            }
            LawEvent::Done => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }

    fn judge(&mut self, verdict: &Verdict) {
        let (outcome, detail) = match &verdict.outcome {
            LawOutcome::Exact => ("exact", Value::Null),
            LawOutcome::WithinRounding { worst } => ("within_rounding", json!(worst)),
            LawOutcome::Noted { what } => ("noted", json!(clean(what))),
            LawOutcome::NotTried { why } => ("not_tried", json!(clean(why))),
            LawOutcome::Broken { what, .. } => {
                self.broken.push(verdict.law.clone());
                ("broken", json!(clean(what)))
            }
        };
        self.verdicts.push(json!({ "law": verdict.law, "outcome": outcome, "detail": detail }));
    }
}
