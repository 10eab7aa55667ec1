//! The page in a real browser: Debian's Chromium, driven by playwright-core from npm, against the real program
//! (`tests/clients/with_browser.mjs`). Without a browser or the packages, or with a browser that hangs however often it is
//! started, the test skips itself with a line that says so; `PENSIEVE_REQUIRE_BROWSER=1` and `PENSIEVE_REQUIRE_CLIENTS=1` make
//! that a failure.
//!
//! `PENSIEVE_SCREENSHOTS=docs/page` takes the pictures of the documentation anew.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use super::clients::{finish, folder, install_node, installed, skip};
use crate::{
    artifacts::{plugin, test_plugin},
    http::server::Options,
    scripted,
};

const TABLE: &str = "with_browser.mjs";
const PATIENCE: Duration = Duration::from_secs(500);
/// The script's words for a browser that does not answer, and how often it is started.
const HANGS: &str = "the browser hangs";
const ATTEMPTS: usize = 3;
const KEY: &str = "key-for-the-page";
/// The name of a file and of a client's program.
const ODD_NAME: &str = "<img src=x onerror=alert(1)>";

const SCRIPT: [(&str, &str); 5] = [
    ("<tool_response>\n21 degrees", "It is 21 degrees in Oslo."),
    (
        "Call for the weather",
        concat!("<tool_call>\n", r#"{"name": "weather", "arguments": {"city": "Oslo"}}"#, "\n</tool_call>"),
    ),
    ("Think about it", "<think>\nLet me see.\n</think>\n\nForty-two."),
    (
        "Tell me a story",
        "Once upon a time there was a cache that remembered every prompt. People asked it the same things again and \
         again, and it answered at once.\nThen the clock in the system prompt struck twelve, and everything had to be \
         read anew.",
    ),
    ("", "All right."),
];

/// Names under which systems have Chromium.
const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

fn browser() -> Option<PathBuf> {
    let folders = env::split_paths(&env::var_os("PATH")?).collect::<Vec<_>>();
    let names = BROWSERS.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    names.into_iter().find(|path| path.is_file())
}

#[test]
fn no_model_may_have_a_name_with_markup() {
    let config = format!("[[models]]\nid = \"{ODD_NAME}\"\nsource = \"starter\"\n");
    let (_, log) = Options::configured(&config).fail();
    assert!(log.contains("the 'id' in [[models]] is"), "{log}");
}

#[test]
fn the_page_works_in_a_browser() {
    let is_required = env::var_os("PENSIEVE_REQUIRE_BROWSER").is_some_and(|value| value == "1");
    let Some(browser) = browser() else {
        assert!(!is_required, "PENSIEVE_REQUIRE_BROWSER=1, but there is no Chromium");
        return println!("SKIPPED {TABLE}: there is no Chromium");
    };
    let packages = match installed("browser", "browser/package.json", install_node) {
        Ok(packages) => packages,
        Err(why) => return skip(TABLE, &why),
    };
    let hangs = |said: &Result<_, String>| said.as_ref().is_err_and(|said| said.contains(HANGS));
    let Some(said) = (0..ATTEMPTS).map(|_| used_in(&browser, &packages)).find(|said| !hangs(said)) else {
        assert!(!is_required, "PENSIEVE_REQUIRE_BROWSER=1, but Chromium hung {ATTEMPTS} times");
        return println!("SKIPPED {TABLE}: Chromium hung {ATTEMPTS} times");
    };
    let said = said.unwrap_or_else(|said| panic!("{said}"));
    println!("{TABLE}: {said}");
    assert!(said.contains(" checks, 0 failed"), "it ended early: {said}");
}

/// Uses the page of a fresh server, and returns the words of the script.
fn used_in(browser: &Path, packages: &Path) -> Result<String, String> {
    let root = tempfile::tempdir().unwrap();
    let source = |id: &str| {
        let source = root.path().join(id);
        scripted::checkpoint(&source, &SCRIPT);
        source.display().to_string()
    };
    let model = |id: &str, source: &str| {
        format!("[[models]]\nid = \"{id}\"\nsource = \"{source}\"\nthreads = 1\noptions = {{ step_us = 20000 }}\n\n")
    };
    let models = [model("scripted", &source("one")), model("second", &source("two"))];
    let config = format!("[server]\nkey = \"{KEY}\"\n\n{}", models.concat());
    let plugins = vec![test_plugin("scripted"), plugin("pensieve-samplers")];
    let server = Options { plugins, config, ..Options::default() }.start();
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new("node");
    command.arg(folder().join(TABLE)).env_clear();
    command.envs(["PATH", "TMPDIR", "LD_LIBRARY_PATH"].iter().filter_map(|name| Some((name, env::var_os(name)?))));
    command.env("HOME", home.path()).env("PENSIEVE_PACKAGES", packages).env("PENSIEVE_BROWSER", browser);
    command.env("PENSIEVE_URL", format!("http://{}", server.address)).env("PENSIEVE_KEY", KEY);
    command.env("PENSIEVE_DROP", server.plugins()).env("PENSIEVE_GOOD", plugin("pensieve-lora"));
    command.env("PENSIEVE_ODD_NAME", ODD_NAME).env("PENSIEVE_SUFFIX", env::consts::DLL_SUFFIX);
    if let Some(pictures) = env::var_os("PENSIEVE_SCREENSHOTS") {
        command.env("PENSIEVE_SCREENSHOTS", Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(pictures));
    }
    finish(&mut command, PATIENCE).map_err(|said| format!("{said}\n{}", server.log()))
}
