//! The program as it lies on this machine, and its replacement by a newer version.

use std::{
    env, fs,
    io::{self, Read},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{self, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    process::{Pid, test_kill_process},
};
use semver::Version;

use super::archive::Location;
use crate::{
    cli::error::{CliError, CliResult, Exit},
    config::units,
};
use pensieve_packages::{Origin, ReleaseArchive, unpack_release};
use pensieve_protocol::outside::Outside;
use pensieve_server::fleet::free_bytes;

const VERSIONS: &str = "versions";
const CURRENT: &str = "current";
const LOCK: &str = ".lock";
/// How long a new version may take to say its name.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);
const ANSWER_BYTES_MAX: u64 = 4096;

/// This program, if it was installed from a release.
pub(super) struct Installed {
    pub(super) origin: Origin,
    /// The folder of this version, with `bin` and `lib` in it.
    folder: PathBuf,
}

impl Installed {
    pub(super) fn find() -> Result<Self, CliError> {
        let program = env::current_exe().and_then(|program| program.canonicalize());
        let program = program.map_err(|error| CliError::system("this program's file", &error))?;
        let (origin, folder) = Origin::of_program(&program)?.ok_or_else(|| of_another_kind(&program))?;
        Ok(Self { origin, folder })
    }

    /// The folder that has all versions and the link to the one in use.
    fn root(&self) -> Result<&Path, CliError> {
        let versions = self.folder.parent().filter(|folder| folder.ends_with(VERSIONS));
        let root = versions.and_then(Path::parent).filter(|root| root.join(CURRENT).is_symlink());
        root.ok_or_else(|| {
            let line = "this program was not put here by the installer; update it by what installed it (brew, a container's image)";
            CliError::new(Exit::Usage, line)
        })
    }

    /// Puts another version in this one's place. This one stays until the next update, as a running server still uses it.
    pub(super) fn replace(&self, archive: &ReleaseArchive, version: &Version, location: &Location) -> CliResult {
        let root = self.root()?;
        let versions = root.join(VERSIONS);
        let system = |path: &Path| {
            let shown = Outside::path(&path).to_string();
            move |error: io::Error| CliError::system(shown.clone(), &error)
        };
        let needed = archive.bytes.saturating_add(archive.unpacked_bytes);
        if let Some(free) = free_bytes(&versions).filter(|free| *free < needed) {
            let line = format!(
                "Pensieve {version} needs {} in '{}', and {} are free",
                units::bytes(needed),
                Outside::path(&versions),
                units::bytes(free)
            );
            return Err(CliError::new(Exit::Space, line));
        }
        let _alone = Alone::in_folder(&versions)?;
        // Whatever fails, the folder goes with what it holds.
        let work = tempfile::Builder::new().prefix(".new-").tempdir_in(&versions).map_err(system(&versions))?;
        let (file, fresh) = (work.path().join("archive"), work.path().join("unpacked"));
        location.fetch(archive, &file)?;
        fs::create_dir(&fresh).map_err(system(&fresh))?;
        unpack_release(&file, &fresh, archive.unpacked_bytes)?;
        answers(&fresh.join("bin/pensieve"), version, &archive.needs)?;
        let folder = versions.join(version.to_string());
        if folder.exists() {
            // Of an update that was interrupted, or of a version that was left for an older one.
            fs::remove_dir_all(&folder).map_err(system(&folder))?;
        }
        fs::rename(&fresh, &folder).map_err(system(&folder))?;
        let (link, current) = (work.path().join(CURRENT), root.join(CURRENT));
        symlink(Path::new(VERSIONS).join(version.to_string()), &link).map_err(system(&link))?;
        fs::rename(&link, &current).map_err(system(&current))?;
        self.remove_others(&versions, &folder);
        Ok(())
    }

    /// Removes all versions but this one and the new one. One that cannot be removed does no harm.
    fn remove_others(&self, versions: &Path, new: &Path) {
        for entry in fs::read_dir(versions).into_iter().flatten().flatten() {
            let path = entry.path();
            if path != new && path != self.folder && Version::parse(&entry.file_name().to_string_lossy()).is_ok() {
                let _ = fs::remove_dir_all(path);
            }
        }
    }
}

/// The installer's lock: a link to the number of the process that works in the folder of versions. One of a process that is gone
/// does not count.
struct Alone(PathBuf);

impl Alone {
    fn in_folder(versions: &Path) -> Result<Self, CliError> {
        let lock = versions.join(LOCK);
        let take = || symlink(process::id().to_string(), &lock);
        let taken = take().or_else(|error| match holder(&lock) {
            Some(pid) if test_kill_process(pid) == Err(Errno::SRCH) => fs::remove_file(&lock).and_then(|()| take()),
            _ => Err(error),
        });
        match taken {
            Ok(()) => Ok(Self(lock)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let (folder, lock) = (Outside::path(&versions), Outside::path(&lock));
                let line = format!(
                    "another installation is at work in '{folder}'; wait for it, or if there is none, remove '{lock}'"
                );
                Err(CliError::new(Exit::Taken, line))
            }
            Err(error) => Err(CliError::system(Outside::path(&lock), &error)),
        }
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn holder(lock: &Path) -> Option<Pid> {
    Pid::from_raw(fs::read_link(lock).ok()?.to_str()?.parse().ok()?)
}

fn of_another_kind(program: &Path) -> CliError {
    let program = Outside::path(&program);
    let line =
        format!("'{program}' was not installed from a release; update it as it was installed, or build it again");
    CliError::new(Exit::Usage, line)
}

/// Has a new version say which one it is.
fn answers(program: &Path, version: &Version, needs: &str) -> CliResult {
    let needs = if needs.is_empty() { String::new() } else { format!("; it needs {needs} or newer") };
    let refused = |why: String| {
        let line = format!("the new version does not run on this machine: {why}{needs}; this one stays");
        Err(CliError::new(Exit::Plugin, line))
    };
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return refused(error.to_string()),
    };
    let deadline = Instant::now() + ANSWER_TIME_MAX;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(20)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return refused("it does not answer".to_owned());
            }
        }
    };
    let mut said = String::new();
    if let Some(stdout) = child.stdout.take() {
        let _ = stdout.take(ANSWER_BYTES_MAX).read_to_string(&mut said);
    }
    if !status.success() {
        return refused(format!("it ends with {status}"));
    }
    if said.trim() == format!("pensieve {version}") {
        return Ok(());
    }
    let said = Outside::new(said.trim()).at_most(200).to_string();
    Err(CliError::new(Exit::Damaged, format!("the archive of {version} holds '{said}'; this version stays")))
}
