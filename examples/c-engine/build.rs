//! Compiles the engine into the plugin.

fn main() {
    println!("cargo::rerun-if-changed=src/engine.c");
    println!("cargo::rerun-if-changed=src/engine.h");
    cc::Build::new().file("src/engine.c").opt_level(2).compile("engine");
}
