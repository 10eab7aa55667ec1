//! The memory limit of children where the kernel enforces none: the server asks how much each takes, and ends it at the limit.
//!
//! macOS refuses `RLIMIT_DATA` and `RLIMIT_AS` below what a process has mapped, which is hundreds of gigabytes on Apple silicon, and
//! does not enforce the former. It counts for each process what only that one's end would free (`phys_footprint`): pages written
//! to, compressed ones too, but not those of mapped files, so that the policy's limit of private memory fits.

use std::{fmt, time::Duration};

/// A process can take some gigabytes more in this time.
const INTERVAL: Duration = Duration::from_millis(100);

/// A process over its limit, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverLimit {
    pub taken: u64,
    pub limit: u64,
}

/// The predicate of a sentence about the process.
impl fmt::Display for OverLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mebibytes = |bytes: u64| bytes >> 20;
        write!(f, "took {} MiB of memory, more than its limit of {} MiB", mebibytes(self.taken), mebibytes(self.limit))
    }
}

/// Resolves once the process is over the limit: never without a limit, or where the kernel enforces it.
pub(crate) async fn over_limit(pid: Option<u32>, limit: Option<u64>) -> OverLimit {
    match (pid, limit) {
        (Some(pid), Some(limit)) if cfg!(target_os = "macos") => watch(limit, INTERVAL, || footprint(pid)).await,
        _ => std::future::pending().await,
    }
}

/// Asks until there is an answer above the limit. A process that has ended gives none.
async fn watch(limit: u64, interval: Duration, ask: impl Fn() -> Option<u64>) -> OverLimit {
    loop {
        match ask() {
            Some(taken) if taken > limit => return OverLimit { taken, limit },
            _ => tokio::time::sleep(interval).await,
        }
    }
}

#[cfg(target_os = "macos")]
fn footprint(pid: u32) -> Option<u64> {
    let mut usage = std::mem::MaybeUninit::<libc::rusage_info_v0>::zeroed();
    let pid = libc::c_int::try_from(pid).ok()?;
    // SAFETY: the call fills the structure of the version that it is told, which has room for it.
    let asked = unsafe { libc::proc_pid_rusage(pid, libc::RUSAGE_INFO_V0, usage.as_mut_ptr().cast()) };
    // SAFETY: all of it was zero, which is a value of each of its fields, and the call may have filled it.
    (asked == 0).then(|| unsafe { usage.assume_init() }.ri_phys_footprint)
}

/// Linux enforces the limit itself; there this serves the tests.
#[cfg(not(target_os = "macos"))]
fn footprint(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use tokio::time::timeout;

    #[tokio::test]
    async fn a_process_is_watched_until_it_is_over_its_limit() {
        // The shell holds what it has read in its memory.
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "read start; text=$(head -c 40000000 /dev/zero | tr '\\0' x); read end"]);
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        let (pid, limit, interval) = (child.id(), 20 << 20, Duration::from_millis(5));
        let watched = watch(limit, interval, || footprint(pid));
        tokio::pin!(watched);
        assert!(timeout(Duration::from_millis(100), &mut watched).await.is_err(), "{:?} at rest", footprint(pid));
        std::io::Write::write_all(&mut input, b"\n").unwrap();
        let over = timeout(Duration::from_secs(30), watched).await.unwrap();
        assert!(over.taken > limit && over.limit == limit, "{over:?}");
        assert!(over.to_string().contains("more than its limit of 20 MiB"), "{over}");
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(footprint(pid), None, "it has ended");
    }
}
