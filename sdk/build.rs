//! Records which compiler builds the SDK: it stands in a plugin's manifest, as the first thing to look at when one fails.

use std::{env, process::Command};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let rustc = env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let version = Command::new(rustc).arg("--version").output().ok();
    let version = version.and_then(|output| String::from_utf8(output.stdout).ok()).unwrap_or_default();
    let words: Vec<&str> = version.split_whitespace().take(2).collect();
    println!("cargo::rustc-env=PENSIEVE_TOOLCHAIN={}", words.join(" "));
}
