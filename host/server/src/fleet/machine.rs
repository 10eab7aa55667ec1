//! The memory of the machine that the server runs on.

/// Assumed if the system does not report its memory.
const MACHINE_BYTES: u64 = 16 << 30;

/// Two thirds of the machine's memory: with 16 GB, enough for an 8 B model in four bits beside an editor and a browser.
pub fn default_budget() -> u64 {
    let machine = installed_bytes().unwrap_or(MACHINE_BYTES);
    machine / 3 * 2
}

/// Returns the machine's memory, if the system reports it.
#[cfg(target_os = "linux")]
pub fn installed_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

#[cfg(not(target_os = "linux"))]
pub fn installed_bytes() -> Option<u64> {
    let output = std::process::Command::new("/usr/sbin/sysctl").args(["-n", "hw.memsize"]).output().ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_budget() {
        assert!(default_budget() > 1 << 28);
    }
}
