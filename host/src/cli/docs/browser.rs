//! The user's browser.

use std::{
    env,
    path::PathBuf,
    process::{Command, Stdio},
};

/// Opens an address. False if there is nothing to open it with.
pub(super) fn open(url: &str) -> bool {
    let Some(mut command) = command() else { return false };
    command.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().is_ok()
}

/// The command that opens addresses: `BROWSER`, or the system's own where there is a screen.
pub(super) fn command() -> Option<Command> {
    let set = |name: &str| env::var(name).ok().filter(|value| !value.trim().is_empty());
    if let Some(browsers) = set("BROWSER") {
        // Several may be named, the best first.
        let mut words = browsers.split(':').next().unwrap_or_default().split_whitespace();
        let mut command = Command::new(words.next()?);
        command.args(words);
        return Some(command);
    }
    if cfg!(target_os = "macos") {
        return Some(Command::new("open"));
    }
    let has_screen = ["DISPLAY", "WAYLAND_DISPLAY"].into_iter().any(|name| set(name).is_some());
    let opener = in_path("wslview").or_else(|| in_path("xdg-open").filter(|_| has_screen));
    opener.map(Command::new)
}

fn in_path(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}
