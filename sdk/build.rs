//! Records which compiler builds the SDK (it stands in a plugin's manifest, as the first thing to look at when one fails),
//! and compiles the CUDA kernels of `src/nn/backend/cuda/kernels` where the feature `cuda` asks for them.
//!
//! Each source becomes a fat binary: machine code for the compute capability that `CUDA_COMPUTE_CAP` names (80 without
//! it), and PTX, which the driver compiles for newer cards when a model loads.

use std::{
    env,
    error::Error,
    path::{Path, PathBuf},
    process::Command,
};

const SOURCES: [&str; 6] = ["elementwise", "products", "experts", "attention", "prompt", "recurrence"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-env=PENSIEVE_TOOLCHAIN={}", toolchain());
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return Ok(());
    }
    let (folder, out) = (Path::new("src/nn/backend/cuda/kernels"), PathBuf::from(env::var("OUT_DIR")?));
    for name in ["CUDA_COMPUTE_CAP", "CUDA_HOME", "CUDA_PATH", "NVCC"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    println!("cargo::rerun-if-changed={}", folder.display());
    let capability = env::var("CUDA_COMPUTE_CAP").unwrap_or_else(|_| "80".into());
    // Kernels wait for what they read from 9.0 on (common.cuh).
    let overlap = if capability.parse::<u32>().is_ok_and(|capability| capability >= 90) { "yes" } else { "no" };
    println!("cargo::rustc-env=PENSIEVE_CUDA_OVERLAP={overlap}");
    for name in SOURCES {
        let target = |code: &str| format!("arch=compute_{capability},code={code}_{capability}");
        let status = Command::new(nvcc())
            .args(["-fatbin", "-O3", "-std=c++17"])
            .args(["-gencode", &target("sm"), "-gencode", &target("compute")])
            .arg("-o")
            .arg(out.join(name).with_extension("fatbin"))
            .arg(folder.join(name).with_extension("cu"))
            .status();
        let status = status.map_err(|error| format!("cannot run nvcc ({error}): set CUDA_HOME, NVCC or PATH"))?;
        if !status.success() {
            return Err(format!("nvcc does not compile {name}.cu").into());
        }
    }
    Ok(())
}

fn toolchain() -> String {
    let rustc = env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let version = Command::new(rustc).arg("--version").output().ok();
    let version = version.and_then(|output| String::from_utf8(output.stdout).ok()).unwrap_or_default();
    let words: Vec<&str> = version.split_whitespace().take(2).collect();
    words.join(" ")
}

fn nvcc() -> PathBuf {
    if let Some(nvcc) = env::var_os("NVCC") {
        return nvcc.into();
    }
    let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(env::var_os);
    let mut found = homes.map(|home| Path::new(&home).join("bin/nvcc")).filter(|path| path.exists());
    found.next().unwrap_or_else(|| "nvcc".into())
}
