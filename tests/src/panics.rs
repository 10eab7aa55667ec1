//! Panics in a plugin's code: an error with the panic's message, in a process that continues and may call again.

use pensieve_plugin_api::{
    AdapterData, Candidates, ErrorCode, History, LoadRequest, ModelBox, PluginError, Source, Want,
    ext::{Offered, sequence_state::SequenceState},
};
use pensieve_worker::plugin::{HostServices, LoadedPlugin};
use std::path::Path;

use crate::{
    artifacts::test_plugin,
    driver::{Driver, Options},
};

const BAD_TOKEN: u32 = 7;

fn load(panic_in: &str) -> Result<Driver, PluginError> {
    let options = Options::with_settings(format!(r#"{{"panic": "{panic_in}"}}"#));
    Driver::load(&test_plugin("panics"), Path::new("anything"), &options)
}

/// Checks a panic's error: its code, the call and the message in it, and help.
fn check(error: &PluginError, call: &str) {
    assert_eq!(error.code, ErrorCode::PANICKED, "{error}");
    assert!(error.message.contains(&format!("panicked: as told, in {call}")), "{error}");
    assert!(!error.help.is_empty(), "{error}");
}

fn adapter() -> AdapterData {
    AdapterData { base: "".into(), fingerprint: "".into(), pairs: [].into_iter().collect() }
}

#[test]
fn describe_and_load_answer_a_panic_and_work_again() {
    for call in ["describe", "load", "resident"] {
        check(&load(call).err().expect("an error"), call);
        let tokens = load("nothing").unwrap().generate(&[1, 2], 3).unwrap();
        assert_eq!(tokens, [5, 4, 4], "after a panic in {call}");
    }
}

#[test]
fn forward_answers_a_panic_and_works_again() {
    let mut driver = load("forward").unwrap();
    let before = driver.logits(&[1, 2, 3]).unwrap();
    check(&driver.logits(&[1, BAD_TOKEN]).unwrap_err(), "forward");
    assert_eq!(driver.logits(&[1, 2, 3]).unwrap(), before);
}

#[test]
fn release_swallows_a_panic() {
    let mut driver = load("release").unwrap();
    let before = driver.logits(&[1, 2, 3]).unwrap();
    assert_eq!(driver.logits(&[1, 2, 3]).unwrap(), before);
}

#[test]
fn attach_and_detach_answer_a_panic_and_the_model_works() {
    let mut driver = load("attach").unwrap();
    check(&driver.model.attach(&adapter()).into_result().unwrap_err(), "attach");
    driver.logits(&[1]).unwrap();

    let mut driver = load("detach").unwrap();
    let id = driver.model.attach(&adapter()).into_result().unwrap();
    check(&driver.model.detach(id).into_result().unwrap_err(), "detach");
    driver.logits(&[1]).unwrap();
}

fn copies(model: &mut ModelBox) -> Offered<'_, SequenceState> {
    SequenceState::of(model).unwrap().unwrap()
}

#[test]
fn the_tables_of_extensions_answer_panics() {
    let mut driver = load("fork").unwrap();
    let mut sequence = driver.begin();
    driver.feed(&mut sequence, &[1, 2], Want::NONE).unwrap();
    let error = copies(&mut driver.model).fork(sequence.id, 99).unwrap_err();
    check(&error, "fork");
    driver.feed(&mut sequence, &[3], Want::NONE).unwrap();

    let mut driver = load("snapshot").unwrap();
    check(&copies(&mut driver.model).snapshot(1).unwrap_err(), "snapshot");
    let mut driver = load("restore").unwrap();
    let error = copies(&mut driver.model).restore(1, &[0]).unwrap_err();
    check(&error, "restore");
}

#[test]
fn dropping_a_model_swallows_a_panic() {
    drop(load("drop").unwrap());
    load("nothing").unwrap().logits(&[1]).unwrap();
}

#[test]
fn a_sampler_answers_panics_and_works_again() {
    let sampler = LoadedPlugin::open(&test_plugin("panics")).unwrap().sampler("panics").unwrap();
    let create = |parameters: &str| sampler.create(parameters.into(), 8, 0).into_result();
    check(&create(r#"{"panic": "create"}"#).err().unwrap(), "create");

    let mut stage = create(r#"{"panic": "sample"}"#).unwrap();
    let mut sample = |history: &[u32]| {
        let (mut ids, mut logits) = ([4, 2], [0.5, 0.25]);
        let mut candidates =
            Candidates { ids: (&mut ids[..]).into(), logits: (&mut logits[..]).into(), len: 2, sorted: true };
        stage.sample(&mut candidates, History { tokens: history.into(), prompt: 0 }).into_result()
    };
    check(&sample(&[BAD_TOKEN]).unwrap_err(), "sample");
    assert_eq!(sample(&[1]).unwrap().into_option(), Some(4));

    drop(create(r#"{"panic": "drop"}"#).unwrap());
    create("{}").unwrap();
}

#[test]
fn an_adapter_format_answers_panics_and_works_again() {
    let format = LoadedPlugin::open(&test_plugin("panics")).unwrap().adapter_format("panics").unwrap();
    assert!(!format.claims("claims".into()), "a panic is no claim");
    assert!(format.claims("anything".into()));
    check(&format.open("open".into()).into_result().unwrap_err(), "open");
    format.open("anything".into()).into_result().unwrap();
}

#[test]
fn a_panic_in_the_hosts_own_callback_stays_in_the_host() {
    let services =
        HostServices::new().on_progress(|_, _, what| panic!("a defect of the host, told of progress {what}"));
    let architecture = LoadedPlugin::open(&test_plugin("panics")).unwrap().architecture("panics").unwrap();
    let source = Source { path: "anything".into(), options: "".into() };
    let request = LoadRequest { source, device: "cpu".into(), context: 0, state_bytes: 0, threads: 1 };
    architecture.load(&request, services.into_abi()).into_result().unwrap();
}
