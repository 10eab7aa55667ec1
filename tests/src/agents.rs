//! How the tests of coding clients run them: the real program from npm against the real server, in a network namespace
//! with nothing else in it.
//!
//! A client is installed once per target folder, in the version that its test names. If it cannot be installed (no npm,
//! no network), or a network namespace cannot be created (`unshare`), the test skips itself with a line that says so;
//! `PENSIEVE_REQUIRE_CLIENTS=1` makes that a failure.

#![cfg(target_os = "linux")]

pub mod families;
pub mod session;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{Mutex, PoisonError},
};

use crate::{
    artifacts::{plugin, program, test_plugin},
    starter,
};

/// Tells the inner test where its client is.
const CLIENT: &str = "PENSIEVE_CLIENT";

/// A client, and the location of the program in its package for this platform.
pub struct Agent {
    pub name: &'static str,
    pub package: &'static str,
    pub version: &'static str,
    pub find: fn(&Path) -> Option<PathBuf>,
}

impl Agent {
    /// Runs an ignored test of this program in a network namespace.
    pub fn run(&self, test: &str) {
        let skip = |why: String| {
            let required = env::var_os("PENSIEVE_REQUIRE_CLIENTS").is_some_and(|value| value == "1");
            assert!(!required, "PENSIEVE_REQUIRE_CLIENTS=1, but {} cannot run: {why}", self.name);
            println!("skipped {}: {why}", self.name);
        };
        // Nothing can be built without a network.
        program();
        test_plugin("scripted");
        starter::PLUGINS.iter().for_each(|package| drop(plugin(package)));
        let client = match self.installed() {
            Ok(client) => client,
            Err(why) => return skip(why),
        };
        if let Err(why) = alone().arg("true").output().map_err(|error| error.to_string()).and_then(succeeded) {
            return skip(format!("there is no namespace without a network: {why}"));
        }
        let mut inner = alone();
        inner.arg(env::current_exe().unwrap()).args(["--exact", "--ignored", "--nocapture", test]);
        let output = inner.env(CLIENT, client).output().unwrap();
        println!("{}", String::from_utf8_lossy(&output.stdout));
        let passed = output.status.success() && String::from_utf8_lossy(&output.stdout).contains("1 passed");
        assert!(passed, "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Returns the program, installing it if needed.
    fn installed(&self) -> Result<PathBuf, String> {
        static INSTALLING: Mutex<()> = Mutex::new(());
        let _guard = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients");
        let name = self.package.rsplit('/').next().unwrap_or_default();
        let folder = folder.join(format!("{name}-{}", self.version));
        if let Some(found) = (self.find)(&folder) {
            return Ok(found);
        }
        fs::create_dir_all(&folder).unwrap();
        let mut npm = Command::new("npm");
        npm.args(["install", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error", "--fetch-retries=2"]);
        npm.arg("--prefix").arg(&folder).arg(format!("{}@{}", self.package, self.version));
        succeeded(npm.output().map_err(|error| format!("npm: {error}"))?)?;
        (self.find)(&folder).ok_or_else(|| "npm has installed no program for this platform".to_owned())
    }
}

/// The program that a test run by [`Agent::run`] has to try; `None` if the test runs by itself.
pub fn client() -> Option<PathBuf> {
    env::var_os(CLIENT).map(PathBuf::from)
}

/// A command in a separate network namespace.
pub fn alone() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--net", "sh", "-c", "ip link set lo up && exec \"$@\"", "sh"]);
    command
}

fn succeeded(output: Output) -> Result<(), String> {
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()) }
}
