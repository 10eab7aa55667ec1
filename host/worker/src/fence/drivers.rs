//! Creates the device files that a GPU's driver would create as root at its first use, before the fence keeps it from starting programs.

use std::{
    path::Path,
    process::{Command, Stdio},
};

/// NVIDIA's own program, which belongs to root and sets its user: it loads modules and makes device files.
const NVIDIA: &str = "/usr/bin/nvidia-modprobe";
/// Where the driver's module tells of each of its GPUs.
const NVIDIA_GPUS: &str = "/proc/driver/nvidia/gpus";
const NVIDIA_MEMORY: &str = "/dev/nvidia-uvm";

/// Makes the device files that are missing since the machine has started. What fails here fails in the driver, too, which says so.
pub(super) fn prepare() {
    let Ok(gpus) = Path::new(NVIDIA_GPUS).read_dir() else { return };
    if Path::new(NVIDIA_MEMORY).exists() {
        return;
    }
    let numbers = (0..gpus.count()).map(|number| format!("-c={number}"));
    let mut program = Command::new(NVIDIA);
    program.args(numbers).arg("-u").env_clear();
    let _ = program.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
}
