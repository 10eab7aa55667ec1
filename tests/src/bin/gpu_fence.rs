//! Tries the fence of a GPU worker with NVIDIA's driver: enters the fence, opens the driver, creates a context,
//! compiles a kernel from PTX, runs it and reads back the result, with several threads and large copies. With `--trace`
//! it also traces itself to print the system calls that failed, including those that the filter refuses.
//!
//! It needs only the driver, and links nothing of it.

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "gpu_fence/driver.rs"]
mod driver;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "gpu_fence/trace.rs"]
mod trace;

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn main() -> std::process::ExitCode {
    use pensieve_protocol::fence::{Kind, Policy, VARIABLE};
    use std::{process::Command, process::ExitCode};

    let words: Vec<String> = std::env::args().skip(1).collect();
    if std::env::var_os(VARIABLE).is_some() {
        if let Err(error) = pensieve_worker::fence::enter_from_environment(None) {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
        let fenced = pensieve_worker::fence::entered();
        fenced.holds.iter().for_each(|what| println!("holds: {what}"));
        fenced.missing.iter().for_each(|what| println!("missing: {what}"));
        fenced.notes.iter().for_each(|what| println!("note: {what}"));
    }
    if words.iter().any(|word| word == "--inside") {
        return match driver::compute() {
            Ok(said) => {
                println!("{said}");
                ExitCode::SUCCESS
            }
            Err(error) => {
                println!("FAILED: {error}");
                ExitCode::FAILURE
            }
        };
    }
    let mut failed = false;
    for fence in [false, true] {
        println!("== {}", if fence { "behind the fence" } else { "without a fence" });
        let Ok(own) = std::env::current_exe() else { return ExitCode::FAILURE };
        let mut child = Command::new(own);
        child.arg("--inside").env_remove(VARIABLE);
        if fence {
            let policy = Policy { kind: Kind::GpuWorker, files: 4096, ..Policy::default() };
            child.env(VARIABLE, policy.to_variable());
        }
        let is_traced = words.iter().any(|word| word == "--trace");
        let status = if is_traced { trace::run(&mut child) } else { child.status().map(|status| status.success()) };
        println!("== {status:?}");
        failed |= !matches!(status, Ok(true));
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn main() {}
