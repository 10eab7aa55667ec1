//! The system under a report: what its own tools say of version, chip, memory and heat. No tool is asked for a name or a
//! serial number.

#[cfg(target_os = "macos")]
use serde_json::Map;
use serde_json::{Value, json};
#[cfg(target_os = "linux")]
use std::fs;
use std::process::Command;

/// Kernel variables that matter for speed and memory on a Mac.
#[cfg(target_os = "macos")]
const VARIABLES: [&str; 19] = [
    "kern.osproductversion",
    "kern.osversion",
    "kern.osrelease",
    "hw.model",
    "machdep.cpu.brand_string",
    "hw.memsize",
    "hw.pagesize",
    "hw.physicalcpu",
    "hw.perflevel0.physicalcpu",
    "hw.perflevel1.physicalcpu",
    "hw.perflevel0.l2cachesize",
    "iogpu.wired_limit_mb",
    "iogpu.wired_lwm_mb",
    "vm.swapusage",
    "vm.page_free_count",
    "vm.page_pageable_internal_count",
    "kern.memorystatus_vm_pressure_level",
    "kern.hv_vmm_present",
    "sysctl.proc_translated",
];

#[cfg(target_os = "macos")]
pub(super) fn facts() -> Value {
    let mut facts = Map::new();
    for name in VARIABLES {
        if let Some(value) = answer("/usr/sbin/sysctl", &["-n", name]) {
            facts.insert(name.into(), json!(value));
        }
    }
    let power = answer("/usr/bin/pmset", &["-g"]).unwrap_or_default();
    let low_power = power.lines().find_map(|line| line.trim().strip_prefix("lowpowermode"));
    json!({
        "system": "macOS",
        "variables": facts,
        "low_power_mode": low_power.map(str::trim),
        "thermal_state": thermal_state(),
        "power_source": answer("/usr/bin/pmset", &["-g", "ps"]).map(|text| text.contains("AC Power")).map(source),
        "thermal": answer("/usr/bin/pmset", &["-g", "therm"]),
    })
}

#[cfg(target_os = "macos")]
fn source(is_mains: bool) -> &'static str {
    if is_mains { "mains" } else { "battery" }
}

/// The pressure level that throttling follows: 0 nominal to 4 sleeping.
#[cfg(target_os = "macos")]
pub(super) fn thermal_state() -> Option<String> {
    let text = answer("/usr/bin/notifyutil", &["-g", "com.apple.system.thermalpressurelevel"])?;
    text.split_whitespace().last().map(str::to_owned)
}

#[cfg(target_os = "linux")]
pub(super) fn facts() -> Value {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let memory = read("/proc/meminfo");
    let bytes = |name: &str| {
        let line = memory.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim_start_matches(':').trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
    };
    let processor = read("/proc/cpuinfo");
    let chip =
        processor.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ").map(|(_, name)| name));
    json!({
        "system": "Linux",
        "release": read("/proc/sys/kernel/osrelease").trim(),
        "chip": chip,
        "threads": std::thread::available_parallelism().map_or(1, usize::from),
        "memory_bytes": bytes("MemTotal"),
        "free_bytes": bytes("MemAvailable"),
        "swap_bytes": bytes("SwapTotal"),
        "swap_free_bytes": bytes("SwapFree"),
        "thermal_state": thermal_state(),
    })
}

#[cfg(not(target_os = "macos"))]
pub(super) fn thermal_state() -> Option<String> {
    None
}

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
pub(super) fn facts() -> Value {
    json!({ "system": std::env::consts::OS })
}

/// The names of this machine, to be left out of reports.
pub(super) fn host_names() -> Vec<String> {
    let mut names: Vec<String> = std::env::var("HOSTNAME").into_iter().collect();
    #[cfg(target_os = "linux")]
    names.extend(fs::read_to_string("/proc/sys/kernel/hostname"));
    #[cfg(target_os = "macos")]
    for name in ["ComputerName", "LocalHostName", "HostName"] {
        names.extend(answer("/usr/sbin/scutil", &["--get", name]));
    }
    names.extend(answer("uname", &["-n"]));
    names.into_iter().map(|name| name.trim().to_owned()).collect()
}

/// Output of one of the system's programs, without its last line's end.
fn answer(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
