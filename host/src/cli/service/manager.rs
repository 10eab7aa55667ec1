//! systemd's user manager and launchd, by their own programs.

use std::{
    env, fmt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use clap::ValueEnum;

use crate::cli::{
    error::{CliError, Exit},
    shell_integration::word,
    terminal::tell,
};
use pensieve_protocol::outside::Outside;

pub(super) const LABEL: &str = "pensieve";
const UNIT: &str = "pensieve.service";

/// How long launchd may take to let go of the agent before: the agent's `ExitTimeOut`, and some more.
const BOOTOUT_MAX: Duration = Duration::from_secs(70);
const BOOTSTRAP_PAUSE: Duration = Duration::from_millis(500);
/// launchd's answers while the agent before is still ending: an input/output error, and an operation in progress.
const STILL_ENDING: [i32; 2] = [5, 37];
/// launchd's answer where an agent takes its time to end.
const IN_PROGRESS: i32 = 36;

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
                bootstrap(BOOTOUT_MAX, || attempt(Command::new("launchctl").args(["bootstrap", &domain()]).arg(file)))
            }
        }
    }

    pub(super) fn stop(self, file: &Path) -> Result<(), String> {
        match self {
            Self::Systemd => systemctl(&["disable", "--now", UNIT]).map(drop),
            Self::Launchd => match attempt(Command::new("launchctl").args(["bootout", &domain()]).arg(file)) {
                Err(refusal) if refusal.status != Some(IN_PROGRESS) => Err(refusal.why),
                _ => Ok(()),
            },
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

/// Has launchd read the agent's file. It asks again for as long as the agent before is ending, for which `bootout` does not
/// wait.
fn bootstrap(patience: Duration, ask: impl Fn() -> Result<String, Refusal>) -> Result<(), String> {
    let (began, mut waits) = (Instant::now(), false);
    loop {
        let Err(refusal) = ask() else { return Ok(()) };
        let is_ending = refusal.status.is_some_and(|status| STILL_ENDING.contains(&status));
        if !is_ending || began.elapsed() >= patience {
            return Err(refusal.why);
        }
        if !std::mem::replace(&mut waits, true) {
            tell(format_args!(
                "launchd is not ready ({}); asking again for up to {} s",
                refusal.why,
                patience.as_secs()
            ));
        }
        thread::sleep(BOOTSTRAP_PAUSE.min(patience / 4));
    }
}

/// Runs a manager's program; returns what it printed, or why there is nothing.
fn run(command: &mut Command) -> Result<String, String> {
    attempt(command).map_err(|refusal| refusal.why)
}

/// A manager's program that did not do its work.
struct Refusal {
    /// Its exit status, if it ran and ended by itself.
    status: Option<i32>,
    why: String,
}

fn attempt(command: &mut Command) -> Result<String, Refusal> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| Refusal { status: None, why: format!("{name}: {error}") })?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    let said = text(&output.stderr);
    let why = if said.is_empty() { output.status.to_string() } else { said };
    Err(Refusal { status: output.status.code(), why: Outside::new(why.lines().last().unwrap_or_default()).to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// How often launchd is asked where it gives these exit statuses, the last one forever, and what comes of it.
    fn asked(statuses: &[i32], patience: Duration) -> (usize, Result<(), String>) {
        let count = Cell::new(0);
        let ask = || {
            let status = statuses[count.get().min(statuses.len() - 1)];
            count.set(count.get() + 1);
            match status {
                0 => Ok(String::new()),
                _ => Err(Refusal { status: Some(status), why: format!("Bootstrap failed: {status}") }),
            }
        };
        let done = bootstrap(patience, ask);
        (count.get(), done)
    }

    #[test]
    fn launchd_is_asked_again_while_the_agent_before_is_ending() {
        let patience = Duration::from_millis(200);
        assert_eq!(asked(&[0], patience), (1, Ok(())));
        assert_eq!(asked(&[5, 37, 0], patience), (3, Ok(())));
        let (count, refused) = asked(&[5], patience);
        assert_eq!(refused, Err("Bootstrap failed: 5".into()));
        assert!((3..8).contains(&count), "{count}");
    }

    #[test]
    fn another_refusal_of_launchd_is_final() {
        let refused = Err("Bootstrap failed: 125".into());
        assert_eq!(asked(&[125, 0], Duration::from_secs(60)), (1, refused));
    }

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
