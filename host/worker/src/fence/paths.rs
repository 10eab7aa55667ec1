//! Landlock: which files the process may read and write, that it neither listens nor connects over TCP, and that it signals
//! no process outside. A process in a Landlock domain can trace none outside of it either, so that the server's memory and
//! environment are out of reach whatever user both run as.

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, RestrictionStatus, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus, Scope, path_beneath_rules,
};
use std::{
    fs::{DirBuilder, File},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use pensieve_protocol::fence::{Fenced, Policy};

/// Readable for every kind of child: libraries, their configuration, and information about the system. Not all of `/etc`, which
/// holds secrets that root can read.
const SYSTEM: [&str; 21] = [
    "/usr",
    "/lib",
    "/lib32",
    "/lib64",
    "/bin",
    "/opt",
    "/nix/store",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/alternatives",
    "/etc/localtime",
    "/proc/self",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/sys",
    "/proc/version",
    "/sys",
    "/dev/urandom",
    "/dev/random",
];
/// Variables that name further folders for the loader and drivers.
const SEARCHED: [&str; 3] = ["LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH"];
/// Further paths that a GPU's driver reads.
const DRIVERS: [&str; 6] =
    ["/proc/driver", "/proc/devices", "/proc/modules", "/proc/filesystems", "/etc/nvidia", "/etc/OpenCL"];
const OWN_THREADS: &str = "/proc/self/task";
/// Prefixes of the device files that GPU drivers open: NVIDIA's, AMD's, DRM's, WSL's.
const DEVICES: [&str; 4] = ["nvidia", "kfd", "dri", "dxg"];

/// The newest version of Landlock's ABI that is used; an older kernel enforces the rights that it knows.
const NEWEST: ABI = ABI::V6;

/// The writable folders. The driver's cache is created first, as a rule needs an existing folder.
pub(super) fn writable(policy: &Policy) -> Vec<PathBuf> {
    let mut folders = policy.write.clone();
    if policy.kind.has_drivers() && !policy.open {
        for folder in driver_cache() {
            // Without a cache the driver compiles its kernels anew.
            let _ = DirBuilder::new().recursive(true).mode(0o700).create(&folder);
            folders.push(folder);
        }
    }
    folders
}

/// Restricts this thread and the threads that it starts later, and records what is in force.
pub(super) fn restrict(policy: &Policy, writable: Vec<PathBuf>, fenced: &mut Fenced) {
    let holds = "reads its model and plugins, writes its own cache, no TCP, no signals to others (Landlock)";
    match enforce(policy, writable) {
        Ok(RestrictionStatus { ruleset: RulesetStatus::FullyEnforced, .. }) => fenced.holds.push(holds.into()),
        Ok(RestrictionStatus { ruleset: RulesetStatus::PartiallyEnforced, .. }) => {
            fenced.holds.push("reads its model and plugins, writes its own cache (Landlock)".into());
            fenced
                .notes
                .push("this kernel's Landlock knows no TCP or no signals: the filter alone refuses both".into());
        }
        Ok(_) => fenced.missing.push(format!("{holds}: this kernel has no Landlock, or has it turned off")),
        Err(error) => fenced.missing.push(format!("{holds}: {error}")),
    }
}

fn enforce(policy: &Policy, mut write: Vec<PathBuf>) -> Result<RestrictionStatus, RulesetError> {
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?
        .create()?;
    // A rule holds for an inode, and that of this folder stays the same while a file in it is open.
    std::mem::forget(File::open("/proc/self/status"));
    let mut read: Vec<PathBuf> = SYSTEM.iter().map(PathBuf::from).collect();
    read.extend(searched());
    read.extend(policy.read.iter().cloned());
    if policy.kind.has_drivers() {
        // Drivers name their threads, in files of this folder.
        std::mem::forget(File::open(OWN_THREADS));
        write.push(OWN_THREADS.into());
        read.extend(DRIVERS.iter().map(PathBuf::from));
        write.extend(devices());
    }
    let reads = AccessFs::ReadFile | AccessFs::ReadDir;
    let writes = AccessFs::from_all(NEWEST) & !AccessFs::Execute;
    ruleset
        .add_rules(path_beneath_rules(read, reads))?
        .add_rules(path_beneath_rules(write, writes))?
        .add_rules(path_beneath_rules(["/dev/null"], AccessFs::ReadFile | AccessFs::WriteFile))?
        .restrict_self()
}

fn searched() -> impl Iterator<Item = PathBuf> {
    let values = SEARCHED.iter().filter_map(std::env::var_os);
    values.flat_map(|value| std::env::split_paths(&value).collect::<Vec<_>>()).filter(|path| path.is_absolute())
}

fn devices() -> impl Iterator<Item = PathBuf> {
    let entries = Path::new("/dev").read_dir().into_iter().flatten().flatten();
    let is_one = |name: &str| DEVICES.iter().any(|start| name.starts_with(start));
    entries.filter(move |entry| entry.file_name().to_str().is_some_and(is_one)).map(|entry| entry.path())
}

fn driver_cache() -> impl Iterator<Item = PathBuf> {
    let named = std::env::var_os("CUDA_CACHE_PATH").map(PathBuf::from);
    let usual = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".nv"));
    named.into_iter().chain(usual)
}
