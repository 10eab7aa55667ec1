//! Packages and indexes as a store takes them: real files and real signatures, and libraries that are plain bytes, as
//! nothing is mapped here.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod bundled;
mod publishing;
mod refusals;
mod trust;
mod world;

use jiff::SignedDuration;
use pensieve_packages::{
    Host, IndexChange, Installed, Lock, PackageErrorKind, Request, Sha256Hex, Store, Trust, Update, suggestions,
};
use pensieve_protocol::checkpoint::CheckpointName;
use std::{
    collections::BTreeMap,
    env, fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
};
use world::{HOURS, World, library, manifest};

#[test]
fn a_file_is_added_its_key_remembered_and_all_of_it_removed_again() {
    let world = World::new();
    let package = world.package(&manifest("granite", "1.0.0"));
    let added = world.store().add(&Request::File(package)).unwrap();
    assert!(added.is_new && added.before.is_none());
    assert_eq!(fs::read(&added.file).unwrap(), b"library of granite 1.0.0 for linux-x86_64 (cpu)");
    assert_eq!(added.file, world.home().join("plugins/libgranite.so"));
    let said = world.said();
    assert!(said[0].contains("first package of 'ada'") && said[0].contains(world.ada.public().as_str()), "{said:?}");
    let lock = Lock::read(&world.home()).unwrap();
    let targets: Vec<&str> = lock.plugins[0].libraries.iter().map(|library| library.target.as_str()).collect();
    assert_eq!(targets, ["linux-x86_64", "linux-x86_64", "macos-aarch64"]);
    assert_eq!(Trust::read(&world.home()).unwrap().publishers["ada"], world.ada.public());
    // The second package of a publisher is nothing to speak of.
    let other = world.package(&manifest("other", "0.1.0"));
    world.store().add(&Request::File(other)).unwrap();
    assert_eq!(world.said().len(), 1);
    world.store().remove("granite").unwrap();
    assert!(!added.file.exists());
    assert_eq!(Lock::read(&world.home()).unwrap().plugins.len(), 1);
    assert_eq!(world.store().remove("granite").unwrap_err().kind, PackageErrorKind::Absent);
}

#[test]
fn an_index_serves_names_versions_updates_and_searches() {
    let world = World::new();
    for version in ["1.0.0", "1.2.0", "1.10.0", "2.0.0-beta.1"] {
        world.publish(&manifest("granite", version));
    }
    let one = Request::parse("granite@1.0.0").unwrap();
    assert_eq!(world.store().add(&one).unwrap().locked.version.to_string(), "1.0.0");
    let outdated = world.store().outdated().unwrap();
    assert_eq!(outdated[0].newest.to_string(), "1.10.0", "who has a stable release is not moved to a pre-release");
    let updates = world.store().update(&[]).unwrap();
    let [Update::Updated(added)] = &updates[..] else { panic!("{updates:?}") };
    assert_eq!(added.before.as_ref().unwrap().to_string(), "1.0.0");
    assert_eq!(fs::read(&added.file).unwrap(), b"library of granite 1.10.0 for linux-x86_64 (cpu)");
    assert!(matches!(&world.store().update(&["granite".into()]).unwrap()[..], [Update::Newest(_)]));
    let found = |words: &[&str]| {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        world.store().search(&words).unwrap().len()
    };
    assert_eq!((found(&[]), found(&["GRANITEforCausalLM", "ada"]), found(&["granite", "phi"])), (1, 1, 0));
}

#[test]
fn a_hint_names_what_runs_here_and_is_not_revoked() {
    let world = World::new();
    let own = |id: &str, version: &str| {
        let mut manifest = manifest(id, version);
        manifest.artifacts[0].target = format!("{}-{}", env::consts::OS, env::consts::ARCH);
        let text = library(&manifest.plugin, &manifest.artifacts[0].target, "cpu");
        manifest.artifacts[0].sha256 = Sha256Hex::of(text.as_bytes());
        manifest.artifacts[0].bytes = text.len() as u64;
        manifest.artifacts.truncate(1);
        manifest
    };
    let hints = |class: &str| -> Vec<String> {
        let name = CheckpointName::Class(class.into());
        suggestions(&world.home(), &name, None).into_iter().map(|hint| hint.plugin).collect()
    };
    let mut foreign = own("phi", "1.0.0");
    foreign.artifacts[0].target = "plan9-mips".into();
    let text = library(&foreign.plugin, "plan9-mips", "cpu");
    (foreign.artifacts[0].sha256, foreign.artifacts[0].bytes) = (Sha256Hex::of(text.as_bytes()), text.len() as u64);
    let mut newer = own("mamba", "1.0.0");
    newer.minimum_host = "99.0.0".parse().unwrap();
    for manifest in [&own("granite", "1.0.0"), &foreign, &newer] {
        world.publish(manifest);
    }
    world.store().search(&[]).unwrap();
    assert_eq!(hints("GraniteForCausalLM"), ["granite"]);
    assert!(hints("PhiForCausalLM").is_empty() && hints("MambaForCausalLM").is_empty());
    world.revoke(&own("granite", "1.0.0").artifacts[0].sha256, "wrong");
    world.store().search(&[]).unwrap();
    assert!(hints("GraniteForCausalLM").is_empty());
}

#[test]
fn a_search_says_what_cannot_be_added() {
    let world = World::new();
    for version in ["1.0.0", "1.1.0"] {
        world.publish(&manifest("granite", version));
    }
    let mut other = manifest("other", "1.0.0");
    other.minimum_host = "99.0.0".parse().unwrap();
    world.publish(&other);
    let found = || -> Vec<(String, Option<String>)> {
        let found = world.store().search(&[]).unwrap();
        found.into_iter().map(|one| (one.release.package, one.unfit)).collect()
    };
    let is = |found: &(String, Option<String>), package: &str, unfit: Option<&str>| {
        let is_said =
            unfit.map_or(found.1.is_none(), |words| found.1.as_ref().is_some_and(|said| said.contains(words)));
        assert!(found.0 == format!("{package}.pensieve") && is_said, "{found:?}");
    };
    is(&found()[0], "granite-1.1.0", None);
    is(&found()[1], "other-1.0.0", Some("needs Pensieve 99.0.0"));
    let revoke = |version: &str| world.revoke(&manifest("granite", version).artifacts[0].sha256, "wrong results");
    revoke("1.1.0");
    is(&found()[0], "granite-1.0.0", None);
    revoke("1.0.0");
    is(&found()[0], "granite-1.1.0", Some("is revoked: wrong results"));
}

#[test]
fn a_lock_that_cannot_be_written_leaves_the_plugin_folder_as_it_was() {
    let world = World::new();
    let folder = || -> Vec<(String, Vec<u8>)> {
        let entries = fs::read_dir(world.home().join("plugins")).into_iter().flatten().map(Result::unwrap);
        entries.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect()
    };
    let (lock, kept) = (Lock::path(&world.home()), world.root().join("kept"));
    let package = |version: &str| Request::File(world.package(&manifest("granite", version)));
    let add_without_a_lock = |request: &Request| {
        let mut store = world.store();
        let was = lock.exists();
        if was {
            fs::rename(&lock, &kept).unwrap();
        }
        fs::create_dir_all(lock.join("in the way")).unwrap();
        let error = store.add(request).unwrap_err();
        assert!(error.to_string().contains("plugins.lock"), "{error}");
        fs::remove_dir_all(&lock).unwrap();
        if was {
            fs::rename(&kept, &lock).unwrap();
        }
    };
    add_without_a_lock(&package("1.0.0"));
    assert!(folder().is_empty(), "a new library stayed");
    assert!(Trust::read(&world.home()).unwrap().publishers.is_empty(), "its publisher is trusted");
    world.store().add(&package("1.0.0")).unwrap();
    let before = folder();
    add_without_a_lock(&package("1.1.0"));
    assert_eq!(folder(), before, "the old library was replaced");
    let left = fs::read_dir(world.home().join("cache")).unwrap().map(Result::unwrap);
    assert_eq!(left.filter(|entry| entry.path().is_file()).count(), 0, "a file is left in the cache");
    assert_eq!(world.store().add(&package("1.1.0")).unwrap().before.unwrap().to_string(), "1.0.0");
}

#[test]
fn a_name_is_no_file_even_if_one_lies_there() {
    // The folder that tests run in has a file of this name.
    assert!(std::path::Path::new("Cargo.toml").is_file());
    assert_eq!(Request::parse("Cargo.toml").unwrap_err().kind, PackageErrorKind::Usage);
    assert!(std::path::Path::new("src").exists());
    assert_eq!(Request::parse("src").unwrap(), Request::Named { name: "src".into(), version: None });
    for path in ["./src", "granite.pensieve", "/granite"] {
        assert_eq!(Request::parse(path).unwrap(), Request::File(path.into()));
    }
}

#[test]
fn a_machine_takes_its_own_library_and_the_variant_that_is_asked_for() {
    let world = World::new();
    let package = world.package(&manifest("granite", "1.0.0"));
    for (target, variants, asked, expected) in [
        ("linux-x86_64", &["cuda", "cpu"][..], None, "linux-x86_64 (cuda)"),
        ("linux-x86_64", &["cuda", "cpu"], Some("cpu"), "linux-x86_64 (cpu)"),
        ("macos-aarch64", &["metal", "cpu"], None, "macos-aarch64 (metal)"),
    ] {
        let host = Host { variant: asked.map(str::to_owned), ..world.host_of(target, variants) };
        let added = world.store_of(host).add(&Request::File(package.clone())).unwrap();
        let text = String::from_utf8(fs::read(&added.file).unwrap()).unwrap();
        assert!(text.ends_with(expected), "{text}");
    }
}

#[test]
fn a_pre_release_is_asked_for_or_follows_another_one_or_is_all_there_is() {
    let world = World::new();
    world.publish(&manifest("granite", "2.0.0-beta.1"));
    let granite = Request::parse("granite").unwrap();
    let add = |request: &Request| world.store().add(request).unwrap().locked.version.to_string();
    assert_eq!(add(&granite), "2.0.0-beta.1");
    world.publish(&manifest("granite", "2.0.0-beta.2"));
    world.publish(&manifest("granite", "1.9.0"));
    assert!(matches!(&world.store().update(&[]).unwrap()[..], [Update::Updated(_)]));
    assert_eq!(world.store().lock().find("granite").unwrap().version.to_string(), "2.0.0-beta.2");
    world.store().remove("granite").unwrap();
    assert_eq!(add(&granite), "1.9.0");
    assert_eq!(add(&Request::parse("granite@2.0.0-beta.1").unwrap()), "2.0.0-beta.1");
    world.publish(&manifest("granite", "2.0.0"));
    assert!(matches!(&world.store().update(&[]).unwrap()[..], [Update::Updated(_)]));
    assert_eq!(add(&granite), "2.0.0");
}

#[test]
fn an_update_keeps_the_variant_that_was_asked_for() {
    let world = World::new();
    world.publish(&manifest("granite", "1.0.0"));
    let host = || world.host_of("linux-x86_64", &["cuda", "cpu"]);
    let asked = |variant: &str, host: Host| Host { variant: Some(variant.to_owned()), ..host };
    let granite = Request::parse("granite").unwrap();
    world.store_of(asked("cpu", host())).add(&granite).unwrap();
    world.publish(&manifest("granite", "1.1.0"));
    let variant = |updates: Vec<Update>| match &updates[..] {
        [Update::Updated(added)] => added.locked.variant.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(variant(world.store_of(host()).update(&[]).unwrap()), "cpu");
    // One that this machine is not known to run, as where no card is there yet.
    world.store_of(asked("cuda", world.host())).add(&granite).unwrap();
    world.publish(&manifest("granite", "1.2.0"));
    assert_eq!(variant(world.store().update(&[]).unwrap()), "cuda");
    // What another machine's lock says counts only if it runs here.
    fs::remove_dir_all(world.home().join("plugins")).unwrap();
    assert_eq!(world.store().restore()[0].1.as_ref().unwrap().locked.variant, "cpu");
}

#[test]
fn without_a_network_lock_and_cache_are_enough() {
    let world = World::new();
    world.publish(&manifest("granite", "1.0.0"));
    let added = world.store().add(&Request::parse("granite").unwrap()).unwrap();
    fs::remove_file(&added.file).unwrap();
    fs::rename(world.index(), world.root().join("gone")).unwrap();
    let again = world.store().restore();
    assert!(again.len() == 1 && again[0].1.is_ok(), "{again:?}");
    assert!(added.file.exists() && world.store().restore().is_empty());
    // A library that was changed is put back, too.
    fs::write(&added.file, "changed").unwrap();
    assert_eq!(world.store().restore().len(), 1);
}

#[test]
fn without_its_server_an_index_is_as_it_was_last_seen_until_it_expires() {
    let world = World::new();
    world.publish(&manifest("granite", "1.0.0"));
    let location = "https://example.org/index";
    for entry in fs::read_dir(world.index()).unwrap().map(Result::unwrap) {
        let url = format!("{location}/{}", entry.file_name().display());
        world.web.borrow_mut().insert(url, fs::read(entry.path()).unwrap());
    }
    let store = || Store::open(world.host(), world.settings_of(&[location.as_ref()]), &world).unwrap();
    let granite = Request::parse("granite").unwrap();
    let added = store().add(&granite).unwrap();
    store().remove("granite").unwrap();
    world.web.borrow_mut().clear();
    assert_eq!(store().add(&granite).unwrap().locked, added.locked);
    assert!(world.said().last().unwrap().contains("the index is used as it was last seen"), "{:?}", world.said());
    *world.now.borrow_mut() += SignedDuration::from_hours(HOURS + 1);
    let error = store().add(&granite).unwrap_err();
    assert!(error.kind == PackageErrorKind::Untrusted && error.to_string().contains("expired at"), "{error}");
    // What is installed goes on, and comes back from the cache.
    fs::remove_file(&added.file).unwrap();
    assert!(store().restore()[0].1.is_ok());
}

#[test]
fn what_cannot_be_restored_does_not_keep_the_rest_from_it() {
    let world = World::new();
    for id in ["alpha", "beta", "gamma"] {
        world.publish(&manifest(id, "1.0.0"));
        world.store().add(&Request::parse(id).unwrap()).unwrap();
    }
    // A lock of another machine, with a plugin that has no library for this one.
    let lock = fs::read_to_string(Lock::path(&world.home())).unwrap();
    let mut value: serde_json::Value = serde_json::from_str(&lock).unwrap();
    let beta = &mut value["plugins"][1];
    assert_eq!(beta["name"], "beta");
    beta["sha256"] = "0".repeat(64).into();
    (beta["is_indexed"], beta["source"]) = (false.into(), "/nowhere/beta.pensieve".into());
    fs::write(Lock::path(&world.home()), value.to_string()).unwrap();
    fs::remove_dir_all(world.home().join("plugins")).unwrap();
    let restored: Vec<(String, bool)> =
        world.store().restore().into_iter().map(|(locked, added)| (locked.name, added.is_ok())).collect();
    assert_eq!(restored, [("alpha".to_owned(), true), ("beta".to_owned(), false), ("gamma".to_owned(), true)]);
}

#[test]
fn a_server_learns_which_libraries_are_locked_and_which_are_revoked() {
    let world = World::new();
    world.publish(&manifest("granite", "1.0.0"));
    let added = world.store().add(&Request::parse("granite").unwrap()).unwrap();
    let digest = |bytes: &[u8]| Sha256Hex::of(bytes);
    let (own, other) = (digest(&fs::read(&added.file).unwrap()), digest(b"other"));
    let installed = Installed::read(&world.home()).unwrap();
    let path = added.file.canonicalize().unwrap();
    assert_eq!(installed.differs(&path, own.as_str()), None);
    assert_eq!(installed.differs(&path, other.as_str()), Some("granite"));
    assert_eq!(installed.differs(&world.root().join("libgranite.so"), other.as_str()), None, "it is not the lock's");
    assert_eq!(installed.revoked(own.as_str()), None);
    world.revoke(&own, "wrong results");
    world.store().outdated().unwrap();
    assert_eq!(Installed::read(&world.home()).unwrap().revoked(own.as_str()), Some("wrong results"));
    // It stays revoked until its index takes that back.
    world.publish(&manifest("other", "1.1.0"));
    world.store().outdated().unwrap();
    assert_eq!(Installed::read(&world.home()).unwrap().revoked(own.as_str()), Some("wrong results"));
    world.change(&IndexChange { reinstated: std::slice::from_ref(&own), ..IndexChange::default() });
    world.store().outdated().unwrap();
    assert_eq!(Installed::read(&world.home()).unwrap().revoked(own.as_str()), None);
}

#[test]
fn an_index_can_be_served_by_others_and_what_this_machine_trusts_is_the_users() {
    let world = World::new();
    // Of a run that was interrupted while it copied.
    let package = world.index().join("granite-1.0.0.pensieve");
    fs::write(&package, "the first bytes").unwrap();
    world.publish(&manifest("granite", "1.0.0"));
    world.store().add(&Request::parse("granite").unwrap()).unwrap();
    let mode = |path: std::path::PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for name in ["index.json", "index.json.minisig", "index.pub", "granite-1.0.0.pensieve"] {
        assert_eq!(mode(world.index().join(name)), 0o644, "{name}");
    }
    assert_eq!(mode(Trust::path(&world.home())), 0o600);
    // A file that is whole stays, so that a folder can publish what lies in it.
    let before = fs::metadata(&package).unwrap().ino();
    world.change(&IndexChange { package: Some(&package), ..IndexChange::default() });
    assert_eq!(fs::metadata(&package).unwrap().ino(), before);
}

#[test]
fn an_index_that_changes_while_it_is_read_is_read_again() {
    let world = World::new();
    let location = "https://example.org/index";
    let put = |files: &mut BTreeMap<String, Vec<u8>>| {
        for entry in fs::read_dir(world.index()).unwrap().map(Result::unwrap) {
            let url = format!("{location}/{}", entry.file_name().display());
            files.insert(url, fs::read(entry.path()).unwrap());
        }
    };
    put(&mut world.stale.borrow_mut());
    world.stale.borrow_mut().retain(|url, _| url.ends_with("index.json"));
    world.publish(&manifest("granite", "1.0.0"));
    put(&mut world.web.borrow_mut());
    let settings = world.settings_of(&[location.as_ref()]);
    let mut store = Store::open(world.host(), settings, &world).unwrap();
    assert_eq!(store.search(&[]).unwrap().len(), 1);
    assert!(world.stale.borrow().is_empty());
}

#[test]
fn the_same_content_makes_the_same_package_but_for_its_signature() {
    let world = World::new();
    let sizes: Vec<u64> =
        (0..2).map(|_| fs::metadata(world.package(&manifest("granite", "1.0.0"))).unwrap().len()).collect();
    assert!(sizes[0].abs_diff(sizes[1]) < 100, "{sizes:?}");
}
