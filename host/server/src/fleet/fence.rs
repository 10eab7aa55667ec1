//! Writes down what each child may do, before it is started; `pensieve_worker::fence` enters it there.
//!
//! A child reads the files that its question or its model is about, writes its own cache, and takes the memory that it is
//! known to need with a margin. No process outlives it: it can neither start one nor leave the group that is killed when it
//! ends. Where a GPU's driver works the fence is wider, as drivers start programs and reserve address space.

use std::{
    fs::DirBuilder,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use pensieve_protocol::{checkpoint_files::readable, fence::Policy, job::Failure, prompt::STACK_BYTES, wire::Load};

const GIB: u64 = 1 << 30;
/// Opening a library and reading its manifest takes a few megabytes.
const INSPECTION_BYTES: u64 = GIB;
const INSPECTION_ADDRESS_BYTES: u64 = 4 * GIB;
/// A card takes a tokenizer of some megabytes; a checkpoint may be mapped as a whole besides.
const DESCRIPTION_BYTES: u64 = 4 * GIB;
const DESCRIPTION_ADDRESS_BYTES: u64 = 16 * GIB;
/// What a worker may take beyond twice what its card says.
const WORKER_MARGIN_BYTES: u64 = 4 * GIB;
const FILES_MAX: u64 = 4096;
/// What a prompt process maps besides what it allocates: the program, its libraries, and stacks of threads.
const PROMPT_MAPPED_BYTES: u64 = 2 * GIB;
/// Its standard streams, and a few for time zones.
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
        // A kernel that counts only one of the two counts that one.
        data_bytes: Some(memory_bytes + 3 * STACK_BYTES as u64),
        address_bytes: Some(memory_bytes + PROMPT_MAPPED_BYTES),
        files: PROMPT_FILES_MAX,
        ..Policy::default()
    }
}

/// For a child that looks at a checkpoint, by a plugin or without. Fails if a link in it leads elsewhere.
pub(super) fn description(plugin: Option<&Path>, source: &Path) -> Result<Policy, Failure> {
    let mut read = readable(source)?;
    read.extend(plugin.map(absolute));
    let bytes = read.iter().fold(0_u64, |sum, path| sum.saturating_add(file_bytes(path)));
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
    let drivers = needs_drivers(&load.spec.device);
    let plugins = [&load.architecture.plugin].into_iter().chain(&load.samplers).chain(&load.adapter_formats);
    let mut read: Vec<PathBuf> = plugins.map(|plugin| absolute(plugin)).chain(readable(&load.source)?).collect();
    read.extend(load.merged.iter().filter_map(|adapter| readable(&adapter.path).ok()).flatten());
    read.extend(adapters);
    let limit = bytes.saturating_mul(2).saturating_add(WORKER_MARGIN_BYTES);
    if let Some(tier) = &load.spec.disk {
        // Only a folder that is there can be let through. The worker says what is wrong with one that cannot be made.
        let _ = DirBuilder::new().recursive(true).mode(0o700).create(&tier.folder);
    }
    Ok(Policy {
        read,
        write: load.spec.disk.iter().map(|tier| absolute(&tier.folder)).collect(),
        data_bytes: Some(limit).filter(|_| !drivers && !open),
        address_bytes: None,
        files: FILES_MAX,
        drivers,
        ends_with_input: false,
        open,
    })
}

/// For a child that computes with a model on its own and reads `text` besides. It says how much memory that takes, and a person
/// waits for it.
pub(super) fn measurement(
    plugin: &Path,
    source: &Path,
    text: &Path,
    device: &str,
    open: bool,
) -> Result<Policy, Failure> {
    let mut read = readable(source)?;
    read.extend([absolute(plugin), absolute(text)]);
    let drivers = needs_drivers(device);
    Ok(Policy { read, files: FILES_MAX, drivers, ends_with_input: true, open, ..Policy::default() })
}

/// Whether a GPU's driver may be at work in a worker for this device.
fn needs_drivers(device: &str) -> bool {
    match device {
        "cpu" => false,
        _ if device.starts_with("cpu:") => false,
        "auto" => GPU_FILES.iter().any(|path| Path::new(path).exists()),
        _ => true,
    }
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
        let policy = description(None, &repository.join("snapshots/main")).unwrap();
        assert_eq!(policy.read, [repository.join("blobs/a"), repository.join("snapshots/main")]);
        // What a folder shows of a blob is counted twice, which does no harm.
        assert_eq!(policy.address_bytes, Some(DESCRIPTION_ADDRESS_BYTES + 8 + 4));
    }

    #[test]
    fn a_worker_on_the_cpu_is_limited_and_one_with_drivers_is_not() {
        let load = |device: &str| Load {
            architecture: Provider { plugin: "/p".into(), name: "a".into() },
            samplers: Vec::new(),
            adapter_formats: Vec::new(),
            merged: Vec::new(),
            adapter_deadline: Duration::ZERO,
            source: "/m".into(),
            spec: ModelSpec { device: device.into(), ..ModelSpec::default() },
        };
        let policy = worker(&load("cpu"), GIB, Vec::new(), false).unwrap();
        assert_eq!((policy.data_bytes, policy.drivers), (Some(6 * GIB), false));
        let policy = worker(&load("cuda:0"), GIB, Vec::new(), false).unwrap();
        assert_eq!((policy.data_bytes, policy.drivers, policy.open), (None, true, false));
        let policy = worker(&load("cpu"), GIB, Vec::new(), true).unwrap();
        assert_eq!((policy.data_bytes, policy.open), (None, true));
    }
}
