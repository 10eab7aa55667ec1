//! The host's services during a load: progress, log, cancellation.

use pensieve_plugin_api::ErrorCode;
use pensieve_worker::plugin::HostServices;
use std::{
    path::Path,
    sync::{Arc, Mutex},
};

use crate::{
    artifacts::test_plugin,
    driver::{Driver, Options},
};

#[test]
fn progress_reaches_the_host() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&lines);
    let services = HostServices::new()
        .on_progress(move |done, total, what| heard.lock().unwrap().push(format!("{done} of {total} {what}")));
    Driver::load_with(&test_plugin("panics"), Path::new("anything"), &Options::default(), services).unwrap();
    assert_eq!(*lines.lock().unwrap(), ["1 of 1 tensors"]);
}

#[test]
fn a_cancelled_load_gives_up() {
    let services = HostServices::new();
    services.cancel().cancel();
    let loaded = Driver::load_with(&test_plugin("panics"), Path::new("anything"), &Options::default(), services);
    assert_eq!(loaded.err().unwrap().code, ErrorCode::CANCELLED);
}
