//! Adapters in a real worker: which ones jobs may name, and when they are dropped.

use pensieve_protocol::{
    job::{AdapterUse, Event, FailureCode, Job},
    wire::{Command, Load, Location, Provider, Report},
};

use crate::{
    artifacts::test_plugin,
    worker::{Outcome, Worker, faults, job},
};

fn start(formats: bool) -> Worker {
    let plugin = test_plugin("panics");
    let adapter_formats = if formats { vec![plugin.clone()] } else { Vec::new() };
    Worker::start(Load { architecture: Provider { plugin, name: "panics".into() }, adapter_formats, ..faults() })
}

fn attach(worker: &mut Worker, path: &str) -> pensieve_protocol::wire::Attachment {
    worker.send(&Command::Attach { attempt: 1, name: "a".into(), location: Location::trusted(path) });
    match worker.until(|report| matches!(report, Report::Attached { .. })) {
        Report::Attached { attempt: 1, result } => result,
        other => panic!("{other:?}"),
    }
}

fn detach(worker: &mut Worker) {
    worker.send(&Command::Detach { name: "a".into() });
    worker.until(|report| matches!(report, Report::Detached { .. }));
}

fn under(id: u64, scale: f32, max_tokens: u32) -> Job {
    Job { adapter: Some(AdapterUse { name: "a".into(), scale }), ..job(id, vec![1, 2], max_tokens) }
}

fn code(outcome: &Outcome) -> FailureCode {
    outcome.failure().code
}

#[test]
fn an_adapter_serves_jobs_from_its_attachment_to_the_end_of_its_last_one() {
    let mut worker = start(true);
    assert_eq!(code(&worker.run(&under(1, 1.0, 5))), FailureCode::NotFound);
    assert_eq!(attach(&mut worker, "anything").unwrap().format, "panics");
    assert_eq!(worker.stats().adapters[0].name, "a");
    assert_eq!(worker.run(&under(2, 0.5, 5)).ids.len(), 5);
    assert_eq!(code(&worker.run(&under(3, f32::NAN, 5))), FailureCode::Invalid);

    // The job has at most 61 tokens, in a context of 64.
    worker.submit(&under(4, 1.0, 61));
    worker.wait_for(4, |event| matches!(event, Event::Started { .. }));
    detach(&mut worker);
    assert_eq!(code(&worker.run(&under(5, 1.0, 5))), FailureCode::NotFound);
    assert_eq!(worker.outcome(4).ids.len(), 61);
    assert!(worker.stats().adapters.is_empty());
    attach(&mut worker, "anything").unwrap();
    assert_eq!(worker.run(&under(6, 1.0, 5)).ids.len(), 5);
}

#[test]
fn an_adapter_that_is_not_attached_costs_nothing_else() {
    let mut worker = start(true);
    let failure = attach(&mut worker, "open").unwrap_err();
    assert!(failure.message.contains("as told, in open"), "{failure}");
    attach(&mut worker, "anything").unwrap();
    let failure = attach(&mut worker, "anything").unwrap_err();
    assert!(failure.message.contains("attached already"), "{failure}");

    let failure = attach(&mut start(false), "anything").unwrap_err();
    assert_eq!(failure.code, FailureCode::NotFound);
    assert!(failure.message.contains("(installed: none)"), "{failure}");
}
