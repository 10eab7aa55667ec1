//! Plugins built by another compiler: both sides agree on the contract, not on the compiler.

use pensieve_worker::plugin::LoadedPlugin;
use std::path::Path;

use crate::{
    artifacts::{example, library, other_toolchain, outside, plugin, plugin_by_other_toolchain},
    checkpoints, conformance,
    driver::{Driver, Options},
    reference::Comparison,
};

#[test]
fn llama_of_another_toolchain_obeys_the_laws_and_reaches_the_reference() {
    let Some(other) = plugin_by_other_toolchain("pensieve-llama") else { return };
    conformance::check(&other, "llama/gqa/f32.gguf", "auto");
    Comparison::of(&other, "llama/gqa", "f32.gguf").check();
}

#[test]
fn a_plugin_of_another_toolchain_generates_the_same_tokens() {
    if other_toolchain().is_none() {
        return;
    }
    let other = library(&outside(&example("bigram"), "bigram"), "bigram");
    let own = plugin("bigram");
    let toolchain = |path: &Path| LoadedPlugin::open(path).unwrap().manifest().toolchain.clone();
    // Both builds are in this process now; each reports its own, so neither sees the other's symbols.
    assert_ne!(toolchain(&own), toolchain(&other), "the other toolchain is the same one");
    assert_ne!(toolchain(&other), toolchain(&own));

    let folder = checkpoints::bigram(61, 512);
    let generate = |path: &Path| {
        let mut driver = Driver::load(path, folder.path(), &Options::default()).unwrap();
        (driver.logits(&[3, 1, 4, 1, 5]).unwrap(), driver.generate(&[3, 1, 4, 1, 5], 64).unwrap())
    };
    assert_eq!(generate(&own), generate(&other));
}
