//! Records which compiler builds the SDK (it stands in a plugin's manifest, as the first thing to look at when one fails),
//! and compiles the CUDA kernels of `src/nn/backend/cuda/kernels` where the feature `cuda` asks for them.
//!
//! Each source becomes a fat binary: machine code for each compute capability in `PENSIEVE_CUDA_CAPABILITIES`, such as
//! `80,90`, or for the one that `CUDA_COMPUTE_CAP` names (80 without it), and PTX of the last one, which the driver
//! compiles for newer cards when a model loads.

use std::{
    env,
    error::Error,
    path::{Path, PathBuf},
    process::Command,
};

const SOURCES: [&str; 7] = ["elementwise", "products", "experts", "attention", "prompt", "texts", "recurrence"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-env=PENSIEVE_TOOLCHAIN={}", toolchain());
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return Ok(());
    }
    let (folder, out) = (Path::new("src/nn/backend/cuda/kernels"), PathBuf::from(env::var("OUT_DIR")?));
    for name in ["PENSIEVE_CUDA_CAPABILITIES", "CUDA_COMPUTE_CAP", "CUDA_HOME", "CUDA_PATH", "NVCC"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    println!("cargo::rerun-if-changed={}", folder.display());
    let set = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
    let listed = set("PENSIEVE_CUDA_CAPABILITIES").or_else(|| set("CUDA_COMPUTE_CAP")).unwrap_or_else(|| "80".into());
    let capabilities: Vec<&str> = listed.split(',').map(str::trim).collect();
    // Kernels wait for what they read from 9.0 on (common.cuh), so the launches have to know.
    println!("cargo::rustc-env=PENSIEVE_CUDA_COMPILED={}", capabilities.join(","));
    let target = |capability: &str, code: &str| format!("arch=compute_{capability},code={code}_{capability}");
    let mut targets: Vec<String> = capabilities.iter().map(|capability| target(capability, "sm")).collect();
    targets.extend(capabilities.last().map(|newest| target(newest, "compute")));
    for name in SOURCES {
        let mut nvcc = Command::new(nvcc());
        nvcc.args(["-fatbin", "-O3", "-std=c++17"]);
        nvcc.args(targets.iter().flat_map(|target| ["-gencode", target]));
        if capabilities.len() > 1 {
            // Every plugin has them, and it is a fifth. Drivers read it from 550.54 on.
            nvcc.arg("--compress-mode=size");
        }
        nvcc.arg("-o").arg(out.join(name).with_extension("fatbin")).arg(folder.join(name).with_extension("cu"));
        let status =
            nvcc.status().map_err(|error| format!("cannot run nvcc ({error}): set CUDA_HOME, NVCC or PATH"))?;
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
