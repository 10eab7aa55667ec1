//! Keeps a Mac awake while it answers: an idle Mac goes to sleep after some minutes, even in the middle of a long
//! prompt. The system's `caffeinate` holds the assertion, so that neither this program nor its children link the
//! framework for it; it exits together with this process.

use std::{path::Path, process::Stdio, time::Duration};

use tokio::{
    process::{Child, Command},
    sync::watch,
    time::timeout,
};

const CAFFEINATE: &str = "/usr/bin/caffeinate";
/// Requests often follow each other; the assertion is held for this long in between.
const IDLE: Duration = Duration::from_secs(20);

/// A job that keeps the machine awake until dropped.
#[derive(Debug)]
pub(super) struct Busy(watch::Sender<usize>);

impl Busy {
    pub(super) fn begin(jobs: &watch::Sender<usize>) -> Self {
        jobs.send_modify(|jobs| *jobs += 1);
        Self(jobs.clone())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.send_modify(|jobs| *jobs = jobs.saturating_sub(1));
    }
}

/// Returns the counter of jobs. On macOS a task watches it and keeps the machine awake, until the counter is dropped.
pub(super) fn start() -> watch::Sender<usize> {
    let (jobs, counted) = watch::channel(0);
    if cfg!(target_os = "macos") {
        tokio::spawn(keep(counted, Path::new(CAFFEINATE), IDLE));
    }
    jobs
}

async fn keep(mut jobs: watch::Receiver<usize>, caffeinate: &Path, idle: Duration) {
    while jobs.wait_for(|jobs| *jobs > 0).await.is_ok() {
        let assertion = hold(caffeinate);
        while jobs.wait_for(|jobs| *jobs == 0).await.is_ok() {
            // There was no new job for a while, or the fleet has ended.
            if !matches!(timeout(idle, jobs.wait_for(|jobs| *jobs > 0)).await, Ok(Ok(_))) {
                break;
            }
        }
        drop(assertion);
    }
}

/// Starts a program that prevents idle sleep while this process lives; the display may sleep.
fn hold(caffeinate: &Path) -> Option<Child> {
    let mut command = Command::new(caffeinate);
    command.args(["-i", "-w", &std::process::id().to_string()]).env_clear().kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let started = command.spawn();
    started.inspect_err(|error| tracing::debug!("the machine may go to sleep while it answers: {error}")).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf, time::Instant};

    /// A program that records its arguments, and then waits to be killed.
    fn recorder(root: &Path) -> (PathBuf, PathBuf) {
        let (program, started) = (root.join("caffeinate"), root.join("started"));
        fs::write(&program, format!("#!/bin/sh\necho \"$$ $*\" >> '{}'\nexec sleep 1000\n", started.display()))
            .unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
        (program, started)
    }

    async fn until(what: &str, holds: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !holds() {
            assert!(Instant::now() < deadline, "not {what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn the_machine_is_awake_from_the_first_job_until_a_while_after_the_last() {
        let root = tempfile::tempdir().unwrap();
        let (program, started) = recorder(root.path());
        let lines =
            || -> Vec<String> { fs::read_to_string(&started).unwrap_or_default().lines().map(str::to_owned).collect() };
        let runs = |line: &str| {
            let pid = line.split(' ').next().and_then(|pid| pid.parse().ok()).and_then(rustix::process::Pid::from_raw);
            rustix::process::test_kill_process(pid.unwrap()).is_ok()
        };
        let (jobs, counted) = watch::channel(0);
        let task = tokio::spawn(async move { keep(counted, &program, Duration::from_millis(400)).await });
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(lines(), [""; 0], "nothing runs");
        let first = Busy::begin(&jobs);
        until("started", || lines().len() == 1).await;
        let line = lines().remove(0);
        assert!(line.ends_with(&format!(" -i -w {}", std::process::id())), "{line}");
        // A second job overlaps the first, and a third follows soon after both.
        drop((Busy::begin(&jobs), first));
        let third = Busy::begin(&jobs);
        tokio::time::sleep(Duration::from_millis(600)).await;
        assert!(lines().len() == 1 && runs(&line), "{:?}", lines());
        drop(third);
        until("ended", || !runs(&line)).await;
        let _fourth = Busy::begin(&jobs);
        until("started again", || lines().len() == 2).await;
        task.abort();
        until("ended with the fleet", || !runs(&lines()[1])).await;
    }
}
