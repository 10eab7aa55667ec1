//! The memory of a process as its system counts it: on macOS the footprint, which has what the GPU uses of it.

#[cfg(target_os = "linux")]
pub(super) fn bytes(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    // Pages of files that are mapped are the cache's, as in a footprint.
    let kilobytes = line("RssAnon:")?.trim().strip_suffix("kB")?.trim();
    Some(kilobytes.parse::<u64>().ok()? << 10)
}

#[cfg(target_os = "macos")]
pub(super) fn bytes(pid: u32) -> Option<u64> {
    let pid = libc::c_int::try_from(pid).ok()?;
    let mut usage = std::mem::MaybeUninit::<libc::rusage_info_v2>::zeroed();
    // SAFETY: the buffer is that of the flavor which is asked for, and zero is a value of each of its numbers.
    let (failed, usage) = unsafe {
        let failed = libc::proc_pid_rusage(pid, libc::RUSAGE_INFO_V2, usage.as_mut_ptr().cast());
        (failed, usage.assume_init())
    };
    (failed == 0).then_some(usage.ri_phys_footprint)
}

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
pub(super) fn bytes(_pid: u32) -> Option<u64> {
    None
}
