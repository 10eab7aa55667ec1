//! systemd's user manager and launchd, by their own programs.

use std::{
    env, fmt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use clap::ValueEnum;

use crate::cli::{
    error::{CliError, Exit},
    shell_integration::word,
};
use pensieve_protocol::outside::Outside;

pub(super) const LABEL: &str = "pensieve";
const UNIT: &str = "pensieve.service";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Manager {
    /// systemd.
    Systemd,
    /// launchd.
    Launchd,
}

impl Manager {
    pub(super) fn of_this_system() -> Self {
        if cfg!(target_os = "macos") { Self::Launchd } else { Self::Systemd }
    }

    /// The file that it reads the service from.
    pub(super) fn file(self) -> Result<PathBuf, CliError> {
        let named = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let home =
            named("HOME").ok_or_else(|| CliError::new(Exit::Usage, "there is no HOME to install a service in"))?;
        Ok(match self {
            Self::Systemd => {
                let config = named("XDG_CONFIG_HOME").unwrap_or_else(|| home.join(".config"));
                config.join("systemd/user").join(UNIT)
            }
            Self::Launchd => home.join("Library/LaunchAgents").join(format!("{LABEL}.plist")),
        })
    }

    /// Starts it now and at each login. The error completes "did not start it: …".
    pub(super) fn start(self, file: &Path) -> Result<(), String> {
        match self {
            Self::Systemd => {
                systemctl(&["daemon-reload"])?;
                systemctl(&["enable", UNIT])?;
                // One that runs already is to take up the new file.
                systemctl(&["restart", UNIT]).map(drop)
            }
            Self::Launchd => {
                let _ = run(Command::new("launchctl").arg("bootout").arg(format!("{}/{LABEL}", domain())));
                run(Command::new("launchctl").args(["bootstrap", &domain()]).arg(file)).map(drop)
            }
        }
    }

    pub(super) fn stop(self, file: &Path) -> Result<(), String> {
        match self {
            Self::Systemd => systemctl(&["disable", "--now", UNIT]).map(drop),
            Self::Launchd => run(Command::new("launchctl").args(["bootout", &domain()]).arg(file)).map(drop),
        }
    }

    /// After the file is gone. There is nothing to say if that fails: the manager reads its folder at the next start.
    pub(super) fn forget(self) {
        if self == Self::Systemd {
            let _ = systemctl(&["daemon-reload"]);
        }
    }

    /// The state in the manager's own words.
    pub(super) fn state(self) -> Result<String, String> {
        match self {
            Self::Systemd => {
                let shown = systemctl(&["show", UNIT, "--property=ActiveState,SubState,MainPID,NRestarts"])?;
                Ok(unit_state(&shown))
            }
            Self::Launchd => {
                let shown = run(Command::new("launchctl").arg("print").arg(format!("{}/{LABEL}", domain())))?;
                let state = shown
                    .lines()
                    .map(str::trim)
                    .filter(|line| line.starts_with("state = ") || line.starts_with("pid = "));
                Ok(state.collect::<Vec<_>>().join(", "))
            }
        }
    }

    /// The command that starts it, for the user.
    pub(super) fn by_hand(self, file: &Path) -> String {
        match self {
            Self::Systemd => format!("systemctl --user enable --now {UNIT}"),
            Self::Launchd => format!("launchctl bootstrap {} {}", domain(), word(&file.to_string_lossy())),
        }
    }
}

impl fmt::Display for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Systemd => "systemd",
            Self::Launchd => "launchd",
        })
    }
}

/// The state of a unit, from lines `KEY=VALUE` in any order. An older systemd leaves out what it does not know.
fn unit_state(shown: &str) -> String {
    let value = |wanted: &str| {
        let mut lines = shown.lines().filter_map(|line| line.split_once('='));
        lines.find(|(key, _)| *key == wanted).map(|(_, value)| value.trim()).filter(|value| !value.is_empty())
    };
    let mut text = value("ActiveState").unwrap_or("unknown").to_owned();
    if let Some(sub) = value("SubState") {
        text += &format!(" ({sub})");
    }
    if let Some(pid) = value("MainPID").filter(|pid| *pid != "0") {
        text += &format!(", process {pid}");
    }
    if let Some(restarts) = value("NRestarts") {
        text += &format!(", {restarts} restarts");
    }
    Outside::new(&text).to_string()
}

fn systemctl(arguments: &[&str]) -> Result<String, String> {
    run(Command::new("systemctl").arg("--user").args(arguments))
}

/// launchd's domain of this user's graphical session.
fn domain() -> String {
    format!("gui/{}", rustix::process::getuid().as_raw())
}

/// Runs a manager's program; returns what it printed, or why there is nothing.
fn run(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{name}: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    let said = text(&output.stderr);
    let why = if said.is_empty() { output.status.to_string() } else { said };
    Err(Outside::new(why.lines().last().unwrap_or_default()).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_units_state_is_read_by_key_in_any_order() {
        let all = "NRestarts=2\nSubState=running\nMainPID=4242\nActiveState=active\n";
        assert_eq!(unit_state(all), "active (running), process 4242, 2 restarts");
        assert_eq!(unit_state("MainPID=0\nActiveState=failed\nSubState=failed"), "failed (failed)");
        assert_eq!(
            unit_state("ActiveState=activating\nSubState=auto-restart\nNRestarts=\n"),
            "activating (auto-restart)"
        );
        assert_eq!(unit_state("Failed to connect"), "unknown");
    }
}
