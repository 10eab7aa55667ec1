//! The program as people and scripts use it: what it prints, where, and its exit code.

mod answers;
mod check;
mod check_providers;
mod codes;
mod launch;
mod measured;
mod new;
mod pull;
mod report;
mod said;
mod service;
mod terminal;
mod words;

use std::{
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};
use tempfile::TempDir;

use crate::artifacts::{place_program, plugin};

/// A user's home with the program in it, isolated from the machine's settings.
pub struct Desk {
    pub root: TempDir,
    endpoint: Option<String>,
}

/// The result of a run.
#[derive(Debug)]
pub struct Said {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Desk {
    pub fn new() -> Self {
        Self { root: tempfile::tempdir().unwrap(), endpoint: None }
    }

    /// A desk whose hub is at this address.
    pub fn with_hub(endpoint: String) -> Self {
        Self { endpoint: Some(endpoint), ..Self::new() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// Installs the plugins of these packages where the program finds them.
    pub fn install(&self, packages: &[&str]) {
        let folder = self.path("home/plugins");
        fs::create_dir_all(&folder).unwrap();
        for package in packages {
            let library = plugin(package);
            fs::copy(&library, folder.join(library.file_name().unwrap())).unwrap();
        }
    }

    /// The program, in a location without plugins beside it.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let own = self.path("bin/pensieve");
        if !own.exists() {
            fs::create_dir(self.path("bin")).unwrap();
            // A symbolic link would lead the program back to the plugins beside the original.
            place_program(&own);
        }
        let mut command = Command::new(own);
        command.args(arguments);
        self.prepare(&mut command);
        command
    }

    /// Sets a command's environment to the desk's.
    pub fn prepare(&self, command: &mut Command) {
        command.current_dir(self.root.path()).env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", self.root.path()).env("PENSIEVE_HOME", self.path("home"));
        command.env("HF_ENDPOINT", self.endpoint.as_deref().unwrap_or("http://127.0.0.1:9"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Shells make background processes ignore the interrupt, and children inherit that.
        let heed_interrupts = || {
            // SAFETY: the call takes plain numbers and is allowed between fork and exec.
            unsafe { libc::signal(libc::SIGINT, libc::SIG_DFL) };
            Ok(())
        };
        // SAFETY: the function does nothing else.
        unsafe { command.pre_exec(heed_interrupts) };
    }

    pub fn run(&self, arguments: &[&str]) -> Said {
        said(self.command(arguments).output().unwrap())
    }
}

pub fn said(output: Output) -> Said {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Said { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// Interrupts a process that a test started, as a user would.
pub fn interrupt(pid: u32) {
    let done = Command::new("kill").args(["-INT", &pid.to_string()]).status().unwrap();
    assert!(done.success());
}

/// All files below a folder, relative to it.
pub fn files(root: &Path) -> Vec<String> {
    let (mut found, mut open) = (Vec::new(), vec![root.to_path_buf()]);
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.is_symlink() {
                open.push(path);
            } else {
                found.push(path.strip_prefix(root).unwrap().display().to_string());
            }
        }
    }
    found.sort();
    found
}
