//! Kernels compiled as C++ and run without a Mac: see `emulation`.

use std::{
    cmp::Ordering,
    fmt::Write as _,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::{launch::Launch, libraries::Library};

/// Stand-ins for Apple's headers, and the program around the kernels.
pub(super) fn emulation() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/nn/backend/metal/emulation")
}

/// A library's kernels compiled as C++.
pub(super) struct Program {
    folder: tempfile::TempDir,
    /// Which of the mistakes in its source it makes (see `mistakes`); 0: none.
    pub(super) mistake: usize,
}

impl Program {
    pub(super) fn compile(library: &Library) -> Self {
        let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
        Self::compile_with(&compiler, &["-O2"], library.source, library.kernels)
    }

    pub(super) fn compile_with(compiler: &str, flags: &[&str], source: &str, kernels: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut list = String::new();
        for kernel in kernels {
            writeln!(list, "KERNEL({kernel})").unwrap();
        }
        std::fs::write(folder.path().join("kernels.metal"), source).unwrap();
        std::fs::write(folder.path().join("kernels.inc"), list).unwrap();
        let here = emulation();
        let output = Command::new(compiler)
            .args(["-std=c++20", "-w", "-fno-strict-aliasing"])
            .args(flags)
            .args(["-x", "c++", "-I"])
            .arg(&here)
            .arg("-I")
            .arg(folder.path())
            .arg(here.join("run.cpp"))
            .arg("-o")
            .arg(folder.path().join("run"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Self { folder, mistake: 0 }
    }

    /// Runs a kernel over its buffers, and answers what has become of them.
    pub(super) fn run(&self, launch: &Launch, buffers: &[Vec<u8>]) -> Result<Vec<Vec<u8>>, String> {
        let Launch { kernel, groups, threads, shared_bytes } = launch;
        let mut command = Command::new(self.folder.path().join("run"));
        command.arg(kernel).args(groups.iter().chain([threads, shared_bytes]).map(usize::to_string));
        command.env("MISTAKE", self.mistake.to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        for buffer in buffers {
            stdin.write_all(&(buffer.len() as u64).to_le_bytes()).unwrap();
            stdin.write_all(buffer).unwrap();
        }
        drop(stdin);
        let output = child.wait_with_output().unwrap();
        if !output.status.success() {
            return Err(format!("{kernel}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr)));
        }
        let (mut out, mut rest) = (Vec::new(), output.stdout.as_slice());
        while let Some((length, after)) = rest.split_first_chunk::<8>() {
            let (bytes, after) = after.split_at(u64::from_le_bytes(*length) as usize);
            out.push(bytes.to_vec());
            rest = after;
        }
        Ok(out)
    }
}

pub(super) fn bytes(values: &[f32]) -> Vec<u8> {
    bytemuck::cast_slice(values).to_vec()
}

pub(super) fn values(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

pub(super) fn of(tensor: &candle_core::Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// Says where values are not the formula's.
pub(super) fn close(ours: &[f32], formula: &[f32], most: f32, what: &str) -> Result<(), String> {
    if ours.len() != formula.len() {
        return Err(format!("{what}: {} values, not {}", ours.len(), formula.len()));
    }
    for (place, (ours, formula)) in ours.iter().zip(formula).enumerate() {
        // What is no number is not close to any.
        if !matches!((ours - formula).abs().partial_cmp(&most), Some(Ordering::Less | Ordering::Equal)) {
            return Err(format!("{what}: value {place} is {ours}, not {formula}"));
        }
    }
    Ok(())
}
