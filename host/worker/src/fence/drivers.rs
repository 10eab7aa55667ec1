//! Creates the device files that a GPU's driver would create as root at its first use, before the fence keeps it from starting programs.

use std::{
    path::Path,
    process::{Command, Stdio},
};

/// NVIDIA's setuid-root program, which loads kernel modules and creates device files.
const NVIDIA: &str = "/usr/bin/nvidia-modprobe";
/// Has an entry for each GPU of the loaded kernel module.
const NVIDIA_GPUS: &str = "/proc/driver/nvidia/gpus";
const NVIDIA_MEMORY: &str = "/dev/nvidia-uvm";

/// Creates the device files if they are missing, as after boot. A failure here fails again in the driver, which reports it.
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
