//! Older and newer hosts and plugins: if one side knows more extensions, both work; a table that does not match its id
//! is refused.

use pensieve_plugin_api::{
    ErrorCode,
    ext::{kv_transfer::KvTransfer, sequence_state::SequenceState},
};
use pensieve_test_plugins::{Future, ID as FUTURE};
use pensieve_worker::plugin::LoadedPlugin;
use std::path::Path;

use crate::{
    artifacts::{plugin, test_plugin},
    checkpoints,
    driver::{Driver, Options},
};

fn later_plugin(settings: &str) -> Driver {
    Driver::load(&test_plugin("extensions"), Path::new("anything"), &Options::with_settings(settings)).unwrap()
}

#[test]
fn an_old_host_runs_a_plugin_with_an_extension_more() {
    let mut driver = later_plugin("");
    assert_eq!(driver.resident.note, "a host of today");
    assert_eq!(driver.generate(&[1], 1).unwrap(), [2]);
}

#[test]
fn a_new_host_runs_a_plugin_with_an_extension_less() {
    let folder = checkpoints::bigram(16, 64);
    let bigram = LoadedPlugin::open(&plugin("bigram")).unwrap();
    assert!(bigram.extension::<Future>(FUTURE).is_none());
    let architecture = bigram.architecture("bigram").unwrap();
    assert!(architecture.extension(FUTURE.into()).is_none());
    let mut driver = Driver::load(&plugin("bigram"), folder.path(), &Options::default()).unwrap();
    assert!(driver.model.extension(FUTURE.into()).is_none());
    assert!(KvTransfer::of(&mut driver.model).is_none() && SequenceState::of(&mut driver.model).is_none());
    driver.generate(&[1], 1).unwrap();
}

#[test]
fn a_new_host_uses_the_extension_of_a_new_plugin() {
    let later = LoadedPlugin::open(&test_plugin("extensions")).unwrap();
    let table = later.extension::<Future>(FUTURE).expect("an offer").expect("the right table");
    assert_eq!((table.answer)(), 42);
    let model = later_plugin("").model;
    let table = model.extension(FUTURE.into()).into_option().unwrap().table::<Future>(FUTURE).unwrap();
    assert_eq!((table.answer)(), 42);
}

#[test]
fn a_table_of_the_right_layout_is_used() {
    let mut driver = later_plugin("");
    let mut blocks = KvTransfer::of(&mut driver.model).unwrap().unwrap();
    assert_eq!(blocks.bytes(0), 8);
    let block = [1, 2, 3, 4, 5, 6, 7, 8];
    blocks.import(0, 0, &block).unwrap();
    let mut copy = [0; 8];
    blocks.export(0, 0, &mut copy).unwrap();
    assert_eq!(copy, block);
}

#[test]
fn a_table_of_a_wrong_layout_is_refused() {
    let mut driver = later_plugin(r#"{"kv-transfer": "wrong"}"#);
    let error = KvTransfer::of(&mut driver.model).expect("an offer").err().expect("a refusal");
    assert_eq!(error.code, ErrorCode::INVALID);
    assert!(error.message.starts_with("extension 'kv-transfer/1' does not have the layout"), "{error}");
    assert!(error.message.len() < 500, "{error}");
    assert_eq!(driver.generate(&[1], 1).unwrap(), [2], "the model works without it");
}
