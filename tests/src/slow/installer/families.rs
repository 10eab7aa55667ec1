//! The program's own families out of the index that its release names: what the small archive leaves out, and a newer release of
//! what came with it, without a newer program.

use serde_json::Value;
use std::fs;

use super::{User, release, text, works};
use crate::reference::fixture;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A user with the small archive, whose program came with plugins of this version.
fn with_families_of(version: &str) -> User {
    let user = User::new();
    works(user.install(release::release(), &["--minimal"]));
    set_version(&user, version);
    user
}

/// As if the program had come with Llama's family in this version.
fn set_version(user: &User, version: &str) {
    let path = user.path(".local/share/pensieve/current/origin.json");
    let mut origin: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let families = origin["families"].as_array_mut().unwrap();
    let llama = families.iter_mut().find(|family| family["plugin"] == "llama").unwrap();
    llama["version"] = version.into();
    fs::write(&path, origin.to_string()).unwrap();
}

#[test]
fn a_family_that_the_small_archive_leaves_out_is_named_and_added_by_its_name() {
    release::index();
    let user = with_families_of(VERSION);
    let model = fixture("families/rwkv7").display().to_string();
    let pensieve = |arguments: &[&str]| user.pensieve(release::release(), arguments);
    let asked = pensieve(&["run", "--model", &model, "1 2 3"]);
    let said = text(&asked.stderr);
    assert_eq!(asked.status.code(), Some(9), "{said}");
    assert!(said.contains("the index 'pensieve' has one that does: pensieve plugins add rwkv"), "{said}");
    // The index has not been asked by then.
    assert!(!user.path(".pensieve/cache/indexes").exists());
    let found = works(pensieve(&["plugins", "search", "rwkv"]));
    assert!(found.starts_with("rwkv ") && found.contains("by 'pensieve' (pensieve)"), "{found}");
    assert!(found.contains("certified: rwkv7 on cpu, ") && found.contains("of the reference's range"), "{found}");
    let added = pensieve(&["plugins", "add", "rwkv"]);
    assert!(text(&added.stderr).is_empty(), "its key came with the program: {}", text(&added.stderr));
    assert!(works(added).starts_with(&format!("added rwkv {VERSION} (by 'pensieve', MIT OR Apache-2.0, ")));
    works(pensieve(&["run", "--model", &model, "--max-tokens", "2", "1 2 3"]));
}

#[test]
fn a_mended_family_reaches_users_without_a_new_program() {
    release::index();
    let user = with_families_of("0.0.9");
    let pensieve = |arguments: &[&str]| user.pensieve(release::release(), arguments);
    let said = works(pensieve(&["plugins", "outdated"]));
    assert_eq!(said, format!("llama 0.0.9 -> {VERSION}\n"));
    let own = user.path(".pensieve/plugins").join(crate::artifacts::library_name("pensieve_llama"));
    assert!(!own.exists());
    let said = works(pensieve(&["plugins", "update"]));
    assert!(said.starts_with(&format!("updated llama from 0.0.9 to {VERSION} (by 'pensieve', ")), "{said}");
    assert!(own.is_file());
    let list: Value = serde_json::from_str(&works(pensieve(&["plugins", "list", "--json"]))).unwrap();
    let of = |status: &str| {
        let llama = |one: &&Value| one["status"] == status && one["plugin"]["id"] == "llama";
        list.as_array().unwrap().iter().find(llama).unwrap_or_else(|| panic!("no llama is {status}: {list}"))
    };
    assert!(of("ready")["file"].as_str().unwrap().contains("/.pensieve/plugins/"), "{list}");
    assert_eq!(of("ready")["package"]["publisher"], "pensieve");
    assert!(of("shadowed")["file"].as_str().unwrap().contains("/lib/pensieve/"), "{list}");
    let answer = works(pensieve(&["run", "--model", "starter", "list all files"]));
    assert!(answer.contains("ls -la"), "{answer}");
    assert!(works(pensieve(&["plugins", "outdated"])).is_empty());
    let again = pensieve(&["plugins", "update", "llama"]);
    assert!(text(&again.stderr).contains(&format!("llama {VERSION} is the newest")), "{}", text(&again.stderr));

    // A program that brings a newer one has no use for it any more.
    set_version(&user, "99.0.0");
    let gone = pensieve(&["plugins", "update"]);
    let said = text(&gone.stderr);
    assert!(gone.status.success() && said.contains("is removed: the program itself brings llama 99.0.0"), "{said}");
    assert!(!own.exists());
    assert!(works(pensieve(&["plugins", "outdated"])).is_empty());
    let named = pensieve(&["plugins", "update", "samplers"]);
    assert!(named.status.success(), "{}", text(&named.stderr));
    let unknown = pensieve(&["plugins", "update", "frobnicate"]);
    assert_eq!(unknown.status.code(), Some(3), "{}", text(&unknown.stderr));
}
