//! Refused libraries and their messages: each fault has its own error, with help.

use object::Object;
use pensieve_plugin_api::{ErrorCode, abi_stable::library::ROOT_MODULE_LOADER_NAME};
use pensieve_worker::plugin::{LoadError, LoadedPlugin, Reason};
use std::{fs, os::unix::fs::symlink, path::Path};

use crate::artifacts::{library_name, plugin, test_plugin};

/// Opens a library that must be refused; the message names the file and ends with help.
fn refusal(path: &Path) -> LoadError {
    let error = LoadedPlugin::open(path).expect_err("a refusal");
    let text = error.to_string();
    let name = path.file_name().unwrap().to_str().unwrap();
    assert!(text.contains(name), "{text:?} does not name {name}");
    assert!(!error.help().is_empty() && text.ends_with(&error.help()), "{text:?} does not help");
    assert!(text.len() < 600 && !text.contains('\n'), "{text:?} is not one readable line");
    error
}

/// The reason for refusing a file with these bytes.
fn refusal_of(bytes: &[u8]) -> Reason {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(library_name("given"));
    fs::write(&path, bytes).unwrap();
    refusal(&path).reason
}

#[test]
fn opens_a_plugin_and_lists_what_it_provides() {
    let bigram = LoadedPlugin::open(&plugin("bigram")).unwrap();
    let manifest = bigram.manifest();
    assert_eq!((manifest.id.as_str(), manifest.version.as_str()), ("bigram", env!("CARGO_PKG_VERSION")));
    assert_eq!(manifest.architectures[0].architecture, "bigram");
    assert_eq!(manifest.architectures[0].classes, ["BigramForCausalLM"]);
    assert!(manifest.toolchain.starts_with("rustc 1."), "{}", manifest.toolchain);
    bigram.architecture("bigram").unwrap();
}

#[test]
fn names_what_a_plugin_has_when_asked_for_what_it_lacks() {
    let panics = LoadedPlugin::open(&test_plugin("panics")).unwrap();
    let error = panics.architecture("qwen9").err().unwrap();
    assert_eq!(error.code, ErrorCode::NOT_FOUND);
    assert_eq!(error.message, "plugin 'panics' has no architecture 'qwen9' (it has: panics)");
    let bigram = LoadedPlugin::open(&plugin("bigram")).unwrap();
    let error = bigram.sampler("top_k").err().unwrap();
    assert_eq!(error.message, "plugin 'bigram' has no sampler 'top_k' (it has: none)");
    assert_eq!(bigram.adapter_format("peft").err().unwrap().code, ErrorCode::NOT_FOUND);
}

#[test]
fn refuses_a_file_that_is_not_there() {
    let error = refusal(Path::new("/nowhere/libphi.so"));
    assert!(matches!(error.reason, Reason::NotFound));
    assert!(error.to_string().starts_with("plugin '/nowhere/libphi.so' was not found; "));
}

#[test]
fn refuses_what_is_not_a_library() {
    // A copy begins with an empty file.
    let empty = refusal_of(b"");
    assert!(matches!(empty, Reason::Truncated { .. }) && empty.to_string() == "is empty", "{empty}");
    assert!(matches!(refusal_of(b"#!/bin/sh\necho plugin\n"), Reason::NotALibrary(_)));
    assert!(matches!(refusal_of(&[0x5a; 5000]), Reason::NotALibrary(_)));
    assert!(matches!(refusal_of(b"!<arch>\n"), Reason::NotALibrary(_)));
    let folder = tempfile::tempdir().unwrap();
    assert!(matches!(refusal(folder.path()).reason, Reason::NotALibrary(_)));
}

#[test]
fn refuses_a_shared_library_that_is_no_plugin() {
    let error = refusal(&test_plugin("no_symbol"));
    assert!(matches!(error.reason, Reason::MissingSymbol));
    assert!(error.to_string().contains("is a shared library, but not a Pensieve plugin"));
}

#[test]
fn refuses_another_contract_major_before_it_compares_layouts() {
    let path = test_plugin("contract_two");
    let error = refusal(&path);
    let Reason::OtherContract(found) = &error.reason else { panic!("{error}") };
    assert_eq!(found, "2.0");
    let name = path.file_name().unwrap().to_str().unwrap();
    let expect = format!("plugin '{name}' speaks contract 2.0, this host speaks 1.0; rebuild it with sdk 1.x");
    assert_eq!(error.to_string(), expect);
}

#[test]
fn refuses_another_abi_stable() {
    let error = refusal(&test_plugin("other_abi"));
    let Reason::OtherAbi { found, host } = &error.reason else { panic!("{error}") };
    assert_eq!((found.as_str(), host.as_str()), ("0.99", "0.11"));
}

#[test]
fn refuses_a_contract_one_with_other_types() {
    let error = refusal(&test_plugin("other_layout"));
    let Reason::OtherLayout(difference) = &error.reason else { panic!("{error}") };
    assert!(difference.contains("greeting"), "{difference:?} does not name the type that differs");
}

#[test]
fn refuses_a_plugin_that_hides_its_types() {
    assert!(matches!(refusal(&test_plugin("no_layout")).reason, Reason::NoLayout));
}

#[test]
fn reports_the_message_of_a_panic_during_construction() {
    let error = refusal(&test_plugin("panics_at_start"));
    let Reason::Failed(why) = &error.reason else { panic!("{error}") };
    assert!(why.contains("plugin construction panicked: no plugin today"), "{why}");
}

#[test]
fn reports_the_message_of_a_panic_while_providers_are_listed() {
    let error = refusal(&test_plugin("panics_in_name"));
    let Reason::Failed(why) = &error.reason else { panic!("{error}") };
    assert!(why.contains("I have no name"), "{why}");
}

#[test]
fn refuses_an_id_that_is_unfit_for_paths() {
    let error = refusal(&test_plugin("bad_manifest"));
    let Reason::BadManifest(what) = &error.reason else { panic!("{error}") };
    assert!(what.contains("../../evil"), "{what}");
}

#[test]
fn opens_a_plugin_twice_and_after_a_refusal() {
    refusal(&test_plugin("contract_two"));
    let path = plugin("bigram");
    let (first, second) = (LoadedPlugin::open(&path).unwrap(), LoadedPlugin::open(&path).unwrap());
    drop(first);
    second.architecture("bigram").unwrap();
}

/// What two plugins share in one process can only be what they export, whatever they link.
#[test]
fn a_plugin_exports_its_header_alone() {
    // Two plugins that each bring a candle of their own must not see each other's.
    for package in ["bigram", "pensieve-llama", "pensieve-samplers"] {
        let bytes = fs::read(plugin(package)).unwrap();
        let file = object::File::parse(&bytes[..]).unwrap();
        let exports = file
            .exports()
            .unwrap()
            .map(|export| String::from_utf8(export.unwrap().name().name().unwrap().to_vec()).unwrap());
        // A Mac's linker puts an underscore before each name of C.
        let expected = if cfg!(target_os = "macos") { "_" } else { "" }.to_owned() + ROOT_MODULE_LOADER_NAME;
        assert_eq!(exports.collect::<Vec<_>>(), [expected], "{package}");
    }
}

#[test]
fn opens_a_plugin_by_a_bare_name_and_through_a_link() {
    let folder = tempfile::tempdir().unwrap();
    let library = library_name("bigram");
    let link = folder.path().join(&library);
    symlink(plugin("bigram"), &link).unwrap();
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_open_plugin"));
    let output = child.arg(&library).current_dir(folder.path()).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "bigram\n");
}

/// ELF only: a Mac's own libraries have a different header.
#[cfg(target_os = "linux")]
mod elf {
    use super::*;

    const MACHINE_AT: usize = 18;
    const TYPE_AT: usize = 16;
    const RISCV: u8 = 243;

    #[test]
    fn refuses_a_library_for_another_processor() {
        let mut bytes = fs::read(plugin("bigram")).unwrap();
        bytes[MACHINE_AT] = RISCV;
        let Reason::OtherPlatform { found, host } = refusal_of(&bytes) else { panic!("another reason") };
        assert_eq!(found, "Linux or another ELF system on riscv64");
        assert!(host.starts_with("Linux or another ELF system on "), "{host}");
    }

    #[test]
    fn refuses_a_library_for_another_system() {
        // The header of an arm64 dylib without load commands.
        let words: [u32; 8] = [0xfeed_facf, 0x0100_000c, 0, 6, 0, 0, 0, 0];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let Reason::OtherPlatform { found, .. } = refusal_of(&bytes) else { panic!("another reason") };
        assert_eq!(found, "macOS on aarch64");
        // A universal library with one part.
        let words: [u32; 7] = [0xcafe_babe, 1, 0x0100_000c, 0, 0x4000, 0x1000, 14];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        let Reason::OtherPlatform { found, .. } = refusal_of(&bytes) else { panic!("another reason") };
        assert_eq!(found, "macOS");
    }

    #[test]
    fn refuses_a_program_and_an_object_file() {
        let mut bytes = fs::read(plugin("bigram")).unwrap();
        for (kind, name) in [(1, "Relocatable"), (2, "Executable"), (4, "Core")] {
            bytes[TYPE_AT] = kind;
            let Reason::NotALibrary(what) = refusal_of(&bytes) else { panic!("another reason for {name}") };
            assert!(what.contains(name), "{what}");
        }
    }

    #[test]
    fn says_what_the_system_says_when_it_refuses() {
        // A sound library that needs one that does not exist: its first needed name is overwritten in place.
        let mut bytes = fs::read(plugin("bigram")).unwrap();
        let name = b"libgcc_s.so.1\0";
        let place = bytes.windows(name.len()).position(|window| window == name).expect("the name of a needed library");
        bytes[place..place + 3].copy_from_slice(b"xyz");
        let Reason::Refused(why) = refusal_of(&bytes) else { panic!("another reason") };
        assert!(why.contains("xyzgcc_s.so.1"), "{why}");
    }
}
