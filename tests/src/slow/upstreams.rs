//! Real servers as upstreams, asked in every API for everything that clients ask for (`tests/real/upstreams.py`): llama.cpp's,
//! which PyPI has, and another Pensieve.
//!
//! Without `python3` or a network the test skips itself with a line that says so; `PENSIEVE_REQUIRE_CLIENTS=1` makes that a
//! failure.

use std::{fs, path::Path, process::Command, time::Duration};

use super::clients::{finish, install_python, installed, skip};
use crate::artifacts::{plugin, program};

/// Longer than all cases take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(1200);
const PLUGINS: [&str; 3] = ["pensieve-llama", "pensieve-samplers", "pensieve-gemma"];

fn run(kind: &str) {
    let packages = match installed("llama_cpp", "llama_cpp.txt", install_python) {
        Ok(packages) => packages,
        Err(why) => return skip("tests/real/upstreams.py", &why),
    };
    let plugins = tempfile::tempdir().unwrap();
    for path in PLUGINS.map(plugin) {
        fs::copy(&path, plugins.path().join(path.file_name().unwrap())).unwrap();
    }
    let mut command = Command::new(packages.join("bin/python"));
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("real/upstreams.py"));
    command.arg("--program").arg(program()).arg("--plugins").arg(plugins.path()).args(["--only", kind]);
    command.env("PYTHONDONTWRITEBYTECODE", "1").env("PYTHONUTF8", "1");
    match finish(&mut command, PATIENCE) {
        Ok(said) => println!("{said}"),
        Err(said) => panic!("{said}"),
    }
}

#[test]
fn llama_cpps_server_does_through_pensieve_what_clients_ask_for() {
    run("llama.cpp");
}

#[test]
fn another_pensieve_does_through_pensieve_what_clients_ask_for() {
    run("Pensieve");
}
