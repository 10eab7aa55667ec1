//! `pensieve service`: a server that starts at login, as a unit of systemd's user manager or as an agent of launchd.
//!
//! The file names the program by a path that stays valid after an update. Only files that this verb wrote are replaced or
//! removed.

mod definition;
mod manager;

use clap::{Args, Subcommand};
use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

use super::{
    common_args::CommonArgs,
    error::{CliError, CliResult, Exit},
    terminal::{print_exact, say, tell},
};
use crate::config;
use definition::{Definition, is_ours};
use manager::Manager;
use pensieve_protocol::outside::Outside;

#[derive(Subcommand)]
pub(super) enum Service {
    Install(Install),
    /// Show whether the service is installed and running.
    Status,
    /// Stop the service and remove it. Models, plugins and settings stay.
    Remove,
}

/// Start a server at login, and restart it when it fails.
///
/// It serves what the configuration file names: pensieve.toml in $PENSIEVE_HOME, unless --config names another.
#[derive(Args)]
#[command(after_help = "Examples:
  pensieve service install
  pensieve service install --config ~/pensieve.toml
  pensieve service install --print")]
pub(super) struct Install {
    /// The configuration file of the server.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the service's file and change nothing.
    #[arg(long)]
    print: bool,
    /// The manager that reads the file: systemd or launchd.
    #[arg(long, value_enum, default_value_t = Manager::of_this_system())]
    manager: Manager,
}

impl Service {
    pub(super) fn run(self) -> CliResult {
        match self {
            Self::Install(install) => install.run(),
            Self::Status => status(Manager::of_this_system()),
            Self::Remove => remove(Manager::of_this_system()),
        }
    }
}

impl Install {
    fn run(self) -> CliResult {
        let text = self.definition()?.text(self.manager)?;
        if self.print {
            return print_exact(&text);
        }
        let path = self.manager.file()?;
        if read(&path)?.is_some_and(|old| !is_ours(&old)) {
            let line = format!(
                "'{}' is there already, and 'pensieve service' did not write it; move it away",
                Outside::path(&path)
            );
            return Err(CliError::new(Exit::Taken, line));
        }
        let failed = |error: io::Error| CliError::system(Outside::path(&path), &error);
        let folder = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder).map_err(failed)?;
        let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
        io::Write::write_all(&mut file, text.as_bytes()).map_err(failed)?;
        file.persist(&path).map_err(|error| failed(error.error))?;
        say(&Outside::path(&path).to_string())?;
        match self.manager.start(&path) {
            Ok(()) => {
                tell("the server runs, and starts at login; 'pensieve logs -f' follows its log");
                if self.manager == Manager::Systemd {
                    tell("to keep it running while you are logged out: loginctl enable-linger");
                }
                Ok(())
            }
            Err(why) => {
                let line = format!("the file is written, but {} did not start it: {why}", self.manager);
                Err(CliError::new(Exit::Failed, format!("{line}; start it with: {}", self.manager.by_hand(&path))))
            }
        }
    }

    fn definition(&self) -> Result<Definition, CliError> {
        let absolute =
            |path: &Path| std::path::absolute(path).map_err(|error| CliError::system(Outside::path(&path), &error));
        let home = absolute(&config::home())?;
        let config = match &self.config {
            Some(path) => {
                // A mistake in it is worth more now than in a log at the next login.
                CommonArgs::configured_by(Some(path.clone())).resolve(&[])?;
                Some(absolute(path)?)
            }
            None => None,
        };
        let is_usual = env::var_os("PENSIEVE_HOME").is_none_or(|home| home.is_empty());
        Ok(Definition { program: program()?, config, home: (!is_usual).then_some(home) })
    }
}

fn status(manager: Manager) -> CliResult {
    let path = manager.file()?;
    if read(&path)?.is_none() {
        return Err(CliError::new(Exit::Absent, "no service is installed; 'pensieve service install' does it"));
    }
    let state = manager.state().unwrap_or_else(|why| format!("unknown: {why}"));
    say(&format!("{}\n  {state}", Outside::path(&path)))
}

fn remove(manager: Manager) -> CliResult {
    let path = manager.file()?;
    let shown = Outside::path(&path);
    match read(&path)? {
        None => {
            return Err(CliError::new(
                Exit::Absent,
                format!("there is no service to remove: '{shown}' does not exist"),
            ));
        }
        Some(text) if !is_ours(&text) => {
            let line = format!("'{shown}' was not written by 'pensieve service'; remove it by hand");
            return Err(CliError::new(Exit::Taken, line));
        }
        Some(_) => {}
    }
    if let Err(why) = manager.stop(&path) {
        tell(format_args!("{manager} did not stop it: {why}"));
    }
    fs::remove_file(&path).map_err(|error| CliError::system(&shown, &error))?;
    manager.forget();
    say(&format!("removed {shown}"))
}

fn read(path: &Path) -> Result<Option<String>, CliError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(CliError::system(Outside::path(&path), &error)),
    }
}

/// A path of this program that leads to the next version after an update: the installer's link, or the one in PATH.
fn program() -> Result<PathBuf, CliError> {
    let running = env::current_exe().and_then(|program| program.canonicalize());
    let running = running.map_err(|error| CliError::system("this program's file", &error))?;
    let current = running.ancestors().nth(4).map(|root| root.join("current/bin/pensieve"));
    let folders = env::var_os("PATH").unwrap_or_default();
    let in_path =
        env::split_paths(&folders).filter(|folder| folder.is_absolute()).map(|folder| folder.join("pensieve"));
    let is_same = |path: &PathBuf| path.canonicalize().is_ok_and(|found| found == running);
    Ok(current.into_iter().chain(in_path).find(is_same).unwrap_or(running))
}
