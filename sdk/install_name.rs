//! The build script of every plugin: names the library for macOS, which would else write the path of its build into it.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=../../sdk/install_name.rs");
    if env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "macos") {
        let library = env::var("CARGO_PKG_NAME").unwrap_or_default().replace('-', "_");
        println!("cargo::rustc-cdylib-link-arg=-Wl,-install_name,@rpath/lib{library}.dylib");
    }
}
