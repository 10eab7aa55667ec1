//! Enforces the memory limit of children if the kernel does not: the server polls each child's memory, and kills the
//! child at the limit.
//!
//! macOS rejects values of `RLIMIT_DATA` and `RLIMIT_AS` below the size of a process's mappings, which is hundreds of
//! gigabytes on Apple silicon, and does not enforce the former. It does report the memory of each process that its exit
//! would free (`phys_footprint`): written pages, including compressed ones, but not those of mapped files, which
//! matches the policy's limit on private memory.

use std::{fmt, time::Duration};

/// A process can grow by some gigabytes in this time.
const INTERVAL: Duration = Duration::from_millis(100);

/// A process over its limit, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverLimit {
    pub taken: u64,
    pub limit: u64,
}

/// A predicate about the process.
impl fmt::Display for OverLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mebibytes = |bytes: u64| bytes >> 20;
        write!(f, "took {} MiB of memory, more than its limit of {} MiB", mebibytes(self.taken), mebibytes(self.limit))
    }
}

/// Resolves once the process exceeds the limit; never without a limit, or if the kernel enforces it.
pub(crate) async fn over_limit(pid: Option<u32>, limit: Option<u64>) -> OverLimit {
    match (pid, limit) {
        (Some(pid), Some(limit)) if cfg!(target_os = "macos") => watch(limit, INTERVAL, || footprint(pid)).await,
        _ => std::future::pending().await,
    }
}

/// Polls until the answer exceeds the limit. A process that has exited gives no answer.
async fn watch(limit: u64, interval: Duration, ask: impl Fn() -> Option<u64>) -> OverLimit {
    loop {
        match ask() {
            Some(taken) if taken > limit => return OverLimit { taken, limit },
            _ => tokio::time::sleep(interval).await,
        }
    }
}

/// The system's figures of the process; none if there is no such process.
#[cfg(target_os = "macos")]
fn usage(pid: u32) -> Option<libc::rusage_info_v4> {
    let mut usage = std::mem::MaybeUninit::<libc::rusage_info_v4>::zeroed();
    let pid = libc::c_int::try_from(pid).ok()?;
    // SAFETY: the call fills the structure of the given version, which has room for it.
    let asked = unsafe { libc::proc_pid_rusage(pid, libc::RUSAGE_INFO_V4, usage.as_mut_ptr().cast()) };
    // SAFETY: the structure was zeroed, which is valid for all of its fields, and possibly filled by the call.
    (asked == 0).then(|| unsafe { usage.assume_init() })
}

/// Bytes that only the process's end would free; none if there is no such process.
#[cfg(target_os = "macos")]
pub fn footprint(pid: u32) -> Option<u64> {
    usage(pid).map(|usage| usage.ri_phys_footprint)
}

/// Linux enforces the limit itself; reports and tests ask for it there.
#[cfg(not(target_os = "macos"))]
pub fn footprint(pid: u32) -> Option<u64> {
    status(pid, "RssAnon:")
}

/// A field of the system's page about a process, in bytes.
#[cfg(not(target_os = "macos"))]
fn status(pid: u32, field: &str) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The most memory that the process has ever had, with the pages of mapped files that it used.
#[cfg(not(target_os = "macos"))]
pub(super) fn peak(pid: u32) -> Option<u64> {
    status(pid, "VmHWM:")
}

#[cfg(target_os = "macos")]
pub(super) fn peak(pid: u32) -> Option<u64> {
    // The footprint has compressed pages and the GPU's, but none of files; those are among the resident ones, of which the
    // system keeps no maximum.
    usage(pid).map(|usage| usage.ri_lifetime_max_phys_footprint.max(usage.ri_resident_size))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use tokio::time::timeout;

    #[tokio::test]
    async fn a_process_is_watched_until_it_is_over_its_limit() {
        // The shell keeps the text that it has read in memory.
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

    #[test]
    fn the_peak_stays_when_memory_is_freed() {
        let text = "text=$(head -c 40000000 /dev/zero | tr '\\0' x); text=; echo freed; read end";
        let mut child = Command::new("/bin/sh");
        let mut child = child.args(["-c", text]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut said).unwrap();
        let (now, peak) = (footprint(child.id()).unwrap(), peak(child.id()).unwrap());
        assert!(said == "freed\n" && now < 20 << 20 && peak > 38 << 20, "{said}: {now} of {peak}");
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
