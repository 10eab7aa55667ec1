//! Builds the policy of each child before it is started; `pensieve_worker::fence` enters it there.
//!
//! A child reads the files that its question or its model is about, writes its own cache, and takes the memory that it is
//! known to need with a margin. No process outlives it: it can neither start one nor leave the group that is killed when it
//! ends. Where a GPU's driver works the fence is wider, as drivers open device files and reserve address space.

use std::{
    fs::DirBuilder,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use pensieve_protocol::{
    checkpoint_files::readable,
    fence::{Kind, Policy},
    job::Failure,
    prompt::STACK_BYTES,
    towers,
    wire::{Load, ModelSpec},
};

use super::machine::installed_bytes;

const GIB: u64 = 1 << 30;
/// Opening a library and reading its manifest takes a few megabytes.
const INSPECTION_BYTES: u64 = GIB;
const INSPECTION_ADDRESS_BYTES: u64 = 4 * GIB;
/// A card takes a tokenizer of some megabytes; a checkpoint may be mapped as a whole besides.
const DESCRIPTION_BYTES: u64 = 4 * GIB;
const DESCRIPTION_ADDRESS_BYTES: u64 = 16 * GIB;
/// Memory of a worker beyond twice that of its card.
const WORKER_MARGIN_BYTES: u64 = 4 * GIB;
/// How often a worker may map each file that it reads: when it is asked about its checkpoint, and when it loads it.
const WORKER_MAPS: u64 = 2;
/// Stacks of threads, the heaps that a C library reserves for them, and adapters that come later. The tables of so many
/// pages take 128 MiB.
const WORKER_MAPPED_BYTES: u64 = 64 * GIB;
/// A measurement loads a model several times over, and may use all of the machine's memory.
const MEASUREMENT_MAPS: u64 = 8;
const FILES_MAX: u64 = 4096;
/// Memory that a prompt process maps besides what it allocates: the program, its libraries, and stacks of threads.
const PROMPT_MAPPED_BYTES: u64 = 2 * GIB;
/// Standard streams, and a few files of time zones.
const PROMPT_FILES_MAX: u64 = 64;
/// Device files whose presence means that a driver may be at work.
const GPU_FILES: [&str; 3] = ["/dev/nvidiactl", "/dev/kfd", "/dev/dxg"];

/// For a child that opens a plugin and reads its manifest.
pub fn inspection(plugin: &Path) -> Policy {
    Policy {
        read: vec![absolute(plugin)],
        data_bytes: Some(INSPECTION_BYTES),
        address_bytes: Some(INSPECTION_ADDRESS_BYTES),
        files: FILES_MAX,
        ends_with_input: true,
        ..Policy::default()
    }
}

/// For a prompt process that may take this much memory, stacks aside. Everything it works on comes in questions.
pub fn prompt(memory_bytes: u64) -> Policy {
    Policy {
        kind: Kind::Prompt,
        // A kernel that counts only one of the two counts that one.
        data_bytes: Some(memory_bytes + 3 * STACK_BYTES as u64),
        address_bytes: Some(memory_bytes + PROMPT_MAPPED_BYTES),
        files: PROMPT_FILES_MAX,
        ..Policy::default()
    }
}

/// For a media process: it reads a plugin's library, and pictures come in questions. With `open`, the configuration trusts
/// its plugin.
pub(super) fn media(plugin: &Path, memory_bytes: u64, open: bool) -> Policy {
    Policy {
        kind: Kind::Look,
        read: vec![absolute(plugin)],
        data_bytes: Some(memory_bytes),
        address_bytes: Some(memory_bytes.saturating_add(INSPECTION_ADDRESS_BYTES)),
        files: PROMPT_FILES_MAX,
        open,
        ..Policy::default()
    }
}

/// For a child that looks at a checkpoint, by a plugin or without. Fails if a link in it leads elsewhere.
pub(super) fn description(plugin: Option<&Path>, source: &Path, options: &str) -> Result<Policy, Failure> {
    let mut read = readable(source)?;
    read.extend(tower(source, options));
    read.extend(plugin.map(absolute));
    let bytes = mapped_bytes(&read);
    Ok(Policy {
        read,
        data_bytes: Some(DESCRIPTION_BYTES),
        address_bytes: Some(DESCRIPTION_ADDRESS_BYTES.saturating_add(bytes)),
        files: FILES_MAX,
        ends_with_input: true,
        ..Policy::default()
    })
}

/// For a worker: `bytes` is what its card says, and adapters may come from `adapters` later. With `open`, the configuration
/// trusts its plugin. Fails if a link in the checkpoint leads elsewhere.
pub(super) fn worker(load: &Load, bytes: u64, adapters: Vec<PathBuf>, open: bool) -> Result<Policy, Failure> {
    let kind = kind(&load.spec.device, cfg!(target_os = "macos"));
    let plugins = [&load.architecture.plugin].into_iter().chain(&load.samplers).chain(&load.adapter_formats);
    let mut read: Vec<PathBuf> = plugins.map(|plugin| absolute(plugin)).chain(readable(&load.source)?).collect();
    read.extend(tower(&load.source, &load.spec.options));
    read.extend(load.merged.iter().filter_map(|adapter| readable(&adapter.path).ok()).flatten());
    read.extend(adapters);
    let limit = bytes.saturating_mul(2).saturating_add(WORKER_MARGIN_BYTES);
    let mapped = mapped_bytes(&read).saturating_mul(WORKER_MAPS).saturating_add(WORKER_MAPPED_BYTES);
    let is_limited = !kind.has_drivers() && !open;
    if let Some(tier) = &load.spec.disk {
        // Only a folder that is there can be let through. The worker says what is wrong with one that cannot be made.
        let _ = DirBuilder::new().recursive(true).mode(0o700).create(&tier.folder);
    }
    Ok(Policy {
        kind,
        read,
        write: load.spec.disk.iter().map(|tier| absolute(&tier.folder)).collect(),
        data_bytes: is_limited.then_some(limit),
        address_bytes: is_limited.then(|| limit.saturating_add(mapped)),
        files: FILES_MAX,
        ends_with_input: false,
        open,
    })
}

/// For a child that runs a model by itself and also reads `text`. It reports how much memory it takes, and a person waits for
/// it, so it may take all that this machine has.
pub(super) fn measurement(
    plugin: &Path,
    (source, spec): (&Path, &ModelSpec),
    text: &Path,
    open: bool,
) -> Result<Policy, Failure> {
    let (mut read, device) = (readable(source)?, spec.device.as_str());
    read.extend(tower(source, &spec.options));
    read.extend([absolute(plugin), absolute(text)]);
    let kind = kind(device, cfg!(target_os = "macos"));
    let mapped = mapped_bytes(&read).saturating_mul(MEASUREMENT_MAPS).saturating_add(WORKER_MAPPED_BYTES);
    let address_bytes = installed_bytes().map(|installed| installed.saturating_mul(2).saturating_add(mapped));
    Ok(Policy {
        kind,
        read,
        address_bytes: address_bytes.filter(|_| !kind.has_drivers() && !open),
        files: FILES_MAX,
        ends_with_input: true,
        open,
        ..Policy::default()
    })
}

/// The vision tower that the user names in a model's options, wherever it is.
fn tower(source: &Path, options: &str) -> Option<PathBuf> {
    towers::named(source, options).map(|path| path.canonicalize().unwrap_or(path))
}

/// True if a worker for this device may run a GPU driver.
fn kind(device: &str, on_macos: bool) -> Kind {
    let has_drivers = match device {
        "cpu" => false,
        _ if device.starts_with("cpu:") => false,
        "auto" => on_macos || GPU_FILES.iter().any(|path| Path::new(path).exists()),
        _ => true,
    };
    if has_drivers { Kind::GpuWorker } else { Kind::Worker }
}

fn mapped_bytes(paths: &[PathBuf]) -> u64 {
    paths.iter().fold(0, |sum, path| sum.saturating_add(file_bytes(path)))
}

pub(super) fn absolute(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_path_buf())
}

fn file_bytes(path: &Path) -> u64 {
    let Ok(metadata) = path.metadata() else { return 0 };
    if !metadata.is_dir() {
        return metadata.len();
    }
    let files = path.read_dir().into_iter().flatten().flatten().filter_map(|entry| entry.metadata().ok());
    files.filter(std::fs::Metadata::is_file).fold(0, |sum, file| sum.saturating_add(file.len()))
}

/// Keeps this process's memory and environment, in which keys stand, from its children, which run as the same user.
pub fn hide_from_children() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{DumpableBehavior, set_dumpable_behavior};
        if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
            tracing::warn!("children may read the memory of this process: {error}");
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use pensieve_protocol::wire::{ModelSpec, Provider};
    use std::{fs, os::unix::fs::symlink, time::Duration};

    #[test]
    fn address_space_grows_with_the_files_behind_links() {
        let root = tempfile::tempdir().unwrap();
        let repository = root.path().canonicalize().unwrap().join("models--o--r");
        fs::create_dir_all(repository.join("snapshots/main")).unwrap();
        fs::create_dir(repository.join("blobs")).unwrap();
        fs::write(repository.join("blobs/a"), "12345678").unwrap();
        fs::write(repository.join("snapshots/main/config.json"), "1234").unwrap();
        symlink("../../blobs/a", repository.join("snapshots/main/model.safetensors")).unwrap();
        let policy = description(None, &repository.join("snapshots/main"), "").unwrap();
        assert_eq!(policy.read, [repository.join("blobs/a"), repository.join("snapshots/main")]);
        // What a folder shows of a blob is counted twice, which does no harm.
        assert_eq!(policy.address_bytes, Some(DESCRIPTION_ADDRESS_BYTES + 8 + 4));
    }

    fn load(device: &str) -> Load {
        Load {
            architecture: Provider { plugin: "/p".into(), name: "a".into() },
            samplers: Vec::new(),
            adapter_formats: Vec::new(),
            merged: Vec::new(),
            adapter_deadline: Duration::ZERO,
            source: "/m".into(),
            spec: ModelSpec { device: device.into(), ..ModelSpec::default() },
        }
    }

    #[test]
    fn a_worker_on_the_cpu_is_limited_and_one_with_drivers_is_not() {
        let policy = worker(&load("cpu"), GIB, Vec::new(), false).unwrap();
        assert_eq!((policy.kind, policy.data_bytes), (Kind::Worker, Some(6 * GIB)));
        assert_eq!(policy.address_bytes, Some(6 * GIB + WORKER_MAPPED_BYTES));
        let policy = worker(&load("cuda:0"), GIB, Vec::new(), false).unwrap();
        assert_eq!((policy.kind, policy.data_bytes, policy.address_bytes), (Kind::GpuWorker, None, None));
        let policy = worker(&load("cpu"), GIB, Vec::new(), true).unwrap();
        assert_eq!((policy.open, policy.data_bytes, policy.address_bytes), (true, None, None));
    }

    #[test]
    fn on_a_mac_auto_may_take_metal() {
        assert_eq!(kind("auto", true), Kind::GpuWorker);
        assert_eq!((kind("metal:0", true), kind("cpu", true)), (Kind::GpuWorker, Kind::Worker));
    }

    #[test]
    fn a_worker_may_map_its_checkpoint_however_large_it_is() {
        let root = tempfile::tempdir().unwrap();
        let file = fs::File::create(root.path().join("model.safetensors")).unwrap();
        file.set_len(500 * GIB).unwrap();
        let load = Load { source: root.path().to_path_buf(), ..load("cpu") };
        let policy = worker(&load, 510 * GIB, Vec::new(), false).unwrap();
        assert_eq!(policy.address_bytes, Some((2 * 510 + 4 + 2 * 500) * GIB + WORKER_MAPPED_BYTES));
    }
}
