//! A library for macOS loads every framework that some package of its build names, whether it calls it or not. Built together
//! with models, this plugin would load Metal at each inspection.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    if variable("CARGO_CFG_TARGET_OS") != "macos" {
        return;
    }
    // A compiler that links passes the option on; a linker that is called by itself takes it as it is.
    let calls_linker = variable("CARGO_ENCODED_RUSTFLAGS").contains("linker-flavor=ld64");
    let option = if calls_linker { "-dead_strip_dylibs" } else { "-Wl,-dead_strip_dylibs" };
    println!("cargo::rustc-link-arg-cdylib={option}");
}
